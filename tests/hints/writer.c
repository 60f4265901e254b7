// Writes task hints in known ways, and says afterwards what it wrote and when.
//
//   writer [-a ACTORS] [-P] [-u PHASE_US] [-f WRITES_PER_SECOND] [-x] PIN
//   writer -m hash|small PIN      only makes a map that is no hint map
//
// It makes a hint map and pins it at PIN. ACTORS (3) threads, or with -P processes, get their first hint, 100 and up, and
// begin a phase every PHASE_US (1000): each writes a hint for itself, or for its neighbour through its pidfd; between two
// writes it touches fresh pages, so that it faults. Some phases delete, some write a value above 1024, some try a write
// that must fail. -f adds a thread that writes as fast as said. -x adds a process whose thread calls exec, and a process
// that has the id of an ended one that had a hint.
//
// "ready map=ID" on stdout means that all first hints are written; a line on stdin begins the phases, the next one ends
// them. Then, a line each: "write BEFORE AFTER PID TID VALUE" (CLOCK_MONOTONIC ns around a call that succeeded; -1 for a
// delete), "exec PID VALUE", "reused PID", "counts ok=N failed=N flood=N", "end".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ACTORS = 16, MAX_WRITES = 1 << 17, FRESH = 64, PAGE = 4096 };

struct write {
    uint64_t before, after;
    int32_t pid, tid;
    int64_t value;
};

struct log {
    atomic_int tid, pid;
    uint32_t len;
    uint64_t failed;
    struct write writes[MAX_WRITES];
};

// Shared by threads and processes.
struct shared {
    atomic_int begun, stop, hinted;
    atomic_ullong flood;
    struct log logs[MAX_ACTORS];
};

static struct shared *shared;
static int map_fd, actors = 3, processes;
static uint64_t phase_ns = 1000000, flood_rate;

static uint64_t now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int pidfd_of(int tid) {
    int fd = (int)syscall(SYS_pidfd_open, tid, processes ? 0 : O_EXCL);
    if (fd < 0)
        die("pidfd_open");
    return fd;
}

static int bpf(int cmd, union bpf_attr *attr) { return (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr)); }

static int element(int cmd, int fd, const uint64_t *value, uint64_t flags) {
    union bpf_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.map_fd = (uint32_t)map_fd;
    attr.key = (uintptr_t)&fd;
    attr.value = (uintptr_t)value;
    attr.flags = flags;
    return bpf(cmd, &attr);
}

// A write (or with -1 a delete) that is logged if it succeeds.
static int put(struct log *log, int fd, int pid, int tid, int64_t value, uint64_t flags) {
    uint64_t bytes[4] = {(uint64_t)value, 0, 0, 0};
    uint64_t before = now();
    int failed = value < 0 ? element(BPF_MAP_DELETE_ELEM, fd, NULL, 0) : element(BPF_MAP_UPDATE_ELEM, fd, bytes, flags);
    if (failed)
        log->failed++;
    else if (log->len < MAX_WRITES)
        log->writes[log->len++] = (struct write){before, now(), pid, tid, value};
    return failed;
}

