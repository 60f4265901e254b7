// SPDX-License-Identifier: GPL-2.0-or-later
// A TCG plugin of QEMU that models the caches of the emulated machine: for each access of each vCPU it says which cache had the line,
// and if none, why; counted by vCPU and by who runs there. For -accel tcg,thread=single, so nothing is locked.
//
//     -plugin caches.so,llcs=2,l1=32:8,l2=256:8,llc=2048:16,ram=FILE,out=FILE,files=FILE,bloom_mib=256,slice=2000     caches as KiB:ways
//
// only=kernel instead of the caches: nothing is modelled, and RECORD keeps only what kernel code accesses.
//
// QEMU runs one vCPU after the other, each for up to half a million instructions, in which no other one would touch a line that both
// write all the time. So while the model runs, the turn of a CPU ends after slice=2000 instructions. QEMU takes the CPUs in the order
// of their numbers, so that a line which all of them write would change its last-level cache once for each cache in a round, however
// many CPUs of each write it. So three of four turns end at once, at random: then the next CPU may be any other one.
//
// Each vCPU has an L1 and an L2, neighbouring vCPUs share a last-level cache (LLC). L2 includes L1, the LLC includes both. Replacement
// is by age in each cache, of the accesses that reach this cache: a hit in L1 does not make the line younger in L2. Instruction fetches,
// page walks and DMA are not modelled, nor is what is not in the guest's RAM.
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"
#include "qemu.h"
#include "record.h"

// Magic instructions: `0f 1f 80 <disp32>`, a nop with this displacement plus one of these.
enum magic { TABLE = 1, WARM, BEGIN, END, UNIT, RECORD, ASK, OUT, MISSED, MAGICS };
static const uint32_t MAGIC = 0x5cac0000;

static char shapes[3][24]; // as the options say them: L1, L2, LLC
static const uint8_t *ram;
static FILE *out, *files;
static uint64_t windows;
static bool modelled, counted, recording;
static bool only_kernel; // no caches; accesses of kernel code are kept
static unsigned turn;   // this CPU runs
static uint64_t ran;    // its instructions since its turn began
static uint64_t length; // those after which it ends
static unsigned slice;  // instructions of a turn that does not end at once, while the model runs
static uint64_t chance = 0x9e3779b97f4a7c15; // the last number of xorshift64, never 0

static uint64_t table;       // physical address of the table "who runs"; no page with 0
static uint64_t table_vpage; // the page that the kernel sees it at; never one with UINT64_MAX
static enum magic pending[MAX_CPUS];
static bool all_matter; // all accesses must be looked up, not only those to table_vpage

// --- What the guest says

// The page for what is asked of it: `count` entries of `size` bytes, or NULL if there are more than fit before the count.
static const uint8_t *page_of_guest(const char *what, uint64_t phys, uint32_t size, uint32_t *count) {
    const uint8_t *page = ram + (phys & ~(uint64_t)(PAGE - 1));
    memcpy(count, page + 4088, sizeof *count);
    if ((uint64_t)*count * size <= 4088)
        return page;
    complain("%s: a count of %" PRIu32 ", of at most %u: ignored", what, *count, 4088 / size);
    return NULL;
}

static void ask(uint64_t phys) {
    uint32_t count;
    const uint8_t *page = page_of_guest("ASK", phys, 24, &count);
    if (!page)
        return;
    if (count == 0) {
        fprintf(out, "{\"asked\":%" PRIu64 ",\"found\":%" PRIu64 "}\n", asked, found);
        fflush(out);
        asked = found = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t entry[3];
        memcpy(entry, page + i * sizeof entry, sizeof entry);
        asked++;
        found += bloom_has(entry[0], entry[1], entry[2]);
    }
}

