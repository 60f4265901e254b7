// SPDX-License-Identifier: GPL-2.0-or-later
// Tests the model of caches.c with accesses whose counts are known exactly, and with random ones against a second, slow model; no QEMU.
// Usage: patterns DIRECTORY, an empty one. It exits with 1 and says what differs if a count does.
#define _GNU_SOURCE
#include "caches.c"
#include "reference.h"

// The caches under test: 8 sets of 2 ways (16 lines), 16 of 4 (64), 32 of 8 (256). CPUs 0 to 3 and 4 to 7 share an LLC.
enum { L1_LINES = 16, L2_LINES = 64, LLC_LINES = 256, LLC_SETS = 32, RAM_SIZE = 64 << 20 };
// The page that `tell` speaks of, and the table "who runs": behind what the tests access.
enum { WHO = 16 << 20, TOLD = WHO + PAGE };
static const uint64_t KERNEL = 0xffff800000000000, IO = 0x700000000000, ELSEWHERE = 0x600000000000;
static uint8_t *memory;
static char path_of_out[4096], path_of_files[4096], path_of_errors[4096];
static int failures;

// --- QEMU's part. Virtual addresses are physical ones, with KERNEL added or not; IO is not RAM, a page from ELSEWHERE on has the next one
// before it in RAM. `info` is the size's logarithm, and STORE.
enum { LOAD = 0, STORE = 16 };
struct qemu_plugin_hwaddr {
    uint64_t vaddr;
};
struct qemu_plugin_insn {
    const uint8_t *data;
    size_t size;
    int callbacks;
    uintptr_t magic;
};
struct qemu_plugin_tb {
    size_t count;
    struct qemu_plugin_insn *insns;
};

struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr) {
    static struct qemu_plugin_hwaddr hwaddr;
    (void)info;
    hwaddr.vaddr = vaddr;
    return &hwaddr;
}
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *hwaddr) {
    return hwaddr->vaddr >= IO && hwaddr->vaddr < KERNEL;
}
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *hwaddr) {
    uint64_t vaddr = hwaddr->vaddr;
    if (vaddr >= KERNEL)
        return vaddr - KERNEL;
    return vaddr < ELSEWHERE ? vaddr : 16 * PAGE - (vaddr - ELSEWHERE) / PAGE * PAGE + vaddr % PAGE;
}
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info) { return info & 15; }
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info) { return info & STORE; }
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb) { return tb->count; }
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index) { return &tb->insns[index]; }
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn) { return insn->data; }
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn) { return insn->size; }
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn) { return (uintptr_t)insn; }
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*translated)(qemu_plugin_id_t, struct qemu_plugin_tb *)) {
    (void)id, (void)translated;
}
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, exec_fn *executed, int flags, void *data) {
    (void)tb, (void)flags;
    executed(0, data);
}
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, exec_fn *executed, int flags, void *data) {
    (void)executed, (void)flags;
    insn->magic = (uintptr_t)data;
}
// A CPU is its number, plus one; its turns that were ended are counted.
static unsigned ended[CPUS];
struct CPUState *qemu_get_cpu(int index) { return (struct CPUState *)(uintptr_t)(index + 1); }
void cpu_exit(struct CPUState *cpu) { ended[(uintptr_t)cpu - 1]++; }
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, mem_fn *accessed, int flags, int rw, void *data) {
    (void)accessed, (void)flags, (void)rw, (void)data;
    insn->callbacks++;
}

// --- What the tests do

static void load(unsigned cpu, uint64_t number) { on_access(cpu, LOAD | 2, number * LINE, NULL); }
static void store(unsigned cpu, uint64_t number) { on_access(cpu, STORE | 2, number * LINE, NULL); }
static void magic(unsigned cpu, enum magic what) { on_magic(cpu, (void *)(uintptr_t)what); }

static void sweep(unsigned cpu, uint64_t count, int rounds) {
    while (rounds--)
        for (uint64_t number = 0; number < count; number++)
            load(cpu, number);
}