static void fault_until(uint64_t end) {
    static _Thread_local char *pages;
    static _Thread_local int at;
    if (!pages)
        pages = mmap(NULL, FRESH * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        die("mmap");
    while (now() < end) {
        if (at == FRESH) {
            madvise(pages, FRESH * PAGE, MADV_DONTNEED);
            at = 0;
        }
        ((volatile char *)pages)[PAGE * at++] = 1;
    }
}

static void *act(void *argument) {
    int self = (int)(intptr_t)argument, other = (self + 1) % actors;
    struct log *log = &shared->logs[self];
    // Even actors write for themselves; odd ones are written for by the one before them too.
    int own = pidfd_of((int)syscall(SYS_gettid)), next = -1;
    if (put(log, own, getpid(), (int)syscall(SYS_gettid), 100 + self, 0))
        die("the first write of a hint");
    log->pid = getpid();
    log->tid = (int)syscall(SYS_gettid);
    while (!shared->begun)
        usleep(1000);
    next = pidfd_of(shared->logs[other].tid);
    for (uint64_t phase = 1, end = now(); !shared->stop; phase++) {
        int64_t value = (int64_t)(self * 8 + 1 + phase % 4);
        end += phase_ns;
        if (self % 2) {
            // Its hint is its neighbour's business.
        } else if (phase % 16 == 7) {
            put(log, own, log->pid, log->tid, -1, 0);
        } else if (phase % 16 == 11) {
            put(log, own, log->pid, log->tid, 5000 + self, 0);
        } else {
            put(log, own, log->pid, log->tid, value, 0);
        }
        if (other % 2)
            put(log, next, shared->logs[other].pid, shared->logs[other].tid, 200 + other * 8 + (int64_t)(phase % 4), 0);
        if (phase % 8 == 3) {
            // It is there already, or no pidfd: neither must be seen.
            put(log, other % 2 ? next : own, log->pid, log->tid, 999, BPF_NOEXIST);
            put(log, map_fd, log->pid, log->tid, 998, 0);
        }
        fault_until(end);
        if (now() > end + phase_ns)
            end = now();
    }
    return NULL;
}

static void *flood(void *argument) {
    int own = pidfd_of(processes ? getpid() : (int)syscall(SYS_gettid));
    uint64_t begin, done = 0, bytes[4] = {0};
    (void)argument;
    while (!shared->begun)
        usleep(1000);
    begin = now();
    while (!shared->stop) {
        uint64_t due = (now() - begin) / 1000 * flood_rate / 1000000;
        for (; done < due && !shared->stop; done++) {
            bytes[0] = done % 1000;
            if (!element(BPF_MAP_UPDATE_ELEM, own, bytes, 0))
                shared->flood++;
        }
        usleep(200);
    }
    return NULL;
}

// BTF of `int` and of `struct hint { unsigned long long hint; ... }` of 32 bytes, which a task-storage map must have.
static int load_btf(void) {
    static const char strings[] = "\0int\0u64\0hint";
    enum { STRINGS = sizeof(strings) };
    struct {
        uint16_t magic;
        uint8_t version, flags;
        uint32_t hdr_len, type_off, type_len, str_off, str_len;
        uint32_t types[3 + 1 + 3 + 1 + 3 + 3];
        char strings[STRINGS];
    } btf = {0xeb9f, 1, 0, 24, 0, 14 * 4, 14 * 4, STRINGS,
             {1, 1u << 24, 4, 1u << 24 | 32,     // int, signed, 32 bits
              5, 1u << 24, 8, 64,                // u64
              9, 4u << 24 | 1, 32, 9, 2, 0},     // struct hint { u64 hint; } with room behind it
             {0}};
    union bpf_attr attr;
    memcpy(btf.strings, strings, sizeof(strings));
    memset(&attr, 0, sizeof(attr));
    attr.btf = (uintptr_t)&btf;
    attr.btf_size = 24 + 14 * 4 + STRINGS;
    return bpf(BPF_BTF_LOAD, &attr);
}

static void make_map(const char *pin, const char *kind) {
    union bpf_attr attr;
    struct bpf_map_info info = {0};
    int btf = load_btf();
    if (btf < 0)
        die("BPF_BTF_LOAD");
    memset(&attr, 0, sizeof(attr));
    attr.map_type = BPF_MAP_TYPE_TASK_STORAGE;
    attr.key_size = 4;
    attr.value_size = 32;
    attr.map_flags = BPF_F_NO_PREALLOC;
    snprintf(attr.map_name, sizeof(attr.map_name), "hints_%d", getpid());
    attr.btf_fd = (uint32_t)btf;
    attr.btf_key_type_id = 1;
    attr.btf_value_type_id = 3;
    if (kind && !strcmp(kind, "small")) {
        attr.value_size = 4;
        attr.btf_value_type_id = 1;
    } else if (kind) {
        attr.map_type = BPF_MAP_TYPE_HASH;
        attr.max_entries = 1;
    }
    map_fd = bpf(BPF_MAP_CREATE, &attr);
    if (map_fd < 0)
        die("BPF_MAP_CREATE");
    memset(&attr, 0, sizeof(attr));
    attr.pathname = (uintptr_t)pin;
    attr.bpf_fd = (uint32_t)map_fd;
    if (bpf(BPF_OBJ_PIN, &attr))
        die(pin);
    memset(&attr, 0, sizeof(attr));
    attr.info.bpf_fd = (uint32_t)map_fd;
    attr.info.info_len = sizeof(info);
    attr.info.info = (uintptr_t)&info;
    if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attr))
        die("BPF_OBJ_GET_INFO_BY_FD");
    printf("map=%u\n", info.id);
}

