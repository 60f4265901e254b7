// False sharing: a writer counts in one word of a line, and a reader uses another word of it that nobody writes. The writer's loop
// is entered in its middle and decided by the word that both read: only its value tells that the count is what comes next.
#include "common.h"

struct line { uint64_t count; uint64_t is_over; } __attribute__((aligned(64)));
static struct line line;
// Where each thread has the address of the line, in a line of its own.
static struct { struct line *line; } __attribute__((aligned(64))) writers = {&line}, readers = {&line};

static void *count_it(void *argument) {
    struct line *at = &line;
    (void)argument;
    say_thread("writer", "beside-writer");
    __asm__ volatile("jmp 2f\n"
                     "1: lock addq $1, (%0)\n"
                     "2: mov (%1), %0\n"
                     "movzbl 8(%0), %%edx\n"
                     "test %%dl, %%dl\n"
                     "je 1b"
                     : "+r"(at) : "r"(&writers) : "rdx", "memory", "cc");
    return NULL;
}

static void *read_it(void *argument) {
    struct line *at = &line;
    (void)argument;
    say_thread("reader", "beside-reader");
    __asm__ volatile("1: mov (%1), %0\n"
                     "movzbl 8(%0), %%edx\n"
                     "test %%dl, %%dl\n"
                     "je 1b"
                     : "+r"(at) : "r"(&readers) : "rdx", "memory", "cc");
    return NULL;
}

int main(int argc, char **argv) {
    say_buffer("line", &line, sizeof line);
    start_thread(count_it, NULL);
    start_thread(read_it, NULL);
    run_for(seconds_of(argc, argv));
    return 0;
}
