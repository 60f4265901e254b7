// SPDX-License-Identifier: GPL-2.0
/*
 * Events that a timer drives: one event happens per nanosecond, and each time a period has passed, the interrupted user code
 * says by its registers what the "sampled operation" was. Of kernel code it is the next access (code.c), one of the next locks that are taken,
 * or one of the stack. A memory PMU counts where interrupts are off, too, which a timer never meets; of locks most are taken there.
 */
#include <linux/hash.h>
#include <linux/hrtimer.h>
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <asm/irq_regs.h>

#include "simpmu.h"

#define S(a, b) PERF_MEM_S(a, b)

/* What operation an event saw. */
struct operation {
	enum { NO_MEMORY, LOAD, STORE } kind;
	u64 addr, src;
	u32 latency;
};

static int (*overflow)(struct perf_event *, struct perf_sample_data *, struct pt_regs *);
static void (*sample_took)(u64);
static DEFINE_PER_CPU(struct perf_event *, ibs_owner);
/* Its period has passed: its operation is one of the next locks, and not always that of the switch to another task which follows a tick. */
static DEFINE_PER_CPU(struct perf_event *, armed);
static DEFINE_PER_CPU(unsigned int, locks_left);

/* The core does not export these to modules; a kprobe finds them. */
void *sim_find(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	unsigned long addr;

	if (register_kprobe(&probe))
		return NULL;
	addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	/* The probe sits behind an endbr64. */
	if (*(u32 *)(addr - 4) == 0xfa1e0ff3)
		addr -= 4;
	return (void *)addr;
}

int sim_find_symbols(void)
{
	overflow = sim_find("perf_event_overflow");
	sample_took = sim_find("perf_sample_event_took");
	if (!overflow || !sample_took || !sim_find_decoder()) {
		pr_err("simpmu: no kprobe finds perf_event_overflow, perf_sample_event_took or insn_decode\n");
		return -ENOENT;
	}
	return 0;
}

/* Where code names no data source: a function of the cache line, with all kinds of answers. */
static void by_line(struct operation *op)
{
	u32 h = hash_64(op->addr >> 6, 16);
	u64 hit = S(LVL, HIT), l1_tlb = S(TLB, L1) | S(TLB, HIT), l2_tlb = S(TLB, L2) | S(TLB, HIT);

	if ((h & 7) == 7) {
		op->kind = STORE;
		op->src = S(OP, STORE) | S(LVL, L1) | hit | S(LVLNUM, L1) | S(SNOOP, NA) | S(LOCK, NA) | l1_tlb;
		return;
	}
	op->kind = LOAD;
	op->src = S(OP, LOAD) | S(LOCK, NA);
	switch ((h >> 3) & 7) {
	case 0 ... 2:
		op->src |= S(LVL, L1) | hit | S(LVLNUM, L1) | S(SNOOP, NA) | l1_tlb;
		break;
	case 3:
		op->latency = 14 + ((h >> 6) & 7);
		op->src |= S(LVL, L2) | hit | S(LVLNUM, L2) | S(SNOOP, NA) | l1_tlb;
		break;
	case 4 ... 5:
		op->latency = 40 + ((h >> 6) & 31);
		op->src |= S(LVL, L3) | hit | S(LVLNUM, L3) | S(SNOOP, NA) | l2_tlb;
		break;
	case 6:
		op->latency = 200 + ((h >> 6) & 255);
		op->src |= S(LVL, LOC_RAM) | hit | S(LVLNUM, RAM) | S(SNOOP, NA) | S(TLB, L2) | S(TLB, MISS);
		break;
	default:
		/* Another core's cache held it modified. */
		op->latency = 120 + ((h >> 6) & 127);
		op->src |= S(LVL, REM_CCE1) | hit | S(LVLNUM, ANY_CACHE) | S(REMOTE, REMOTE) | S(HOPS, 0) | S(SNOOP, HITM) | l2_tlb;
	}
}

