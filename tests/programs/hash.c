// Two groups of two threads; each group looks up and updates a chained hash table in its own buffer.
#include "common.h"
#define BUCKETS 16384
#define ENTRIES 65536

struct entry { struct entry *next; uint64_t key; uint64_t value; uint8_t text[40]; };
struct table { struct entry *buckets[BUCKETS]; struct entry entries[ENTRIES]; };
struct group { const char *name; struct table *table; };
static uint64_t sink;

// Inlined at -O0 too, for the reason that next_random is.
static inline __attribute__((always_inline)) struct entry *find(struct table *table, uint64_t key) {
    struct entry *entry = table->buckets[(key * 0x9e3779b97f4a7c15u) >> 50];
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    uint32_t state = 99 + (uint32_t)(uintptr_t)&state;
    uint64_t sum = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) {
            struct entry *entry = find(group->table, next_random(&state) % (ENTRIES + 100));
            if (entry) {
                entry->value++;
                sum += entry->text[entry->value % 40];
            }
        }
    }
    sink += sum;
    return NULL;
}

int main(int argc, char **argv) {
    struct group groups[2] = {{"hash-a", NULL}, {"hash-b", NULL}};
    pthread_t threads[4];
    for (int g = 0; g < 2; g++) {
        struct table *table = groups[g].table = map_buffer(sizeof(struct table), 0);
        say_buffer(groups[g].name, table, sizeof(struct table));
        for (uint64_t i = 0; i < ENTRIES; i++) {
            uint64_t bucket = (i * 0x9e3779b97f4a7c15u) >> 50;
            table->entries[i].key = i;
            table->entries[i].next = table->buckets[bucket];
            table->buckets[bucket] = &table->entries[i];
        }
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(work, &groups[t / 2]);
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
