// SPDX-License-Identifier: GPL-2.0-or-later
// The caches of the machine, what is counted of them, and how an access changes both.
#ifndef CACHES_MODEL_H
#define CACHES_MODEL_H
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, PAGE = 4096, MAX_CPUS = 32, MAX_LLCS = 8, MAX_WAYS = 64, GROUPS = 512, WORKLOAD = 4 };
static const uint64_t USER_END = 1ULL << 47, MAX_RAM = 3ULL << 30;
static const uint32_t EMPTY = UINT32_MAX;

// A cache: in each set, line numbers by age, the newest first, then EMPTY.
struct cache {
    uint32_t ways, set_mask;
    uint32_t *tags;
};

// What is known of a line of RAM since WARM; a bit for each CPU, or for each LLC.
struct line {
    uint32_t private; // in L2 of these CPUs
    uint32_t near;    // a store of a CPU of the same LLC took it from L2 of these CPUs
    uint8_t held;     // in these LLCs
    uint8_t had;      // was in these LLCs, or is
    uint8_t lost;     // a store of a CPU of another LLC took it from these LLCs
    uint8_t dirty;    // this LLC has modified it
};

struct counts {
    uint64_t instructions, units, loads, stores, l1, l2, near, first, capacity, written, transfers, upgrades;
    uint64_t kernel; // misses of the LLC by kernel code: a part of first, capacity and written
};

static unsigned cpus, llcs;
static struct cache l1[MAX_CPUS], l2[MAX_CPUS], llc[MAX_LLCS];
static unsigned llc_of[MAX_CPUS];
static uint32_t cpus_of[MAX_LLCS];
static struct line *lines;
static uint64_t ram_size;

static struct counts counts[MAX_CPUS][GROUPS];
static struct counts *now[MAX_CPUS]; // of the group that runs on a CPU

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("caches: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

// Memory of zeroes that takes room when it is used; NULL if there is none.
static void *reserve(uint64_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    // Random accesses to hundreds of MiB: small pages would miss the host's TLB each time.
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void zero(void *memory, uint64_t bytes) {
    if (madvise(memory, bytes, MADV_DONTNEED))
        memset(memory, 0, bytes);
}

static inline uint32_t *set_of(const struct cache *cache, uint32_t line) {
    return cache->tags + (size_t)(line & cache->set_mask) * cache->ways;
}

// Is the line there? It becomes the newest then.
static inline bool hit(struct cache *cache, uint32_t line) {
    uint32_t *set = set_of(cache, line);
    if (set[0] == line)
        return true;
    for (uint32_t way = 1; way < cache->ways; way++) {
        if (set[way] == line) {
            memmove(set + 1, set, way * sizeof *set);
            set[0] = line;
            return true;
        }
    }
    return false;
}

// Puts in a line that is not there, as the newest; returns the one that it replaces.
static inline uint32_t put(struct cache *cache, uint32_t line) {
    uint32_t *set = set_of(cache, line), victim = set[cache->ways - 1];
    memmove(set + 1, set, (cache->ways - 1) * sizeof *set);
    set[0] = line;
    return victim;
}

static void drop(struct cache *cache, uint32_t line) {
    uint32_t *set = set_of(cache, line), last = cache->ways - 1;
    for (uint32_t way = 0; way <= last; way++) {
        if (set[way] == line) {
            memmove(set + way, set + way + 1, (last - way) * sizeof *set);
            set[last] = EMPTY;
            return;
        }
    }
}

static void drop_private(uint32_t of, uint32_t line) {
    for (; of; of &= of - 1) {
        unsigned cpu = __builtin_ctz(of);
        drop(&l1[cpu], line);
        drop(&l2[cpu], line);
    }
}

static void fill_llc(unsigned home, uint32_t number, struct counts *count) {
    struct line *line = &lines[number];
    uint8_t bit = 1u << home;
    if (!(line->had & bit))
        count->first++;
    else if (line->lost & bit)
        count->written++;
    else
        count->capacity++;
    // Only another LLC can have modified it; what it has goes to memory, too.
    if (line->dirty)
        count->transfers++;
    line->dirty = 0;
    line->had |= bit;
    line->held |= bit;
    line->lost &= ~bit;
    uint32_t victim = put(&llc[home], number);
    if (victim == EMPTY)
        return;
    struct line *old = &lines[victim];
    drop_private(old->private & cpus_of[home], victim);
    old->private &= ~cpus_of[home];
    old->held &= ~bit;
    old->dirty &= ~bit;
}

// A store: nobody else has the line then.
static void take(unsigned cpu, uint32_t number, bool missed, struct counts *count) {
    struct line *line = &lines[number];
    unsigned home = llc_of[cpu];
    uint32_t me = 1u << cpu, others = line->private & ~me;
    uint8_t bit = 1u << home, other_llcs = line->held & ~bit;
    if (!missed && (others || other_llcs))
        count->upgrades++;
    drop_private(others, number);
    for (uint8_t of = other_llcs; of; of &= of - 1)
        drop(&llc[__builtin_ctz(of)], number);
    line->near |= others & cpus_of[home];
    line->lost |= other_llcs;
    line->private = me;
    line->held = line->dirty = bit;
}

// An access to one line. Returns whether the LLC missed.
static bool access_line(unsigned cpu, uint32_t number, bool store) {
    struct counts *count = now[cpu];
    struct line *line = &lines[number];
    uint32_t me = 1u << cpu;
    unsigned home = llc_of[cpu];
    uint8_t bit = 1u << home;
    bool missed = false;
    if (store)
        count->stores++;
    else
        count->loads++;
    if (!hit(&l1[cpu], number)) {
        count->l1++;
        // What is known of the line says whether L2 and the LLC have it: a miss needs no search.
        if (line->private & me) {
            hit(&l2[cpu], number);
        } else {
            count->l2++;
            missed = !(line->held & bit);
            if (missed) {
                fill_llc(home, number, count);
            } else {
                hit(&llc[home], number);
                if (line->near & me)
                    count->near++;
            }
            line->near &= ~me;
            line->private |= me;
            uint32_t victim = put(&l2[cpu], number);
            if (victim != EMPTY) {
                drop(&l1[cpu], victim);
                lines[victim].private &= ~me;
            }
        }
        put(&l1[cpu], number);
    }
    if (store && (line->private != me || line->held != bit || line->dirty != bit))
        take(cpu, number, missed, count);
    return missed;
}

static void clear_caches(void) {
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        memset(l1[cpu].tags, 0xff, (l1[cpu].set_mask + 1ULL) * l1[cpu].ways * sizeof *l1[cpu].tags);
        memset(l2[cpu].tags, 0xff, (l2[cpu].set_mask + 1ULL) * l2[cpu].ways * sizeof *l2[cpu].tags);
    }
    for (unsigned i = 0; i < llcs; i++)
        memset(llc[i].tags, 0xff, (llc[i].set_mask + 1ULL) * llc[i].ways * sizeof *llc[i].tags);
    zero(lines, ram_size / LINE * sizeof *lines);
}
#endif
