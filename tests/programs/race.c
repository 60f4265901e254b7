// A reader follows a pointer that a writer changes all the time. Each place that the pointer leads to is used once, and the
// reader leaves a mark where it has been: an address without a mark is one that it never touched.
#include "common.h"
#define SLOTS (8u << 20)

struct slot { uint64_t seen, unused; };
struct shared { struct slot *_Atomic current; } __attribute__((aligned(64)));
static struct shared shared __attribute__((aligned(64)));
static struct slot *slots;
static uint64_t sink;

static void *write_it(void *argument) {
    (void)argument;
    say_thread("writer", "race-writer");
    for (uint64_t at = 0; at < SLOTS && !atomic_load_explicit(&stop, memory_order_relaxed); at++) {
        atomic_store_explicit(&shared.current, &slots[at], memory_order_relaxed);
        for (int i = 0; i < 100; i++)
            __builtin_ia32_pause();
    }
    return NULL;
}

static void *read_it(void *argument) {
    struct shared *from = argument;
    say_thread("reader", "race-reader");
    uint64_t own[64] = {0}, sum = 0;
    uint32_t state = 17;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 100; i++) {
            struct slot *slot = atomic_load_explicit(&from->current, memory_order_relaxed);
            slot->seen = 1;
            for (int k = 0; k < 40; k++)
                own[next_random(&state) % 64] += sum++;
        }
    }
    sink += own[0] + sum;
    return NULL;
}

int main(int argc, char **argv) {
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED)
        return 1;
    atomic_store(&shared.current, slots);
    say_buffer("reader", slots, SLOTS * sizeof *slots);
    start_thread(write_it, NULL);
    start_thread(read_it, &shared);
    run_for(seconds_of(argc, argv));
    return 0;
}
