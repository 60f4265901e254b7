// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Observes task hints: writes to a task-storage map, and deletions from it.
 *
 * Only the programs of one probe (see probe.rs) are loaded. All of them report only successful writes, and name the
 * task that owns the hint, which may differ from the one that writes it.
 */
#include "arch.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Filled in before loading. */
const volatile struct config {
	__u32 map_id;
	__u32 pid_namespace; /* inode number of ours */
	__u32 pidfs; /* the inode of a pidfd refers to the pid (Linux 6.9), not its file */
	__u32 ring_size;
} config;

enum { SET, CLEAR };

/* The record that event.rs parses. */
struct event {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u64 hint;
	__u32 pid;
	__u32 tid;
	__u32 kind;
	__u32 unused;
};

/* Makes the layout known to the skeleton. */
const volatile struct event layout;

enum { DROPPED, UNREADABLE, OUTSIDE, NO_ROOM, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

/* The value of a hint map: the hint first, then reserved fields. The watched map replaces this one. */
struct hint {
	__u64 hint;
	__u64 reserved[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct hint);
} hints SEC(".maps");

static void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

struct ids {
	__u32 pid;
	__u32 tid;
};

/* The id in our pid namespace, 0 if there is none. */
static __u32 number(struct pid *pid)
{
	__u32 level = BPF_CORE_READ(pid, level), at;
	struct upid *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);

	/* MAX_PID_NS_LEVEL is 32. */
	for (at = 0; at <= 32; at++) {
		struct upid *upid = (void *)numbers + at * bpf_core_type_size(struct upid);

		if (at > level)
			break;
		if (BPF_CORE_READ(upid, ns, ns.inum) == config.pid_namespace)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

/* False for tasks outside our namespace, and for those that have exited. */
static bool ids_of(struct task_struct *task, struct ids *ids)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);

	if (!pid)
		return false;
	ids->tid = number(pid);
	ids->pid = number(BPF_CORE_READ(task, group_leader, thread_pid));
	if (!ids->tid || !ids->pid) {
		count(OUTSIDE);
		return false;
	}
	return true;
}

static void emit(const struct ids *ids, __u32 kind, __u64 hint)
{
	__u64 flags = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= config.ring_size / 4 ? BPF_RB_FORCE_WAKEUP :
											   BPF_RB_NO_WAKEUP;
	__u64 time = bpf_ktime_get_ns();
	struct event *event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);

	if (!event) {
		count(DROPPED);
		return;
	}
	event->time = time;
	event->hint = hint;
	event->pid = ids->pid;
	event->tid = ids->tid;
	event->kind = kind;
	event->unused = 0;
	bpf_ringbuf_submit(event, flags);
}

static bool is_failure(__u64 pointer)
{
	return pointer >= (__u64)-MAX_ERRNO;
}

/*
 * struct bpf_local_storage_data *bpf_local_storage_update(void *owner, struct bpf_local_storage_map *smap,
 * void *value, u64 map_flags, ...): the remaining arguments, and with them the position of the result, differ
 * between kernels.
 */
SEC("fexit/bpf_local_storage_update")
int set_storage(__u64 *ctx)
{
	struct bpf_local_storage_map *smap = (void *)ctx[1];
	void *value = (void *)ctx[2];
	struct ids ids;
	__u64 hint = 0, result = 0;

	if (BPF_CORE_READ(smap, map.id) != config.map_id)
		return 0;
	if (bpf_get_func_ret(ctx, &result) || is_failure(result))
		return 0;
	/* Storage that is created without a value is zero. */
	if (value && bpf_probe_read_kernel(&hint, sizeof(hint), value)) {
		count(UNREADABLE);
		return 0;
	}
	if (ids_of((struct task_struct *)ctx[0], &ids))
		emit(&ids, SET, hint);
	return 0;
}

/*
 * bpf_selem_unlink(struct bpf_local_storage_elem *selem, ...): deletions by system calls and by helpers, not those by
 * the end of a task or by an update. The element may be freed afterwards, so it is read before.
 */
