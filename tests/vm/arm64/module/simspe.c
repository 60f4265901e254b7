// SPDX-License-Identifier: GPL-2.0
/*
 * simspe: the statistical profiling extension (SPE) of arm64 for tests in an emulated machine that has none. Not for a real machine.
 *
 * A timer samples the interrupted code as often as the period says, one operation per nanosecond, and writes what SPE's hardware
 * would write into the AUX buffer. The rules of events and buffers follow drivers/perf/arm_spe_pmu.c, the records the Arm
 * Architecture Reference Manual (DDI 0487). User code says by its registers what it accesses: x27 holds SIM_MAGIC, x28 the address.
 *
 * The truth is in debugfs under simpmu/, in the form of ../../module/log.c: `samples`, a line for each that was written whole;
 * `counts`. Writing to `samples` empties it. To be read while no event runs.
 */
#include <linux/cgroup.h>
#include <linux/debugfs.h>
#include <linux/hash.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/pid_namespace.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/unaligned.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <asm/irq_regs.h>
#include <asm/sysreg.h>

#define SIM_MAGIC 0x46414b45504d5531ULL
#define RECORD 64
#define MAX_CPUS 8
#define SAMPLES 65536
#define S(a, b) PERF_MEM_S(a, b)

/* attr.config and attr.config2, as `format` shows them. */
#define TS_ENABLE BIT_ULL(0)
#define PA_ENABLE BIT_ULL(1)
#define PCT_ENABLE BIT_ULL(2)
#define BRANCH_FILTER BIT_ULL(32)
#define LOAD_FILTER BIT_ULL(33)
#define STORE_FILTER BIT_ULL(34)
#define MIN_LATENCY 0xfffULL
/* event->hw.flags: the records say their thread. */
#define HAS_CONTEXT 1

static bool contexts = true;
module_param(contexts, bool, 0644);
MODULE_PARM_DESC(contexts, "records say their thread, as with CONFIG_PID_IN_CONTEXTIDR");
static bool of_kernel;
module_param_named(kernel, of_kernel, bool, 0644);
MODULE_PARM_DESC(kernel, "samples of kernel code too: its stack");
static ulong floor_ns = 50000;
module_param(floor_ns, ulong, 0644);
MODULE_PARM_DESC(floor_ns, "the shortest time between two samples");
static uint lose;
module_param(lose, uint, 0644);
MODULE_PARM_DESC(lose, "every so many samples one is cut, as if the buffer could not be written: the event stops (0: never)");
static uint collide;
module_param(collide, uint, 0644);
MODULE_PARM_DESC(collide, "every so many pieces of data say that samples collided (0: never)");

/* What operation was sampled. */
struct operation {
	enum { BRANCH, LOAD, STORE } kind;
	u64 addr, phys, src;
	u16 latency, events;
	u8 source;
};

struct sample {
	u64 time, ip, addr, phys, cgroup, latency, src;
	u32 pid, tid;
	bool user;
	char comm[TASK_COMM_LEN];
};

struct buffer {
	void *base;
	size_t bytes;
};

/* A CPU's hardware: where it writes, and how far it may. */
struct core {
	struct perf_output_handle handle;
	size_t at, written, room;
	u32 samples, pieces, tick;
	struct sample *log;
	u32 logged;
};

static struct core cpus[MAX_CPUS];
static struct pmu pmu;
static atomic_long_t ticks, cut, unlogged;
static struct dentry *directory;

/* The buffer. */

static bool begin(struct core *c, struct perf_event *event)
{
	struct buffer *buffer = perf_aux_output_begin(&c->handle, event);
	size_t pad, until;

	c->written = c->room = 0;
	if (!buffer)
		goto stopped;
	pad = min_t(size_t, -c->handle.head & (RECORD - 1), c->handle.size);
	memset(buffer->base + c->handle.head % buffer->bytes, 0, pad);
	if (pad)
		perf_aux_output_skip(&c->handle, pad);
	c->at = c->handle.head % buffer->bytes;
	c->room = min_t(size_t, c->handle.size, buffer->bytes - c->at);
	until = c->handle.wakeup - c->handle.head;
	if (until && until < c->room)
		c->room = round_up(until, RECORD);
	c->room = round_down(min_t(size_t, c->room, c->handle.size), RECORD);
	if (c->room)
		return true;
	perf_aux_output_flag(&c->handle, PERF_AUX_FLAG_TRUNCATED);
	perf_aux_output_end(&c->handle, 0);
stopped:
	event->hw.state |= PERF_HES_STOPPED;
	return false;
}

