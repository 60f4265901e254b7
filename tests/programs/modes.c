// Three threads: one spins in user code, one makes system calls that take the kernel long, one makes page faults.
#include "common.h"
#include <fcntl.h>
#define LEN (4u << 20)

static uint64_t sink;

static void *spin(void *argument) {
    say_thread(argument, argument);
    uint64_t words[64] = {0};
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        for (uint64_t i = 0; i < 100000; i++)
            *(volatile uint64_t *)&words[i % 64] += i;
    sink += words[7];
    return NULL;
}

static void *syscalls(void *argument) {
    static char bytes[1 << 16];
    int zero = open("/dev/zero", O_RDONLY);
    say_thread(argument, argument);
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        for (int i = 0; i < 100; i++)
            sink += (uint64_t)read(zero, bytes, sizeof bytes);
    return NULL;
}

static void *faults(void *argument) {
    say_thread(argument, argument);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(bytes, LEN, MADV_NOHUGEPAGE);
        for (size_t at = 0; at < LEN; at += 4096)
            *(volatile char *)&bytes[at] = 1;
        munmap(bytes, LEN);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[3] = {
        start_thread(spin, "spin"), start_thread(syscalls, "syscalls"), start_thread(faults, "faults")};
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 3; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
