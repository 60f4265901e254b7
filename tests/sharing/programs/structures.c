// Scenarios in which groups share linked structures, whose pieces lie mixed: hash maps, rings, lists, pools and arenas.
#include "family.h"

// ---- Hash maps ----

#define KEYS 16384
struct node {
    struct node *next;
    uint64_t key, value[6];
};
struct map {
    struct node *buckets[KEYS / 2];
};

static OPAQUE struct node *map_find(const struct map *map, uint64_t key) {
    struct node *node = map->buckets[key % (KEYS / 2)];
    while (node && node->key != key)
        node = node->next;
    return node;
}

static void map_work(struct worker *w) {
    for (int i = 0; i < 512; i++) {
        uint32_t r = draw(w);
        struct node *node = map_find(w->shared, (r >> 3) % KEYS);
        if ((r & 7) == 0)
            node->value[0]++;
        else
            w->sum += node->value[1];
    }
    own_work(w, 128);
}

// Two maps whose nodes were allocated in turn, so that neighbouring lines belong to different groups.
static void make_hash(int threads) {
    struct map *maps[2] = {map_buffer(sizeof *maps[0], 0), map_buffer(sizeof *maps[0], 0)};
    struct node *nodes = map_buffer(sizeof *nodes * KEYS * 2, 0);
    for (uint64_t key = 0; key < KEYS; key++)
        for (int m = 0; m < 2; m++) {
            struct node *node = nodes++;
            struct node **bucket = &maps[m]->buckets[key % (KEYS / 2)];
            *node = (struct node){.next = *bucket, .key = key};
            *bucket = node;
        }
    for (int i = 0; i < threads; i++)
        add(i % 2, map_work, maps[i % 2], 0, 256);
}

// ---- Rings ----

#define SLOTS 64
struct ring {
    pthread_mutex_t mutex;
    uint64_t head, tail;
    uint64_t slots[SLOTS][32] __attribute__((aligned(64)));
};

static void ring_work(struct worker *w) {
    struct ring *ring = w->shared;
    uint64_t sum = 0;
    for (int i = 0; i < 32; i++) {
        pthread_mutex_lock(&ring->mutex);
        if (w->seat % 2 == 0 && ring->head - ring->tail < SLOTS) {
            uint64_t *slot = ring->slots[ring->head++ % SLOTS];
            for (int j = 0; j < 32; j++)
                slot[j] = (uint64_t)j * 7;
        } else if (w->seat % 2 == 1 && ring->tail < ring->head) {
            const uint64_t *slot = ring->slots[ring->tail++ % SLOTS];
            for (int j = 0; j < 32; j++)
                sum += slot[j];
        }
        pthread_mutex_unlock(&ring->mutex);
        own_work(w, 16);
    }
    w->sum += sum;
}

// Pairs of a producer and a consumer.
static void make_rings(int threads) {
    for (int g = 0; g < threads / 2; g++) {
        struct ring *ring = map_buffer(sizeof *ring, 0);
        pthread_mutex_init(&ring->mutex, NULL);
        add(g, ring_work, ring, 0, 128);
        add(g, ring_work, ring, 0, 128);
    }
}

// ---- Pointer chases ----

struct link {
    struct link *next;
    uint64_t visits, pad[6];
};
#define LINKS 32768

static void chase_work(struct worker *w) {
    struct link *link = w->shared;
    for (int i = 0; i < 256; i++) {
        link = link->next;
        if ((i & 7) == 0)
            link->visits++;
    }
    w->shared = link;
    own_work(w, 256);
}

// Groups of two, each on a shuffled circle of 2 MiB.
static void make_chase(int threads) {
    uint32_t random = 7;
    for (int g = 0; g < threads / 2; g++) {
        struct link *links = map_buffer(sizeof *links * LINKS, 0);
        uint32_t order[LINKS];
        for (uint32_t i = 0; i < LINKS; i++) {
            uint32_t other = next_random(&random) % (i + 1);
            order[i] = order[other];
            order[other] = i;
        }
        for (uint32_t i = 0; i < LINKS; i++)
            links[order[i]].next = &links[order[(i + 1) % LINKS]];
        add(g, chase_work, links, 0, 256);
        add(g, chase_work, links + LINKS / 2, 0, 256);
    }
}

// ---- Thread pools: a queue is all that the threads have in common ----

static struct {
    pthread_mutex_t mutex;
    uint64_t head, tail, tasks[64];
} queue __attribute__((aligned(64))) = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// Gives a task and takes one.
static uint64_t next_task(uint64_t given) {
    pthread_mutex_lock(&queue.mutex);
    queue.tasks[queue.head++ % 64] = given;
    uint64_t task = queue.tasks[queue.tail++ % 64];
    pthread_mutex_unlock(&queue.mutex);
    return task;
}

static void pool_work(struct worker *w) {
    w->sum += next_task(w->random);
    own_work(w, 4096);
}

static void make_pool(int threads) {
    for (int i = 0; i < threads; i++)
        add(ALONE, pool_work, NULL, 0, 512);
}

// Each thread allocates objects in an arena of its own, all of one mapping; arenas begin within pages.
static void arena_work(struct worker *w) {
    uint64_t *arena = w->shared, room = w->shared_words - 64;
    uint64_t task = next_task(w->random), at = 0, sum = 0;
    for (int object = 0; object < 64; object++) {
        uint64_t words = 2 + ((task + draw(w)) & 15) * 2;
        at = (at + draw(w)) % room;
        for (uint64_t i = 0; i < words; i++)
            arena[at + i] = task + i;
        for (uint64_t i = 0; i < words; i += 2)
            sum += arena[at + i];
    }
    w->sum += sum;
    own_work(w, 512);
}

static void make_arenas(int threads) {
    size_t words = (256 << 10) / 8 + 136;
    uint64_t *arenas = map_buffer(words * 8 * (size_t)threads, 0);
    for (int i = 0; i < threads; i++)
        add(ALONE, arena_work, arenas + words * (size_t)i, words, 64);
}

// ---- Lines that each have one owner, at random ----

#define SLAB_LINES 8192
static uint64_t *slab;

static void slab_work(struct worker *w) {
    const uint32_t *lines = w->shared;
    size_t count = w->shared_words;
    uint32_t random = w->random;
    uint64_t *words = slab, sum = 0;
    for (int i = 0; i < 1024; i++) {
        uint32_t r = next_random(&random);
        uint64_t *word = &words[(size_t)lines[(r >> 3) % count] * 8];
        if (r & 1)
            ++*word;
        else
            sum += *word;
    }
    w->random = random;
    w->sum += sum;
}

static void make_slab(int threads) {
    uint32_t random = 99, *lines[MOST_THREADS];
    size_t counts[MOST_THREADS] = {0};
    slab = map_buffer(SLAB_LINES * 64, 0);
    for (int i = 0; i < threads; i++)
        lines[i] = map_buffer(SLAB_LINES * sizeof **lines, 0);
    for (uint32_t line = 0; line < SLAB_LINES; line++) {
        uint32_t owner = (next_random(&random) >> 8) % (uint32_t)threads;
        lines[owner][counts[owner]++] = line;
    }
    for (int i = 0; i < threads; i++)
        add(ALONE, slab_work, lines[i], counts[i], 64);
}

const struct scenario structure_scenarios[] = {
    {"hash", 6, make_hash},
    {"rings", 6, make_rings},
    {"chase", 6, make_chase},
    {"pool", 6, make_pool},
    {"arenas", 6, make_arenas},
    {"slab", 6, make_slab},
    {NULL, 0, NULL},
};