// A magic instruction and the store after it, to a page with this word at 4088.
static void tell(enum magic what, uint32_t word) {
    memcpy(memory + TOLD + 4088, &word, sizeof word);
    magic(0, what);
    on_access(0, STORE | 2, TOLD + 4088, NULL);
}

static void run(unsigned cpu, unsigned group) { on_access(cpu, STORE | 3, KERNEL + WHO + group * 8, NULL); }

static void fresh(void) {
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        run(cpu, WORKLOAD + cpu);
    magic(0, WARM);
    magic(0, BEGIN);
}

static void check(bool holds, const char *what) {
    if (!holds) {
        failures++;
        printf("patterns: %s\n", what);
    }
}

static void text_of(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, size - 1, file) : 0;
    text[length] = 0;
    if (file)
        fclose(file);
}

// The text that came to a file since the last call for it.
static const char *came(const char *path) {
    static char text[1 << 20];
    text_of(path, text, sizeof text);
    check(!truncate(path, 0), "cannot empty a file");
    return text;
}

static int complaints(void) {
    int lines = 0;
    for (const char *text = came(path_of_errors); *text; text++)
        lines += *text == '\n';
    return lines;
}

static char last[1 << 16];
static void stop(void) {
    magic(0, END);
    snprintf(last, sizeof last, "%s", came(path_of_out));
}

// Compares a group's counts in the last line of a window; a group without a part there has none.
static void expect(const char *what, unsigned group, struct counts want) {
    struct counts got = {0};
    char key[32];
    snprintf(key, sizeof key, "{\"group\":%u,", group);
    const char *at = strstr(last, key);
    if (at && sscanf(at + strlen(key),
                     "\"instructions\":%" SCNu64 ",\"units\":%" SCNu64 ",\"loads\":%" SCNu64 ",\"stores\":%" SCNu64 ",\"l1\":%" SCNu64
                     ",\"l2\":%" SCNu64 ",\"near\":%" SCNu64 ",\"first\":%" SCNu64 ",\"capacity\":%" SCNu64 ",\"written\":%" SCNu64
                     ",\"transfers\":%" SCNu64 ",\"upgrades\":%" SCNu64 ",\"kernel\":%" SCNu64,
                     &got.instructions, &got.units, &got.loads, &got.stores, &got.l1, &got.l2, &got.near, &got.first, &got.capacity,
                     &got.written, &got.transfers, &got.upgrades, &got.kernel) != 13)
        check(false, "a group's part of the line is not complete");
    if (memcmp(&got, &want, sizeof got)) {
        static const char *const names[] = {"instructions", "units", "loads",   "stores",    "l1",       "l2",    "near",
                                            "first",        "capacity", "written", "transfers", "upgrades", "kernel"};
        failures++;
        printf("patterns: %s: group %u:", what, group);
        for (int i = 0; i < 13; i++)
            if (((uint64_t *)&got)[i] != ((uint64_t *)&want)[i])
                printf(" %s is %" PRIu64 ", not %" PRIu64, names[i], ((uint64_t *)&got)[i], ((uint64_t *)&want)[i]);
        putchar('\n');
    }
}
#define EXPECT(what, cpu, ...) expect(what, WORKLOAD + (cpu), (struct counts){__VA_ARGS__})

static void sizes(void) {
    static const struct {
        const char *what;
        unsigned lines, l1, l2, capacity;
    } passes[] = {
        // With one line more than fits, the oldest of a set is always the next to be used: its set misses each time, the others do not.
        {"first use, then all in L1", L1_LINES, 16, 16, 0},
        {"one more than L1", L1_LINES + 1, 17 + 3, 17, 0},
        {"all in L2", L2_LINES, 128, 64, 0},
        {"one more than L2", L2_LINES + 1, 130, 65 + 5, 0},
        {"all in the LLC", LLC_LINES, 512, 512, 0},
        {"one more than the LLC", LLC_LINES + 1, 514, 514, 9},
    };
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        fresh();
        sweep(0, passes[i].lines, 2);
        stop();
        EXPECT(passes[i].what, 0, .loads = 2 * passes[i].lines, .l1 = passes[i].l1, .l2 = passes[i].l2, .first = passes[i].lines,
               .capacity = passes[i].capacity);
    }
    fresh();
    // 8 is older than 0 when 16 needs its place.
    static const uint64_t by_age[] = {0, 8, 0, 16, 0, 8};
    for (int i = 0; i < 6; i++)
        load(0, by_age[i]);
    stop();
    EXPECT("by age", 0, .loads = 6, .l1 = 4, .l2 = 3, .first = 3);
}

