// Scenarios in which one thread writes what others read, data goes through stages, or a few lines are all that is shared.
#include "family.h"

// ---- A sequence lock: one writer, several readers ----

struct sequence {
    atomic_uint version;
    uint64_t values[15];
} __attribute__((aligned(128)));

static void write_sequence(struct sequence *s, uint64_t value) {
    unsigned version = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < 15; i++)
        *(volatile uint64_t *)&s->values[i] = value + (uint64_t)i;
    atomic_store_explicit(&s->version, version + 2, memory_order_release);
}

static uint64_t read_sequence(struct sequence *s) {
    for (;;) {
        unsigned before = atomic_load_explicit(&s->version, memory_order_acquire);
        uint64_t sum = 0;
        for (int i = 0; i < 15; i++)
            sum += *(volatile uint64_t *)&s->values[i];
        atomic_thread_fence(memory_order_acquire);
        if (!(before & 1) && before == atomic_load_explicit(&s->version, memory_order_relaxed))
            return sum;
        if (stopped())
            return sum;
    }
}

static void sequence_work(struct worker *w) {
    for (int i = 0; i < 32; i++) {
        if (w->seat == 0) {
            write_sequence(w->shared, w->random);
            own_work(w, 96);
        } else {
            for (int j = 0; j < 4; j++)
                w->sum += read_sequence(w->shared);
            own_work(w, 64);
        }
    }
}

// Groups of one writer and three readers; the writer does mostly other work.
static void make_seqlock(int threads) {
    for (int g = 0; g < threads / 4; g++) {
        struct sequence *s = map_buffer(4096, 0);
        for (int i = 0; i < 4; i++)
            add(g, sequence_work, s, 0, 64);
    }
}

// ---- A read-write lock that one thread takes seldom ----

struct guarded {
    pthread_rwlock_t lock;
    uint64_t words[512] __attribute__((aligned(64)));
};

static void guarded_work(struct worker *w) {
    struct guarded *g = w->shared;
    for (int i = 0; i < 16; i++) {
        uint32_t r = draw(w);
        if ((r & 15) == 0) {
            pthread_rwlock_wrlock(&g->lock);
            for (int j = 0; j < 16; j++)
                g->words[((r >> 4) + (uint32_t)j * 8) & 511] = r;
        } else {
            pthread_rwlock_rdlock(&g->lock);
            for (int j = 0; j < 16; j++)
                w->sum += g->words[((r >> 4) + (uint32_t)j * 8) & 511];
        }
        pthread_rwlock_unlock(&g->lock);
        // The last thread of the group makes a twentieth of its accesses there.
        own_work(w, w->seat == 3 ? 480 : 32);
    }
}

static void make_rwlock(int threads) {
    for (int g = 0; g < threads / 4; g++) {
        struct guarded *guarded = map_buffer(sizeof *guarded, 0);
        pthread_rwlock_init(&guarded->lock, NULL);
        for (int i = 0; i < 4; i++)
            add(g, guarded_work, guarded, 0, 64);
    }
}

// ---- One line with a field of each thread ----

static uint64_t line_of_all[8] __attribute__((aligned(64)));

static void line_work(struct worker *w, int others) {
    volatile uint64_t *field = w->shared;
    for (int i = 0; i < 2048 / (others + 1); i++) {
        (*field)++;
        own_work(w, others);
    }
}
static void half_work(struct worker *w) { line_work(w, 2); }
static void tenth_work(struct worker *w) { line_work(w, 18); }
static void fiftieth_work(struct worker *w) { line_work(w, 98); }

static void line_group(int threads, void (*work)(struct worker *)) {
    for (int i = 0; i < threads; i++)
        add(0, work, &line_of_all[i % 8], 0, 64);
}
static void make_half(int threads) { line_group(threads, half_work); }
static void make_tenth(int threads) { line_group(threads, tenth_work); }
static void make_fiftieth(int threads) { line_group(threads, fiftieth_work); }

// ---- Stages ----

#define QUEUE 1024
struct queue {
    _Alignas(64) atomic_ulong head;
    _Alignas(64) atomic_ulong tail;
    _Alignas(64) uint64_t slots[QUEUE][16];
};
struct stage {
    struct queue *in, *out;
};
static struct stage stages[MOST_THREADS];

static void stage_work(struct worker *w) {
    struct stage *stage = w->shared;
    for (int i = 0; i < 64; i++) {
        struct queue *out = stage->out;
        unsigned long head = out ? atomic_load_explicit(&out->head, memory_order_relaxed) : 0;
        // What comes in goes out: a full queue is waited for.
        if (out && head - atomic_load_explicit(&out->tail, memory_order_acquire) >= QUEUE) {
            own_work(w, 8);
            continue;
        }
        uint64_t message[16] = {w->random};
        if (stage->in) {
            struct queue *in = stage->in;
            unsigned long tail = atomic_load_explicit(&in->tail, memory_order_relaxed);
            if (tail == atomic_load_explicit(&in->head, memory_order_acquire)) {
                own_work(w, 8);
                continue;
            }
            memcpy(message, in->slots[tail % QUEUE], sizeof message);
            atomic_store_explicit(&in->tail, tail + 1, memory_order_release);
        }
        own_work(w, 16);
        for (int j = 0; j < 16; j++)
            message[j] += w->random;
        if (out) {
            memcpy(out->slots[head % QUEUE], message, sizeof message);
            atomic_store_explicit(&out->head, head + 1, memory_order_release);
        }
        w->sum += message[3];
    }
}

// Pipelines of so many stages, with a queue between each two.
static void pipelines(int threads, int length) {
    for (int g = 0; g < threads / length; g++) {
        struct queue *before = NULL;
        for (int i = 0; i < length; i++) {
            struct queue *after = i + 1 < length ? map_buffer(sizeof *after, 0) : NULL;
            stages[g * length + i] = (struct stage){before, after};
            add(g, stage_work, &stages[g * length + i], 0, 64);
            before = after;
        }
    }
}
static void make_three(int threads) { pipelines(threads, 3); }
static void make_five(int threads) { pipelines(threads, 5); }

// Pairs of processes that pass records through a ring in shared memory; all are forked by one parent.
static void make_shmrings(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        struct queue *ring = map_buffer(sizeof *ring, 1);
        for (int i = 0; i < 2; i++) {
            stages[g * 2 + i] = i ? (struct stage){ring, NULL} : (struct stage){NULL, ring};
            add(g, stage_work, &stages[g * 2 + i], 0, 64)->process = g * 2 + i + 1;
        }
    }
}

const struct scenario protocol_scenarios[] = {
    {"seqlock", 8, make_seqlock},
    {"rwlock", 8, make_rwlock},
    {"half", 6, make_half},
    {"tenth", 6, make_tenth},
    {"fiftieth", 6, make_fiftieth},
    {"three", 6, make_three},
    {"five", 10, make_five},
    {"shmrings", 6, make_shmrings},
    {NULL, 0, NULL},
};
