// Two loops of fixed work for benches/overhead.sh: arithmetic in registers, and dependent random loads in 1 MiB.
//
// Usage: loops cpu|memory CPU. Runs on that CPU until it is killed and prints a line for each unit of work (some 10 ms):
// CLOCK_REALTIME at its end and its CPU time, both in ns.
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS (1 << 18) // of 4 bytes

static uint64_t now(clockid_t clock) {
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t arithmetic(uint64_t x, long steps) {
    for (long i = 0; i < steps; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    return x;
}

static uint64_t loads(const uint32_t *next, uint64_t at, long steps) {
    for (long i = 0; i < steps; i++)
        at = next[at];
    return at;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int memory = strcmp(argv[1], "memory") == 0;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[2]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
        perror("sched_setaffinity");
        return 1;
    }
    // One cycle through all slots (Sattolo's shuffle), the same in every run.
    uint32_t *next = malloc(SLOTS * sizeof *next);
    if (next == NULL)
        return 1;
    for (uint32_t i = 0; i < SLOTS; i++)
        next[i] = i;
    uint64_t random = 88172645463325252u;
    for (uint32_t i = SLOTS - 1; i > 0; i--) {
        random = arithmetic(random, 1);
        uint32_t other = (uint32_t)(random % i), slot = next[i];
        next[i] = next[other];
        next[other] = slot;
    }
    long steps = memory ? 1 << 20 : 5 << 20;
    uint64_t value = memory ? 0 : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (;;) {
        uint64_t begin = now(CLOCK_THREAD_CPUTIME_ID);
        value = memory ? loads(next, value, steps) : arithmetic(value, steps);
        uint64_t used = now(CLOCK_THREAD_CPUTIME_ID) - begin;
        // The value is printed so that it is computed.
        printf("%llu %llu %llu\n", (unsigned long long)now(CLOCK_REALTIME), (unsigned long long)used,
               (unsigned long long)value);
    }
}