static void sharing(void) {
    fresh();
    load(0, 1);
    store(4, 1);
    load(0, 1);
    stop();
    EXPECT("written by the other LLC", 0, .loads = 2, .l1 = 2, .l2 = 2, .first = 1, .written = 1, .transfers = 1);
    EXPECT("the writer", 4, .stores = 1, .l1 = 1, .l2 = 1, .first = 1);

    fresh();
    store(4, 1);
    load(0, 1);
    load(4, 1);
    load(0, 1);
    store(4, 1);
    store(0, 1);
    stop();
    EXPECT("a load leaves it clean in both", 0, .loads = 2, .stores = 1, .l1 = 2, .l2 = 2, .first = 1, .written = 1, .transfers = 2);
    EXPECT("an upgrade", 4, .loads = 1, .stores = 2, .l1 = 1, .l2 = 1, .first = 1, .upgrades = 1);

    fresh();
    for (int i = 0; i < 10; i++)
        load(0, 1), load(4, 1);
    stop();
    EXPECT("two readers", 0, .loads = 10, .l1 = 1, .l2 = 1, .first = 1);
    EXPECT("two readers", 4, .loads = 10, .l1 = 1, .l2 = 1, .first = 1);

    fresh();
    load(0, 1);
    store(1, 1);
    load(0, 1);
    load(0, 1);
    load(2, 1);
    stop();
    EXPECT("near", 0, .loads = 3, .l1 = 2, .l2 = 2, .first = 1, .near = 1);
    EXPECT("a hit of the LLC takes it from another CPU", 1, .stores = 1, .l1 = 1, .l2 = 1, .upgrades = 1);
    EXPECT("never had it: not near", 2, .loads = 1, .l1 = 1, .l2 = 1);

    fresh();
    for (int i = 0; i < 100; i++) {
        on_access(0, STORE | 3, LINE, NULL);
        on_access(4, STORE | 3, LINE + 8, NULL);
    }
    stop();
    EXPECT("false sharing of LLCs", 0, .stores = 100, .l1 = 100, .l2 = 100, .first = 1, .written = 99, .transfers = 99);
    EXPECT("false sharing of LLCs", 4, .stores = 100, .l1 = 100, .l2 = 100, .first = 1, .written = 99, .transfers = 100);

    fresh();
    for (int i = 0; i < 100; i++) {
        on_access(0, STORE | 3, LINE, NULL);
        on_access(1, STORE | 3, LINE + 8, NULL);
    }
    stop();
    EXPECT("false sharing in an LLC", 0, .stores = 100, .l1 = 100, .l2 = 100, .first = 1, .near = 99, .upgrades = 99);
    EXPECT("false sharing in an LLC", 1, .stores = 100, .l1 = 100, .l2 = 100, .near = 99, .upgrades = 100);
}

