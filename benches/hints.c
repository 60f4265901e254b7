// What a write of a task hint costs, and what another system call does. Prints "write NS" and "getppid NS": the median over
// rounds of the mean of a round, ns a call.
//
//   hints PIN [ROUNDS [CALLS]]      writes into the hint map pinned at PIN, by the calling thread for itself
//   hints -m PIN                    makes such a map and pins it there
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int bpf(int cmd, union bpf_attr *attr) { return (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr)); }

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int make(const char *pin) {
    // int; u64; struct { u64; } of 32 bytes.
    static const char strings[] = "\0int\0u64\0hint\0h";
    struct {
        uint16_t magic;
        uint8_t version, flags;
        uint32_t hdr_len, type_off, type_len, str_off, str_len, types[14];
        char strings[sizeof(strings)];
    } btf = {0xeb9f, 1, 0, 24, 0, 56, 56, sizeof(strings),
             {1, 1u << 24, 4, 1u << 24 | 32, 5, 1u << 24, 8, 64, 9, 4u << 24 | 1, 32, 14, 2, 0}, {0}};
    union bpf_attr attr;
    int fd;
    memcpy(btf.strings, strings, sizeof(strings));
    memset(&attr, 0, sizeof(attr));
    attr.btf = (uintptr_t)&btf;
    attr.btf_size = 24 + 56 + sizeof(strings);
    if ((fd = bpf(BPF_BTF_LOAD, &attr)) < 0)
        return fail("BPF_BTF_LOAD");
    memset(&attr, 0, sizeof(attr));
    attr.map_type = BPF_MAP_TYPE_TASK_STORAGE;
    attr.key_size = 4;
    attr.value_size = 32;
    attr.map_flags = BPF_F_NO_PREALLOC;
    attr.btf_fd = (uint32_t)fd;
    attr.btf_key_type_id = 1;
    attr.btf_value_type_id = 3;
    if ((fd = bpf(BPF_MAP_CREATE, &attr)) < 0)
        return fail("BPF_MAP_CREATE");
    memset(&attr, 0, sizeof(attr));
    attr.pathname = (uintptr_t)pin;
    attr.bpf_fd = (uint32_t)fd;
    return bpf(BPF_OBJ_PIN, &attr) ? fail(pin) : 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "-m"))
        return make(argv[2]);
    if (argc < 2)
        return 2;
    int rounds = argc > 2 ? atoi(argv[2]) : 101, calls = argc > 3 ? atoi(argv[3]) : 2000;
    double *writes = calloc((size_t)rounds, sizeof(*writes)), *others = calloc((size_t)rounds, sizeof(*others));
    uint64_t value[4] = {0};
    union bpf_attr attr;
    int map, self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (self < 0 || !writes || !others || rounds < 1 || calls < 1)
        return fail("pidfd_open");
    memset(&attr, 0, sizeof(attr));
    attr.pathname = (uintptr_t)argv[1];
    if ((map = bpf(BPF_OBJ_GET, &attr)) < 0)
        return fail(argv[1]);
    memset(&attr, 0, sizeof(attr));
    attr.map_fd = (uint32_t)map;
    attr.key = (uintptr_t)&self;
    attr.value = (uintptr_t)value;
    for (int round = 0; round < rounds; round++) {
        uint64_t begin = now();
        for (int call = 0; call < calls; call++) {
            value[0] = (uint64_t)call % 1025;
            if (bpf(BPF_MAP_UPDATE_ELEM, &attr))
                return fail("BPF_MAP_UPDATE_ELEM");
        }
        writes[round] = (double)(now() - begin) / calls;
        begin = now();
        for (int call = 0; call < calls; call++)
            syscall(SYS_getppid);
        others[round] = (double)(now() - begin) / calls;
    }
    qsort(writes, (size_t)rounds, sizeof(*writes), by_size);
    qsort(others, (size_t)rounds, sizeof(*others), by_size);
    printf("write %.0f\ngetppid %.0f\n", writes[rounds / 2], others[rounds / 2]);
    return 0;
}