static void missed(uint64_t phys) {
    uint32_t count;
    const uint8_t *guest = page_of_guest("MISSED", phys, 16, &count);
    if (!guest)
        return;
    if (count == 0) {
        fprintf(out, "{\"misses\":%" PRIu64 ",\"seen\":%" PRIu64 ",\"pages\":%" PRIu64 "}\n", page_misses, pages_seen, pages_named);
        fflush(out);
        pages_seen = pages_named = 0;
        for (uint64_t i = 0; i < page_slots; i++)
            pages[i].named = false;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t entry[2];
        memcpy(entry, guest + i * sizeof entry, sizeof entry);
        if (entry[0] >= GROUPS || entry[1] >= USER_END / PAGE) {
            complain("MISSED: no such group or page: %" PRIu64 " %#" PRIx64 ": ignored", entry[0], entry[1]);
            continue;
        }
        struct page *page = page_of(entry[0], entry[1]);
        if (!page->named) {
            page->named = true;
            pages_named++;
            pages_seen += page->misses;
        }
    }
}

static void append(uint64_t phys) {
    uint32_t length, channel;
    const uint8_t *page = page_of_guest("OUT", phys, 1, &length);
    if (!page)
        return;
    memcpy(&channel, page + 4092, sizeof channel);
    FILE *file = channel == 0 ? out : channel == 1 ? files : NULL;
    if (!file) {
        complain("OUT: no channel %" PRIu32 "%s: ignored", channel, channel == 1 ? " without files=FILE" : "");
        return;
    }
    if (fwrite(page, 1, length, file) != length || fflush(file))
        complain("OUT: cannot write to channel %" PRIu32, channel);
}

static void set_all_matter(void) {
    all_matter = (modelled && !only_kernel) || (table && table_vpage == UINT64_MAX);
    for (unsigned cpu = 0; cpu < cpus; cpu++)
        all_matter |= pending[cpu] != 0;
}

// The store that follows a magic instruction.
static void told(unsigned cpu, uint64_t phys) {
    enum magic magic = pending[cpu];
    pending[cpu] = 0;
    if (magic == TABLE) {
        table = phys & ~(uint64_t)(PAGE - 1);
        table_vpage = UINT64_MAX;
    } else if (magic == ASK) {
        ask(phys);
    } else if (magic == OUT) {
        append(phys);
    } else {
        missed(phys);
    }
    set_all_matter();
}

static void begin(bool record) {
    memset(counts, 0, sizeof counts);
    modelled = counted = true;
    recording = record;
    if (record) {
        zero(bloom, bloom_bytes);
        memset(waiting, 0, sizeof waiting);
        free(pages);
        pages = NULL;
        page_slots = page_count = page_misses = pages_seen = pages_named = asked = found = 0;
    }
}

static void add(struct counts *sum, const struct counts *count) {
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)count;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += from[i];
}

static void end(void) {
    static const struct counts none;
    modelled = recording = false;
    bloom_settle();
    if (!counted) {
        complain("END without BEGIN: no line");
        return;
    }
    counted = false;
    fprintf(out, "{\"window\":%" PRIu64 ",\"cpus\":%u,\"llcs\":%u,\"l1\":\"%s\",\"l2\":\"%s\",\"llc\":\"%s\",\"groups\":[", ++windows, cpus,
            llcs, shapes[0], shapes[1], shapes[2]);
    const char *comma = "";
    for (unsigned group = 0; group < GROUPS; group++) {
        struct counts sum = none;
        for (unsigned cpu = 0; cpu < cpus; cpu++)
            add(&sum, &counts[cpu][group]);
        if (!memcmp(&sum, &none, sizeof sum))
            continue;
        fprintf(out, "%s{\"group\":%u,\"instructions\":%" PRIu64 ",\"units\":%" PRIu64 ",\"loads\":%" PRIu64 ",\"stores\":%" PRIu64
                ",\"l1\":%" PRIu64 ",\"l2\":%" PRIu64 ",\"near\":%" PRIu64 ",\"first\":%" PRIu64 ",\"capacity\":%" PRIu64
                ",\"written\":%" PRIu64 ",\"transfers\":%" PRIu64 ",\"upgrades\":%" PRIu64 ",\"kernel\":%" PRIu64 "}",
                comma, group, sum.instructions, sum.units, sum.loads, sum.stores, sum.l1, sum.l2, sum.near, sum.first, sum.capacity,
                sum.written, sum.transfers, sum.upgrades, sum.kernel);
        comma = ",";
    }
    fputs("],\"cpu\":[", out);
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        struct counts sum = none;
        for (unsigned group = WORKLOAD; group < GROUPS; group++)
            add(&sum, &counts[cpu][group]);
        fprintf(out, "%s{\"cpu\":%u,\"instructions\":%" PRIu64 ",\"loads\":%" PRIu64 ",\"stores\":%" PRIu64 ",\"first\":%" PRIu64
                ",\"capacity\":%" PRIu64 ",\"written\":%" PRIu64 ",\"transfers\":%" PRIu64 "}",
                cpu ? "," : "", cpu, sum.instructions, sum.loads, sum.stores, sum.first, sum.capacity, sum.written, sum.transfers);
    }
    fprintf(out, "],\"table\":\"0x%" PRIx64 "\"}\n", table);
    fflush(out);
}

