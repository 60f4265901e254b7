// Five threads, each in a leaf function that keeps pointers below rsp; rsp % 64 is another one in each thread. And four threads
// that keep pointers far above rsp and far below the base of fs. Each counts its accesses to each of its structures.
#include "common.h"
#define STRUCTURES 8
#define WORDS 8192u
// An eighth part of `tally` counts each structure.
#define ROUNDS 240
#define THREADS 9
#define BELOW 5

struct work {
    uint64_t counts[STRUCTURES], offset, sum;
    char name[16];
    uint32_t state, *structures[STRUCTURES];
};

#define COUNT(k) (tally += 1ul << 8 * (k))

// The pointers that are followed lie all over the red zone. The last structure's pointer stays in a register.
__attribute__((noinline, noclone, used)) uint64_t leaf(struct work *work) {
    uint32_t *volatile p0 = work->structures[0], *volatile unused0 = work->structures[0];
    uint32_t *volatile p1 = work->structures[1], *volatile unused1 = work->structures[1];
    uint32_t *volatile p2 = work->structures[2], *volatile unused2 = work->structures[2];
    uint32_t *volatile p3 = work->structures[3], *volatile unused3 = work->structures[3];
    uint32_t *volatile p4 = work->structures[4], *volatile unused4 = work->structures[4];
    uint32_t *volatile p5 = work->structures[5], *volatile unused5 = work->structures[5];
    uint32_t *volatile p6 = work->structures[6], *volatile unused6 = work->structures[6];
    uint32_t *p7 = work->structures[7], x = work->state;
    uint64_t tally = 0, sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t at = next_random(&x) >> 8 & (WORDS - 1);
        if (x & 1) {
            if (x & 2) {
                if (x & 4)
                    sum += p0[at], COUNT(0);
                else
                    sum += p1[at], COUNT(1);
            } else if (x & 4) {
                sum += p2[at], COUNT(2);
            } else {
                p3[at] = x, COUNT(3);
            }
        } else if (x & 2) {
            sum += p7[at], COUNT(7);
        } else if (x & 4) {
            sum += p4[at], COUNT(4);
        } else if (x & 8) {
            p5[at] = x, COUNT(5);
        } else {
            sum += p6[at], COUNT(6);
        }
    }
    work->state = x;
    work->sum += sum;
    return tally;
}

// Calls leaf() so that rsp % 64 is `offset` at its beginning.
uint64_t call_at(struct work *work, uint64_t offset);
__asm__(".text\n\t.type call_at, @function\ncall_at:\n\tpush %rbp\n\tmov %rsp, %rbp\n\tand $-64, %rsp\n"
        "\tlea -120(%rsp, %rsi), %rsp\n\tcall leaf\n\tleave\n\tret\n\t.size call_at, .-call_at\n");

static __thread struct {
    uint32_t *volatile pointer;
    volatile char room[1024];
} thread_local_block;

__attribute__((noinline, noclone)) static uint64_t far(struct work *work, uint64_t unused) {
    struct {
        volatile char room[1024];
        uint32_t *volatile pointer;
    } frame;
    frame.room[0] = (char)unused;
    frame.pointer = work->structures[0];
    thread_local_block.pointer = work->structures[1];
    uint32_t *p2 = work->structures[2], x = work->state;
    uint64_t tally = 0, sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t at = next_random(&x) >> 8 & (WORDS - 1);
        if (x & 1)
            sum += p2[at], COUNT(2);
        else if (x & 2)
            sum += frame.pointer[at], COUNT(0);
        else
            sum += thread_local_block.pointer[at], COUNT(1);
    }
    work->state = x;
    work->sum += sum;
    return tally;
}

static void *work(void *argument) {
    struct work *work = argument;
    uint64_t (*run)(struct work *, uint64_t) = strncmp(work->name, "far", 3) ? call_at : far;
    say_thread(work->name, work->name);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t tally = run(work, work->offset);
        for (int k = 0; k < STRUCTURES; k++)
            work->counts[k] += tally >> 8 * k & 0xff;
    }
    return NULL;
}

int main(int argc, char **argv) {
    static const uint64_t offsets[BELOW] = {0, 8, 24, 40, 56};
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        struct work *its = map_buffer(sizeof *its, 0);
        char name[32];
        its->offset = t < BELOW ? offsets[t] : (uint64_t)t - BELOW;
        its->state = 7 + (uint32_t)t;
        snprintf(its->name, sizeof its->name, "%s-%d", t < BELOW ? "below" : "far", (int)its->offset);
        snprintf(name, sizeof name, "%s-counts", its->name);
        say_buffer(name, its->counts, sizeof its->counts);
        for (int k = 0; k < STRUCTURES; k++) {
            its->structures[k] = map_buffer(WORDS * sizeof(uint32_t), 0);
            snprintf(name, sizeof name, "%s-%d", its->name, k);
            say_buffer(name, its->structures[k], WORDS * sizeof(uint32_t));
        }
        // The thread's stack will lie below, and the 12 KiB above a stack count as part of it.
        map_buffer(1u << 16, 0);
        threads[t] = start_thread(work, its);
    }
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
