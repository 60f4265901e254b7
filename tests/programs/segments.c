// Two pairs of processes; each pair has an IPC namespace of its own, and in it SysV segment 0.
#include "common.h"
#include <sched.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/wait.h>
#define LEN (1u << 20)

static void work(const char *group, int id) {
    prctl(PR_SET_PDEATHSIG, 9);
    uint32_t *words = shmat(id, NULL, 0), state = 5 + (uint32_t)getpid();
    if (words == (void *)-1) {
        perror("shmat");
        _exit(1);
    }
    say_buffer(group, words, LEN);
    say_thread(group, group);
    for (;;)
        words[next_random(&state) % (LEN / 4)] += state;
}

static void pair(const char *group) {
    prctl(PR_SET_PDEATHSIG, 9);
    int id = unshare(CLONE_NEWIPC) ? -1 : shmget(IPC_PRIVATE, LEN, 0600);
    if (id < 0) {
        perror("IPC namespace");
        _exit(1);
    }
    printf("segment group=%s id=%d\n", group, id);
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        if (!fork())
            work(group, id);
    pause();
}

int main(int argc, char **argv) {
    const char *names[2] = {"segment-a", "segment-b"};
    for (int g = 0; g < 2; g++)
        if (!fork())
            pair(names[g]);
    nap(seconds_of(argc, argv));
    return 0;
}