SEC("fentry/bpf_selem_unlink")
int delete_storage(__u64 *ctx)
{
	struct bpf_local_storage_elem *selem = (void *)ctx[0];
	struct ids ids;

	if (BPF_CORE_READ(selem, sdata.smap, map.id) != config.map_id)
		return 0;
	if (ids_of(BPF_CORE_READ(selem, local_storage, owner), &ids))
		emit(&ids, CLEAR, 0);
	return 0;
}

/* The file behind a descriptor of the current task. */
static struct file *file_of(__u32 fd)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct fdtable *fdt = BPF_CORE_READ(current, files, fdt);
	struct file **files = BPF_CORE_READ(fdt, fd);
	struct file *file = 0;

	if (fd < BPF_CORE_READ(fdt, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return file;
}

/* The task of a pidfd. */
static bool ids_of_pidfd(__u32 pidfd, struct ids *ids)
{
	struct file *file = file_of(pidfd);
	struct pid *pid;
	struct hlist_node *link;

	pid = config.pidfs ? BPF_CORE_READ(file, f_inode, i_private) : BPF_CORE_READ(file, private_data);
	link = BPF_CORE_READ(pid, tasks[0].first);
	if (!link) {
		/* The task has just ended, and its hint with it. */
		return false;
	}
	return ids_of((void *)link - bpf_core_field_offset(struct task_struct, pid_links), ids);
}

/* long bpf_pid_task_storage_update_elem(struct bpf_map *map, void *key, void *value, u64 map_flags) */
SEC("fexit/bpf_pid_task_storage_update_elem")
int set_element(__u64 *ctx)
{
	struct bpf_map *map = (void *)ctx[0];
	struct ids ids;
	__u64 hint = 0, result = 0;
	__u32 pidfd = 0;

	if (BPF_CORE_READ(map, id) != config.map_id)
		return 0;
	if (bpf_get_func_ret(ctx, &result) || (int)result)
		return 0;
	if (bpf_probe_read_kernel(&pidfd, sizeof(pidfd), (void *)ctx[1]) ||
	    bpf_probe_read_kernel(&hint, sizeof(hint), (void *)ctx[2])) {
		count(UNREADABLE);
		return 0;
	}
	if (ids_of_pidfd(pidfd, &ids))
		emit(&ids, SET, hint);
	return 0;
}

/* long bpf_pid_task_storage_delete_elem(struct bpf_map *map, void *key) */
SEC("fexit/bpf_pid_task_storage_delete_elem")
int delete_element(__u64 *ctx)
{
	struct bpf_map *map = (void *)ctx[0];
	struct ids ids;
	__u64 result = 0;
	__u32 pidfd = 0;

	if (BPF_CORE_READ(map, id) != config.map_id)
		return 0;
	if (bpf_get_func_ret(ctx, &result) || (int)result)
		return 0;
	if (bpf_probe_read_kernel(&pidfd, sizeof(pidfd), (void *)ctx[1])) {
		count(UNREADABLE);
		return 0;
	}
	if (ids_of_pidfd(pidfd, &ids))
		emit(&ids, CLEAR, 0);
	return 0;
}

/* A system call on the watched map that has not returned yet. */
struct call {
	struct ids ids;
	__u64 hint;
	__u32 kind;
	__u32 unread; /* its arguments were not in memory, and will be at its end */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, __u32);
	__type(value, struct call);
} calls SEC(".maps");

/* The fields of union bpf_attr for the commands on elements. */
struct element_attr {
	__u32 map_fd;
	__u32 padding;
	__u64 key;
	__u64 value;
};

enum { NOT_OURS, OURS, UNREAD };

