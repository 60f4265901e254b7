// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A sched_ext scheduler with dispatch queues of its own, which counts what it puts into them: threads named t-dsq-a* go into
 * DSQ 0x10 in order of arrival, t-dsq-b* into DSQ 0x11 by virtual time, all others into DSQ 0x12. For the guests of tests/vm
 * only.
 */
#include "../../../src/bpf/kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct sched_ext_ops {
	int (*select_cpu)(struct task_struct *task, int prev_cpu, __u64 wake_flags);
	void (*enqueue)(struct task_struct *task, __u64 enq_flags);
	void (*dispatch)(int cpu, struct task_struct *prev);
	int (*init)(void);
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

enum { A = 0x10, B = 0x11, OTHERS = 0x12, FIRST = A, QUEUES = 3 };

extern int scx_bpf_create_dsq(__u64 dsq_id, int node) __ksym;
extern int scx_bpf_select_cpu_dfl(struct task_struct *p, int prev_cpu, __u64 wake_flags, bool *is_idle) __ksym;
extern bool scx_bpf_dsq_insert___v2___compat(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 enq_flags) __ksym;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, __u64 dsq_id, __u64 slice, __u64 vtime, __u64 enq_flags) __ksym;
extern bool scx_bpf_dsq_move_to_local(__u64 dsq_id) __ksym;

/* Threads inserted into each of the queues. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} inserted SEC(".maps");

#define SLICE 5000000

static __u64 queue_of(struct task_struct *task)
{
	char comm[8] = {};

	bpf_probe_read_kernel(comm, sizeof(comm) - 1, task->comm);
	if (comm[0] != 't' || comm[1] != '-' || comm[2] != 'd' || comm[3] != 's' || comm[4] != 'q')
		return OTHERS;
	return comm[6] == 'a' ? A : B;
}

SEC("struct_ops/select_cpu")
int select_cpu(__u64 *ctx)
{
	bool is_idle = false;

	return scx_bpf_select_cpu_dfl((struct task_struct *)ctx[0], ctx[1], ctx[2], &is_idle);
}

SEC("struct_ops/enqueue")
int enqueue(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u64 enq_flags = ctx[1], queue = queue_of(task);
	__u32 at = queue - FIRST;
	__u64 *count = bpf_map_lookup_elem(&inserted, &at);

	if (count)
		__sync_fetch_and_add(count, 1);
	if (queue == B)
		scx_bpf_dsq_insert_vtime(task, queue, SLICE, 0, enq_flags);
	else
		scx_bpf_dsq_insert___v2___compat(task, queue, SLICE, enq_flags);
	return 0;
}

SEC("struct_ops/dispatch")
int dispatch(__u64 *ctx)
{
	/* Nobody starves: the threads of the tests sleep much. */
	if (!scx_bpf_dsq_move_to_local(A) && !scx_bpf_dsq_move_to_local(B))
		scx_bpf_dsq_move_to_local(OTHERS);
	return 0;
}

SEC("struct_ops.s/init")
int init(__u64 *ctx)
{
	int error = scx_bpf_create_dsq(A, -1);

	if (!error)
		error = scx_bpf_create_dsq(B, -1);
	return error ? error : scx_bpf_create_dsq(OTHERS, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops queues = {
	.select_cpu = (void *)select_cpu,
	.enqueue = (void *)enqueue,
	.dispatch = (void *)dispatch,
	.init = (void *)init,
	.timeout_ms = 20000,
	.name = "queues",
};
