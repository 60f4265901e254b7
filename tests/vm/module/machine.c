// SPDX-License-Identifier: GPL-2.0
/*
 * The machines: which PMUs they have, what sysfs shows of them, and which events their drivers take and refuse. The rules
 * follow arch/x86/events/intel/core.c (intel_pmu_hw_config), arch/x86/events/core.c and arch/x86/events/amd/ibs.c
 * (perf_ibs_init), each as the running kernel's version has them.
 */
#include <linux/device.h>
#include <linux/sysfs.h>

#include "simpmu.h"

struct sim_pmu sim_pmus[SIM_PMUS];

/* loads_precise: from Golden Cove on, loads cannot use counter 0, which precise_ip 3 needs. */
static const struct machine {
	const char *name;
	struct {
		const char *name;
		u16 loads, stores, aux;
		u8 max_precise, loads_precise;
	} core[SIM_PMUS];
	struct {
		bool present, l3missonly, ldlat;
	} ibs;
} machines[] = {
	{ "skylake", { { "cpu", 0x1cd, 0x82d0, 0, 3, 3 } } },
	{ "sapphire-rapids", { { "cpu", 0x1cd, 0x2cd, 0x8203, 3, 2 } } },
	{ "granite-rapids", { { "cpu", 0x1cd, 0x2cd, 0, 3, 2 } } },
	{ "sierra-forest", { { "cpu", 0x5d0, 0x6d0, 0, 3, 3 } } },
	{ "alder-lake", { { "cpu_core", 0x1cd, 0x2cd, 0x8203, 3, 2 }, { "cpu_atom", 0x5d0, 0x6d0, 0, 3, 3 } } },
	/* A guest whose hypervisor passes counters on but no PEBS: no memory events in sysfs. */
	{ "no-pebs", { { "cpu", 0, 0, 0, 0, 0 } } },
	{ "zen3", .ibs = { true } },
	{ "zen4", .ibs = { true, .l3missonly = true } },
	{ "zen5", .ibs = { true, .l3missonly = true, .ldlat = true } },
};

/* A file of sysfs with a fixed text. */
struct text_file {
	struct device_attribute attr;
	char text[48];
};

static struct text_file files[48];
static int nfiles;

/* A directory of a PMU, or its own with no name. */
struct directory {
	struct attribute_group group;
	struct attribute *attrs[8];
	int n;
};

enum { TOP, FORMAT, EVENTS, CAPS, DIRECTORIES };
static struct directory directories[SIM_PMUS][DIRECTORIES];
static const struct attribute_group *groups[SIM_PMUS][DIRECTORIES + 1];

static ssize_t show_text(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", container_of(attr, struct text_file, attr)->text);
}

static __printf(3, 4) void add_file(struct directory *directory, const char *name, const char *format, ...)
{
	struct text_file *file = &files[nfiles++];
	va_list args;

	va_start(args, format);
	vsnprintf(file->text, sizeof(file->text), format, args);
	va_end(args);
	sysfs_attr_init(&file->attr.attr);
	file->attr.attr.name = name;
	file->attr.attr.mode = 0444;
	file->attr.show = show_text;
	directory->attrs[directory->n++] = &file->attr.attr;
}

static void add_event(struct directory *directory, const char *name, u64 code, const char *more)
{
	if (code)
		add_file(directory, name, "event=0x%llx,umask=0x%llx%s", code & 0xff, code >> 8, more);
}

/* Directories without files do not exist. */
static void show_directories(int i)
{
	static const char *const names[DIRECTORIES] = { NULL, "format", "events", "caps" };
	int kind, n = 0;

	for (kind = 0; kind < DIRECTORIES; kind++) {
		struct directory *directory = &directories[i][kind];

		if (!directory->n)
			continue;
		directory->group.name = names[kind];
		directory->group.attrs = directory->attrs;
		groups[i][n++] = &directory->group;
	}
	sim_pmus[i].pmu.attr_groups = groups[i];
}

static void build_core(int i, const struct machine *m)
{
	struct directory *d = directories[i];
	struct sim_pmu *p = &sim_pmus[i];

	p->name = m->core[i].name;
	p->loads = m->core[i].loads;
	p->stores = m->core[i].stores;
	p->aux = m->core[i].aux;
	p->max_precise = m->core[i].max_precise;
	p->loads_precise = m->core[i].loads_precise;
	p->hybrid = m->core[1].name;
	add_file(&d[FORMAT], "event", "config:0-7");
	add_file(&d[FORMAT], "umask", "config:8-15");
	add_file(&d[FORMAT], "ldlat", "config1:0-15");
	add_event(&d[EVENTS], "mem-loads", p->loads, ",ldlat=3");
	add_event(&d[EVENTS], "mem-stores", p->stores, "");
	add_event(&d[EVENTS], "mem-loads-aux", p->aux, "");
	add_file(&d[CAPS], "max_precise", "%d", p->max_precise);
	if (p->hybrid) {
		/* The last CPU is the efficient one. */
		int cpu;

		for_each_online_cpu(cpu)
			if ((cpu == cpumask_last(cpu_online_mask)) == (i == 1))
				cpumask_set_cpu(cpu, &p->cpus);
		add_file(&d[TOP], "cpus", "%*pbl", cpumask_pr_args(&p->cpus));
	}
	p->pmu.task_ctx_nr = perf_hw_context;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	/* 6.1 gives this context to one PMU only, ever, except to those that say so. */
	p->pmu.capabilities = PERF_PMU_CAP_HETEROGENEOUS_CPUS;
#endif
}

