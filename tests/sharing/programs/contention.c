// Scenarios in which all threads write the same memory: much of it, a few counters, a lock, or fields of one line.
#include "family.h"

// All write to one histogram of 1 MiB.
static void histo_work(struct worker *w) {
    uint64_t *bins = w->shared, *own = w->own, sum = 0;
    size_t mask = w->shared_words - 1, own_mask = w->own_words - 1;
    uint32_t random = w->random;
    for (int i = 0; i < 2048; i++) {
        uint32_t r = next_random(&random);
        __atomic_fetch_add(&bins[(r >> 3) & mask], 1, __ATOMIC_RELAXED);
        if (r & 1)
            sum += own[(r >> 3) & own_mask];
    }
    w->random = random;
    w->sum += sum;
}

static void make_histo(int threads) {
    uint64_t *bins = map_buffer(1 << 20, 0);
    for (int i = 0; i < threads; i++)
        add(0, histo_work, bins, (1 << 20) / 8, 256);
}

// ---- Counters, each in a line of its own ----

static uint64_t counters[8][8] __attribute__((aligned(64)));

static void count_one(struct worker *w) {
    __atomic_fetch_add(&counters[(draw(w) >> 8) & 7][0], 1, __ATOMIC_RELAXED);
}

static void counters_work(struct worker *w) {
    for (int i = 0; i < 8; i++) {
        count_one(w);
        own_work(w, 512);
    }
}

// Incremented at times: nobody is worth keeping together for that.
static void make_counters(int threads) {
    for (int i = 0; i < threads; i++)
        add(ALONE, counters_work, NULL, 0, 512);
}

static void contended_work(struct worker *w) {
    for (int i = 0; i < 512; i++) {
        count_one(w);
        own_work(w, 2);
    }
}

// Incremented all the time: nothing else of theirs can miss as often.
static void make_contended(int threads) {
    for (int i = 0; i < threads; i++)
        add(0, contended_work, NULL, 0, 32);
}

// ---- False sharing ----

static uint64_t fields[2][8] __attribute__((aligned(64)));

static void field_work(struct worker *w) {
    volatile uint64_t *field = w->shared;
    size_t lines = w->shared_words;
    for (int i = 0; i < 512; i++) {
        for (size_t line = 0; line < lines; line++)
            field[line * 8]++;
        own_work(w, 2);
    }
}

// Each thread has a field of its own, in one line or in both; with more than eight threads fields are shared.
static void make_falseshare(int threads) {
    say_buffer("0", fields, 64);
    for (int i = 0; i < threads; i++)
        add(0, field_work, &fields[0][i % 8], 1, 32);
}

static void make_falseshare2(int threads) {
    say_buffer("0", fields, 128);
    for (int i = 0; i < threads; i++)
        add(0, field_work, &fields[0][i % 8], 2, 32);
}

// ---- A lock that all take ----

static struct {
    pthread_mutex_t mutex;
    uint64_t value;
} guarded __attribute__((aligned(64))) = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void take_lock(struct worker *w) {
    pthread_mutex_lock(&guarded.mutex);
    guarded.value += w->random;
    pthread_mutex_unlock(&guarded.mutex);
}

static void rare_lock_work(struct worker *w) {
    take_lock(w);
    own_work(w, 8192);
}

static void make_rarelock(int threads) {
    for (int i = 0; i < threads; i++)
        add(ALONE, rare_lock_work, NULL, 0, 512);
}

static void lock_group_work(struct worker *w) {
    uint64_t *shared = w->shared, sum = 0;
    size_t mask = w->shared_words - 1;
    for (int i = 0; i < 32; i++) {
        take_lock(w);
        uint32_t random = w->random;
        for (int j = 0; j < 32; j++) {
            uint32_t r = next_random(&random);
            if ((r & 3) == 0)
                shared[(r >> 3) & mask] = r;
            else
                sum += shared[(r >> 3) & mask];
        }
        w->random = random;
        own_work(w, 16);
    }
    w->sum += sum;
}

// Pairs over 256 KiB each; the lock is all that the pairs have in common.
static void make_locked(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        uint64_t *buffer = map_buffer(256 << 10, 0);
        for (int i = 0; i < 2; i++)
            add(g, lock_group_work, buffer, (256 << 10) / 8, 128);
    }
}

const struct scenario contention_scenarios[] = {
    {"histo", 6, make_histo},
    {"counters", 6, make_counters},
    {"contended", 6, make_contended},
    {"falseshare", 6, make_falseshare},
    {"falseshare2", 6, make_falseshare2},
    {"rarelock", 6, make_rarelock},
    {"locked", 6, make_locked},
    {NULL, 0, NULL},
};
