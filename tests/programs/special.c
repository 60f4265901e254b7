// Two groups of two threads with what has no plain operand: AVX2 gathers (built with -mavx2), rep movsb and rep stosb
// both ways, thread-local variables, compare-and-swap, cmov, an indirect jump, a recursive call.
#include "common.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif
#define LEN (1u << 20)

struct group { const char *name; uint8_t *bytes; };
static _Thread_local uint64_t local_count;
static uint64_t sink;

static __attribute__((noinline)) uint32_t gather(const uint32_t *words, uint32_t at) {
#ifdef __AVX2__
    __m256i index = _mm256_add_epi32(_mm256_set1_epi32((int)(at % 1000)), _mm256_setr_epi32(0, 9, 77, 5, 300, 21, 8, 1));
    __m256i got = _mm256_i32gather_epi32((const int *)words, index, 4);
    return (uint32_t)_mm256_extract_epi32(_mm256_add_epi32(got, _mm256_bsrli_epi128(got, 4)), 0);
#else
    return words[at % 1000] + words[at % 1000 + 9];
#endif
}

static __attribute__((noinline)) uint32_t choose(uint32_t *words, uint32_t kind) {
    switch (kind % 8) {
    case 0: words[1]++; /* fall through */
    case 1: words[20] += 3; return words[2];
    case 2: words[33]++; /* fall through */
    case 3: return words[48]++;
    case 4: words[65] ^= kind; return words[66];
    case 5: words[80] -= kind; /* fall through */
    case 6: return words[97] + 1;
    default: return words[113] + words[kind % 128];
    }
}

static __attribute__((noinline)) uint64_t depth(uint64_t *words, uint32_t n) {
    volatile uint64_t here = words[n];
    if (n == 0)
        return here;
    return depth(words, n - 1) + here;
}

static void *work(void *argument) {
    struct group *group = argument;
    say_thread(group->name, group->name);
    uint8_t *bytes = group->bytes;
    uint32_t *words = (uint32_t *)bytes;
    uint32_t state = 3 + (uint32_t)(uintptr_t)&state;
    uint64_t sum = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 100; i++) {
            uint32_t at = next_random(&state);
            sum += gather(words, at);
            sum += choose(words + (at >> 8) % 1000, at >> 3);
            sum += depth((uint64_t *)bytes + at % 1000, at % 6);
            local_count += sum;
            uint32_t *slot = &words[at % 4096], seen = *slot;
            __atomic_compare_exchange_n(slot, &seen, (uint32_t)sum, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            sum += words[5000] > words[at % 5000] ? words[6000] : words[6100];
            void *to = bytes + 65536 + at % 1024, *from = bytes + 131072 + at % 512;
            size_t count = at % 64;
            __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
            to = bytes + 262144 + at % 777;
            count = at % 48;
            __asm__ volatile("std; rep stosb; cld" : "+D"(to), "+c"(count) : "a"(i) : "memory");
            from = bytes + 300000 + at % 99;
            __asm__ volatile("lodsq" : "+S"(from), "=a"(count) : : "memory");
            sum += count;
        }
    }
    sink += sum + local_count;
    return NULL;
}

int main(int argc, char **argv) {
    struct group groups[2] = {{"special-a", NULL}, {"special-b", NULL}};
    pthread_t threads[4];
    for (int g = 0; g < 2; g++) {
        groups[g].bytes = map_buffer(LEN, 0);
        say_buffer(groups[g].name, groups[g].bytes, LEN);
    }
    for (int t = 0; t < 4; t++)
        threads[t] = start_thread(work, &groups[t / 2]);
    run_for(seconds_of(argc, argv));
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
