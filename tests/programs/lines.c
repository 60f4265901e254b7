// Two groups of two threads in the same pages: group 0 touches only even lines, group 1 only odd ones. A wrong address
// is caught with a probability of one half. A second argument is the number of threads; more than four mostly sleep.
#include "common.h"
#define LEN (4u << 20)
#define LINES (LEN / 64)

struct group { const char *name; uint64_t *words; uint32_t parity; };
static uint64_t sink;
static int threads = 4;
static pthread_barrier_t all_there;

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    pthread_barrier_wait(&all_there);
    uint64_t *words = group->words;
    uint32_t parity = group->parity;
    uint32_t state = 31 + (uint32_t)(uintptr_t)&state;
    uint64_t sum = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) {
            uint32_t line = (next_random(&state) % (LINES / 2)) * 2 + parity;
            uint64_t *word = &words[line * 8 + (state >> 29)];
            sum += *word;
            *word = sum;
        }
        if (threads > 4)
            nap(0.05);
    }
    sink += sum;
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t *words = map_buffer(LEN, 0);
    static struct group groups[2] = {{"lines-even", NULL, 0}, {"lines-odd", NULL, 1}};
    for (int g = 0; g < 2; g++) {
        groups[g].words = words;
        say_buffer(groups[g].name, words, LEN);
        printf("parity group=%s line=64 value=%u\n", groups[g].name, groups[g].parity);
    }
    if (argc > 2)
        threads = atoi(argv[2]);
    pthread_barrier_init(&all_there, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++)
        start_thread(work, &groups[t * 2 / threads]);
    run_for(seconds_of(argc, argv));
    return 0;
}
