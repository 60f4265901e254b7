// A small broker, its producers and its consumers, for servers.py. Producers append records of 1 to 4 KB to a log, which is a
// file that begins again at its start when it is full. The broker has a thread for each connection: it writes what a producer
// sends, and sends what was appended to a consumer that asks for it with sendfile(2), as Kafka does.
//
//   broker PORT FILE      the broker, with its log in FILE
//   producer PORT         appends one record after another, each when the one before is acknowledged
//   consumer PORT         reads what is appended from now on
//
// The name by which it is called says which of them it is, so that threads have the names that they would have in programs of
// their own.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_BYTES (32u << 20)
#define MAX_BYTES (1u << 16)

static int log_file;
// Bytes that were ever appended: the end of the log is at this position modulo its size.
static uint64_t appended;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int receive_all(int connection, void *to, size_t bytes) {
    return bytes && recv(connection, to, bytes, MSG_WAITALL) != (ssize_t)bytes ? -1 : 0;
}

static int send_all(int connection, const void *from, size_t bytes, int flags) {
    const char *next = from;
    while (bytes) {
        ssize_t sent = send(connection, next, bytes, MSG_NOSIGNAL | flags);
        if (sent <= 0)
            return -1;
        next += sent;
        bytes -= (size_t)sent;
    }
    return 0;
}

// Not pwrite(2): brokers append with write(2), so that their threads share the position of the open file too.
static void write_at(const char *from, uint32_t bytes, uint32_t offset) {
    if (lseek(log_file, offset, SEEK_SET) < 0 || write(log_file, from, bytes) != (ssize_t)bytes)
        exit(fail("writing the log"));
}

// A record is its length and its bytes; the answer is its position.
static void serve_producer(int connection) {
    char *record = malloc(MAX_BYTES);
    uint32_t bytes;
    while (record && !receive_all(connection, &bytes, sizeof(bytes)) && bytes <= MAX_BYTES &&
           !receive_all(connection, record, bytes)) {
        pthread_mutex_lock(&mutex);
        uint64_t position = appended;
        uint32_t offset = position % LOG_BYTES, first = bytes < LOG_BYTES - offset ? bytes : LOG_BYTES - offset;
        write_at(record, first, offset);
        if (first < bytes)
            write_at(record + first, bytes - first, 0);
        appended += bytes;
        pthread_cond_broadcast(&more);
        pthread_mutex_unlock(&mutex);
        if (send_all(connection, &position, sizeof(position), 0))
            break;
    }
    free(record);
}

// A request is one byte; the answer is a length, and as many bytes of the log.
static void serve_consumer(int connection) {
    char request;
    pthread_mutex_lock(&mutex);
    uint64_t position = appended;
    pthread_mutex_unlock(&mutex);
    while (!receive_all(connection, &request, 1)) {
        pthread_mutex_lock(&mutex);
        while (appended == position)
            pthread_cond_wait(&more, &mutex);
        uint64_t end = appended;
        pthread_mutex_unlock(&mutex);
        // One that is too slow would read what is being overwritten: it goes on near the end.
        if (end - position > LOG_BYTES / 2)
            position = end - MAX_BYTES;
        uint32_t offset = position % LOG_BYTES, bytes = end - position > MAX_BYTES ? MAX_BYTES : (uint32_t)(end - position);
        if (bytes > LOG_BYTES - offset)
            bytes = LOG_BYTES - offset;
        if (send_all(connection, &bytes, sizeof(bytes), MSG_MORE))
            return;
        off_t from = offset, to = (off_t)offset + bytes;
        while (from < to)
            if (sendfile(connection, log_file, &from, (size_t)(to - from)) <= 0)
                return;
        position += bytes;
    }
}

static void *serve(void *argument) {
    int connection = (int)(intptr_t)argument;
    char role;
    if (!receive_all(connection, &role, 1)) {
        if (role == 'p')
            serve_producer(connection);
        else
            serve_consumer(connection);
    }
    close(connection);
    return NULL;
}

static int no_delay(int connection) {
    int on = 1;
    return setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int broker(int listener, const struct sockaddr_in *address, const char *path) {
    int on = 1;
    log_file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (log_file < 0 || ftruncate(log_file, LOG_BYTES))
        return fail(path);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, (const struct sockaddr *)address, sizeof(*address)) || listen(listener, 16))
        return fail("bind");
    for (;;) {
        pthread_t thread;
        int connection = accept(listener, NULL, NULL);
        if (connection < 0 || no_delay(connection))
            return fail("accept");
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection))
            return fail("pthread_create");
        pthread_detach(thread);
    }
}

static int producer(int connection) {
    static char record[sizeof(uint32_t) + MAX_BYTES];
    unsigned seed = (unsigned)getpid();
    uint64_t position;
    if (send_all(connection, "p", 1, 0))
        return fail("send");
    for (unsigned count = 0;; count++) {
        uint32_t bytes = 1024 + (uint32_t)rand_r(&seed) % 3073;
        memcpy(record, &bytes, sizeof(bytes));
        for (uint32_t i = 0; i < bytes; i += 64)
            record[sizeof(bytes) + i] = (char)(count + i);
        if (send_all(connection, record, sizeof(bytes) + bytes, 0) || receive_all(connection, &position, sizeof(position)))
            return fail("the broker");
    }
}

// Without it the compiler could leave out that the consumer reads.
static volatile uint64_t consumed;

static int consumer(int connection) {
    static uint64_t words[MAX_BYTES / sizeof(uint64_t)];
    uint64_t sum = 0;
    uint32_t bytes;
    if (send_all(connection, "c", 1, 0))
        return fail("send");
    for (;;) {
        if (send_all(connection, "r", 1, 0) || receive_all(connection, &bytes, sizeof(bytes)) || bytes > sizeof(words) ||
            receive_all(connection, words, bytes))
            return fail("the broker");
        for (uint32_t i = 0; i < bytes / sizeof(*words); i++)
            sum += words[i];
        consumed = sum;
    }
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    if (argc < 2 || (argc < 3 && !strcmp(name, "broker")))
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (descriptor < 0)
        return fail("socket");
    if (!strcmp(name, "broker"))
        return broker(descriptor, &address, argv[2]);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof(address)) || no_delay(descriptor))
        return fail("connect");
    return strcmp(name, "producer") ? consumer(descriptor) : producer(descriptor);
}
