// A program without frame pointers whose call stacks are known: build with -O2 -fomit-frame-pointer -fno-optimize-sibling-calls.
//   unwind depth DEPTH    works at the bottom of so many calls, below a function that aligns its frame
//   unwind signal DEPTH   the same, and again in a handler of signals, on top of what they interrupt
//   unwind other DEPTH    the same with a stack of its own for the handler
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

volatile unsigned long sink;

__attribute__((noinline)) void bottom(unsigned long count) {
    for (unsigned long at = 0; at < count; at++)
        sink += at;
}

__attribute__((noinline)) void down(int depth, unsigned long count) {
    if (depth > 1)
        down(depth - 1, count);
    else
        bottom(count);
    sink++;
}

// Its frame is found by another register than rsp and rbp, or by a value in memory.
__attribute__((noinline)) void aligned(int depth, unsigned long count) {
    _Alignas(64) volatile char buffer[depth * 8 + 256];
    _Alignas(64) volatile char fixed[64];
    memset((void *)buffer, depth, sizeof buffer);
    fixed[0] = buffer[3];
    down(depth, count);
    sink += fixed[0] + buffer[5];
}

void handler(int number) { aligned(3, 4000000); }

int main(int argc, char **argv) {
    int depth = argc > 2 ? atoi(argv[2]) : 1;
    if (argc > 1 && strcmp(argv[1], "depth")) {
        struct sigaction action = {.sa_handler = handler};
        if (!strcmp(argv[1], "other")) {
            stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
            sigaltstack(&stack, NULL);
            action.sa_flags = SA_ONSTACK;
        }
        sigaction(SIGALRM, &action, NULL);
        struct itimerval timer = {{0, 20000}, {0, 20000}};
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    for (int round = 0; round < 12; round++)
        aligned(depth, 30000000);
    return 0;
}
