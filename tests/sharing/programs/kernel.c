// Scenarios whose threads share only through the kernel: each thread is a process of its own, so no private memory is shared.
// Descriptors are made before the processes are forked. Each process keeps only its own, as separate programs would.
#include "family.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

// The longest wait, after which a thread looks whether it is to stop.
#define WAIT_MS 20
#define PIECE 4096

// The descriptors of a worker; -1 where there is none.
struct ends {
    int in, out, poll;
};
static struct ends ends[MOST_THREADS];
static int used;

static int checked(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static void keep_own_ends(struct worker *w) {
    struct ends *own = w->shared;
    // A peer may end first.
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < used; i++)
        if (&ends[i] != own) {
            close(ends[i].in);
            if (ends[i].out != ends[i].in)
                close(ends[i].out);
        }
}

// Adds a process with these descriptors.
static struct worker *add_process(int group, void (*work)(struct worker *), int in, int out) {
    ends[used] = (struct ends){in, out, -1};
    struct worker *w = add(group, work, &ends[used], 0, 64);
    w->prepare = keep_own_ends;
    w->process = ++used;
    return w;
}

// After what failed for good, for example because the peer has ended.
static void rest(void) { nap(WAIT_MS * 1e-3); }

// Reads into or writes from the thread's own memory, which is that of own_work too. Returns the number of bytes; 0 if there
// was nothing to do, after a wait; -1 if there will be nothing more.
static int move(struct worker *w, int fd, size_t size, int writing) {
    ssize_t done = writing ? write(fd, w->own, size) : read(fd, w->own, size);
    if (done > 0)
        return (int)done;
    if (done == 0 || errno != EAGAIN) {
        rest();
        return -1;
    }
    struct pollfd one = {fd, writing ? POLLOUT : POLLIN, 0};
    poll(&one, 1, WAIT_MS);
    return 0;
}

// Moves all of the bytes; false if it is to stop, or the peer is gone.
static int move_all(struct worker *w, int fd, size_t size, int writing) {
    while (size > 0 && !stopped()) {
        int done = move(w, fd, size, writing);
        if (done < 0)
            break;
        size -= (size_t)done;
    }
    return size == 0;
}

// ---- Pairs over a pipe or a connection ----

// The first of a pair writes, the second reads.
static void stream_work(struct worker *w) {
    struct ends *own = w->shared;
    int writing = w->seat == 0;
    if (move(w, writing ? own->out : own->in, PIECE, writing) > 0)
        own_work(w, 200);
}

static void make_pipes(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        int pipe[2];
        checked(pipe2(pipe, O_NONBLOCK), "pipe2");
        add_process(g, stream_work, -1, pipe[1]);
        add_process(g, stream_work, pipe[0], -1);
    }
}

static void make_unixes(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        int pair[2];
        checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), "socketpair");
        for (int i = 0; i < 2; i++)
            add_process(g, stream_work, pair[i], pair[i]);
    }
}

// The first of a pair sends a request of 2 KiB and gets an answer of 6 KiB.
static void request_work(struct worker *w) {
    struct ends *own = w->shared;
    int asks = w->seat == 0;
    if (move_all(w, own->in, 2048, asks) && move_all(w, own->in, 6144, !asks))
        own_work(w, 1000);
}

// The address of a socket that listens on a port which the kernel chooses.
static int listen_on_loopback(struct sockaddr_in *address) {
    int listener = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    checked(bind(listener, (struct sockaddr *)address, length), "bind");
    checked(listen(listener, 1), "listen");
    checked(getsockname(listener, (struct sockaddr *)address, &length), "getsockname");
    return listener;
}

static void make_loopback(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        struct sockaddr_in address;
        int listener = listen_on_loopback(&address), pair[2], on = 1;
        pair[0] = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
        checked(connect(pair[0], (struct sockaddr *)&address, sizeof address), "connect");
        pair[1] = checked(accept(listener, NULL, NULL), "accept");
        close(listener);
        for (int i = 0; i < 2; i++) {
            checked(fcntl(pair[i], F_SETFL, O_NONBLOCK), "fcntl");
            checked(setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt");
            add_process(g, request_work, pair[i], pair[i]);
        }
    }
}