static void end(struct core *c, u64 flags)
{
	if (!perf_get_aux(&c->handle))
		return;
	if (c->written && collide && !(++c->pieces % collide))
		flags |= PERF_AUX_FLAG_COLLISION;
	perf_aux_output_flag(&c->handle, flags);
	perf_aux_output_end(&c->handle, c->written);
	c->written = c->room = 0;
}

static void *setup_aux(struct perf_event *event, void **pages, int npages, bool snapshot)
{
	struct buffer *buffer;
	struct page **list;
	int i;

	if (npages < 2 || snapshot)
		return NULL;
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
	list = kcalloc(npages, sizeof(*list), GFP_KERNEL);
	if (buffer && list) {
		for (i = 0; i < npages; i++)
			list[i] = virt_to_page(pages[i]);
		buffer->base = vmap(list, npages, VM_MAP, PAGE_KERNEL);
		buffer->bytes = (size_t)npages << PAGE_SHIFT;
	}
	kfree(list);
	if (buffer && buffer->base)
		return buffer;
	kfree(buffer);
	return NULL;
}

static void free_aux(void *aux)
{
	struct buffer *buffer = aux;

	vunmap(buffer->base);
	kfree(buffer);
}

/* The samples. */

/* The physical address, as the core itself translates; 0 for none. */
static u64 translated(u64 addr, bool user)
{
	u64 par;

	if (user)
		asm volatile("at s1e0r, %0" : : "r"(addr));
	else
		asm volatile("at s1e1r, %0" : : "r"(addr));
	isb();
	par = read_sysreg_par();
	return par & 1 ? 0 : (par & GENMASK_ULL(47, 12)) | (addr & 0xfff);
}

/* What the operation was follows from its cache line: all kinds of answers. The sources are those of Neoverse cores. */
static void by_line(struct operation *op)
{
	u32 h = hash_64(op->addr >> 6, 16);

	/* Retired, L1D access, TLB access. */
	op->events = BIT(1) | BIT(2) | BIT(4);
	op->latency = 10 + ((h >> 6) & 7);
	if ((h & 7) == 7) {
		op->kind = STORE;
		op->src = S(OP, STORE) | S(LVL, NA) | S(LVLNUM, NA) | S(SNOOP, NA) | S(TLB, WK) | S(TLB, HIT);
		return;
	}
	op->kind = LOAD;
	op->src = S(OP, LOAD) | S(TLB, WK) | S(TLB, HIT);
	switch ((h >> 3) & 7) {
	case 0 ... 2:
		op->source = 0;
		op->src |= S(LVL, L1) | S(LVL, HIT) | S(LVLNUM, L1) | S(SNOOP, NONE);
		return;
	case 3:
		op->source = 8;
		op->latency += 14;
		op->src |= S(LVL, L2) | S(LVL, HIT) | S(LVLNUM, L2) | S(SNOOP, NONE);
		break;
	case 4:
		op->source = 9;
		op->latency += 60;
		op->src |= S(LVL, L2) | S(LVL, HIT) | S(LVLNUM, L2) | S(SNOOPX, PEER);
		break;
	case 5:
		op->source = 0xb;
		op->latency += 40;
		op->src |= S(LVL, L3) | S(LVL, HIT) | S(LVLNUM, L3) | S(SNOOP, HIT);
		break;
	case 6:
		op->source = 0xe;
		op->latency += 200;
		/* A walk for the translation. */
		op->events |= BIT(5);
		op->src = S(OP, LOAD) | S(TLB, WK) | S(TLB, MISS);
		op->src |= S(LVL, LOC_RAM) | S(LVL, HIT) | S(LVLNUM, RAM) | S(SNOOP, NONE);
		break;
	default:
		op->source = 0xc;
		op->latency += 120;
		op->src |= S(LVL, L3) | S(LVL, HIT) | S(LVLNUM, L3) | S(SNOOPX, PEER);
	}
	op->events |= BIT(3);
}

static void interrupted(struct pt_regs *regs, struct operation *op)
{
	bool user = user_mode(regs);

	memset(op, 0, sizeof(*op));
	if (user && (regs->regs[27] != SIM_MAGIC || regs->regs[28] < PAGE_SIZE || regs->regs[28] >= TASK_SIZE_64)) {
		/* Retired. */
		op->events = BIT(1);
		return;
	}
	op->addr = user ? regs->regs[28] : regs->sp;
	op->phys = translated(op->addr, user);
	by_line(op);
}