/* `rep movsb` or `rep movsq`, by which the kernel copies what is not small. */
static bool is_copy(struct pt_regs *regs)
{
	const u8 *code = (const u8 *)regs->ip;

	return regs->cx && code[0] == 0xf3 && (code[1] == 0xa4 || (code[1] == 0x48 && code[2] == 0xa5));
}

static void of_store(struct operation *op)
{
	op->kind = STORE;
	op->src = S(OP, STORE) | S(LVL, L1) | S(LVL, HIT) | S(LVLNUM, L1) | S(SNOOP, NA) | S(LOCK, NA);
}

static void of_load(struct operation *op, bool is_near)
{
	op->kind = LOAD;
	op->latency = is_near ? 0 : 60;
	op->src = S(OP, LOAD) | S(LVL, HIT) | S(SNOOP, NA) | S(LOCK, NA);
	op->src |= is_near ? S(LVL, L1) | S(LVLNUM, L1) : S(LVL, L3) | S(LVLNUM, L3);
}

/* The thread that took a lock last has its line, as if each thread had a CPU of its own. */
static bool had_it(u64 lock)
{
	static u32 last[1 << 12];
	u32 *thread = &last[hash_64(lock >> 6, 12)];
	bool had = READ_ONCE(*thread) == current->pid;

	WRITE_ONCE(*thread, current->pid);
	return had;
}

static void of_kernel(struct pt_regs *regs, struct operation *op)
{
	bool is_store = false, is_near = true;

	if (is_copy(regs)) {
		/* Both are equally frequent; the address alone would tell which. What a process copies into the kernel it has just made. */
		is_store = hash_64(ktime_get_mono_fast_ns(), 1);
		op->addr = is_store ? regs->di : regs->si;
		is_near = op->addr < TASK_SIZE_MAX;
	} else if (!sim_next_access(regs, &op->addr, &is_store)) {
		op->addr = regs->sp;
	}
	if (is_store)
		of_store(op);
	else
		of_load(op, is_near);
}

static void interrupted(struct pt_regs *regs, struct operation *op)
{
	memset(op, 0, sizeof(*op));
	if (!user_mode(regs)) {
		of_kernel(regs, op);
		return;
	}
	if (regs->r14 != SIM_MAGIC || regs->r15 < PAGE_SIZE || regs->r15 >= TASK_SIZE_MAX)
		return;
	op->addr = regs->r15;
	if (regs->r13) {
		op->src = regs->r13;
		op->latency = regs->r12;
		op->kind = op->src & S(OP, LOAD) ? LOAD : STORE;
	} else {
		by_line(op);
	}
}

/* Would the hardware's own filter let this event see the operation? */
static bool passes(struct perf_event *event, struct operation *op)
{
	struct sim_pmu *p = sim_pmu(event);
	struct perf_event_attr *attr = &event->attr;

	if (!p->ibs) {
		if (attr->config == p->stores)
			return op->kind == STORE;
		/* PEBS has a latency for L1 hits too. */
		if (op->kind == LOAD && !op->latency)
			op->latency = 5;
		return op->kind == LOAD && op->latency >= (attr->config1 & 0xffff);
	}
	/* The threshold counts in steps of 128 and forces L3 misses only. */
	if (p->ldlat && attr->config1 & IBS_LDLAT)
		return op->kind == LOAD && op->latency >= (attr->config1 & 0xf80);
	if (attr->config & IBS_L3MISSONLY)
		return op->kind == LOAD && op->latency >= 120;
	return true;
}

/* Only PEBS and IBS say what memory was touched: an event of precise_ip 0 is an interrupt like any other. */
static bool says_memory(struct perf_event *event)
{
	return sim_pmu(event)->ibs || event->attr.precise_ip;
}

static bool is_excluded(struct perf_event *event, struct pt_regs *regs)
{
	return user_mode(regs) ? event->attr.exclude_user : !sim_kernel || event->attr.exclude_kernel;
}