static void inclusion(void) {
    fresh();
    load(0, 0);
    for (int i = 1; i <= 8; i++)
        load(1, i * LLC_SETS);
    load(0, 0);
    stop();
    EXPECT("what leaves the LLC leaves L1", 0, .loads = 2, .l1 = 2, .l2 = 2, .first = 1, .capacity = 1);

    fresh();
    // Hits of L1 keep it young there only: it is the oldest of L2.
    static const uint64_t in_l1[] = {0, 16, 0, 32, 0, 48, 0, 64, 0};
    for (int i = 0; i < 9; i++)
        load(0, in_l1[i]);
    stop();
    EXPECT("what leaves L2 leaves L1", 0, .loads = 9, .l1 = 6, .l2 = 6, .first = 5);

    fresh();
    store(0, 0);
    for (int i = 1; i <= 8; i++)
        load(1, i * LLC_SETS);
    load(4, 0);
    store(4, 0);
    load(0, 0);
    stop();
    EXPECT("what was replaced is clean", 4, .loads = 1, .stores = 1, .l1 = 1, .l2 = 1, .first = 1);
    EXPECT("replaced, then written elsewhere", 0, .loads = 1, .stores = 1, .l1 = 2, .l2 = 2, .first = 1, .capacity = 1, .transfers = 1);
}

static void spanning(void) {
    fresh();
    on_access(0, LOAD | 3, LINE - 4, NULL);
    on_access(0, LOAD | 3, LINE - 8, NULL);
    stop();
    EXPECT("two lines", 0, .loads = 3, .l1 = 2, .l2 = 2, .first = 2);
    fresh();
    // The page after it is the one before it in RAM.
    on_access(0, LOAD | 3, ELSEWHERE + PAGE - 4, NULL);
    load(0, (16 * PAGE + PAGE) / LINE - 1);
    load(0, 15 * PAGE / LINE);
    on_access(0, STORE | 3, IO - 4, NULL);
    on_access(0, STORE | 3, IO, NULL);
    on_access(0, STORE | 3, KERNEL + RAM_SIZE - 4, NULL);
    on_access(0, STORE | 3, KERNEL + RAM_SIZE, NULL);
    stop();
    EXPECT("two pages; not IO, not outside RAM", 0, .loads = 4, .stores = 1, .l1 = 3, .l2 = 3, .first = 3);
}

static void kernel_code(void) {
    fresh();
    void *kernel = (void *)(KERNEL + 0x1000), *user = (void *)0x400000;
    on_access(0, LOAD | 2, KERNEL + 1 * LINE, kernel);
    on_access(0, LOAD | 2, 2 * LINE, kernel);
    on_access(0, LOAD | 2, 2 * LINE, kernel);
    on_access(0, LOAD | 2, 3 * LINE, user);
    // Two lines, and two misses.
    on_access(0, STORE | 3, KERNEL + 5 * LINE - 4, kernel);
    on_access(4, STORE | 2, 1 * LINE, user);
    on_access(0, LOAD | 2, KERNEL + 1 * LINE, kernel);
    stop();
    EXPECT("by kernel code", 0, .loads = 5, .stores = 2, .l1 = 6, .l2 = 6, .first = 5, .written = 1, .transfers = 1, .kernel = 5);
    EXPECT("by user code", 4, .stores = 1, .l1 = 1, .l2 = 1, .first = 1);
}

static void groups(void) {
    fresh();
    run(0, 9);
    load(0, 1);
    run(0, 511);
    load(0, 2);
    run(1, 2);
    load(1, 3);
    load(0, 2);
    // Reading the table changes nothing, and is not modelled.
    on_access(0, LOAD | 3, KERNEL + WHO, NULL);
    on_block(0, (void *)5);
    magic(0, UNIT);
    stop();
    expect("a group by the table", 9, (struct counts){.loads = 1, .l1 = 1, .l2 = 1, .first = 1});
    expect("the last group", 511, (struct counts){.loads = 2, .l1 = 1, .l2 = 1, .first = 1, .instructions = 5, .units = 1});
    expect("another CPU", 2, (struct counts){.loads = 1, .l1 = 1, .l2 = 1, .first = 1});
    check(strstr(last, "{\"cpu\":0,\"instructions\":5,\"loads\":3,\"stores\":0,\"first\":2,"), "the sum of CPU 0");
    check(strstr(last, "{\"cpu\":1,\"instructions\":0,\"loads\":0,\"stores\":0,\"first\":0,"), "groups below 4 are in the sum of a CPU");
    check(strstr(last, "\"table\":\"0x1000000\"}\n"), "the table's page");
    // With the model off, too.
    check(!all_matter && !modelled, "accesses are looked up with the model off");
    run(0, 10);
    load(0, 1);
    on_block(0, (void *)5);
    magic(0, UNIT);
    magic(0, BEGIN);
    load(0, 1);
    stop();
    expect("with the model off", 10, (struct counts){.loads = 1});
}

