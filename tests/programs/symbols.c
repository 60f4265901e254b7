// Says where its functions are, and runs them until its input ends: one that only this file sees, one that all see, and
// one in memory, with a map of it as a JIT compiler writes it. Asks for the time too, of the vdso.
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void local_function(void) {
    for (int i = 0; i < 20000; i++)
        sum += i;
}

__attribute__((noinline)) void global_function(void) {
    for (int i = 0; i < 20000; i++)
        sum ^= i;
}

// mov ecx, 20000 / dec ecx / jnz back / ret
static const uint8_t loop[] = {0xb9, 0x20, 0x4e, 0x00, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xc3};

int main(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = page == MAP_FAILED ? NULL : fopen(path, "w");
    if (map) {
        memcpy(page, loop, sizeof loop);
        fprintf(map, "%lx %zx jitted_function\n", (unsigned long)page, sizeof loop);
        fclose(map);
        printf("at jitted_function %lx\n", (unsigned long)page);
    }
    printf("at local_function %lx\n", (unsigned long)local_function);
    printf("at global_function %lx\n", (unsigned long)global_function);
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        local_function();
        global_function();
        if (map)
            ((void (*)(void))page)();
        struct timespec now;
        for (int i = 0; i < 1000; i++)
            clock_gettime(CLOCK_MONOTONIC, &now);
    }
    if (map)
        unlink(path);
    return 0;
}
