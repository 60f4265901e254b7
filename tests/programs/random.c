// Two groups of two threads; each group reads and writes random words of its own buffer.
#include "common.h"
#define LEN (8u << 20)

struct group { const char *name; uint64_t *words; };
static uint64_t sink;

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    uint64_t *words = group->words;
    uint32_t state = 12345 + (uint32_t)(uintptr_t)&state;
    uint64_t sum = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) {
            uint32_t at = next_random(&state) % (LEN / 8);
            sum += words[at];
            if ((at & 7) == 0)
                words[(at * 2654435761u) % (LEN / 8)] = sum;
        }
    }
    sink += sum;
    return NULL;
}

int main(int argc, char **argv) {
    struct group groups[2] = {{"rand-a", NULL}, {"rand-b", NULL}};
    pthread_t threads[4];
    for (int g = 0; g < 2; g++) {
        groups[g].words = map_buffer(LEN, 0);
        say_buffer(groups[g].name, groups[g].words, LEN);
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(work, &groups[t / 2]);
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
