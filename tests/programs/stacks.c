// Programs whose call stacks are known. Build with -O0, by which all functions have frames, and -DOTHER for one with other
// names of functions.
//   stacks parts ROUNDS      60, 30 and 10 % of its time in three functions, in random order: a pattern could run in step with
//                            the samples; at least 6 us a round on average
//   stacks depth DEPTH       calls itself so often, and works there, for 0.4 s at least
//   stacks clock ROUNDS      reads the clock, in the vdso
//   stacks never COUNT       works in a function that another calls at its end and that never returns
//   stacks storm COUNT A B   runs A and B, programs like this, in turn as children, each for a moment
//   stacks moment            works for a moment in a function that says which program it is
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

volatile unsigned long sink;

#define WORK(name)                                                             \
    __attribute__((noinline)) void name(unsigned long count) {                 \
        for (unsigned long at = 0; at < count; at++)                           \
            sink += at;                                                        \
    }

WORK(sixty)
WORK(thirty)
WORK(ten)
WORK(bottom)
#ifdef OTHER
WORK(only_b)
#define ONLY only_b
#else
WORK(only_a)
#define ONLY only_a
#endif

// CPU time: a fast machine has as many samples as a slow one.
static unsigned long used_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000000ul + time.tv_nsec / 1000;
}

__attribute__((noinline)) void down(int depth) {
    if (depth > 1)
        down(depth - 1);
    else
        do
            bottom(100000000);
        while (used_us() < 400000);
    // No tail call.
    sink++;
}

__attribute__((noinline, noreturn)) void never(unsigned long count) {
    bottom(count);
    exit(0);
}

// The call returns to after_last, if it is built without gaps between functions.
__attribute__((noinline, noreturn)) void last(unsigned long count) { never(count); }
__attribute__((noinline)) void after_last(void) { sink++; }

__attribute__((noinline)) void now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    sink += time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "parts")) {
        unsigned long random = 1, rounds = atoi(argv[2]);
        for (unsigned long round = 0; round < rounds || (round % 256 || used_us() < rounds * 6); round++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            unsigned long part = random % 10;
            if (part < 6)
                sixty(5000);
            else if (part < 9)
                thirty(5000);
            else
                ten(5000);
        }
    } else if (argc > 2 && !strcmp(argv[1], "clock")) {
        for (int round = atoi(argv[2]); round > 0; round--) {
            now(CLOCK_MONOTONIC);
            now(CLOCK_REALTIME_COARSE);
        }
    } else if (argc > 2 && !strcmp(argv[1], "never")) {
        after_last();
        last(atol(argv[2]));
    } else if (argc > 2 && !strcmp(argv[1], "depth")) {
        down(atoi(argv[2]));
    } else if (argc > 4 && !strcmp(argv[1], "storm")) {
        for (int child = 0; child < atoi(argv[2]); child++) {
            char *program = argv[3 + child % 2];
            if (fork() == 0) {
                execl(program, program, "moment", NULL);
                _exit(1);
            }
            if (child % 4 == 3)
                while (wait(NULL) > 0)
                    ;
        }
        while (wait(NULL) > 0)
            ;
    } else if (argc > 1 && !strcmp(argv[1], "moment")) {
        ONLY(3000000);
    } else {
        return 2;
    }
    return 0;
}