static void windows_of_counts(void) {
    fresh();
    stop();
    uint64_t first = strtoull(last + strlen("{\"window\":"), NULL, 10);
    magic(0, WARM);
    load(0, 1);
    magic(0, BEGIN);
    load(0, 1);
    load(0, 2);
    stop();
    EXPECT("what WARM left", 0, .loads = 2, .l1 = 1, .l2 = 1, .first = 1);
    check(strtoull(last + strlen("{\"window\":"), NULL, 10) == first + 1, "the number of a window");
    check(!strncmp(strchr(last, ','), ",\"cpus\":8,\"llcs\":2,\"l1\":\"1:2\",\"l2\":\"4:4\",\"llc\":\"16:8\",", 53), "the head of a line");
    complaints();
    stop();
    check(!*last && complaints() == 1, "END without BEGIN");
}

// Whether this access was recorded, as ASK says.
static bool has(unsigned group, uint64_t ip, uint64_t vaddr) {
    uint64_t entry[3] = {group, ip, vaddr};
    memcpy(memory + TOLD, entry, sizeof entry);
    tell(ASK, 1);
    tell(ASK, 0);
    return !strcmp(came(path_of_out), "{\"asked\":1,\"found\":1}\n");
}

static void records_of_kernel_code(void) {
    fresh();
    stop();
    only_kernel = true;
    magic(0, RECORD);
    void *code = (void *)(KERNEL + 0x1000);
    on_access(0, LOAD, KERNEL + 123, code);
    on_access(0, STORE, 456, code);
    on_access(0, LOAD, 789, (void *)0x400000);
    // As long as it is looked up what the next store tells.
    magic(0, OUT);
    on_access(0, LOAD, KERNEL + 1011, code);
    uint32_t nothing[2] = {0, 0};
    memcpy(memory + TOLD + 4088, nothing, sizeof nothing);
    on_access(0, STORE | 2, TOLD + 4088, NULL);
    run(0, 2);
    on_access(0, LOAD, KERNEL + 1213, code);
    run(0, WORKLOAD + 1);
    on_access(0, LOAD, KERNEL + 1415, code);
    stop();
    on_access(0, LOAD, KERNEL + 1617, code);
    uint64_t ip = (uintptr_t)code;
    check(has(WORKLOAD, ip, KERNEL + 123) && has(WORKLOAD, ip, 456) && has(WORKLOAD, ip, KERNEL + 1011), "kernel code's are kept");
    check(has(WORKLOAD + 1, ip, KERNEL + 1415), "who runs is known without the model");
    check(!has(WORKLOAD, 0x400000, 789) && !has(2, ip, KERNEL + 1213) && !has(WORKLOAD + 1, ip, KERNEL + 1617), "no others are kept");
    expect("nothing is modelled", WORKLOAD, (struct counts){0});
    only_kernel = false;
}

