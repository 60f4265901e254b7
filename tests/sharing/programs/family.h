// What the scenarios are made of: threads, their memory and what they do in a round. See README.md.
#pragma once
#include "../../programs/common.h"

// A function that the compiler knows nothing of, so that its caller passes what is written there.
#ifdef __clang__
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif

#define ALONE (-1)
#define MOST_THREADS 64

// A thread. It is in a group of threads that share memory, or ALONE. No two of them have a line in common.
struct __attribute__((aligned(128))) worker {
    int group, seat;                      // the seat counts the threads of its group
    int process;                          // 0: the program's first process; others are forked
    void (*prepare)(struct worker *);     // called once by the thread itself; may be NULL
    void (*work)(struct worker *);        // one round of work, of some ten microseconds
    void *shared;                         // what the scenario gives it
    size_t shared_words;                  // a power of two where it is a buffer
    uint64_t *own;                        // memory that no other thread touches
    size_t own_words;                     // a power of two
    uint32_t random;                      // loops keep it and the sum in registers, as most programs do
    uint64_t sum;                         // uses what is loaded
    char name[16];
};

struct scenario {
    const char *name;
    int threads;                          // where the command line says nothing else
    void (*make)(int threads);
};

extern const struct scenario memory_scenarios[], structure_scenarios[], contention_scenarios[], protocol_scenarios[],
    phase_scenarios[], kernel_scenarios[];

// Adds a thread. Its own memory has own_kib KiB, a power of two.
struct worker *add(int group, void (*work)(struct worker *), void *shared, size_t shared_words, size_t own_kib);

static inline __attribute__((always_inline)) uint32_t draw(struct worker *w) { return next_random(&w->random); }

// Whether the threads of this process are to end; `stop` is the one of the file that names it.
int stopped(void);

// Loads from and stores to memory that is the thread's own, `count` times.
void own_work(struct worker *w, int count);
