// SPDX-License-Identifier: GPL-2.0
/*
 * The truth, in debugfs under simpmu/: `samples`, a line each that was sent; `attrs`, a line each perf_event_attr that somebody
 * asked for; `counts`. Writing to a file of lines empties it. To be read while no event runs.
 */
#include <linux/debugfs.h>
#include <linux/pid_namespace.h>
#include <linux/seq_file.h>
#include <linux/vmalloc.h>

#include "simpmu.h"

struct sample {
	u64 time, ip, addr, phys, page_size, cgroup, period, latency, src;
	u32 pid, tid;
	bool user;
	char comm[TASK_COMM_LEN];
};

struct asked {
	struct perf_event_attr attr, leader;
	const char *pmu;
	int cpu, result;
	bool has_leader;
	u32 pid;
	char comm[TASK_COMM_LEN];
};

#define MAX_CPUS 8
#define SAMPLES 65536
#define ASKED 1024

/* Each CPU writes its own part, in interrupts that do not nest. */
static struct sample *samples[MAX_CPUS];
static u32 nsamples[MAX_CPUS];
static struct asked *asked;
static atomic_t nasked;
static atomic_long_t unlogged;
atomic_long_t sim_ticks, sim_throttled;
static struct dentry *directory;

void sim_log_sample(struct perf_event *event, struct perf_sample_data *data, struct pt_regs *regs)
{
	u32 cpu = raw_smp_processor_id();
	struct sample *s;

	if (cpu >= MAX_CPUS || nsamples[cpu] == SAMPLES) {
		atomic_long_inc(&unlogged);
		return;
	}
	s = &samples[cpu][nsamples[cpu]++];
	s->time = data->time;
	s->ip = instruction_pointer(regs);
	s->addr = data->addr;
	s->phys = data->phys_addr;
	s->page_size = data->data_page_size;
	s->cgroup = data->cgroup;
	s->period = data->period;
	s->latency = data->sample_flags & PERF_SAMPLE_WEIGHT_TYPE ? data->weight.var1_dw : 0;
	s->src = data->data_src.val;
	/* As the core sees it: a task that is on its way out has no id. */
	s->pid = task_tgid_nr_ns(current, &init_pid_ns);
	s->tid = task_pid_nr_ns(current, &init_pid_ns);
	s->user = user_mode(regs);
	memcpy(s->comm, current->comm, sizeof(s->comm));
}

void sim_log_attr(struct perf_event *event, int result)
{
	int i = atomic_fetch_add(1, &nasked);
	struct asked *a;

	if (i >= ASKED) {
		atomic_set(&nasked, ASKED);
		atomic_long_inc(&unlogged);
		return;
	}
	a = &asked[i];
	a->attr = event->attr;
	a->has_leader = event->group_leader != event;
	if (a->has_leader)
		a->leader = event->group_leader->attr;
	a->pmu = sim_pmu(event)->name;
	a->cpu = event->cpu;
	a->result = result;
	a->pid = task_tgid_nr(current);
	memcpy(a->comm, current->comm, sizeof(a->comm));
}

/* Positions run through all samples of the first CPU, then the second's, and so on. */
static struct sample *sample_at(loff_t at, int *cpu)
{
	for (*cpu = 0; *cpu < MAX_CPUS; ++*cpu) {
		if (at < nsamples[*cpu])
			return &samples[*cpu][at];
		at -= nsamples[*cpu];
	}
	return NULL;
}

static void *samples_start(struct seq_file *m, loff_t *at)
{
	int cpu;

	return sample_at(*at, &cpu) ? at : NULL;
}

static void *samples_next(struct seq_file *m, void *v, loff_t *at)
{
	++*at;
	return samples_start(m, at);
}

static void seq_stop(struct seq_file *m, void *v)
{
}

static void show_comm(struct seq_file *m, const char *comm)
{
	seq_printf(m, "%*phN", (int)strnlen(comm, TASK_COMM_LEN - 1), comm);
}

