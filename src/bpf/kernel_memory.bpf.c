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

/* The bytes that were read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[PIECE]);
} piece SEC(".maps");

/* The numbers that were found. */
struct numbers {
	__u64 first, second, third;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct numbers);
} found SEC(".maps");

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
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);

	if (!to)
		return 1;
	to->first = (__u64)BPF_CORE_READ(task, mm, pgd);
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
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);

	if (!to || !queues || bpf_probe_read_kernel(&queue, sizeof(queue), queues + request->argument))
		return 1;
	to->first = (__u64)BPF_CORE_READ(queue, rq);
	return 0;
}

/* The address of our own kernel stack, and that of the struct page of its first page. */
SEC("raw_tp")
int find_stack(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 zero = 0;
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);
	struct page **pages;

	if (!to || !bpf_core_field_exists(task->stack_vm_area))
		return 1;
	pages = BPF_CORE_READ(task, stack_vm_area, pages);
	to->first = (__u64)BPF_CORE_READ(task, stack);
	return bpf_probe_read_kernel(&to->second, sizeof(to->second), pages) ? 1 : 0;
}

/* A mask of a folio of any size is above this, and no struct page is (_compound_head() in include/linux/page-flags.h). */
#define LEAST_MASK 0xffffffff00000000ULL

/* Of which file a page is, by its struct page (include/linux/mm_types.h): the inode, the place in pages, and the device. */
SEC("raw_tp")
int find_file(struct request *request)
{
	__u32 zero = 0;
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);
	struct page *page = (void *)request->argument;
	struct address_space *mapping;
	struct folio *folio;
	struct inode *inode;
	struct page___6 *before = (void *)page;
	__u64 info;

	if (!to)
		return 1;
	if (bpf_core_field_exists(page->compound_info))
		info = BPF_CORE_READ(page, compound_info);
	else if (bpf_core_field_exists(before->compound_head))
		info = BPF_CORE_READ(before, compound_head);
	else
		return 1;
	/* Pages after the first one of a folio have its address, or since Linux 7 the bits of theirs that are also of that. */
	folio = (void *)page;
	if (info & 1)
		folio = (void *)(info >= LEAST_MASK ? (__u64)page & info : info - 1);
	mapping = BPF_CORE_READ(folio, mapping);
	/* PAGE_MAPPING_FLAGS: of a process, or movable. */
	if (!mapping || (__u64)mapping & 3)
		return 1;
	inode = BPF_CORE_READ(mapping, host);
	if (!inode)
		return 1;
	to->first = BPF_CORE_READ(inode, i_ino);
	to->third = BPF_CORE_READ(inode, i_sb, s_dev);
	to->second = BPF_CORE_READ(folio, index) + ((__u64)page - (__u64)folio) / bpf_core_type_size(struct page);
	return 0;
}
