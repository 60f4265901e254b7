// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Observes the dispatch queues (DSQs) of a sched_ext scheduler: into which DSQ the scheduler inserts each thread, and
 * which threads the kernel itself puts into one. Each event is the raw data of a perf event on its CPU, in the layout
 * of a tracepoint that tracepoint.rs describes.
 *
 * For each operation, only the program is loaded whose function the kernel has (see dsq.rs).
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { INSERT, MOVE, SWITCH };

/* The first 8 bytes are common to all tracepoints. */
struct record {
	__u16 common_type;
	__u8 common_flags;
	__u8 common_preempt_count;
	__s32 common_pid;
	__u32 kind;
	__s32 tid;
	__u64 dsq;
	__u64 slice;
	__s32 prev_tid;
	__u32 unused;
};

/* Filled in before loading: the number in common_type. */
const volatile __u32 record_type;

/* The events to write to, by CPU; loading sets the number of entries to that of the CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} output SEC(".maps");

/* 1 for each CPU that has an event to write to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sampled SEC(".maps");

static __always_inline void emit(void *ctx, __u32 kind, __s32 tid, __u64 dsq, __u64 slice, __s32 prev_tid)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 *is_sampled = bpf_map_lookup_elem(&sampled, &cpu);
	struct record record = {};

	if (!is_sampled || !*is_sampled)
		return;
	record.common_type = record_type;
	record.common_pid = (__s32)bpf_get_current_pid_tgid();
	record.kind = kind;
	record.tid = tid;
	record.dsq = dsq;
	record.slice = slice;
	record.prev_tid = prev_tid;
	/* The event counts records that find no space in its ring. */
	bpf_perf_event_output(ctx, &output, BPF_F_CURRENT_CPU, &record, sizeof(record));
}

static __always_inline void inserts(void *ctx, struct task_struct *task, __u64 dsq, __u64 slice)
{
	emit(ctx, INSERT, BPF_CORE_READ(task, pid), dsq, slice, 0);
}

/* bool scx_bpf_dsq_insert___v2(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) */
SEC("fentry/scx_bpf_dsq_insert___v2")
int insert_v2(__u64 *ctx)
{
	inserts(ctx, (struct task_struct *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

/* void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) */
SEC("fentry/scx_bpf_dsq_insert")
int insert(__u64 *ctx)
{
	inserts(ctx, (struct task_struct *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

/* void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) */
SEC("fentry/scx_bpf_dispatch")
int dispatch(__u64 *ctx)
{
	inserts(ctx, (struct task_struct *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

/* bool __scx_bpf_dsq_insert_vtime(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args) */
SEC("fentry/__scx_bpf_dsq_insert_vtime")
int insert_vtime_args(__u64 *ctx)
{
	struct scx_bpf_dsq_insert_vtime_args *args = (void *)ctx[1];

	inserts(ctx, (struct task_struct *)ctx[0], BPF_CORE_READ(args, dsq_id), BPF_CORE_READ(args, slice));
	return 0;
}

/* void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) */
SEC("fentry/scx_bpf_dsq_insert_vtime")
int insert_vtime(__u64 *ctx)
{
	inserts(ctx, (struct task_struct *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

/* void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) */
SEC("fentry/scx_bpf_dispatch_vtime")
int dispatch_vtime(__u64 *ctx)
{
	inserts(ctx, (struct task_struct *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

static __always_inline int moves(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[1];
	__u64 moved = 0;

	/* Another CPU took the thread first. */
	if (bpf_get_func_ret(ctx, &moved) || !(moved & 1))
		return 0;
	emit(ctx, MOVE, BPF_CORE_READ(task, pid), ctx[2], BPF_CORE_READ(task, scx.slice), 0);
	return 0;
}

/* bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags) */
SEC("fexit/scx_bpf_dsq_move")
int move_from(__u64 *ctx)
{
	return moves(ctx);
}

/* The same arguments. */
SEC("fexit/scx_bpf_dsq_move_vtime")
int move_vtime(__u64 *ctx)
{
	return moves(ctx);
}

/* The names of Linux 6.12. */
SEC("fexit/scx_bpf_dispatch_from_dsq")
int dispatch_from_dsq(__u64 *ctx)
{
	return moves(ctx);
}

SEC("fexit/scx_bpf_dispatch_vtime_from_dsq")
int dispatch_vtime_from_dsq(__u64 *ctx)
{
	return moves(ctx);
}

/* sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, ...) */
SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1], *next = (struct task_struct *)ctx[2];
	/* If the previous thread still wants to run, it is in a DSQ again. The next thread is in none. */
	struct scx_dispatch_q *queue = BPF_CORE_READ(prev, scx.dsq);
	bool is_scx = BPF_CORE_READ(next, scx.flags) & SCX_TASK_QUEUED;
	__u64 dsq = queue ? BPF_CORE_READ(queue, id) : SCX_DSQ_INVALID;

	if (queue || is_scx)
		emit(ctx, SWITCH, BPF_CORE_READ(next, pid), dsq, is_scx ? BPF_CORE_READ(next, scx.slice) : 0,
		     BPF_CORE_READ(prev, pid));
	return 0;
}
