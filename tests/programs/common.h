// What every test program shares: buffers, the lines on stdout, the clock. See README.md.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop __attribute__((unused));

// Inlined at -O0 too: a leaf function there keeps its variables below rsp, where no stack dump reaches.
static inline __attribute__((always_inline)) uint32_t next_random(uint32_t *state) {
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

static inline void *map_buffer(size_t len, int shared) {
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(p, 0, len);
    return p;
}

static inline void say_buffer(const char *group, const void *start, size_t len) {
    printf("buffer group=%s pid=%d start=%#lx end=%#lx\n", group, (int)getpid(), (unsigned long)start,
           (unsigned long)start + len);
    fflush(stdout);
}

static inline void say_thread(const char *group, const char *name) {
    prctl(PR_SET_NAME, name);
    printf("thread group=%s pid=%d tid=%ld name=%s\n", group, (int)getpid(), syscall(SYS_gettid), name);
    fflush(stdout);
}

static inline double seconds_of(int argc, char **argv) { return argc > 1 ? atof(argv[1]) : 1.0; }

static inline void nap(double seconds) {
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&ts, NULL);
}

static inline pthread_t start_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument)) {
        perror("pthread_create");
        exit(1);
    }
    return thread;
}

// Says that all is set up, lets the threads run for the given time, then has them stop.
static inline void run_for(double seconds) {
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    nap(seconds);
    atomic_store(&stop, 1);
}
