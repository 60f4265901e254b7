// Scenarios in which groups share plain memory: buffers of several sizes, mapped files, tables, hot fields beside them.
#include "family.h"

// A round on the group's buffer: random words of it and of the thread's own memory, one access in four a store.
static void buffer_work(struct worker *w) {
    uint64_t *shared = w->shared, *own = w->own, sum = 0;
    size_t mask = w->shared_words - 1, own_mask = w->own_words - 1;
    uint32_t random = w->random;
    for (int i = 0; i < 2048; i++) {
        uint32_t r = next_random(&random);
        uint64_t *word = r & 1 ? &shared[(r >> 3) & mask] : &own[(r >> 3) & own_mask];
        if ((r & 6) == 0)
            *word = r;
        else
            sum += *word;
    }
    w->random = random;
    w->sum += sum;
}

static void alone_work(struct worker *w) { own_work(w, 2048); }

// A group of `threads` over a buffer of its own.
static void buffer_group(int group, int threads, uint64_t *buffer, size_t words) {
    for (int i = 0; i < threads; i++)
        add(group, buffer_work, buffer, words, 256);
}

static void groups_of(const int *sizes, int groups, size_t words) {
    uint64_t *buffers = map_buffer(words * 8 * (size_t)groups, 0);
    for (int g = 0; g < groups; g++)
        buffer_group(g, sizes[g], buffers + words * (size_t)g, words);
}

// ---- Numbers of threads ----

static void make_pair(int threads) {
    (void)threads;
    groups_of((int[]){2}, 1, 1 << 16);
}

static void make_trio(int threads) {
    (void)threads;
    groups_of((int[]){3}, 1, 1 << 16);
}

static void make_four(int threads) {
    (void)threads;
    groups_of((int[]){3}, 1, 1 << 16);
    add(ALONE, alone_work, NULL, 0, 512);
}

static void make_strangers(int threads) {
    for (int i = 0; i < threads; i++)
        add(ALONE, alone_work, NULL, 0, 512);
}

static void make_unequal(int threads) {
    (void)threads;
    groups_of((int[]){2, 3, 9}, 3, 1 << 17);
}

// Eight groups of three, whose buffers of 64 KiB meet within pages.
static void make_many(int threads) {
    (void)threads;
    uint64_t *buffers = map_buffer(9 << 16, 0);
    for (int g = 0; g < 8; g++)
        buffer_group(g, 3, buffers + 200 + ((size_t)g << 13), 1 << 13);
}

// The threads in as many groups as a configuration can name (7), of two at least; one may be left over.
static void make_fleet(int threads) {
    int groups = threads / 2 < 7 ? threads / 2 : 7;
    uint64_t *buffers = map_buffer((size_t)groups << 19, 0);
    for (int i = 0; i < threads; i++) {
        if (i >= groups * (threads / groups) && threads / groups == 2)
            add(ALONE, alone_work, NULL, 0, 256);
        else
            add(i % groups, buffer_work, buffers + ((size_t)(i % groups) << 16), 1 << 16, 64);
    }
}

// ---- State of threads in memory ----

// As buffer_work, but the thread's state stays in its struct, as where others may look at it: most accesses are there. The
// structs are neighbours in one array, with no line in common.
static void state_work(struct worker *w) {
    volatile uint32_t *random = &w->random;
    volatile uint64_t *sum = &w->sum;
    uint64_t *shared = w->shared, *own = w->own;
    size_t mask = w->shared_words - 1, own_mask = w->own_words - 1;
    for (int i = 0; i < 1024; i++) {
        uint32_t r = *random;
        next_random(&r);
        *random = r;
        uint64_t *word = shared && r & 1 ? &shared[(r >> 3) & mask] : &own[(r >> 3) & own_mask];
        if ((r & 6) == 0)
            *word = r;
        else
            *sum += *word;
    }
}

// Groups of two over 512 KiB each.
static void make_state(int threads) {
    uint64_t *buffers = map_buffer((size_t)(threads / 2) << 19, 0);
    for (int i = 0; i < threads / 2 * 2; i++)
        add(i / 2, state_work, buffers + ((size_t)(i / 2) << 16), 1 << 16, 256);
}

static void make_ownstate(int threads) {
    for (int i = 0; i < threads; i++)
        add(ALONE, state_work, NULL, 0, 512);
}

// ---- A hot field beside a large buffer ----

#define LARGE_BYTES (4 << 20)
#define LARGE_MASK (LARGE_BYTES / 8 - 1)

