// Four processes that inherit one private buffer and write to it: after the fork they share nothing, though each page
// looks the same at first. Every process is a group of its own.
#include "common.h"
#include <sys/wait.h>
#define LEN (4u << 20)

static void work(const char *group, uint32_t *words, double seconds) {
    struct timespec from, now;
    say_thread(group, group);
    uint32_t state = 5 + (uint32_t)getpid(), sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        for (int i = 0; i < 10000; i++) {
            sum += words[next_random(&state) % (LEN / 4)];
            if (i % 16 == 0)
                words[next_random(&state) % (LEN / 4)] = sum;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - from.tv_sec) + (double)(now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv) {
    const char *names[4] = {"cow-a", "cow-b", "cow-c", "cow-d"};
    pid_t children[4];
    void *buffer = map_buffer(LEN, 0);
    for (int c = 0; c < 4; c++) {
        if ((children[c] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, 9);
            say_buffer(names[c], buffer, LEN);
            work(names[c], buffer, seconds_of(argc, argv));
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
