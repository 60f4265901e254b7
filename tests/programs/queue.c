// Two groups of a producer and a consumer; each group passes records through a ring of its own, under a mutex.
#include "common.h"
#define SLOTS 1024

struct record { uint64_t id; uint64_t payload[15]; };
struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t not_empty, not_full;
    uint64_t head, tail;
    struct record slots[SLOTS];
};
struct side { const char *group; char name[16]; struct queue *queue; };
static uint64_t sink;

static void *produce(void *argument) {
    struct side *side = argument;
    struct queue *queue = side->queue;
    say_thread(side->group, side->name);
    for (uint64_t id = 0;; id++) {
        pthread_mutex_lock(&queue->mutex);
        while (queue->head - queue->tail == SLOTS && !atomic_load(&stop))
            pthread_cond_wait(&queue->not_full, &queue->mutex);
        int done = atomic_load(&stop);
        struct record *record = &queue->slots[queue->head % SLOTS];
        record->id = id;
        for (int i = 0; i < 15; i++)
            record->payload[i] = id * (uint64_t)i;
        queue->head++;
        pthread_cond_signal(&queue->not_empty);
        pthread_mutex_unlock(&queue->mutex);
        if (done)
            return NULL;
    }
}

static void *consume(void *argument) {
    struct side *side = argument;
    struct queue *queue = side->queue;
    say_thread(side->group, side->name);
    uint64_t sum = 0;
    for (;;) {
        pthread_mutex_lock(&queue->mutex);
        while (queue->head == queue->tail && !atomic_load(&stop))
            pthread_cond_wait(&queue->not_empty, &queue->mutex);
        int done = atomic_load(&stop);
        struct record *record = &queue->slots[queue->tail % SLOTS];
        for (int i = 0; i < 15; i++)
            sum += record->payload[i] ^ record->id;
        queue->tail++;
        pthread_cond_signal(&queue->not_full);
        pthread_mutex_unlock(&queue->mutex);
        if (done)
            break;
    }
    sink += sum;
    return NULL;
}

int main(int argc, char **argv) {
    static struct side sides[4] = {
        {"queue-a", "queue-a-put", NULL}, {"queue-a", "queue-a-get", NULL},
        {"queue-b", "queue-b-put", NULL}, {"queue-b", "queue-b-get", NULL}};
    pthread_t threads[4];
    struct queue *queues[2];
    for (int g = 0; g < 2; g++) {
        struct queue *queue = queues[g] = map_buffer(sizeof *queue, 0);
        say_buffer(sides[2 * g].group, queue, sizeof *queue);
        pthread_mutex_init(&queue->mutex, NULL);
        pthread_cond_init(&queue->not_empty, NULL);
        pthread_cond_init(&queue->not_full, NULL);
        sides[2 * g].queue = sides[2 * g + 1].queue = queue;
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(t % 2 ? consume : produce, &sides[t]);
    run_for(seconds_of(argc, argv));
    for (int i = 0; i < 100; i++) {
        for (int g = 0; g < 2; g++) {
            pthread_cond_broadcast(&queues[g]->not_empty);
            pthread_cond_broadcast(&queues[g]->not_full);
        }
        nap(0.001);
    }
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
