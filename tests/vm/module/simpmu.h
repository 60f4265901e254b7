/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the simulated memory PMU share. */
#ifndef SIMPMU_H
#define SIMPMU_H

#include <linux/cpumask.h>
#include <linux/perf_event.h>
#include <linux/version.h>

/* The register protocol: user code that has this in r14 says in r15 which address it works on. */
#define SIM_MAGIC 0x46414b45504d5531ULL

/* ibs_op: attr.config (arch/x86/include/asm/perf_event.h, IBS_OP_*). */
#define IBS_MAX_CNT 0xffffULL
#define IBS_L3MISSONLY (1ULL << 16)
#define IBS_CNT_CTL (1ULL << 19)
#define IBS_MAX_CNT_EXT (0x7fULL << 20)
/* attr.config1 and attr.config2. */
#define IBS_LDLAT 0xfffULL
#define IBS_SWFILT 1ULL

/* A PMU as one machine has it. Event codes are umask << 8 | event; 0 where the machine has no such event. */
struct sim_pmu {
	struct pmu pmu;
	const char *name;
	bool registered;
	bool ibs;
	/* Core PMUs. */
	u64 loads, stores, aux;
	/* The highest precise_ip, and the highest that loads can be scheduled with. */
	u8 max_precise, loads_precise;
	/* Hybrid: the CPUs of this PMU; else all. */
	bool hybrid;
	cpumask_t cpus;
	/* ibs_op. */
	bool l3missonly, ldlat, swfilt;
};

static inline struct sim_pmu *sim_pmu(struct perf_event *event)
{
	return container_of(event->pmu, struct sim_pmu, pmu);
}

/* machine.c: the machines, their rules, and what sysfs shows of them. */
#define SIM_PMUS 2
extern struct sim_pmu sim_pmus[SIM_PMUS];
int sim_build(const char *machine, int swfilt);
int sim_check(struct perf_event *event);
int sim_check_period(struct perf_event *event, u64 period);

/* event.c: events that a timer drives. */
int sim_find_symbols(void);
void *sim_find(const char *name);
int sim_watch_locks(void);
void sim_watch_no_locks(void);
void sim_fill_ops(struct pmu *pmu);

/* code.c: what interrupted kernel code accesses next. */
bool sim_find_decoder(void);
bool sim_next_access(struct pt_regs *regs, u64 *addr, bool *is_store);

/* log.c: what was asked of the PMUs and what they sent, in debugfs. */
int sim_log_open(void);
void sim_log_close(void);
void sim_log_attr(struct perf_event *event, int result);
void sim_log_sample(struct perf_event *event, struct perf_sample_data *data, struct pt_regs *regs);
extern atomic_long_t sim_ticks, sim_throttled;

/* Events open, but: never get onto the PMU, as when a sibling holds the register they need; or are on it and count nothing. */
enum { SILENT_HELD = 1, SILENT_COUNTER };

/* main.c: the parameters that can be changed while it runs. */
extern bool sim_kernel, sim_locks;
extern int sim_silent;
extern unsigned long sim_floor_ns, sim_took_ns;

#endif
