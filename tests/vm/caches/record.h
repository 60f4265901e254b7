// SPDX-License-Identifier: GPL-2.0-or-later
// What a window of RECORD keeps: which accesses there were, and which pages' accesses missed the LLC.
#ifndef CACHES_RECORD_H
#define CACHES_RECORD_H
#include "model.h"
#include <inttypes.h>

// LLC misses of a recorded page of a group.
struct page {
    uint64_t key; // 0: free
    uint64_t misses;
    bool named;
};

// Hashes of accesses whose bits are not set yet; 0: none. (One access in 2^64 has this hash, and is not kept.)
#define WAITING 32
static uint64_t waiting[WAITING], waited;
static uint64_t *bloom;
static uint64_t bloom_bytes, asked, found;
static struct page *pages;
static uint64_t page_slots, page_count, page_misses, pages_seen, pages_named;

static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    return x ^ (x >> 32);
}

static inline uint64_t hash_of(uint64_t group, uint64_t ip, uint64_t vaddr) {
    return mix(mix(ip ^ group << 48) + vaddr);
}

// The 64 bytes of the filter for this access, and in *bits the numbers of its 6 bits in there, 9 bits each: one miss of the host's caches
// for each access, not six.
static inline uint64_t *bloom_block(uint64_t hash, uint64_t *bits) {
    *bits = mix(hash + 0x9e3779b97f4a7c15ULL);
    return bloom + (((hash >> 32) * (bloom_bytes / LINE)) >> 32) * (LINE / 8);
}

static inline void bloom_set(uint64_t hash) {
    uint64_t bits, *block = bloom_block(hash, &bits);
    for (int i = 0; i < 6; i++, bits >>= 9)
        block[(bits >> 6) & 7] |= 1ULL << (bits & 63);
}

// Its bits are set some accesses later, when the host has fetched the line. Where it waits for each, a guest takes nearly twice as long.
static inline void bloom_put(uint64_t group, uint64_t ip, uint64_t vaddr) {
    uint64_t bits, hash = hash_of(group, ip, vaddr), *due = &waiting[waited++ % WAITING];
    if (*due)
        bloom_set(*due);
    *due = hash;
    __builtin_prefetch(bloom_block(hash, &bits), 1);
}

// Sets the bits of all that still wait.
static void bloom_settle(void) {
    for (int i = 0; i < WAITING; i++) {
        if (waiting[i])
            bloom_set(waiting[i]);
        waiting[i] = 0;
    }
}

static bool bloom_has(uint64_t group, uint64_t ip, uint64_t vaddr) {
    uint64_t bits, *block = bloom_block(hash_of(group, ip, vaddr), &bits);
    for (int i = 0; i < 6; i++, bits >>= 9)
        if (!(block[(bits >> 6) & 7] & 1ULL << (bits & 63)))
            return false;
    return true;
}

static struct page *page_slot(uint64_t key) {
    uint64_t slot = mix(key) & (page_slots - 1);
    while (pages[slot].key && pages[slot].key != key)
        slot = (slot + 1) & (page_slots - 1);
    return &pages[slot];
}

static struct page *page_of(uint64_t group, uint64_t vpage) {
    // Half of the slots at most are in use.
    if (page_count * 2 >= page_slots) {
        struct page *old = pages;
        uint64_t slots = page_slots;
        page_slots = slots ? slots * 2 : 1 << 16;
        pages = calloc(page_slots, sizeof *pages);
        if (!pages) {
            complain("no memory for %" PRIu64 " recorded pages", page_count);
            exit(1);
        }
        for (uint64_t i = 0; i < slots; i++)
            if (old[i].key)
                *page_slot(old[i].key) = old[i];
        free(old);
    }
    // 36 bits are enough for a page of user space, 9 for a group.
    uint64_t key = 1ULL << 63 | group << 48 | vpage;
    struct page *page = page_slot(key);
    if (!page->key) {
        page->key = key;
        page_count++;
    }
    return page;
}
#endif
