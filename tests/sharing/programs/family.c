// Runs one scenario: `family SCENARIO [SECONDS [TAG [THREADS]]]`; without arguments lists them. See README.md.
#include "family.h"
#include <sys/wait.h>

// Rounds of work between two naps, which let the threads take turns on few CPUs.
#define ROUNDS 24
#define NAP 0.0002

// A nop that the cache model of tests/vm/caches counts, for `make proof`.
#ifdef __x86_64__
#define UNIT_OF_WORK() __asm__ volatile(".byte 0x0f, 0x1f, 0x80\n .long 0x5cac0005")
#else
#define UNIT_OF_WORK()
#endif

static struct worker workers[MOST_THREADS];
static int count;
static const char *tag = "";
static uint32_t seed;
static uint64_t sink;

struct worker *add(int group, void (*work)(struct worker *), void *shared, size_t shared_words, size_t own_kib) {
    // A name belongs to one group, and names that begin with each other do not occur: a scheduler that matches prefixes
    // can tell all groups apart, but no group is a single name.
    static const char *const roles[] = {"put", "get", "log"};
    struct worker *w = &workers[count];
    int seat = 0, alone = 0;
    if (count == MOST_THREADS)
        exit(2);
    for (int i = 0; i < count; i++) {
        seat += group != ALONE && workers[i].group == group;
        alone += workers[i].group == ALONE;
    }
    int letters = group == ALONE ? alone : group;
    *w = (struct worker){.group = group, .seat = seat, .work = work, .shared = shared, .shared_words = shared_words,
                         .own_words = own_kib * 128, .random = 0x9e3779b9u * (uint32_t)(count + 1) + seed};
    snprintf(w->name, sizeof w->name, "%s%s-%c%c", tag, group == ALONE ? "solo" : roles[seat % 3],
             'a' + letters / 26, 'a' + letters % 26);
    count++;
    return w;
}

int stopped(void) { return atomic_load(&stop); }

void own_work(struct worker *w, int times) {
    uint64_t *own = w->own, mask = w->own_words - 1, sum = 0;
    uint32_t random = w->random;
    for (int i = 0; i < times; i++) {
        uint32_t r = next_random(&random);
        if (r & 1)
            own[(r >> 3) & mask] = r;
        else
            sum += own[(r >> 3) & mask];
    }
    w->random = random;
    w->sum += sum;
}

static void *run(void *argument) {
    struct worker *w = argument;
    char group[8] = "-";
    if (w->group != ALONE)
        snprintf(group, sizeof group, "%d", w->group);
    w->own = map_buffer(w->own_words * 8, 0);
    if (w->prepare)
        w->prepare(w);
    say_thread(group, w->name);
    while (!atomic_load(&stop)) {
        for (int i = 0; i < ROUNDS; i++) {
            w->work(w);
            UNIT_OF_WORK();
        }
        nap(NAP);
    }
    __atomic_fetch_add(&sink, w->sum, __ATOMIC_RELAXED);
    return NULL;
}

// Runs the threads of one process for so many seconds.
static void run_process(int process, double seconds) {
    pthread_t threads[MOST_THREADS];
    int started = 0;
    for (int i = 0; i < count; i++)
        if (workers[i].process == process)
            threads[started++] = start_thread(run, &workers[i]);
    run_for(seconds);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

static const struct scenario *find(const char *name) {
    const struct scenario *all[] = {memory_scenarios, structure_scenarios, contention_scenarios, protocol_scenarios,
                                    phase_scenarios,  kernel_scenarios};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct scenario *s = all[i]; s->name; s++) {
            if (!name)
                printf("%s %d\n", s->name, s->threads);
            else if (!strcmp(s->name, name))
                return s;
        }
    return NULL;
}

int main(int argc, char **argv) {
    const struct scenario *scenario = find(argc > 1 ? argv[1] : NULL);
    double seconds = argc > 2 ? atof(argv[2]) : 1.0;
    int processes = 0;
    if (!scenario)
        return argc > 1 ? 2 : 0;
    if (argc > 3)
        tag = argv[3];
    if (getenv("FAMILY_SEED"))
        seed = (uint32_t)atoi(getenv("FAMILY_SEED")) * 0x85ebca6bu;
    prctl(PR_SET_NAME, "main");
    scenario->make(argc > 4 ? atoi(argv[4]) : scenario->threads);
    for (int i = 0; i < count; i++)
        processes = workers[i].process > processes ? workers[i].process : processes;
    printf("program threads=%d\n", count);
    fflush(stdout);
    for (int process = 1; process <= processes; process++) {
        pid_t parent = getpid();
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, 9);
            if (getppid() == parent)
                run_process(process, seconds);
            _exit(0);
        }
    }
    run_process(0, seconds);
    while (wait(NULL) > 0) {
    }
    return 0;
}