// --- What QEMU calls

// Looks a virtual address up in the CPU's TLB. False if it is not in the guest's RAM.
static inline bool phys_of(qemu_plugin_meminfo_t info, uint64_t vaddr, uint64_t *phys) {
    struct qemu_plugin_hwaddr *hwaddr = qemu_plugin_get_hwaddr(info, vaddr);
    if (!hwaddr || qemu_plugin_hwaddr_is_io(hwaddr))
        return false;
    *phys = qemu_plugin_hwaddr_phys_addr(hwaddr);
    return *phys < ram_size;
}

// The LLC has missed.
static void missed_at(unsigned cpu, uint64_t vaddr, uint64_t ip, bool records_page) {
    if (ip >= USER_END)
        now[cpu]->kernel++;
    if (records_page) {
        page_of(now[cpu] - counts[cpu], vaddr / PAGE)->misses++;
        page_misses++;
    }
}

static inline void model(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t vaddr, uint64_t phys, bool store, uint64_t ip) {
    uint64_t next = (vaddr | (LINE - 1)) + 1, next_phys = (phys | (LINE - 1)) + 1;
    // An access of QEMU has 16 bytes at most: most need no call.
    bool spans = next - vaddr < 16 && vaddr + (1ULL << qemu_plugin_mem_size_shift(info)) > next;
    bool records = recording && now[cpu] >= counts[cpu] + WORKLOAD;
    // Of kernel memory only the accesses are kept.
    bool records_page = records && vaddr < USER_END;
    if (access_line(cpu, phys / LINE, store))
        missed_at(cpu, vaddr, ip, records_page);
    // The next line is on a page of its own if the access spans pages.
    bool is_ram = spans && (next % PAGE ? next_phys < ram_size : phys_of(info, next, &next_phys));
    if (is_ram && access_line(cpu, next_phys / LINE, store))
        missed_at(cpu, next, ip, records_page);
    if (records)
        bloom_put(now[cpu] - counts[cpu], ip, vaddr);
}

// An access of kernel code for a workload is kept, where that is all that is done.
static inline void keep(unsigned cpu, uint64_t vaddr, uint64_t ip) {
    if (recording && only_kernel && ip >= USER_END && now[cpu] >= counts[cpu] + WORKLOAD)
        bloom_put(now[cpu] - counts[cpu], ip, vaddr);
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *ip) {
    uint64_t phys;
    if (!all_matter && vaddr / PAGE != table_vpage) {
        keep(cpu, vaddr, (uintptr_t)ip);
        return;
    }
    bool store = qemu_plugin_mem_is_store(info), follows = store && pending[cpu] && vaddr < USER_END;
    if (!phys_of(info, vaddr, &phys)) {
        if (follows) {
            complain("the store after a magic instruction is not to RAM: ignored");
            pending[cpu] = 0;
            set_all_matter();
        }
    } else if (follows) {
        told(cpu, phys);
    } else if (table && phys / PAGE == table / PAGE) {
        // Left out of the model: CPUs would share these lines only because of the measurement.
        if (store)
            now[cpu] = &counts[cpu][phys % PAGE / 8];
        // The kernel always stores to it at this address, so with the model off no other access needs to be looked up.
        if (store && vaddr >= USER_END && table_vpage == UINT64_MAX) {
            table_vpage = vaddr / PAGE;
            set_all_matter();
        }
    } else if (only_kernel) {
        keep(cpu, vaddr, (uintptr_t)ip);
    } else if (modelled) {
        model(cpu, info, vaddr, phys, store, (uintptr_t)ip);
    }
}

