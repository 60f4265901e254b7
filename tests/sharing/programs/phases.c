// Scenarios whose sharing changes with time.
#include "family.h"

#include <time.h>

// Seconds since the program began.
static double seconds(void) {
    static double began;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    if (began == 0)
        began = time;
    return time - began;
}

// A buffer of 256 KiB for each thread of a scenario.
#define WORDS ((size_t)1 << 15)
static uint64_t *buffers;

static void use_buffer(struct worker *w, int number) {
    uint64_t *buffer = buffers + WORDS * (size_t)number;
    for (int i = 0; i < 1024; i++) {
        uint32_t r = draw(w);
        uint64_t *word = r & 1 ? &buffer[(r >> 3) & (WORDS - 1)] : &w->own[(r >> 3) & (w->own_words - 1)];
        if ((r & 6) == 0)
            *word = r;
        else
            w->sum += *word;
    }
}

static void make_buffers(int threads) {
    buffers = map_buffer(WORDS * 8 * (size_t)threads, 0);
    seconds();
}

// ---- Partners that alternate ----

static void turns_work(struct worker *w) {
    int first = w->group * 4;
    int phase = (int)(seconds() / 5) % 2;
    // 0 and 1, 2 and 3; then 0 and 2, 1 and 3.
    use_buffer(w, first + (phase ? 2 + w->seat % 2 : w->seat / 2));
}

// Groups of four, of which two and two share a buffer, every 5 s other ones.
static void make_turns(int threads) {
    make_buffers(threads);
    for (int i = 0; i < threads; i++)
        add(i / 4, turns_work, NULL, 0, 256);
}

// ---- A beginning that is not like the rest ----

static void warmup_work(struct worker *w) {
    // In the first second, all threads read all buffers.
    use_buffer(w, seconds() < 1 ? (int)(draw(w) >> 8) % 3 : w->group);
}

static void make_warmup(int threads) {
    make_buffers(threads);
    for (int i = 0; i < threads; i++)
        add(i % 3, warmup_work, NULL, 0, 256);
}

// ---- A job that begins after a while and ends ----

static void job_work(struct worker *w) {
    double time = seconds();
    // Two seconds of each six.
    if (time - (double)(int)(time / 6) * 6 >= 4)
        use_buffer(w, w->group);
    else
        own_work(w, 1024);
}

static void make_job(int threads) {
    make_buffers(threads);
    for (int i = 0; i < threads; i++)
        add(i % 3, job_work, NULL, 0, 256);
}

const struct scenario phase_scenarios[] = {
    {"turns", 8, make_turns},
    {"warmup", 6, make_warmup},
    {"job", 6, make_job},
    {NULL, 0, NULL},
};