static u64 step(struct perf_event *event)
{
	return max_t(u64, event->hw.sample_period, sim_floor_ns);
}

/* An eighth to and fro, so as to be in step with nothing. */
static u64 next_ns(struct perf_event *event)
{
	u64 ns = step(event);
	u32 random = hash_64(ktime_get_mono_fast_ns() ^ (unsigned long)event, 16);

	return ns - (ns >> 3) + (((ns >> 2) * random) >> 16);
}

/* Counts what has happened since it was last looked at. */
static void update(struct perf_event *event)
{
	u64 now = ktime_get_mono_fast_ns(), before = local64_xchg(&event->hw.prev_count, now);

	if (now > before && sim_silent != SILENT_COUNTER)
		local64_add(now - before, &event->count);
}

static void send(struct perf_event *event, struct pt_regs *regs, struct operation *op)
{
	struct perf_sample_data data = {};
	u64 want = event->attr.sample_type;

	perf_sample_data_init(&data, 0, event->hw.last_period);
	if (op->kind != NO_MEMORY && says_memory(event)) {
		if (want & PERF_SAMPLE_DATA_SRC) {
			data.data_src.val = op->src;
			data.sample_flags |= PERF_SAMPLE_DATA_SRC;
		}
		if (want & PERF_SAMPLE_WEIGHT_TYPE && op->kind == LOAD && op->latency) {
			data.weight.full = 0;
			data.weight.var1_dw = op->latency;
			if (want & PERF_SAMPLE_WEIGHT_STRUCT)
				data.weight.var2_w = op->latency + 20;
			data.sample_flags |= PERF_SAMPLE_WEIGHT_TYPE;
		}
		/* The core makes the physical address and the page size of it. */
		data.addr = op->addr;
		data.sample_flags |= PERF_SAMPLE_ADDR;
	}
	if (overflow(event, &data, regs)) {
		atomic_long_inc(&sim_throttled);
		/* The scheduler's tick starts it again. */
		event->hw.state |= PERF_HES_STOPPED;
	}
	sim_log_sample(event, &data, regs);
	if (sim_took_ns)
		sample_took(sim_took_ns);
}

static int on_lock(struct kprobe *probe, struct pt_regs *regs)
{
	struct perf_event *event = this_cpu_read(armed);
	struct operation op = { .addr = regs->di };
	bool had = had_it(op.addr);

	/* Not the locks of the timer that has armed it. */
	if (!event || in_hardirq() || in_serving_softirq() || this_cpu_dec_return(locks_left))
		return 0;
	this_cpu_write(armed, NULL);
	if (event->state != PERF_EVENT_STATE_ACTIVE || event->hw.state & PERF_HES_STOPPED)
		return 0;
	if (sim_pmu(event)->ibs ? hash_64(ktime_get_mono_fast_ns(), 1) : event->attr.config == sim_pmu(event)->stores)
		of_store(&op);
	else
		of_load(&op, had);
	if (passes(event, &op))
		send(event, regs, &op);
	return 0;
}

/* How the kernel takes a lock, whose address is the first argument. */
static struct kprobe locks[] = {
	{ .symbol_name = "mutex_lock", .pre_handler = on_lock },
	{ .symbol_name = "_raw_spin_lock", .pre_handler = on_lock },
	{ .symbol_name = "_raw_spin_lock_bh", .pre_handler = on_lock },
	{ .symbol_name = "_raw_spin_lock_irqsave", .pre_handler = on_lock },
};

int sim_watch_locks(void)
{
	int i, rc;

	for (i = 0; i < ARRAY_SIZE(locks); i++) {
		rc = register_kprobe(&locks[i]);
		if (rc) {
			pr_err("simpmu: no kprobe at %s: %d\n", locks[i].symbol_name, rc);
			while (i--)
				unregister_kprobe(&locks[i]);
			return rc;
		}
	}
	return 0;
}

