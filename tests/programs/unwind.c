// A program without frame pointers whose call stacks are known: build with -O2 -fomit-frame-pointer -fno-optimize-sibling-calls.
//   unwind depth DEPTH    works at the bottom of so many calls, below a function that aligns its frame
//   unwind signal DEPTH   the same, and again in a handler of signals, on top of what they interrupt
//   unwind other DEPTH    the same with a stack of its own for the handler
//   unwind brief DEPTH    as depth, for a moment
//   unwind long DEPTH     as depth, until it is killed
//   unwind fresh DEPTH    as depth, but works at the bottom with a frame in pages that nothing has touched
//   unwind vdso DEPTH     as depth, but reads the clock at the bottom
//   unwind jit DEPTH      as depth, but works in code that it wrote, which has a frame pointer and no description
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

volatile unsigned long sink;
int reads_clock;
int is_fresh;
void (*written)(unsigned long);

__attribute__((noinline)) void bottom(unsigned long count) {
    if (reads_clock) {
        struct timespec now;
        for (unsigned long at = 0; at < count / 32; at++)
            clock_gettime(CLOCK_MONOTONIC, &now);
        sink += now.tv_nsec;
        return;
    }
    if (written) {
        written(count * 4);
        sink++;
        return;
    }
    for (unsigned long at = 0; at < count; at++)
        sink += at;
}

// No call and no store: only the stack pointer is there.
__attribute__((noinline)) unsigned long fresh(unsigned long count) {
    char frame[1 << 16];
    __asm__ volatile("" : : "r"(frame));
    unsigned long at = 0;
    while (at < count)
#ifdef __aarch64__
        __asm__ volatile("add %0, %0, #1" : "+r"(at));
#else
        __asm__ volatile("inc %0" : "+r"(at));
#endif
    return at;
}

__attribute__((noinline)) void down(int depth, unsigned long count) {
    if (depth > 1)
        down(depth - 1, count);
    else if (is_fresh)
        sink += fresh(count);
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

// CPU time.
static long used_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

// Touches the pages below the stack pointer, so that the kernel can copy the stack wherever it ends.
__attribute__((noinline)) static void touch_stack(void) {
    volatile char pages[1 << 14];
    for (unsigned long at = 0; at < sizeof pages; at += 512)
        pages[at] = 0;
}

void handler(int number) { aligned(3, 4000000); }

int main(int argc, char **argv) {
    int depth = argc > 2 ? atoi(argv[2]) : 1;
    const char *how = argc > 1 ? argv[1] : "depth";
    int rounds = !strcmp(how, "brief") ? 1 : !strcmp(how, "long") ? 1 << 30 : 12;
    reads_clock = !strcmp(how, "vdso");
    is_fresh = !strcmp(how, "fresh");
    touch_stack();
    if (!strcmp(how, "jit")) {
        // push rbp; mov rbp, rsp; mov rax, rdi; dec rax; jnz -5; pop rbp; ret
        const char code[] = "\x55\x48\x89\xe5\x48\x89\xf8\x48\xff\xc8\x75\xfb\x5d\xc3";
        void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(memory, code, sizeof code);
        written = memory;
    }
    if (!strcmp(how, "signal") || !strcmp(how, "other")) {
        struct sigaction action = {.sa_handler = handler};
        if (!strcmp(how, "other")) {
            stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
            sigaltstack(&stack, NULL);
            action.sa_flags = SA_ONSTACK;
        }
        sigaction(SIGALRM, &action, NULL);
        struct itimerval timer = {{0, 20000}, {0, 20000}};
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    // A fast machine has as many samples as a slow one.
    for (int round = 0; round < rounds || (rounds > 1 && used_ms() < 500); round++)
        aligned(depth, 30000000);
    return 0;
}