static void build_ibs(const struct machine *m, int swfilt)
{
	bool since_6_14 = LINUX_VERSION_CODE >= KERNEL_VERSION(6, 14, 0);
	struct directory *d = directories[0];
	struct sim_pmu *p = &sim_pmus[0];

	p->name = "ibs_op";
	p->ibs = true;
	p->l3missonly = m->ibs.l3missonly;
	/* The driver knows the latency threshold since 6.15. */
	p->ldlat = m->ibs.ldlat && LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0);
	p->swfilt = swfilt < 0 ? since_6_14 : swfilt;
	add_file(&d[FORMAT], "cnt_ctl", "config:19");
	if (p->l3missonly) {
		add_file(&d[FORMAT], "l3missonly", "config:16");
		add_file(&d[CAPS], "zen4_ibs_extensions", "1");
	}
	if (p->ldlat) {
		add_file(&d[FORMAT], "ldlat", "config1:0-11");
		add_file(&d[CAPS], "ldlat", "1");
	}
	if (p->swfilt)
		add_file(&d[FORMAT], "swfilt", "config2:0");
	/* Events of a task: since 6.2. */
	p->pmu.task_ctx_nr = LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0) ? perf_hw_context : perf_invalid_context;
}

int sim_build(const char *name, int swfilt)
{
	const struct machine *m;
	int i;

	for (m = machines; m < machines + ARRAY_SIZE(machines); m++) {
		if (strcmp(name, m->name))
			continue;
		for (i = 0; i < SIM_PMUS && m->core[i].name; i++) {
			build_core(i, m);
			show_directories(i);
		}
		if (m->ibs.present) {
			build_ibs(m, swfilt);
			show_directories(0);
		}
		return 0;
	}
	return -EINVAL;
}

/* Golden Cove wants the auxiliary event in the group before a load that asks for its data source. */
static bool follows_aux(struct perf_event *event)
{
	struct perf_event *leader = event->group_leader, *sibling;
	u64 aux = sim_pmu(event)->aux;

	if (leader == event)
		return false;
	if (leader->attr.config == aux)
		return true;
	for_each_sibling_event(sibling, leader)
		if (sibling->attr.config == aux)
			return true;
	return false;
}

static int check_core(struct perf_event *event)
{
	struct sim_pmu *p = sim_pmu(event);
	struct perf_event_attr *attr = &event->attr;
	bool loads = attr->config == p->loads;

	if (p->hybrid && event->cpu >= 0 && !cpumask_test_cpu(event->cpu, &p->cpus))
		return -ENOENT;
	if (!attr->config || (!loads && attr->config != p->stores && attr->config != p->aux))
		return -ENOENT;
	if (attr->precise_ip > p->max_precise)
		return -EOPNOTSUPP;
	if (attr->precise_ip && !is_sampling_event(event))
		return -EINVAL;
	if (loads && attr->config1 & ~0xffffULL)
		return -EINVAL;
	if (loads && p->aux && attr->sample_type & PERF_SAMPLE_DATA_SRC && !follows_aux(event))
		return -ENODATA;
	if (loads && attr->precise_ip > p->loads_precise)
		return -EINVAL;
	return 0;
}

static bool period_is_refused(u64 period)
{
	/* 6.15 masks the low bits in place of refusing them, and has a minimum. */
	if (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0))
		return period < 0x90;
	return period & 0xf;
}

static int check_ibs(struct perf_event *event)
{
	struct sim_pmu *p = sim_pmu(event);
	struct perf_event_attr *attr = &event->attr;
	u64 known = IBS_CNT_CTL | IBS_MAX_CNT | IBS_MAX_CNT_EXT | (p->l3missonly ? IBS_L3MISSONLY : 0);
	u64 ldlat = attr->config1 & IBS_LDLAT;
	struct perf_event *other = event->group_leader;

	if (other != event && other->pmu == event->pmu)
		return -EINVAL;
	if (attr->config & ~known)
		return -EINVAL;
	/* Before swfilt it was the core that refused every exclude bit (PERF_PMU_CAP_NO_EXCLUDE). */
	if (attr->exclude_host || attr->exclude_guest || attr->exclude_idle)
		return -EINVAL;
	if ((attr->exclude_user || attr->exclude_kernel || attr->exclude_hv) &&
	    !(p->swfilt && attr->config2 & IBS_SWFILT))
		return -EINVAL;
	if (p->ldlat && ldlat && (ldlat < 128 || ldlat > 2048))
		return -EINVAL;
	if (event->hw.sample_period) {
		if (attr->config & (IBS_MAX_CNT | IBS_MAX_CNT_EXT))
			return -EINVAL;
		if (!attr->freq && period_is_refused(event->hw.sample_period))
			return -EINVAL;
		if (!attr->freq)
			event->hw.sample_period &= ~0xfULL;
	} else {
		event->hw.sample_period = (attr->config & (IBS_MAX_CNT | IBS_MAX_CNT_EXT)) << 4;
		if (!event->hw.sample_period)
			return -EINVAL;
	}
	return 0;
}

int sim_check(struct perf_event *event)
{
	if (event->attr.type != event->pmu->type)
		return -ENOENT;
	if (has_branch_stack(event))
		return -EOPNOTSUPP;
	return sim_pmu(event)->ibs ? check_ibs(event) : check_core(event);
}

/* PERF_EVENT_IOC_PERIOD. The real driver has had the check since 6.15; before, bad periods were simply rounded. */
int sim_check_period(struct perf_event *event, u64 period)
{
	if (!sim_pmu(event)->ibs || LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0))
		return 0;
	return period & 0xf || period < 0x90 ? -EINVAL : 0;
}