/* Reads the arguments of bpf(cmd, attr). */
static int read_call(struct pt_regs *regs, struct call *call)
{
	struct element_attr attr = {};
	struct file *file;
	struct bpf_map *map;
	__u32 pidfd = 0, cmd = SYSCALL_ARGUMENT_1(regs), size = SYSCALL_ARGUMENT_3(regs);

	/* Only an update has a value. */
	if (size < (cmd == BPF_MAP_UPDATE_ELEM ? sizeof(attr) : 16))
		return NOT_OURS;
	if (bpf_probe_read_user(&attr, size < sizeof(attr) ? 16 : sizeof(attr), (void *)SYSCALL_ARGUMENT_2(regs)))
		return UNREAD;
	/* Any type of file is fine here: the call succeeds only on a map. */
	file = file_of(attr.map_fd);
	map = BPF_CORE_READ(file, private_data);
	if (BPF_CORE_READ(map, id) != config.map_id)
		return NOT_OURS;
	if (bpf_probe_read_user(&pidfd, sizeof(pidfd), (void *)attr.key))
		return UNREAD;
	call->kind = cmd == BPF_MAP_UPDATE_ELEM ? SET : CLEAR;
	if (call->kind == SET && bpf_probe_read_user(&call->hint, sizeof(call->hint), (void *)attr.value))
		return UNREAD;
	return ids_of_pidfd(pidfd, &call->ids) ? OURS : NOT_OURS;
}

SEC("raw_tp/sys_enter")
int enter(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	struct call call = {};
	__u32 tid, cmd;
	int what;

	if (ctx[1] != NR_BPF)
		return 0;
	cmd = SYSCALL_ARGUMENT_1(regs);
	if (cmd != BPF_MAP_UPDATE_ELEM && cmd != BPF_MAP_DELETE_ELEM)
		return 0;
	what = read_call(regs, &call);
	if (what == NOT_OURS)
		return 0;
	call.unread = what == UNREAD;
	tid = bpf_get_current_pid_tgid();
	if (bpf_map_update_elem(&calls, &tid, &call, 0))
		count(NO_ROOM);
	return 0;
}

SEC("raw_tp/sys_exit")
int leave(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	struct call *begun, call;
	__u32 tid;
	int what;

	if (SYSCALL_NUMBER(regs) != NR_BPF)
		return 0;
	tid = bpf_get_current_pid_tgid();
	begun = bpf_map_lookup_elem(&calls, &tid);
	if (!begun)
		return 0;
	call = *begun;
	bpf_map_delete_elem(&calls, &tid);
	if (ctx[1])
		return 0;
	if (call.unread) {
		/* The kernel has read the arguments, so they are in memory. */
		what = read_call(regs, &call);
		if (what == UNREAD)
			count(UNREADABLE);
		if (what != OURS)
			return 0;
	}
	emit(&call.ids, call.kind, call.hint);
	return 0;
}

/* If a thread other than the leader of its process calls exec, it gets the leader's id and keeps its hint. */
SEC("raw_tp/sched_process_exec")
int task_exec(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct hint *hint;
	struct ids ids;

	/* The second argument is the id before exec. */
	if ((int)ctx[1] == BPF_CORE_READ(task, pid))
		return 0;
	hint = bpf_task_storage_get(&hints, task, 0, 0);
	if (ids_of(task, &ids))
		emit(&ids, hint ? SET : CLEAR, hint ? hint->hint : 0);
	return 0;
}

/* The id may soon belong to another thread. */
SEC("raw_tp/sched_process_exit")
int task_exit(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ids ids;

	if (bpf_task_storage_get(&hints, task, 0, 0) && ids_of(task, &ids))
		emit(&ids, CLEAR, 0);
	return 0;
}

/* Writes an event for each task with its hint, or with the fact that it has none. */
SEC("iter/task")
int snapshot(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct event event = {};
	struct hint *hint;
	struct ids ids;

	if (!task)
		return 0;
	/* Take the time before the hint is read: a write in between has its own, later event. */
	event.time = bpf_ktime_get_ns();
	hint = bpf_task_storage_get(&hints, task, 0, 0);
	if (!ids_of(task, &ids))
		return 0;
	event.hint = hint ? hint->hint : 0;
	event.pid = ids.pid;
	event.tid = ids.tid;
	event.kind = hint ? SET : CLEAR;
	bpf_seq_write(seq, &event, sizeof(event));
	return 0;
}