/* Would the hardware's own filter let this event see the operation? */
static bool passes(struct perf_event *event, struct operation *op)
{
	u64 config = event->attr.config, wanted = config & (BRANCH_FILTER | LOAD_FILTER | STORE_FILTER);
	u64 kind = op->kind == BRANCH ? BRANCH_FILTER : op->kind == LOAD ? LOAD_FILTER : STORE_FILTER;

	return (!wanted || wanted & kind) && op->latency >= (event->attr.config2 & MIN_LATENCY);
}

static u8 *packet(u8 *at, u8 header, u64 payload)
{
	int i, size = 1 << (header >> 4 & 3);

	*at++ = header;
	for (i = 0; i < size; i++, payload >>= 8)
		*at++ = payload;
	return at;
}

/* A record ends with its time, or with a packet that says no more; what is before that is padded. */
static void make(struct perf_event *event, struct pt_regs *regs, struct operation *op, u64 count, u8 *bytes)
{
	u64 address = GENMASK_ULL(55, 0), config = event->attr.config;
	u8 *at = bytes;

	memset(bytes, 0, RECORD);
	/* The instruction: not secure, and the exception level. */
	at = packet(at, 0xb0, (regs->pc & address) | BIT_ULL(63) | (user_mode(regs) ? 0 : BIT_ULL(61)));
	at = packet(at, op->kind == BRANCH ? 0x4a : 0x49, op->kind == STORE);
	at = packet(at, 0x52, op->events);
	at = packet(at, 0x98, op->latency);
	at = packet(at, 0x99, op->latency / 2);
	if (op->kind != BRANCH) {
		/* With a tag of pointers. */
		at = packet(at, 0xb2, (op->addr & address) | (op->addr >> 63 ? 0xffULL : 0x5aULL) << 56);
		if (config & PA_ENABLE && op->phys)
			at = packet(at, 0xb3, op->phys | BIT_ULL(63));
	}
	if (op->kind == LOAD)
		at = packet(at, 0x43, op->source);
	if (event->hw.flags & HAS_CONTEXT)
		at = packet(at, 0x64, task_pid_nr(current));
	if (config & TS_ENABLE)
		packet(bytes + RECORD - 9, 0x71, count);
	else
		bytes[RECORD - 1] = 0x01;
}

static void keep(struct core *c, struct perf_event *event, struct pt_regs *regs, struct operation *op, u64 time)
{
	struct sample *s;

	if (!c->log || c->logged == SAMPLES) {
		atomic_long_inc(&unlogged);
		return;
	}
	s = &c->log[c->logged++];
	*s = (struct sample){
		.time = time, .ip = regs->pc, .addr = op->addr, .src = op->src, .latency = op->latency,
		.phys = event->attr.config & PA_ENABLE ? op->phys : 0,
		.cgroup = cgroup_id(task_dfl_cgroup(current)),
		.pid = task_tgid_nr(current), .tid = task_pid_nr(current), .user = user_mode(regs),
	};
	memcpy(s->comm, current->comm, sizeof(s->comm));
}

static u64 next_ns(struct perf_event *event)
{
	u64 ns = max_t(u64, event->hw.sample_period, floor_ns);
	u32 random = hash_64(ktime_get_mono_fast_ns() ^ (unsigned long)event, 16);

	return ns - (ns >> 3) + (((ns >> 2) * random) >> 16);
}

/* CLOCK_MONOTONIC, and the count at the same moment: a busy host may stop the machine between two readings. */
static u64 moment(u64 *count)
{
	u64 before, after;
	int tries = 8;

	do {
		before = ktime_get_mono_fast_ns();
		*count = read_sysreg(cntvct_el0);
		after = ktime_get_mono_fast_ns();
	} while (after - before > NSEC_PER_MSEC && --tries);
	return before;
}

