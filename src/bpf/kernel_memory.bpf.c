// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads the kernel's memory for the program that loads it, which calls it by BPF_PROG_TEST_RUN: the kernel's code as it runs, since
 * alternatives, static keys and tracers patch it, and /proc/kcore is not on every host.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PIECE 4096

struct request {
	__u64 argument;
};

/* What was read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[PIECE]);
} piece SEC(".maps");

/* The bytes at an address. */
SEC("raw_tp")
int read_memory(struct request *request)
{
	__u32 zero = 0;
	void *to = bpf_map_lookup_elem(&piece, &zero);

	return !to || bpf_probe_read_kernel(to, PIECE, (void *)request->argument);
}

/* The address of the top page table of the calling process, which is in the map of all memory. */
SEC("raw_tp")
int find_pgd(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 zero = 0;
	__u64 *to = bpf_map_lookup_elem(&piece, &zero);

	if (!to)
		return 1;
	*to = (__u64)BPF_CORE_READ(task, mm, pgd);
	return 0;
}

/*
 * The address of the run queue of that CPU, which is a variable in its per-CPU memory. The symbol itself is known only to kernels with
 * CONFIG_KALLSYMS_ALL.
 */
SEC("raw_tp")
int find_run_queue(struct request *request)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_group *group = BPF_CORE_READ(task, se.cfs_rq, tg);
	struct cfs_rq **queues = BPF_CORE_READ(group, cfs_rq), *queue;
	__u32 zero = 0;
	__u64 *to = bpf_map_lookup_elem(&piece, &zero);

	if (!to || !queues || bpf_probe_read_kernel(&queue, sizeof(queue), queues + request->argument))
		return 1;
	*to = (__u64)BPF_CORE_READ(queue, rq);
	return 0;
}