// How long the next turn is.
static uint64_t draw(void) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance >> 62 ? 1 : slice;
}

static void on_block(unsigned cpu, void *instructions) {
    if (!modelled)
        return;
    now[cpu]->instructions += (uintptr_t)instructions;
    if (cpu != turn) {
        turn = cpu;
        ran = 0;
        length = draw();
    }
    if ((ran += (uintptr_t)instructions) >= length) {
        ran = 0;
        length = draw();
        cpu_exit(qemu_get_cpu(cpu));
    }
}

static void on_magic(unsigned cpu, void *magic) {
    switch ((uintptr_t)magic) {
    case WARM:
        clear_caches();
        modelled = true;
        counted = recording = false;
        break;
    case BEGIN:
    case RECORD:
        begin((uintptr_t)magic == RECORD);
        break;
    case END:
        end();
        break;
    case UNIT:
        if (modelled)
            now[cpu]->units++;
        return;
    default:
        pending[cpu] = (uintptr_t)magic;
    }
    set_all_matter();
}

static void on_translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(tb);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, NO_REGS, (void *)(uintptr_t)count);
    for (size_t i = 0; i < count; i++) {
        static const uint8_t nop[3] = {0x0f, 0x1f, 0x80};
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        void *ip = (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn);
        const uint8_t *bytes = qemu_plugin_insn_data(insn);
        uint32_t displacement;
        if (qemu_plugin_insn_size(insn) == 7 && !memcmp(bytes, nop, sizeof nop)) {
            memcpy(&displacement, bytes + sizeof nop, sizeof displacement);
            if (displacement > MAGIC && displacement < MAGIC + MAGICS)
                qemu_plugin_register_vcpu_insn_exec_cb(insn, on_magic, NO_REGS, (void *)(uintptr_t)(displacement - MAGIC));
            continue;
        }
        // Not one callback for loads and another for stores: QEMU 7.2 calls that for stores at loads, and both at stores.
        qemu_plugin_register_vcpu_mem_cb(insn, on_access, NO_REGS, MEM_RW, ip);
    }
}

// --- Options

static bool number(const char *text, uint64_t max, unsigned *value, const char **rest) {
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long long parsed = strtoull(text, &end, 10);
    *value = parsed;
    *rest = end;
    return parsed > 0 && parsed <= max;
}

static bool make_cache(struct cache *caches, unsigned count, const char *name, const char *shape) {
    unsigned kib, ways;
    const char *rest;
    if (!number(shape, 1 << 20, &kib, &rest) || *rest != ':' || !number(rest + 1, MAX_WAYS, &ways, &rest) || *rest ||
        kib * 1024ULL % (ways * LINE) || __builtin_popcountll(kib * 1024ULL / (ways * LINE)) != 1) {
        complain("%s=%s: want KiB:ways, with at most %d ways and a power of two of sets", name, shape, MAX_WAYS);
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        caches[i] = (struct cache){ways, kib * 1024ULL / (ways * LINE) - 1, malloc(kib * 1024ULL / LINE * sizeof *caches->tags)};
        if (!caches[i].tags) {
            complain("no memory for %s", name);
            return false;
        }
    }
    return true;
}

static FILE *appended(const char *path) {
    FILE *file = fopen(path, "a");
    if (!file)
        complain("cannot append to %s", path);
    return file;
}