static int samples_show(struct seq_file *m, void *v)
{
	int cpu;
	struct sample *s = sample_at(*(loff_t *)v, &cpu);

	if (!s)
		return 0;
	seq_printf(m, "time=%llu cpu=%d pid=%u tid=%u user=%d ip=%#llx addr=%#llx phys=%#llx page=%llu cgroup=%llu ",
		   s->time, cpu, s->pid, s->tid, s->user, s->ip, s->addr, s->phys, s->page_size, s->cgroup);
	seq_printf(m, "period=%llu latency=%llu src=%#llx comm=", s->period, s->latency, s->src);
	show_comm(m, s->comm);
	seq_putc(m, '\n');
	return 0;
}

static const struct seq_operations samples_ops = {
	.start = samples_start, .next = samples_next, .stop = seq_stop, .show = samples_show,
};

static void *asked_start(struct seq_file *m, loff_t *at)
{
	return *at < min(atomic_read(&nasked), ASKED) ? at : NULL;
}

static void *asked_next(struct seq_file *m, void *v, loff_t *at)
{
	++*at;
	return asked_start(m, at);
}

static void show_bytes(struct seq_file *m, const void *bytes, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		seq_printf(m, "%02x", ((const u8 *)bytes)[i]);
}

static int asked_show(struct seq_file *m, void *v)
{
	struct asked *a = &asked[*(loff_t *)v];

	seq_printf(m, "pmu=%s cpu=%d result=%d pid=%u comm=", a->pmu, a->cpu, a->result, a->pid);
	show_comm(m, a->comm);
	seq_puts(m, " attr=");
	show_bytes(m, &a->attr, sizeof(a->attr));
	if (a->has_leader) {
		seq_puts(m, " leader=");
		show_bytes(m, &a->leader, sizeof(a->leader));
	}
	seq_putc(m, '\n');
	return 0;
}

static const struct seq_operations asked_ops = {
	.start = asked_start, .next = asked_next, .stop = seq_stop, .show = asked_show,
};

static int samples_open(struct inode *inode, struct file *file)
{
	return seq_open(file, &samples_ops);
}

static int asked_open(struct inode *inode, struct file *file)
{
	return seq_open(file, &asked_ops);
}

static ssize_t samples_write(struct file *file, const char __user *text, size_t n, loff_t *at)
{
	memset(nsamples, 0, sizeof(nsamples));
	atomic_long_set(&sim_ticks, 0);
	atomic_long_set(&sim_throttled, 0);
	atomic_long_set(&unlogged, 0);
	return n;
}

static ssize_t asked_write(struct file *file, const char __user *text, size_t n, loff_t *at)
{
	atomic_set(&nasked, 0);
	return n;
}

static const struct file_operations samples_fops = {
	.owner = THIS_MODULE, .open = samples_open, .read = seq_read, .write = samples_write, .release = seq_release,
};
static const struct file_operations asked_fops = {
	.owner = THIS_MODULE, .open = asked_open, .read = seq_read, .write = asked_write, .release = seq_release,
};

static int counts_show(struct seq_file *m, void *v)
{
	long sent = 0;
	int cpu;

	for (cpu = 0; cpu < MAX_CPUS; cpu++)
		sent += nsamples[cpu];
	seq_printf(m, "ticks=%ld sent=%ld throttled=%ld unlogged=%ld\n", atomic_long_read(&sim_ticks), sent,
		   atomic_long_read(&sim_throttled), atomic_long_read(&unlogged));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counts);

void sim_log_close(void)
{
	int cpu;

	debugfs_remove(directory);
	for (cpu = 0; cpu < MAX_CPUS; cpu++)
		vfree(samples[cpu]);
	vfree(asked);
}

int sim_log_open(void)
{
	int cpu;

	asked = vzalloc(array_size(ASKED, sizeof(*asked)));
	if (!asked)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		if (cpu >= MAX_CPUS)
			break;
		samples[cpu] = vzalloc(array_size(SAMPLES, sizeof(struct sample)));
		if (!samples[cpu]) {
			sim_log_close();
			return -ENOMEM;
		}
	}
	directory = debugfs_create_dir("simpmu", NULL);
	debugfs_create_file("samples", 0600, directory, NULL, &samples_fops);
	debugfs_create_file("attrs", 0600, directory, NULL, &asked_fops);
	debugfs_create_file("counts", 0400, directory, NULL, &counts_fops);
	return 0;
}
