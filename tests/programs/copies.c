// Two threads: each reads a file of its own, which is in memory, to a buffer of its own. What the kernel accesses for it is known:
// the buffer, and the frames of the file, which is mapped (set NAME-file).
#include "common.h"
#define LEN (1u << 20)
#define PIECE (64u << 10)

struct copy {
    const char *name, *file_name;
    int file;
    char *buffer;
};

static void *copies(void *argument) {
    struct copy *copy = argument;
    uint32_t random = 1;
    say_thread(copy->name, copy->name);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint32_t r = next_random(&random) & (LEN - PIECE);
        if (pread(copy->file, copy->buffer + (r & (PIECE - 64)), PIECE, r & ~63u) < 0)
            exit(1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static struct copy all[2] = {{.name = "left", .file_name = "left-file"}, {.name = "right", .file_name = "right-file"}};
    pthread_t threads[2];
    // Whenever a thread was preempted, the kernel accesses what it registers for rseq(2), which is no buffer.
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execv("/proc/self/exe", argv);
    }
    // In an emulated machine whoever samples needs the CPUs, too.
    if (getenv("COPIES_NICE") && nice(atoi(getenv("COPIES_NICE"))) == -1)
        exit(1);
    for (int i = 0; i < 2; i++) {
        all[i].file = memfd_create(all[i].name, 0);
        if (all[i].file < 0 || ftruncate(all[i].file, LEN))
            exit(1);
        char *mapped = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, all[i].file, 0);
        if (mapped == MAP_FAILED)
            exit(1);
        memset(mapped, 1, LEN);
        all[i].buffer = map_buffer(2 * PIECE, 0);
        say_buffer(all[i].name, all[i].buffer, 2 * PIECE);
        say_buffer(all[i].file_name, mapped, LEN);
    }
    for (int i = 0; i < 2; i++)
        threads[i] = start_thread(copies, &all[i]);
    run_for(seconds_of(argc, argv));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
