// A file system of one file that stops to answer: `stalled FILE DIRECTORY` shows FILE as DIRECTORY/program (by FUSE, as root),
// says `ready` on stdout, and answers nothing any more after SIGUSR1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int channel, file;
static struct stat of_file;

static void on_signal(int signal) {
    (void)signal;
    for (;;)
        pause();
}

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t len) {
    static char buffer[1 << 20];
    struct fuse_out_header out = {(uint32_t)(sizeof out + len), -error, in->unique};
    memcpy(buffer, &out, sizeof out);
    if (len)
        memcpy(buffer + sizeof out, data, len);
    if (write(channel, buffer, sizeof out + len) < 0 && errno != ENOENT)
        perror("answer");
}

static void attributes(uint64_t node, struct fuse_attr *attr) {
    attr->ino = node;
    attr->mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0755;
    attr->nlink = 1;
    attr->size = node == 1 ? 0 : (uint64_t)of_file.st_size;
    attr->mtime = attr->ctime = 1;
    attr->blksize = 4096;
}

static void serve(const struct fuse_in_header *in, const char *body) {
    switch (in->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *init = (const void *)body;
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = init->max_readahead, .max_write = 4096};
        answer(in, 0, &out, sizeof out);
        break;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = 2};
        attributes(2, &out.attr);
        if (in->nodeid == 1 && !strcmp(body, "program"))
            answer(in, 0, &out, sizeof out);
        else
            answer(in, ENOENT, NULL, 0);
        break;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {0};
        attributes(in->nodeid, &out.attr);
        answer(in, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: {
        struct fuse_open_out out = {.fh = 1};
        answer(in, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: {
        static char data[1 << 18];
        const struct fuse_read_in *read_in = (const void *)body;
        ssize_t got = pread(file, data, read_in->size < sizeof data ? read_in->size : sizeof data, (off_t)read_in->offset);
        answer(in, 0, data, got < 0 ? 0 : (size_t)got);
        break;
    }
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_ACCESS:
        answer(in, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    default:
        answer(in, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    prctl(PR_SET_PDEATHSIG, 9);
    channel = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    file = open(argv[1], O_RDONLY | O_CLOEXEC);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", channel);
    if (channel < 0 || file < 0 || fstat(file, &of_file) || mount("stalled", argv[2], "fuse", MS_NODEV, options)) {
        perror("fuse");
        return 1;
    }
    signal(SIGUSR1, on_signal);
    puts("ready");
    fflush(stdout);
    static char request[1 << 18];
    for (;;) {
        ssize_t len = read(channel, request, sizeof request);
        if (len >= (ssize_t)sizeof(struct fuse_in_header))
            serve((const void *)request, request + sizeof(struct fuse_in_header));
        else if (len < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT)
            return errno == ENODEV ? 0 : 1;
    }
}
