// Two threads run a page of code that the main thread rewrites every 10 ms: one of two loops of the same length, the first
// of which accesses memory through rdi, the second through rsi. Before each run the register that the loop in the page
// does not use gets the address of a buffer that nobody ever touches, group "jit-never": whoever decodes one loop for
// the other finds that.
#include "common.h"
#define LEN (1u << 20)

typedef void loop(void *rdi, void *rsi, uint64_t count);
struct code { loop *run; _Atomic int which; char *rdi, *rsi; };
static char *never;

// add qword [rdi], 1 / add rdi, 64 / sub rdx, 1 / jnz back / ret, and the same with rsi.
static const uint8_t loops[2][16] = {
    {0x48, 0x83, 0x07, 0x01, 0x48, 0x83, 0xc7, 0x40, 0x48, 0x83, 0xea, 0x01, 0x75, 0xf2, 0xc3, 0x90},
    {0x48, 0x83, 0x06, 0x01, 0x48, 0x83, 0xc6, 0x40, 0x48, 0x83, 0xea, 0x01, 0x75, 0xf2, 0xc3, 0x90}};

// The writer must not starve.
static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static void *work(void *argument) {
    struct code *code = argument;
    say_thread("jit", "jit");
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        pthread_rwlock_rdlock(&lock);
        int which = atomic_load(&code->which);
        for (int i = 0; i < 10; i++)
            code->run(which ? never : code->rdi, which ? code->rsi : never, LEN / 64);
        pthread_rwlock_unlock(&lock);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    struct code code = {.rdi = map_buffer(2 * LEN, 0)};
    code.rsi = code.rdi + LEN;
    never = mmap(NULL, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    memcpy(page, loops[0], sizeof loops[0]);
    code.run = (loop *)(void *)page;
    say_buffer("jit", code.rdi, 2 * LEN);
    say_buffer("jit-never", never, LEN);
    for (int t = 0; t < 2; t++)
        threads[t] = start_thread(work, &code);
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    // With a second argument the code stays as it is: what does not change is to be recovered.
    int changes = argc < 3;
    for (double left = seconds_of(argc, argv); left > 0; left -= 0.01) {
        nap(0.01);
        if (!changes)
            continue;
        pthread_rwlock_wrlock(&lock);
        int which = !atomic_load(&code.which);
        memcpy(page, loops[which], sizeof loops[which]);
        atomic_store(&code.which, which);
        pthread_rwlock_unlock(&lock);
    }
    atomic_store(&stop, 1);
    for (int t = 0; t < 2; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
