// SPDX-License-Identifier: GPL-2.0-or-later
// A second, slow model for patterns.c: when each cache last used a line, and no other structure. 8 CPUs, two LLCs, the caches of
// patterns.c.
#ifndef CACHES_REFERENCE_H
#define CACHES_REFERENCE_H
#include "model.h"

enum { CPUS = 8, SLOW_LINES = 1024 };
static uint64_t used[2 * CPUS + 2][SLOW_LINES], clock_now;
static struct {
    bool had[2], lost[2], near[CPUS];
    int dirty; // 1 + LLC
} slow[SLOW_LINES];
static struct counts slow_counts[CPUS];

// Makes room for a line in a cache, if its set is full: returns the line that goes, or -1.
static int oldest(int cache, int line, int sets, int ways) {
    int count = 0, victim = -1;
    for (int other = line % sets; other < SLOW_LINES; other += sets) {
        if (!used[cache][other])
            continue;
        count++;
        if (victim < 0 || used[cache][other] < used[cache][victim])
            victim = other;
    }
    if (count < ways)
        return -1;
    used[cache][victim] = 0;
    return victim;
}

static void slow_access(int cpu, int line, bool is_store) {
    struct counts *count = &slow_counts[cpu];
    int home = cpu / 4, my_llc = 2 * CPUS + home, missed = 0, others = 0;
    clock_now++;
    is_store ? count->stores++ : count->loads++;
    if (!used[cpu][line]) {
        count->l1++;
        if (!used[CPUS + cpu][line]) {
            count->l2++;
            if (!used[my_llc][line]) {
                missed = 1;
                *(!slow[line].had[home] ? &count->first : slow[line].lost[home] ? &count->written : &count->capacity) += 1;
                count->transfers += slow[line].dirty != 0;
                slow[line].dirty = 0;
                slow[line].had[home] = true;
                slow[line].lost[home] = false;
                int victim = oldest(my_llc, line, 32, 8);
                if (victim >= 0) {
                    for (int other = home * 4; other < home * 4 + 4; other++)
                        used[other][victim] = used[CPUS + other][victim] = 0;
                    if (slow[victim].dirty == 1 + home)
                        slow[victim].dirty = 0;
                }
            } else {
                count->near += slow[line].near[cpu];
            }
            used[my_llc][line] = clock_now;
            slow[line].near[cpu] = false;
            int victim = oldest(CPUS + cpu, line, 16, 4);
            if (victim >= 0)
                used[cpu][victim] = 0;
        }
        used[CPUS + cpu][line] = clock_now;
        oldest(cpu, line, 8, 2);
    }
    used[cpu][line] = clock_now;
    if (!is_store)
        return;
    for (int other = 0; other < CPUS; other++) {
        if (other != cpu && used[CPUS + other][line]) {
            others = 1;
            used[other][line] = used[CPUS + other][line] = 0;
            if (other / 4 == home)
                slow[line].near[other] = true;
        }
    }
    if (used[2 * CPUS + !home][line]) {
        others = 1;
        used[2 * CPUS + !home][line] = 0;
        slow[line].lost[!home] = true;
    }
    count->upgrades += others && !missed;
    slow[line].dirty = 1 + home;
}
#endif
