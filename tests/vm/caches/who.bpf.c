// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Tells the cache model of the emulator (caches.c) which process runs on each CPU, and counts migrations. For the guests of
 * tests/vm/caches only.
 *
 * The plugin of the emulator cannot read registers, but it sees where each store goes: at each switch, a store to entry G of `who`
 * says that a process of group G runs on this CPU from now on.
 */
#include "../../../src/bpf/kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/uapi/linux/bpf.h */
enum { BPF_ANY = 0, BPF_F_MMAPABLE = 1 << 10 };

enum { OTHERS = 1, TOOL = 2, GROUPS = 512, MOST_PROCESSES = 65536, MOST_THREADS = 65536 };

/* CPUs that have one last-level cache in common, in order of their numbers. */
const volatile __u32 cpus_of_a_cache = 4;

struct groups {
	__u64 entry[GROUPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct groups);
} who SEC(".maps");

/* The group of a process, by its id. The driver puts the first processes there, and their children follow. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
} groups SEC(".maps");

/* One more than the CPU that a thread ran on last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MOST_THREADS);
	__type(key, __u32);
	__type(value, __u32);
} last_cpu SEC(".maps");

struct moves {
	__u64 switches;
	__u64 migrations;
	/* Migrations to a CPU of another last-level cache. */
	__u64 crossings;
};

/* Of each CPU apart: a line that all CPUs write would be the measurement's own sharing. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GROUPS);
	__type(key, __u32);
	__type(value, struct moves);
} moved SEC(".maps");

/* Processes that found no room in `groups`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __u32 group_of(struct task_struct *task)
{
	__u32 process = task->group_leader->pid, *group;

	if (!task->pid)
		return 0;
	group = bpf_map_lookup_elem(&groups, &process);
	return group && *group < GROUPS ? *group : OTHERS;
}

static void count(__u32 group, __u32 thread)
{
	struct moves *moves = bpf_map_lookup_elem(&moved, &group);
	__u32 *last = bpf_map_lookup_elem(&last_cpu, &thread), cpu = bpf_get_smp_processor_id(), now = cpu + 1;

	if (moves) {
		moves->switches++;
		if (last && *last != now) {
			moves->migrations++;
			if ((*last - 1) / cpus_of_a_cache != cpu / cpus_of_a_cache)
				moves->crossings++;
		}
	}
	if (last)
		*last = now;
	else
		bpf_map_update_elem(&last_cpu, &thread, &now, BPF_ANY);
}

SEC("tp_btf/sched_switch")
int on_switch(__u64 *args)
{
	struct task_struct *next = (struct task_struct *)args[2];
	__u32 group, first = 0;
	volatile struct groups *page = bpf_map_lookup_elem(&who, &first);

	if (!page)
		return 0;
	/* What this program does is the tool's. */
	page->entry[TOOL] = 1;
	group = group_of(next);
	if (next->pid)
		count(group, next->pid);
	if (group < GROUPS)
		page->entry[group] = 1;
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(__u64 *args)
{
	struct task_struct *parent = (struct task_struct *)args[0], *child = (struct task_struct *)args[1];
	__u32 from = parent->group_leader->pid, process = child->group_leader->pid, first = 0, *group;
	__u64 *full;

	if (from == process)
		return 0;
	group = bpf_map_lookup_elem(&groups, &from);
	if (!group) {
		/* An earlier process of this id may have had one. */
		bpf_map_delete_elem(&groups, &process);
	} else if (bpf_map_update_elem(&groups, &process, group, BPF_ANY)) {
		full = bpf_map_lookup_elem(&lost, &first);
		if (full)
			__sync_fetch_and_add(full, 1);
	}
	return 0;
}