void sim_watch_no_locks(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(locks); i++)
		unregister_kprobe(&locks[i]);
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct perf_event *event = container_of(timer, struct perf_event, hw.hrtimer);
	struct hw_perf_event *hwc = &event->hw;
	struct pt_regs *regs = get_irq_regs();
	struct operation op;

	if (event->state != PERF_EVENT_STATE_ACTIVE || hwc->state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;
	atomic_long_inc(&sim_ticks);
	update(event);
	local64_set(&hwc->period_left, 0);
	hwc->last_period = event->attr.freq ? step(event) : hwc->sample_period;
	if (regs && sim_silent != SILENT_COUNTER && !is_excluded(event, regs)) {
		if (sim_locks && !user_mode(regs) && !is_copy(regs) && hash_64(ktime_get_mono_fast_ns(), 1)) {
			this_cpu_write(armed, event);
			this_cpu_write(locks_left, 1 + hash_64(ktime_get_mono_fast_ns(), 5));
		} else {
			interrupted(regs, &op);
			if (passes(event, &op))
				send(event, regs, &op);
		}
	}
	if (hwc->state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(next_ns(event)));
	return HRTIMER_RESTART;
}

/* The core stops and starts events at each scheduler tick: what is left of a period goes on then. */
static void start(struct perf_event *event, int flags)
{
	struct hw_perf_event *hwc = &event->hw;
	s64 left = local64_read(&hwc->period_left);

	if (!(hwc->state & PERF_HES_STOPPED))
		return;
	hwc->state = 0;
	local64_set(&hwc->prev_count, ktime_get_mono_fast_ns());
	if (!is_sampling_event(event))
		return;
	if (left <= 0 || left > 2 * step(event))
		left = next_ns(event);
	hrtimer_start(&hwc->hrtimer, ns_to_ktime(left), HRTIMER_MODE_REL_PINNED_HARD);
}

static void stop(struct perf_event *event, int flags)
{
	struct hw_perf_event *hwc = &event->hw;

	if (hwc->state & PERF_HES_STOPPED)
		return;
	update(event);
	hwc->state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (!is_sampling_event(event))
		return;
	local64_set(&hwc->period_left, ktime_to_ns(hrtimer_get_remaining(&hwc->hrtimer)));
	/* Maybe from inside tick(), so without waiting for it. */
	hrtimer_try_to_cancel(&hwc->hrtimer);
}

static int add(struct perf_event *event, int flags)
{
	if (sim_silent == SILENT_HELD)
		return -EAGAIN;
	/* A CPU has one IBS for operations. */
	if (sim_pmu(event)->ibs) {
		if (this_cpu_read(ibs_owner))
			return -ENOSPC;
		this_cpu_write(ibs_owner, event);
	}
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (flags & PERF_EF_START)
		start(event, PERF_EF_RELOAD);
	return 0;
}

static void del(struct perf_event *event, int flags)
{
	stop(event, PERF_EF_UPDATE);
	if (this_cpu_read(ibs_owner) == event)
		this_cpu_write(ibs_owner, NULL);
	if (this_cpu_read(armed) == event)
		this_cpu_write(armed, NULL);
}

static void read(struct perf_event *event)
{
	if (!(event->hw.state & PERF_HES_STOPPED))
		update(event);
}

static int init(struct perf_event *event)
{
	int rc = sim_check(event);

	if (event->attr.type == event->pmu->type)
		sim_log_attr(event, rc);
	if (rc)
		return rc;
	event->hw.last_period = event->hw.sample_period;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	hrtimer_setup(&event->hw.hrtimer, tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
#else
	hrtimer_init(&event->hw.hrtimer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
	event->hw.hrtimer.function = tick;
#endif
	return 0;
}

void sim_fill_ops(struct pmu *pmu)
{
	pmu->module = THIS_MODULE;
	pmu->event_init = init;
	pmu->add = add;
	pmu->del = del;
	pmu->start = start;
	pmu->stop = stop;
	pmu->read = read;
	pmu->check_period = sim_check_period;
}
