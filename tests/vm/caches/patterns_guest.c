// SPDX-License-Identifier: GPL-2.0-or-later
// The guest's part of patterns.sh: the first process of a guest with the plugin. It says in `out` what caches the guest sees, and does
// work whose counts are known within bounds: it says by itself who runs, so interrupts are counted to its groups too.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)
// 0f 1f 80 <0x5cac0000 + N>
#define MAGIC(n) __asm__ volatile(".byte 0x0f, 0x1f, 0x80, " STRING(n) ", 0x00, 0xac, 0x5c" ::: "memory")
// The magic instruction and the store that it is about, with nothing between them.
#define MAGIC_STORE(n, to, value)                                                          \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80, " STRING(n) ", 0x00, 0xac, 0x5c\n\tmovl %1, %0" \
                     : "=m"(to)                                                            \
                     : "r"((uint32_t)(value))                                              \
                     : "memory")
enum { PAGE = 4096 };

static uint64_t *table;
static uint8_t *page;
static volatile int *turn;

static void *pages(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED || mlock(memory, bytes)) {
        perror("mmap");
        reboot(RB_POWER_OFF);
    }
    return memory;
}

static void say(const char *text, uint32_t channel) {
    uint32_t length = strlen(text);
    memcpy(page, text, length);
    *(uint32_t *)(page + 4092) = channel;
    MAGIC_STORE(8, *(uint32_t *)(page + 4088), length);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void file_to_out(int cpu, const char *name) {
    char path[128], text[128] = "", line[300];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/%s", cpu, name);
    int file = open(path, O_RDONLY);
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        if (length > 0 && text[length - 1] == '\n')
            text[length - 1] = 0;
        close(file);
    }
    snprintf(line, sizeof line, "cpu%d %s: %s\n", cpu, name, text);
    say(line, 0);
}

// Two threads that write to one line in turn, 2000 turns each. The other one is there before the window.
static void *other(void *cpu) {
    pin((int)(intptr_t)cpu);
    table[5] = 1;
    *turn = -1;
    for (int i = 0; i < 2000; i++) {
        while (*turn != 2 * i + 1)
            __builtin_ia32_pause();
        *turn = 2 * i + 2;
        MAGIC(5);
    }
    table[1] = 1;
    return NULL;
}

static void ping_pong(int cpu) {
    pthread_t thread;
    *turn = -2;
    pthread_create(&thread, NULL, other, (void *)(intptr_t)cpu);
    while (*turn != -1)
        sched_yield();
    MAGIC(2);
    table[4] = 1;
    MAGIC(3);
    *turn = 0;
    for (int i = 0; i < 2000; i++) {
        while (*turn != 2 * i)
            __builtin_ia32_pause();
        *turn = 2 * i + 1;
        MAGIC(5);
    }
    while (*turn != 4000)
        __builtin_ia32_pause();
    table[1] = 1;
    MAGIC(4);
    pthread_join(thread, NULL);
}

// Reads each line of so much memory, `rounds` times.
__attribute__((noinline, noclone)) static void sweep(volatile uint8_t *memory, size_t bytes, int rounds) {
    for (int round = 0; round < rounds; round++)
        for (size_t at = 0; at < bytes; at += 64)
            memory[at];
}

int main(int argc, char **argv) {
    mount("none", "/proc", "proc", 0, NULL);
    mount("none", "/sys", "sysfs", 0, NULL);
    page = pages(PAGE);
    table = pages(PAGE);
    turn = pages(PAGE);
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    char line[300];
    snprintf(line, sizeof line, "cpus: %d\n", cpus);
    say(line, 0);
    for (int index = 0; index < 4; index++) {
        snprintf(line, sizeof line, "index%d/shared_cpu_list", index);
        file_to_out(0, line);
        snprintf(line, sizeof line, "index%d/size", index);
        file_to_out(0, line);
    }
    for (int cpu = 1; cpu < cpus; cpu++)
        file_to_out(cpu, "index3/shared_cpu_list");
    say("a file's bytes\n", 1);
    size_t bytes = 8 << 20;
    volatile uint8_t *memory = pages(bytes);
    pin(0);
    // For the speed of the model (an argument of the kernel's after `--`): 134 million loads in
    // L1 (2, 4, 6) or of 8 MiB (3, 5, 7), with the model off, counting, or recording.
    if (argc > 1 && strchr("2345678", argv[1][0])) {
        int what = argv[1][0] - '0';
        if (what > 3) {
            MAGIC_STORE(1, *(uint32_t *)table, 1);
            table[4] = 1;
            MAGIC(2);
        }
        if (what > 5)
            MAGIC(6);
        else if (what > 3)
            MAGIC(3);
        sweep(memory, what & 1 ? bytes : 16 << 10, what & 1 ? 1024 : 512 * 1024);
        MAGIC(4);
        reboot(RB_POWER_OFF);
    }
    MAGIC_STORE(1, *(uint32_t *)table, 1);
    // 8 MiB of first use, and again: an LLC of 2 MiB misses each time.
    MAGIC(2);
    MAGIC(3);
    table[4] = 1;
    sweep(memory, bytes, 1);
    table[5] = 1;
    sweep(memory, bytes, 1);
    table[6] = 1;
    sweep(memory, 64 << 10, 1);
    table[7] = 1;
    sweep(memory, 64 << 10, 100);
    table[8] = 1;
    sweep(memory, 16 << 10, 100);
    table[1] = 1;
    MAGIC(4);
    // The first time is left out: the guest's kernel still has work of its own then.
    ping_pong(1);
    ping_pong(1);
    ping_pong(cpus - 1);
    // Recorded: 1000 pages, of which samples saw 100, and accesses that were made and others that were not.
    MAGIC(2);
    MAGIC(6);
    table[4] = 1;
    sweep(memory, 1000 * PAGE, 1);
    table[1] = 1;
    MAGIC(4);
    uint64_t *pair = (uint64_t *)page;
    for (int i = 0; i < 100; i++) {
        pair[2 * i] = 4;
        pair[2 * i + 1] = (uintptr_t)memory / PAGE + i * 10;
    }
    MAGIC_STORE(9, *(uint32_t *)(page + 4088), 100);
    MAGIC_STORE(9, *(uint32_t *)(page + 4088), 100);
    MAGIC_STORE(9, *(uint32_t *)(page + 4088), 0);
    MAGIC_STORE(9, *(uint32_t *)(page + 4088), 256);
    // It is not known which instruction of `sweep` loads: all its bytes are asked.
    for (int i = 0; i < 170; i++) {
        pair[3 * i] = 4;
        pair[3 * i + 1] = (uintptr_t)sweep + i;
        pair[3 * i + 2] = (uintptr_t)memory + 64 * 77;
    }
    MAGIC_STORE(7, *(uint32_t *)(page + 4088), 170);
    MAGIC_STORE(7, *(uint32_t *)(page + 4088), 0);
    say("end\n", 0);
    reboot(RB_POWER_OFF);
}
