// Two groups of two processes; each group works on a MAP_SHARED buffer of its own.
#include "common.h"
#include <sys/wait.h>
#define LEN (4u << 20)

static void work(const char *group, uint32_t *words, double seconds) {
    struct timespec from, now;
    say_thread(group, group);
    uint32_t state = 5 + (uint32_t)getpid();
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        for (int i = 0; i < 10000; i++)
            words[next_random(&state) % (LEN / 4)] += (uint32_t)i;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - from.tv_sec) + (double)(now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv) {
    const char *names[2] = {"shared-a", "shared-b"};
    pid_t children[4];
    void *buffers[2];
    for (int g = 0; g < 2; g++)
        buffers[g] = map_buffer(LEN, 1);
    for (int c = 0; c < 4; c++) {
        if ((children[c] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, 9);
            say_buffer(names[c / 2], buffers[c / 2], LEN);
            work(names[c / 2], buffers[c / 2], seconds_of(argc, argv));
            fflush(stdout);
            _exit(0);
        }
    }
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    for (int c = 0; c < 4; c++)
        waitpid(children[c], NULL, 0);
    return 0;
}
