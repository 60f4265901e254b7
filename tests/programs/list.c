// Two groups of two threads; each group follows a shuffled linked list in its own buffer.
#include "common.h"
#define NODES 65536

struct node { struct node *next; uint64_t count; uint64_t pad[6]; };
// What no recording shall have that was not asked to keep memory.
static const char secret[] = "what the list keeps to itself";

struct group { const char *name; struct node *nodes; };
static uint64_t sink;

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    struct node *node = group->nodes;
    uint64_t sum = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) {
            sum += node->count;
            node->count = sum;
            node = node->next;
        }
    }
    sink += sum;
    return NULL;
}

int main(int argc, char **argv) {
    struct group groups[2] = {{"list-a", NULL}, {"list-b", NULL}};
    pthread_t threads[4];
    uint32_t *order = malloc(NODES * sizeof *order);
    uint32_t state = 7;
    for (int g = 0; g < 2; g++) {
        groups[g].nodes = map_buffer(NODES * sizeof(struct node), 0);
        say_buffer(groups[g].name, groups[g].nodes, NODES * sizeof(struct node));
        for (uint32_t i = 0; i < NODES; i++)
            order[i] = i;
        for (uint32_t i = NODES - 1; i > 0; i--) {
            uint32_t j = next_random(&state) % (i + 1), swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        for (uint32_t i = 0; i < NODES; i++)
            memcpy(groups[g].nodes[i].pad, secret, sizeof secret);
        for (uint32_t i = 0; i < NODES; i++)
            groups[g].nodes[order[i]].next = &groups[g].nodes[order[(i + 1) % NODES]];
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(work, &groups[t / 2]);
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