static void records(void) {
    fresh();
    magic(0, RECORD);
    enum { MADE = 100000 };
    uint64_t entry[3] = {WORKLOAD};
    for (uint64_t i = 0; i < MADE; i++)
        on_access(0, LOAD, i * 17, (void *)(0x400000 + i % 1000));
    on_access(0, LOAD, KERNEL + 123, (void *)0x123456);
    stop();
    // What was made, and what was not: another group, ip or address.
    for (int kind = 0; kind < 4; kind++) {
        for (uint64_t i = 0; i < MADE; i++) {
            uint64_t made[3] = {WORKLOAD + (kind == 1), 0x400000 + i % 1000 + (kind == 2 ? 1000 : 0), i * 17 + (kind == 3)};
            memcpy(memory + TOLD + i % 170 * 24, made, sizeof made);
            if (i % 170 == 169 || i == MADE - 1)
                tell(ASK, i % 170 + 1);
        }
        tell(ASK, 0);
        uint64_t all = 0, has = 0;
        check(sscanf(came(path_of_out), "{\"asked\":%" SCNu64 ",\"found\":%" SCNu64 "}\n", &all, &has) == 2 && all == MADE, "asked");
        check(kind ? has < MADE / 1000 : has == MADE, kind ? "more than 0.1 % of what was not made is found" : "an access is not found");
    }
    entry[1] = 0x123456, entry[2] = KERNEL + 123;
    memcpy(memory + TOLD, entry, sizeof entry);
    tell(ASK, 1);
    tell(ASK, 0);
    check(!strcmp(came(path_of_out), "{\"asked\":1,\"found\":1}\n"), "an access to the kernel's memory is not recorded");
    // A new window has nothing of the last one, and what comes again is in it.
    for (int again = 0; again < 2; again++) {
        magic(0, RECORD);
        if (again)
            on_access(0, LOAD, KERNEL + 123, (void *)0x123456);
        stop();
        memcpy(memory + TOLD, entry, sizeof entry);
        tell(ASK, 1);
        tell(ASK, 0);
        const char *expected = again ? "{\"asked\":1,\"found\":1}\n" : "{\"asked\":1,\"found\":0}\n";
        check(!strcmp(came(path_of_out), expected), again ? "an access of the window before is not recorded" : "a window has those before it");
    }

    // 300 pages with 2 misses each, one of them again by replacement.
    fresh();
    magic(0, RECORD);
    for (uint64_t i = 0; i < 300; i++)
        load(0, i * 64), load(0, i * 64 + 1);
    load(0, 0);
    run(0, 3);
    load(0, 301 * 64);
    run(0, WORKLOAD);
    // Of the kernel's memory no page is.
    on_access(0, LOAD, KERNEL + 302 * 64, NULL);
    stop();
    uint64_t pairs[6] = {WORKLOAD, 0, WORKLOAD, 7, WORKLOAD + 1, 7};
    for (int i = 0; i < 2; i++) {
        memcpy(memory + TOLD, pairs, sizeof pairs);
        tell(MISSED, 3);
    }
    tell(MISSED, 0);
    check(!strcmp(came(path_of_out), "{\"misses\":601,\"seen\":5,\"pages\":3}\n"), "misses of pages");
    tell(MISSED, 0);
    check(!strcmp(came(path_of_out), "{\"misses\":601,\"seen\":0,\"pages\":0}\n"), "misses of no pages");
    // So many that the table of pages grows.
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 100000; i++) {
            uint64_t pair[2] = {WORKLOAD, i};
            memcpy(memory + TOLD + i % 250 * 16, pair, sizeof pair);
            if (i % 250 == 249)
                tell(MISSED, 250);
        }
    }
    tell(MISSED, 0);
    check(!strcmp(came(path_of_out), "{\"misses\":601,\"seen\":601,\"pages\":100000}\n"), "misses of many pages");
}