static void *exec_from_thread(void *argument) {
    char *self[] = {(char *)argument, "touch", NULL};
    int fd = (int)syscall(SYS_pidfd_open, syscall(SYS_gettid), O_EXCL);
    uint64_t bytes[4] = {77};
    if (fd < 0 || element(BPF_MAP_UPDATE_ELEM, fd, bytes, 0))
        _exit(1);
    execv("/proc/self/exe", self);
    _exit(1);
}

// A thread with a hint calls exec: it becomes its process's leader, and keeps its hint.
static int start_exec(char *name) {
    int pid = fork();
    if (pid == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, exec_from_thread, name))
            _exit(1);
        for (;;)
            pause();
    }
    return pid;
}

// A process gets a hint and ends; the next one has its id, and no hint.
static int start_reused(void) {
    struct clone_args args = {.exit_signal = SIGCHLD};
    uint64_t bytes[4] = {88};
    int pid = fork(), tid;
    if (pid == 0) {
        while (!shared->hinted)
            usleep(1000);
        fault_until(now() + 50000000);
        _exit(0);
    }
    tid = (int)syscall(SYS_pidfd_open, pid, 0);
    if (tid < 0 || element(BPF_MAP_UPDATE_ELEM, tid, bytes, 0))
        return -1;
    shared->hinted = 1;
    waitpid(pid, NULL, 0);
    args.set_tid = (uintptr_t)&pid;
    args.set_tid_size = 1;
    tid = (int)syscall(SYS_clone3, &args, sizeof(args));
    if (tid == 0) {
        fault_until(now() + 300000000);
        _exit(0);
    }
    return tid;
}

int main(int argc, char **argv) {
    int option, extras = 0, pids[MAX_ACTORS], exec_pid = -1, reused = -1;
    char line[16], *kind = NULL;
    pthread_t threads[MAX_ACTORS + 1];
    if (argc == 2 && !strcmp(argv[1], "touch")) {
        fault_until(now() + 500000000);
        return 0;
    }
    if (argc < 2)
        return 2;
    while ((option = getopt(argc, argv, "a:Pu:f:xm:")) != -1) {
        switch (option) {
        case 'a': actors = atoi(optarg); break;
        case 'P': processes = 1; break;
        case 'u': phase_ns = strtoull(optarg, NULL, 10) * 1000; break;
        case 'f': flood_rate = strtoull(optarg, NULL, 10); break;
        case 'x': extras = 1; break;
        case 'm': kind = optarg; break;
        default: return 2;
        }
    }
    if (optind >= argc || actors < 1 || actors > MAX_ACTORS)
        return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    make_map(argv[optind], kind);
    if (kind)
        return 0;
    for (int i = 0; i < actors; i++) {
        if (!processes) {
            pthread_create(&threads[i], NULL, act, (void *)(intptr_t)i);
        } else if ((pids[i] = fork()) == 0) {
            act((void *)(intptr_t)i);
            _exit(0);
        }
    }
    if (flood_rate)
        pthread_create(&threads[actors], NULL, flood, NULL);
    for (int i = 0; i < actors; i++)
        while (!shared->logs[i].tid)
            usleep(1000);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        return 1;
    shared->begun = 1;
    if (extras) {
        exec_pid = start_exec(argv[0]);
        reused = start_reused();
    }
    // The end of the input ends them too.
    (void)!fgets(line, sizeof(line), stdin);
    shared->stop = 1;
    for (int i = 0; i < actors; i++) {
        if (processes)
            waitpid(pids[i], NULL, 0);
        else
            pthread_join(threads[i], NULL);
    }
    if (flood_rate)
        pthread_join(threads[actors], NULL);
    uint64_t ok = 0, failed = 0;
    for (int i = 0; i < actors; i++) {
        struct log *log = &shared->logs[i];
        ok += log->len;
        failed += log->failed;
        for (uint32_t at = 0; at < log->len; at++) {
            struct write *it = &log->writes[at];
            printf("write %llu %llu %d %d %lld\n", (unsigned long long)it->before, (unsigned long long)it->after, it->pid,
                   it->tid, (long long)it->value);
        }
    }
    if (exec_pid > 0) {
        int status = 1;
        waitpid(exec_pid, &status, 0);
        printf("exec %d %d\n", exec_pid, status ? -1 : 77);
    }
    if (extras) {
        if (reused > 0)
            waitpid(reused, NULL, 0);
        printf("reused %d\n", reused);
    }
    printf("counts ok=%llu failed=%llu flood=%llu\n", (unsigned long long)ok, (unsigned long long)failed,
           (unsigned long long)shared->flood);
    printf("end\n");
    return 0;
}