// Read by every access of its threads, and never written. The objects of all groups lie in one page, a line each.
struct object {
    uint64_t paused, scale, unused[6];
};
static struct object objects[MOST_THREADS] __attribute__((aligned(4096)));

// Loads words[index] into the register of the index, which is thereby lost.
static inline uint64_t load_over(const uint64_t *words, uint64_t index) {
#ifdef __x86_64__
    __asm__ volatile("mov (%1,%0,8),%0" : "+r"(index) : "r"(words) : "memory");
    return index;
#else
    return words[index];
#endif
}

static void hotfield_work(struct worker *w) {
    const volatile struct object *object = &objects[w->group == ALONE ? MOST_THREADS - 1 : w->group];
    uint64_t *own = w->own, *shared = w->shared ? w->shared : own, sum = 0;
    uint32_t random = w->random;
    for (int i = 0; i < 1024; i++) {
        uint32_t r = next_random(&random);
        if (object->paused)
            continue;
        uint64_t *words = r & 1 ? shared : own;
        if ((r & 0xe) == 0)
            words[(r >> 4) & LARGE_MASK] = object->scale;
        else
            sum += load_over(words, (r >> 4) & LARGE_MASK) * object->scale;
    }
    w->random = random;
    w->sum += sum;
}

// Pairs over 4 MiB each, and one thread alone.
static void make_hotfield(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        uint64_t *buffer = map_buffer(LARGE_BYTES, 0);
        for (int i = 0; i < 2; i++)
            add(g, hotfield_work, buffer, LARGE_BYTES / 8, LARGE_BYTES >> 10);
    }
    add(ALONE, hotfield_work, NULL, 0, LARGE_BYTES >> 10);
}

// ---- A large buffer behind a pointer that is read each time ----

struct view {
    uint64_t *words;
    uint64_t mask, unused[6];
};
#define VIEWS (MOST_THREADS / 2 + 1)
static struct view views[VIEWS + MOST_THREADS] __attribute__((aligned(4096)));

// Neither the pointer nor the mask is in a register where the load begins.
static OPAQUE uint64_t view_load(const struct view *view, uint64_t index) {
    return view->words[index & view->mask];
}

static OPAQUE void view_store(const struct view *view, uint64_t index, uint64_t value) {
    view->words[index & view->mask] = value;
}

static void behind_work(struct worker *w) {
    const struct view *group_view = w->shared, *own_view = group_view;
    if (w->group != ALONE)
        own_view = &views[VIEWS + w->group * 2 + w->seat];
    for (int i = 0; i < 1024; i++) {
        uint32_t r = draw(w);
        const struct view *view = r & 1 ? group_view : own_view;
        if ((r & 0xe) == 0)
            view_store(view, r >> 4, r);
        else
            w->sum += view_load(view, r >> 4);
    }
}

static struct view *new_view(int number, size_t bytes) {
    views[number] = (struct view){.words = map_buffer(bytes, 0), .mask = bytes / 8 - 1};
    return &views[number];
}

// Pairs over 4 MiB each, and one thread alone. The objects that lead there lie in one page, a line each.
static void make_behind(int threads) {
    for (int i = 0; i < threads; i++) {
        if (i % 2 == 0)
            new_view(i / 2, LARGE_BYTES);
        new_view(VIEWS + i, 512 << 10);
        add(i / 2, behind_work, &views[i / 2], 0, 1);
    }
    add(ALONE, behind_work, new_view(VIEWS - 1, 512 << 10), 0, 1);
}

// ---- A page of constants that every thread reads, and calls through a table ----

static uint64_t *constants;
#define CONSTANTS 512

static OPAQUE void step_load(struct worker *w, uint64_t *word) { w->sum += *word; }
static OPAQUE void step_store(struct worker *w, uint64_t *word) { *word = w->sum; }
static void (*const steps[])(struct worker *, uint64_t *) = {step_load, step_load, step_load, step_store};

static void constants_work(struct worker *w) {
    uint64_t *shared = w->shared;
    for (int i = 0; i < 512; i++) {
        uint32_t r = draw(w);
        for (uint32_t tap = 0; tap < 6; tap++)
            w->sum = w->sum * 3 + constants[(r + 79 * tap) % CONSTANTS];
        uint64_t *word = shared && r & 4 ? &shared[(r >> 3) & (w->shared_words - 1)] : &w->own[(r >> 3) & (w->own_words - 1)];
        steps[r & 3](w, word);
    }
}