static void bounds(void) {
    static char bytes[4089];
    uint32_t channel = 0;
    memset(bytes, 'x', 4088);
    memcpy(memory + TOLD, bytes, 4088);
    memcpy(memory + TOLD + 4092, &channel, sizeof channel);
    complaints();
    tell(OUT, 4088);
    check(!strcmp(came(path_of_out), bytes), "4088 bytes of OUT");
    channel = 1;
    memcpy(memory + TOLD + 4092, &channel, sizeof channel);
    tell(OUT, 5);
    check(!strcmp(came(path_of_files), "xxxxx") && !*came(path_of_out), "OUT to files");
    tell(OUT, 0);
    check(!*came(path_of_files) && complaints() == 0, "OUT of nothing");
    static const struct {
        enum magic what;
        uint32_t count;
        // Of which 0x10000000 times 16 and 0xaaaaaab times 24 are small in 32 bits.
    } wrong[] = {{OUT, 4089},         {OUT, UINT32_MAX}, {ASK, 171},           {ASK, UINT32_MAX},
                 {ASK, 0xaaaaaab},    {MISSED, 256},     {MISSED, UINT32_MAX}, {MISSED, 0x10000000},
                 {MISSED, 1 /* no such page */}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tell(wrong[i].what, wrong[i].count);
        check(complaints() == 1 && !*came(path_of_out) && !*came(path_of_files), "a wrong count, or group, is not ignored");
    }
    uint64_t pair[2] = {GROUPS, 1};
    memcpy(memory + TOLD, pair, sizeof pair);
    tell(MISSED, 1);
    check(complaints() == 1, "a wrong group");
    memcpy(memory + TOLD, bytes, sizeof pair);
    channel = 2;
    memcpy(memory + TOLD + 4092, &channel, sizeof channel);
    tell(OUT, 1);
    check(complaints() == 1, "a wrong channel");
    magic(0, OUT);
    on_access(0, STORE | 3, IO, NULL);
    check(complaints() == 1 && !pending[0], "OUT of IO");
    // Other CPUs' stores, the kernel's, and loads are not the one that follows.
    channel = 0;
    memcpy(memory + TOLD + 4092, &channel, sizeof channel);
    uint32_t length = 2;
    memcpy(memory + TOLD + 4088, &length, sizeof length);
    magic(0, OUT);
    on_access(1, STORE | 2, TOLD + 4088, NULL);
    on_access(0, STORE | 2, KERNEL + TOLD + 4088, NULL);
    on_access(0, LOAD | 2, TOLD + 4088, NULL);
    check(!*came(path_of_out), "another access is taken for the store");
    on_access(0, STORE | 2, TOLD + 4088, NULL);
    check(!strcmp(came(path_of_out), "xx") && complaints() == 0, "the store that follows");
}

static void translation(void) {
    static const uint8_t begin[] = {0x0f, 0x1f, 0x80, 3, 0, 0xac, 0x5c}, none[] = {0x0f, 0x1f, 0x80, 10, 0, 0xac, 0x5c},
                         kernels[] = {0x0f, 0x1f, 0x80, 0, 0, 0, 0}, move[] = {0x48, 0x89, 0x07};
    struct qemu_plugin_insn insns[] = {{begin, 7, 0, 0}, {none, 7, 0, 0}, {kernels, 7, 0, 0}, {move, 3, 0, 0}};
    on_translated(0, &(struct qemu_plugin_tb){4, insns});
    check(insns[0].magic == BEGIN && !insns[1].magic && !insns[2].magic && !insns[3].magic, "magic instructions");
    check(insns[3].callbacks == 1 && !insns[0].callbacks, "callbacks for accesses");
}

// How many turns of 100 instructions or of one block CPU 3 has in this many blocks of 10 instructions.
static unsigned turns_in(unsigned blocks) {
    memset(ended, 0, sizeof ended);
    for (unsigned i = 0; i < blocks; i++)
        on_block(3, (void *)(uintptr_t)10);
    return ended[3];
}

static void turns(void) {
    fresh();
    turn = 3;
    ran = 0;
    length = slice;
    check(turns_in(9) == 0 && turns_in(1) == 1, "a turn ends after 100 instructions");
    // Of each four turns three are of one block and one of 10 blocks: 4 in 13. Five standard deviations.
    unsigned many = turns_in(130000), expected = 40000;
    check(many > expected - 5 * 320 && many < expected + 5 * 320, "three of four turns end at once");
    // A turn is that of one CPU: what it has left is not the next one's.
    ran = 90;
    on_block(4, (void *)(uintptr_t)10);
    check(turn == 4 && ran <= 10, "a CPU's turn begins anew");
    stop();
    for (int i = 0; i < 100; i++)
        on_block(5, (void *)(uintptr_t)10);
    check(ended[5] == 0, "without the model turns end as QEMU has them");
}