// ---- Files in the page cache ----

#define READ_BYTES (24 << 20)
#define WRITTEN_BYTES (1 << 20)

// A name for a new file, which is removed once all have opened it.
static void make_content(char *path, size_t bytes) {
    static char zeros[1 << 16];
    int fd = checked(mkstemp(path), path);
    for (size_t at = 0; at < bytes; at += sizeof zeros)
        if (write(fd, zeros, sizeof zeros) != sizeof zeros) {
            perror(path);
            exit(1);
        }
    close(fd);
}

static void page_work(struct worker *w, size_t bytes, int writing) {
    struct ends *own = w->shared;
    for (int i = 0; i < 4; i++) {
        off_t at = (off_t)(draw(w) % (bytes / PIECE)) * PIECE;
        ssize_t done = writing ? pwrite(own->in, w->own, PIECE, at) : pread(own->in, w->own, PIECE, at);
        if (done != PIECE)
            rest();
        own_work(w, writing ? 300 : 100);
    }
}
static void reader_work(struct worker *w) { page_work(w, READ_BYTES, 0); }
static void written_work(struct worker *w) { page_work(w, WRITTEN_BYTES, w->seat == 0); }

// Each opens the file of its group, so that they share nothing but the file.
static void file_groups(int groups, int members, size_t bytes, void (*work)(struct worker *)) {
    for (int g = 0; g < groups; g++) {
        char path[] = "family-XXXXXX";
        make_content(path, bytes);
        for (int i = 0; i < members; i++)
            add_process(g, work, checked(open(path, O_RDWR), path), -1);
        unlink(path);
    }
}
static void make_readers(int threads) { file_groups(threads / 3, 3, READ_BYTES, reader_work); }
static void make_written(int threads) { file_groups(threads / 2, 2, WRITTEN_BYTES, written_work); }

// ---- Turns ----

static void poll_own_ends(struct worker *w) {
    struct ends *own = w->shared;
    struct epoll_event event = {.events = EPOLLIN};
    keep_own_ends(w);
    own->poll = checked(epoll_create1(0), "epoll_create1");
    checked(epoll_ctl(own->poll, EPOLL_CTL_ADD, own->in, &event), "epoll_ctl");
}

// Waits for its own event, then causes the other's.
static void event_work(struct worker *w) {
    struct ends *own = w->shared;
    struct epoll_event event;
    uint64_t value = 1;
    if (epoll_wait(own->poll, &event, 1, WAIT_MS) != 1 || read(own->in, &value, sizeof value) < 0)
        return;
    // Little, so that the pair has clearly more of its misses in common than the 2 % that join threads: 400 times left 3 %.
    own_work(w, 100);
    value = 1;
    if (write(own->out, &value, sizeof value) < 0)
        rest();
}

static void make_events(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        // The first may begin.
        int pair[2] = {checked(eventfd(1, EFD_NONBLOCK), "eventfd"), checked(eventfd(0, EFD_NONBLOCK), "eventfd")};
        for (int i = 0; i < 2; i++)
            add_process(g, event_work, pair[i], checked(dup(pair[1 - i]), "dup"))->prepare = poll_own_ends;
    }
}

// Waits until the word is the number of its seat, then writes that of the other.
static void futex_work(struct worker *w) {
    atomic_uint *word = w->shared;
    unsigned seat = (unsigned)w->seat;
    struct timespec most = {0, WAIT_MS * 1000000};
    while (atomic_load(word) != seat) {
        syscall(SYS_futex, word, FUTEX_WAIT, 1 - seat, &most, NULL, 0);
        if (stopped())
            return;
    }
    own_work(w, 400);
    atomic_store(word, 1 - seat);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void make_futexes(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        atomic_uint *word = map_buffer(4096, 1);
        for (int i = 0; i < 2; i++)
            add(g, futex_work, word, 0, 64)->process = g * 2 + i + 1;
    }
}

// ---- A socket that several processes accept connections from ----

#define AT_ONCE 3
#define REQUEST 512