static void sampled(struct core *c, struct perf_event *event, struct pt_regs *regs, struct operation *op)
{
	struct buffer *buffer = perf_get_aux(&c->handle);
	u64 count, time = moment(&count);
	u8 bytes[RECORD];

	if (!buffer || !c->room)
		return;
	make(event, regs, op, count, bytes);
	if (lose && !(++c->samples % lose)) {
		/* Half of it. */
		memcpy(buffer->base + c->at + c->written, bytes, RECORD / 2 - 3);
		c->written += RECORD / 2 - 3;
		atomic_long_inc(&cut);
		end(c, PERF_AUX_FLAG_TRUNCATED | PERF_AUX_FLAG_PARTIAL);
		event->hw.state |= PERF_HES_STOPPED;
		return;
	}
	memcpy(buffer->base + c->at + c->written, bytes, RECORD);
	c->written += RECORD;
	keep(c, event, regs, op, time);
	if (c->written == c->room) {
		end(c, 0);
		begin(c, event);
	}
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct perf_event *event = container_of(timer, struct perf_event, hw.hrtimer);
	struct core *c = &cpus[smp_processor_id()];
	struct pt_regs *regs = get_irq_regs();
	struct operation op;

	if (event->state != PERF_EVENT_STATE_ACTIVE || event->hw.state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;
	atomic_long_inc(&ticks);
	if (regs && !(user_mode(regs) ? event->attr.exclude_user : !of_kernel || event->attr.exclude_kernel)) {
		interrupted(regs, &op);
		if (passes(event, &op))
			sampled(c, event, regs, &op);
	}
	if (event->hw.state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(next_ns(event)));
	return HRTIMER_RESTART;
}

/* The events. */

static void start(struct perf_event *event, int flags)
{
	struct hw_perf_event *hwc = &event->hw;
	s64 left = local64_read(&hwc->period_left);

	hwc->state = 0;
	if (!begin(&cpus[smp_processor_id()], event))
		return;
	if (left <= 0 || left > 2 * max_t(u64, hwc->sample_period, floor_ns))
		left = next_ns(event);
	hrtimer_start(&hwc->hrtimer, ns_to_ktime(left), HRTIMER_MODE_REL_PINNED_HARD);
}

static void stop(struct perf_event *event, int flags)
{
	struct hw_perf_event *hwc = &event->hw;

	if (hwc->state & PERF_HES_STOPPED)
		return;
	local64_set(&hwc->period_left, ktime_to_ns(hrtimer_get_remaining(&hwc->hrtimer)));
	/* Maybe from inside tick(), so without waiting for it. */
	hrtimer_try_to_cancel(&hwc->hrtimer);
	if (flags & PERF_EF_UPDATE)
		end(&cpus[smp_processor_id()], 0);
	hwc->state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
}

static int add(struct perf_event *event, int flags)
{
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (!(flags & PERF_EF_START))
		return 0;
	start(event, PERF_EF_RELOAD);
	return event->hw.state & PERF_HES_STOPPED ? -EINVAL : 0;
}

static void del(struct perf_event *event, int flags)
{
	stop(event, PERF_EF_UPDATE);
}

static void read(struct perf_event *event)
{
}

static int init(struct perf_event *event)
{
	struct perf_event_attr *attr = &event->attr;

	if (attr->type != pmu.type || (event->cpu >= 0 && event->cpu >= MAX_CPUS))
		return -ENOENT;
	if (attr->config1 || attr->exclude_idle)
		return -EOPNOTSUPP;
	if (attr->freq)
		return -EINVAL;
	if (!perfmon_capable() && attr->config & (PA_ENABLE | PCT_ENABLE))
		return -EACCES;
	if (contexts && perfmon_capable())
		event->hw.flags |= HAS_CONTEXT;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	hrtimer_setup(&event->hw.hrtimer, tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
#else
	hrtimer_init(&event->hw.hrtimer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
	event->hw.hrtimer.function = tick;
#endif
	return 0;
}

/* What sysfs shows. */

PMU_FORMAT_ATTR(ts_enable, "config:0");
PMU_FORMAT_ATTR(pa_enable, "config:1");
PMU_FORMAT_ATTR(pct_enable, "config:2");
PMU_FORMAT_ATTR(jitter, "config:16");
PMU_FORMAT_ATTR(branch_filter, "config:32");
PMU_FORMAT_ATTR(load_filter, "config:33");
PMU_FORMAT_ATTR(store_filter, "config:34");
PMU_FORMAT_ATTR(event_filter, "config1:0-63");
PMU_FORMAT_ATTR(min_latency, "config2:0-11");
static struct attribute *formats[] = {
	&format_attr_ts_enable.attr, &format_attr_pa_enable.attr, &format_attr_pct_enable.attr,
	&format_attr_jitter.attr, &format_attr_branch_filter.attr, &format_attr_load_filter.attr,
	&format_attr_store_filter.attr, &format_attr_event_filter.attr, &format_attr_min_latency.attr, NULL,
};

static ssize_t min_interval_show(struct device *device, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "256\n");
}
static DEVICE_ATTR_RO(min_interval);

static ssize_t count_size_show(struct device *device, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "12\n");
}
static DEVICE_ATTR_RO(count_size);

static ssize_t cpumask_show(struct device *device, struct device_attribute *attr, char *text)
{
	return cpumap_print_to_pagebuf(true, text, cpu_online_mask);
}
static DEVICE_ATTR_RO(cpumask);

static struct attribute *caps[] = { &dev_attr_min_interval.attr, &dev_attr_count_size.attr, NULL };
static struct attribute *top[] = { &dev_attr_cpumask.attr, NULL };
static const struct attribute_group format_group = { .name = "format", .attrs = formats };
static const struct attribute_group caps_group = { .name = "caps", .attrs = caps };
static const struct attribute_group top_group = { .attrs = top };
static const struct attribute_group *groups[] = { &format_group, &caps_group, &top_group, NULL };

static struct pmu pmu = {
	.module = THIS_MODULE,
	.capabilities = PERF_PMU_CAP_EXCLUSIVE | PERF_PMU_CAP_ITRACE,
	.attr_groups = groups,
	.task_ctx_nr = perf_sw_context,
	.event_init = init, .add = add, .del = del, .start = start, .stop = stop, .read = read,
	.setup_aux = setup_aux, .free_aux = free_aux,
};

/* The log. */

static int samples_show(struct seq_file *m, void *v)
{
	u32 cpu, i;

	for (cpu = 0; cpu < MAX_CPUS; cpu++)
		for (i = 0; i < cpus[cpu].logged; i++) {
			struct sample *s = &cpus[cpu].log[i];

			seq_printf(m, "time=%llu cpu=%u pid=%u tid=%u user=%d ip=%#llx addr=%#llx phys=%#llx page=0 cgroup=%llu ",
				   s->time, cpu, s->pid, s->tid, s->user, s->ip, s->addr, s->phys, s->cgroup);
			seq_printf(m, "period=1 latency=%llu src=%#llx comm=%*phN\n", s->latency, s->src,
				   (int)strnlen(s->comm, TASK_COMM_LEN - 1), s->comm);
		}
	return 0;
}

static int samples_open(struct inode *inode, struct file *file)
{
	return single_open_size(file, samples_show, NULL, 1 << 20);
}

static ssize_t samples_write(struct file *file, const char __user *text, size_t n, loff_t *at)
{
	int i;

	for (i = 0; i < MAX_CPUS; i++)
		cpus[i].logged = 0;
	atomic_long_set(&ticks, 0);
	atomic_long_set(&cut, 0);
	atomic_long_set(&unlogged, 0);
	return n;
}

static int counts_show(struct seq_file *m, void *v)
{
	seq_printf(m, "ticks=%ld cut=%ld unlogged=%ld\n", atomic_long_read(&ticks), atomic_long_read(&cut),
		   atomic_long_read(&unlogged));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counts);

static const struct file_operations samples_fops = {
	.owner = THIS_MODULE, .open = samples_open, .read = seq_read, .write = samples_write, .llseek = seq_lseek,
	.release = single_release,
};

static void close_log(void)
{
	int i;

	debugfs_remove_recursive(directory);
	for (i = 0; i < MAX_CPUS; i++)
		vfree(cpus[i].log);
}

static int __init simspe_init(void)
{
	int cpu, rc;

	for_each_possible_cpu(cpu) {
		if (cpu >= MAX_CPUS)
			break;
		cpus[cpu].log = vzalloc(array_size(SAMPLES, sizeof(struct sample)));
		if (!cpus[cpu].log) {
			close_log();
			return -ENOMEM;
		}
	}
	directory = debugfs_create_dir("simpmu", NULL);
	debugfs_create_file("samples", 0600, directory, NULL, &samples_fops);
	debugfs_create_file("counts", 0400, directory, NULL, &counts_fops);
	rc = perf_pmu_register(&pmu, "arm_spe_0", -1);
	if (rc)
		close_log();
	return rc;
}

static void __exit simspe_exit(void)
{
	perf_pmu_unregister(&pmu);
	close_log();
}

module_init(simspe_init);
module_exit(simspe_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("simulated statistical profiling extension for tests");