// --- Random accesses

static void random_accesses(void) {
    fresh();
    uint64_t seed = 1;
    for (int i = 0; i < 400000; i++) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        int cpu = (seed >> 60) & 7;
        // Few lines for a while, then many: all caches come to their turn.
        int line = (seed >> 40) % (i / 1000 % 4 == 0 ? 12 : i / 1000 % 4 == 1 ? 100 : SLOW_LINES);
        bool is_store = (seed >> 32) % 4 == 0;
        slow_access(cpu, line, is_store);
        is_store ? store(cpu, line) : load(cpu, line);
    }
    stop();
    for (int cpu = 0; cpu < CPUS; cpu++) {
        struct counts *want = &slow_counts[cpu];
        expect("random accesses", WORKLOAD + cpu, *want);
        check(want->near && want->first && want->capacity && want->written && want->upgrades, "a count that never happens");
    }
}

static void options(qemu_info_t info, char *ram_option, char *out_option) {
    static char *const wrong[] = {"llcs=0",      "llcs=9",    "llcs=x",      "llcs=2x",  "l1=32", "l1=32:", "l2=48:8",      "llc=2048:65",
                                  "llc=:8",      "l2=256:0",  "bloom_mib=",  "colour=1", "l1",    "=",      "ram=/nowhere", "out=/no/x",
                                  "files=/no/x", "bloom_mib=-1", "slice=0",  "only=user"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *argv[] = {ram_option, out_option, wrong[i]};
        check(qemu_plugin_install(0, &info, 3, argv) && complaints() == 1, wrong[i]);
    }
    check(qemu_plugin_install(0, &info, 1, &ram_option) && complaints() == 1, "no out=");
    check(qemu_plugin_install(0, &info, 1, &out_option) && complaints() == 1, "no ram=");
    info.system.smp_vcpus = info.system.max_vcpus = 33;
    char *argv[] = {ram_option, out_option};
    check(qemu_plugin_install(0, &info, 2, argv) && complaints() == 1, "33 CPUs");
}

int main(int argc, char **argv) {
    char ram_option[4096], out_option[4200], files_option[4200];
    if (argc != 2)
        return 2;
    snprintf(ram_option, sizeof ram_option, "ram=%s/ram", argv[1]);
    snprintf(path_of_out, sizeof path_of_out, "%s/out", argv[1]);
    snprintf(path_of_files, sizeof path_of_files, "%s/files", argv[1]);
    snprintf(path_of_errors, sizeof path_of_errors, "%s/errors", argv[1]);
    snprintf(out_option, sizeof out_option, "out=%s", path_of_out);
    snprintf(files_option, sizeof files_option, "files=%s", path_of_files);
    int file = open(ram_option + 4, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, RAM_SIZE) || !freopen(path_of_errors, "a", stderr))
        return 2;
    setvbuf(stderr, NULL, _IOLBF, 0);
    memory = mmap(NULL, RAM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return 2;
    qemu_info_t info = {.target_name = "x86_64", .system_emulation = true, .system = {CPUS, CPUS}};
    options(info, ram_option, out_option);
    char *right[] = {ram_option, out_option, files_option, "llcs=2", "l1=1:2", "l2=4:4", "llc=16:8", "bloom_mib=1", "slice=100"};
    if (qemu_plugin_install(0, &info, 9, right))
        return 2;
    tell(TABLE, 0);
    check(table == TOLD && all_matter, "TABLE");
    // A later TABLE holds: that of run().
    magic(0, TABLE);
    on_access(0, STORE | 3, WHO, NULL);
    sizes();
    sharing();
    inclusion();
    spanning();
    kernel_code();
    groups();
    windows_of_counts();
    records();
    records_of_kernel_code();
    bounds();
    translation();
    turns();
    random_accesses();
    printf("patterns: %d failures\n", failures);
    return failures != 0;
}