static struct listened {
    struct sockaddr_un address;
    socklen_t length;
} listened[MOST_THREADS];

// Makes as many connections as there are workers, one request on each.
static void client_work(struct worker *w) {
    struct listened *to = &listened[w->group];
    int made = 0, fds[AT_ONCE];
    for (; made < AT_ONCE; made++) {
        fds[made] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fds[made] < 0)
            break;
        if (connect(fds[made], (struct sockaddr *)&to->address, to->length) || !move_all(w, fds[made], REQUEST, 1)) {
            close(fds[made]);
            break;
        }
    }
    if (made == 0)
        rest(); // nobody listens any more, or too many wait
    own_work(w, 3000);
    for (int i = 0; i < made; i++) {
        move_all(w, fds[i], PIECE, 0);
        close(fds[i]);
    }
}

// Accepts a connection, waiting as long as the socket's timeout; the kernel wakes one of those that wait.
static void accept_work(struct worker *w) {
    struct ends *own = w->shared;
    int fd = accept4(own->in, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN)
            rest();
        return;
    }
    if (move_all(w, fd, REQUEST, 0)) {
        own_work(w, 1000);
        move_all(w, fd, PIECE, 1);
    }
    close(fd);
}

static void make_listeners(int threads) {
    for (int g = 0; g < threads / 4; g++) {
        struct listened *l = &listened[g];
        struct timeval most = {0, WAIT_MS * 1000};
        int fd = checked(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
        l->address.sun_family = AF_UNIX;
        // Without a name, the kernel chooses one that is no file.
        checked(bind(fd, (struct sockaddr *)&l->address, sizeof l->address.sun_family), "bind");
        checked(listen(fd, 16), "listen");
        checked(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), "setsockopt");
        l->length = sizeof l->address;
        checked(getsockname(fd, (struct sockaddr *)&l->address, &l->length), "getsockname");
        add_process(g, client_work, -1, -1);
        for (int i = 0; i < AT_ONCE; i++)
            add_process(g, accept_work, checked(dup(fd), "dup"), -1);
        close(fd);
    }
}

// ---- Kernel objects that are each process's own ----

static void own_pipe_work(struct worker *w) {
    struct ends *own = w->shared;
    for (int i = 0; i < 4; i++) {
        if (move(w, own->out, PIECE, 1) > 0)
            move(w, own->in, PIECE, 0);
        own_work(w, 200);
    }
}

static void make_ownpipes(int threads) {
    for (int i = 0; i < threads; i++) {
        int pipe[2];
        checked(pipe2(pipe, O_NONBLOCK), "pipe2");
        add_process(ALONE, own_pipe_work, pipe[0], pipe[1]);
    }
}

static char directory[] = "family-XXXXXX";

static void remove_directory(void) { rmdir(directory); }

// Makes, writes, reads and removes a file of its own in the directory of all, and opens a device that all open.
static void own_file_work(struct worker *w) {
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s-%u", directory, w->name, draw(w) & 63);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, w->own, 2 * PIECE) < 0 || pread(fd, w->own, 2 * PIECE, 0) < 0 || stat(path, &about))
        rest();
    close(fd);
    unlink(path);
    close(open("/dev/null", O_WRONLY));
    own_work(w, 8000);
}

static void make_ownfiles(int threads) {
    if (!mkdtemp(directory)) {
        perror(directory);
        exit(1);
    }
    // The other processes leave by _exit, so that this one removes it.
    atexit(remove_directory);
    for (int i = 0; i < threads; i++)
        add_process(ALONE, own_file_work, -1, -1);
}

const struct scenario kernel_scenarios[] = {
    {"pipes", 6, make_pipes},
    {"unixes", 6, make_unixes},
    {"loopback", 6, make_loopback},
    {"readers", 6, make_readers},
    {"written", 4, make_written},
    {"events", 6, make_events},
    {"futexes", 6, make_futexes},
    {"listeners", 8, make_listeners},
    {"ownpipes", 6, make_ownpipes},
    {"ownfiles", 6, make_ownfiles},
    {NULL, 0, NULL},
};
