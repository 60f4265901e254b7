// Two groups of two threads; each group streams through its own three arrays with vector instructions.
#include "common.h"
#define COUNT (256 * 1024)
#define LEN (3 * COUNT * sizeof(float))

struct group { const char *name; float *data; };

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    float *restrict a = group->data, *restrict b = a + COUNT, *restrict c = b + COUNT;
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        for (int i = 0; i < COUNT; i++)
            c[i] = a[i] * 0.5f + b[i] + c[i];
    return NULL;
}

int main(int argc, char **argv) {
    struct group groups[2] = {{"stream-a", NULL}, {"stream-b", NULL}};
    pthread_t threads[4];
    for (int g = 0; g < 2; g++) {
        groups[g].data = map_buffer(LEN, 0);
        say_buffer(groups[g].name, groups[g].data, LEN);
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(work, &groups[t / 2]);
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