// QEMU has not opened the file yet, so it must be there with its size.
static bool map_ram(const char *path) {
    struct stat stat;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &stat) || stat.st_size <= 0 || (uint64_t)stat.st_size > MAX_RAM || stat.st_size % PAGE) {
        complain("ram=%s: want a file of the size of the guest's RAM, at most 3 GiB (truncate -s 1G makes one)", path);
        return false;
    }
    ram_size = stat.st_size;
    ram = mmap(NULL, ram_size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    lines = reserve(ram_size / LINE * sizeof *lines);
    if (ram == MAP_FAILED || !lines) {
        complain("ram=%s: cannot map it", path);
        return false;
    }
    return true;
}

EXPORT int qemu_plugin_version = 1;

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
    static const char *const names[] = {"llcs", "l1", "l2", "llc", "ram", "out", "files", "bloom_mib", "slice", "only"};
    enum { LLCS, L1, L2, LLC, RAM, OUT_FILE, FILES, BLOOM, SLICE, ONLY, OPTIONS };
    const char *options[OPTIONS] = {"2", "32:8", "256:8", "2048:16", NULL, NULL, NULL, "256", "2000", NULL}, *rest;
    for (int i = 0; i < argc; i++) {
        int option = 0;
        size_t length = strcspn(argv[i], "=");
        while (option < OPTIONS && (strlen(names[option]) != length || memcmp(names[option], argv[i], length)))
            option++;
        if (option == OPTIONS || argv[i][length] != '=' || !argv[i][length + 1]) {
            complain("%s: no such option: want llcs, l1, l2, llc, ram, out, files, bloom_mib, slice or only, =, and a value", argv[i]);
            return 1;
        }
        options[option] = argv[i] + length + 1;
    }
    if (!info->system_emulation || strcmp(info->target_name, "x86_64") || info->system.smp_vcpus < 1 || info->system.smp_vcpus > MAX_CPUS ||
        info->system.max_vcpus != info->system.smp_vcpus) {
        complain("want a whole x86_64 machine with 1 to %d CPUs, all there from the start", MAX_CPUS);
        return 1;
    }
    cpus = info->system.smp_vcpus;
    if (!number(options[LLCS], MAX_LLCS, &llcs, &rest) || *rest || llcs > cpus) {
        complain("llcs=%s: want 1 to %d, and not more than CPUs", options[LLCS], MAX_LLCS);
        return 1;
    }
    unsigned mib;
    if (!number(options[BLOOM], 1 << 16, &mib, &rest) || *rest) {
        complain("bloom_mib=%s: want 1 to %d", options[BLOOM], 1 << 16);
        return 1;
    }
    if (!number(options[SLICE], 1 << 30, &slice, &rest) || *rest) {
        complain("slice=%s: want 1 to %d instructions", options[SLICE], 1 << 30);
        return 1;
    }
    only_kernel = options[ONLY];
    if (only_kernel && strcmp(options[ONLY], "kernel")) {
        complain("only=%s: want kernel", options[ONLY]);
        return 1;
    }
    if (!cpu_exit || !qemu_get_cpu) {
        complain("this QEMU does not let a plugin end the turn of a CPU (cpu_exit, qemu_get_cpu): 7.2 of Debian 12 does");
        return 1;
    }
    if (!options[RAM] || !options[OUT_FILE]) {
        complain("ram=FILE and out=FILE are needed");
        return 1;
    }
    if (!make_cache(l1, cpus, "l1", options[L1]) || !make_cache(l2, cpus, "l2", options[L2]) ||
        !make_cache(llc, llcs, "llc", options[LLC]) || !map_ram(options[RAM]) ||
        !(out = appended(options[OUT_FILE])) || (options[FILES] && !(files = appended(options[FILES]))))
        return 1;
    bloom_bytes = (uint64_t)mib << 20;
    bloom = reserve(bloom_bytes);
    if (!bloom) {
        complain("bloom_mib=%u: no memory", mib);
        return 1;
    }
    for (int i = 0; i < 3; i++)
        snprintf(shapes[i], sizeof shapes[i], "%s", options[L1 + i]);
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        llc_of[cpu] = cpu * llcs / cpus;
        cpus_of[llc_of[cpu]] |= 1u << cpu;
        now[cpu] = &counts[cpu][1];
    }
    table_vpage = UINT64_MAX;
    clear_caches();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
    return 0;
}