static void make_constants(int threads) {
    size_t words = 1 << 16;
    uint64_t *buffers = map_buffer(words * 8 * 3, 0);
    constants = map_buffer(CONSTANTS * 8, 0);
    for (int i = 0; i < CONSTANTS; i++)
        constants[i] = (uint64_t)i * 0x9e3779b97f4a7c15;
    mprotect(constants, CONSTANTS * 8, PROT_READ);
    for (int i = 0; i < threads; i++)
        add(i % 3, constants_work, buffers + words * (size_t)(i % 3), words, 256);
    add(ALONE, constants_work, NULL, 0, 512);
}

// ---- Tables that are only read ----

// A table for the worker's own group and, in `big_table`, one for all.
static uint64_t *big_table;
static size_t big_words;

static void table_work(struct worker *w) {
    const uint64_t *table = w->shared, *own = w->own, *big = big_table ? big_table : own;
    size_t mask = w->shared_words - 1, own_mask = w->own_words - 1, big_mask = big_table ? big_words - 1 : own_mask;
    uint32_t random = w->random;
    uint64_t sum = 0;
    for (int i = 0; i < 1024; i++) {
        uint32_t r = next_random(&random);
        uint32_t s = next_random(&random);
        if (r & 1)
            sum += table[s & mask];
        else if (r & 2)
            sum += big[s & big_mask];
        else
            sum += own[s & own_mask];
    }
    w->random = random;
    w->sum += sum;
}

// One table of 4 MiB, read by all: one group, by the footprint that they have in common.
static void make_table(int threads) {
    uint64_t *table = map_buffer(4 << 20, 0);
    mprotect(table, 4 << 20, PROT_READ);
    for (int i = 0; i < threads; i++)
        add(0, table_work, table, (4 << 20) / 8, 256);
}

// One table of 16 KiB, read by all: every CPU has its own copy in its first cache, and nobody gains by company.
static void make_smalltable(int threads) {
    uint64_t *table = map_buffer(16 << 10, 0);
    mprotect(table, 16 << 10, PROT_READ);
    for (int i = 0; i < threads; i++)
        add(ALONE, table_work, table, (16 << 10) / 8, 512);
}

// Two groups with a table of 2 MiB each, and 256 MiB that all read and no last-level cache holds.
static void make_bigtable(int threads) {
    uint64_t *tables = map_buffer(4 << 20, 0);
    big_words = (256 << 20) / 8;
    big_table = map_buffer(big_words * 8, 0);
    mprotect(tables, 4 << 20, PROT_READ);
    for (int i = 0; i < threads; i++)
        add(i % 2, table_work, tables + (size_t)(i % 2) * ((2 << 20) / 8), (2 << 20) / 8, 256);
}

// ---- Processes over mapped files ----

static int files[2];
#define FILE_BYTES (2 << 20)

// Each process maps the file itself, where the kernel likes.
static void map_file(struct worker *w) {
    w->shared = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, files[w->group], 0);
    w->shared_words = FILE_BYTES / 8;
    if (w->shared == MAP_FAILED)
        exit(1);
}

static void make_file(int threads) {
    (void)threads;
    for (int f = 0; f < 2; f++) {
        char path[] = "family-XXXXXX";
        files[f] = mkstemp(path);
        if (files[f] < 0 || ftruncate(files[f], FILE_BYTES)) {
            perror(path);
            exit(1);
        }
        unlink(path);
    }
    // Four processes: two of two threads and one of one thread on the first file, and so on.
    static const int group_of[] = {0, 0, 0, 1, 1, ALONE, ALONE, ALONE};
    static const int process_of[] = {0, 0, 1, 2, 3, 4, 4, 5};
    for (int i = 0; i < 8; i++) {
        int alone = group_of[i] == ALONE;
        struct worker *w = add(group_of[i], alone ? alone_work : buffer_work, NULL, 0, 512);
        w->process = process_of[i];
        w->prepare = alone ? NULL : map_file;
    }
}

const struct scenario memory_scenarios[] = {
    {"pair", 2, make_pair},
    {"trio", 3, make_trio},
    {"four", 4, make_four},
    {"strangers", 6, make_strangers},
    {"unequal", 14, make_unequal},
    {"many", 24, make_many},
    {"fleet", 16, make_fleet},
    {"state", 6, make_state},
    {"ownstate", 6, make_ownstate},
    {"hotfield", 6, make_hotfield},
    {"behind", 6, make_behind},
    {"constants", 6, make_constants},
    {"table", 6, make_table},
    {"smalltable", 6, make_smalltable},
    {"bigtable", 6, make_bigtable},
    {"file", 8, make_file},
    {NULL, 0, NULL},
};
