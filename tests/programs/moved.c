// Mappings that change without a record of it, when SIGUSR1 comes. One thread's shared mapping is unmapped, and private memory
// moves to its place; another's grows and moves. From then on the threads have other names.
#include "common.h"
#include <signal.h>
#define LEN (4u << 20)

static atomic_int moved;
static char *place, *room;

static void on_signal(int signal) {
    (void)signal;
    atomic_store(&moved, 1);
}

static void *shared_at(char *at, size_t len) {
    int fd = memfd_create("moved", 0);
    if (fd < 0 || ftruncate(fd, 2 * LEN) ||
        mmap(at, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != at) {
        perror("memfd");
        exit(1);
    }
    close(fd);
    return at;
}

static void work(uint32_t *words, size_t len, atomic_int *until) {
    uint32_t state = 7;
    while (!atomic_load_explicit(until, memory_order_relaxed))
        for (int i = 0; i < 10000; i++)
            words[next_random(&state) % (len / 4)] += (uint32_t)i;
}

static void *gone(void *unused) {
    say_thread("gone", "gone");
    char *private = map_buffer(LEN, 0);
    work((uint32_t *)place, LEN, &moved);
    munmap(place, LEN);
    if (mremap(private, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place)
        perror("mremap");
    prctl(PR_SET_NAME, "gone-2");
    work((uint32_t *)place, LEN, &stop);
    return unused;
}

static void *grown(void *unused) {
    say_thread("grown", "grown");
    work((uint32_t *)(place + 2 * LEN), LEN, &moved);
    if (mremap(place + 2 * LEN, LEN, 2 * LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room) != room)
        perror("mremap");
    prctl(PR_SET_NAME, "grown-2");
    work((uint32_t *)room, 2 * LEN, &stop);
    return unused;
}

int main(int argc, char **argv) {
    place = mmap(NULL, 8 * (size_t)LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    room = place + 4 * (size_t)LEN;
    shared_at(place, LEN);
    shared_at(place + 2 * LEN, LEN);
    signal(SIGUSR1, on_signal);
    say_buffer("gone", place, LEN);
    say_buffer("grown", room, 2 * LEN);
    pthread_t threads[2] = {start_thread(gone, NULL), start_thread(grown, NULL)};
    // One of the threads gets it: it would end this one's sleep.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    run_for(seconds_of(argc, argv));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
