// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads the kernel's memory for the process that loads this program and calls it by BPF_PROG_TEST_RUN. This gives the
 * kernel's code as it runs, which alternatives, static keys and tracers patch; /proc/kcore does not exist on every
 * host.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PIECE 4096
/*
 * The largest size of a name in a path, or of a cache's name, with the terminating NUL: NAME_MAX in
 * include/uapi/linux/limits.h.
 */
#define NAME 256

struct request {
	__u64 argument;
	__u64 second;
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

/* Reads the bytes at an address. */
SEC("raw_tp")
int read_memory(struct request *request)
{
	__u32 zero = 0;
	void *to = bpf_map_lookup_elem(&piece, &zero);

	return !to || bpf_probe_read_kernel(to, PIECE, (void *)request->argument);
}

/* Returns the address of the top page table of the calling process, in the direct map of all memory. */
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
 * Returns the address of the run queue of a CPU, a per-CPU variable. Only kernels with CONFIG_KALLSYMS_ALL list its
 * symbol.
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

/* Returns the address of the current kernel stack, and that of the struct page of its first page. */
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

/*
 * A mask for the size of a folio is above this value, and no address of a struct page is (_compound_head() in
 * include/linux/page-flags.h).
 */
#define LEAST_MASK 0xffffffff00000000ULL

/* The struct page of the first page of the same folio or slab (include/linux/mm_types.h); 0 if it is not known. */
static __always_inline __u64 first_page(__u64 address)
{
	struct page *page = (void *)address;
	struct page___6 *before = (void *)address;
	__u64 info;

	if (bpf_core_field_exists(page->compound_info))
		info = BPF_CORE_READ(page, compound_info);
	else if (bpf_core_field_exists(before->compound_head))
		info = BPF_CORE_READ(before, compound_head);
	else
		return 0;
	/*
	 * Later pages contain the address of the first one or, since Linux 7, a mask that yields it from their own
	 * address.
	 */
	if (!(info & 1))
		return address;
	return info >= LEAST_MASK ? address & info : info - 1;
}

/*
 * The inode of the file that a page belongs to, by the struct page of its first page; NULL if it belongs to no file.
 */
static __always_inline struct inode *inode_of(__u64 first)
{
	struct address_space *mapping;

	if (!first)
		return 0;
	mapping = BPF_CORE_READ((struct folio *)first, mapping);
	/* PAGE_MAPPING_FLAGS: the page belongs to a process, or is movable. */
	if (!mapping || (__u64)mapping & 3)
		return 0;
	return BPF_CORE_READ(mapping, host);
}

/* include/uapi/linux/stat.h */
#define S_IFMT 00170000
#define S_IFBLK 0060000

/*
 * Finds the file of a page by its struct page: inode, index in the file in pages, and device. Cached blocks of block
 * devices do not count as files.
 */
SEC("raw_tp")
int find_file(struct request *request)
{
	__u32 zero = 0;
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);
	__u64 page = request->argument, first = first_page(page);
	struct inode *inode = inode_of(first);

	if (!to || !inode || (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFBLK)
		return 1;
	to->first = BPF_CORE_READ(inode, i_ino);
	to->third = BPF_CORE_READ(inode, i_sb, s_dev);
	to->second = BPF_CORE_READ((struct folio *)first, index) + (page - first) / bpf_core_type_size(struct page);
	return 0;
}

/* Writes the names on the path of the file that a page belongs to, the last one first, each in NAME bytes. */
SEC("raw_tp")
int find_path(struct request *request)
{
	__u32 zero = 0, at;
	char *names = bpf_map_lookup_elem(&piece, &zero);
	struct inode *inode = inode_of(first_page(request->argument));
	struct dentry *dentry = 0, *parent;
	struct hlist_node *alias;

	if (!names || !inode || !bpf_core_field_exists(dentry->d_u.d_alias))
		return 1;
	alias = BPF_CORE_READ(inode, i_dentry.first);
	if (!alias)
		return 1;
	dentry = (void *)((__u64)alias - bpf_core_field_offset(dentry->d_u.d_alias));
	for (at = 0; at < PIECE / NAME; at++) {
		if (bpf_probe_read_kernel_str(names + at * NAME, NAME, BPF_CORE_READ(dentry, d_name.name)) < 0)
			return 1;
		parent = BPF_CORE_READ(dentry, d_parent);
		if (parent == dentry) {
			/* Terminates the list. */
			if (at + 1 < PIECE / NAME)
				names[(at + 1) * NAME] = 0;
			return 0;
		}
		dentry = parent;
	}
	/* The path has too many components. */
	return 1;
}

/*
 * Finds the cache of objects that a page belongs to by its struct page: the page's index in its slab, the size of an
 * object, and the name of the cache.
 */
SEC("raw_tp")
int find_slab(struct request *request)
{
	__u32 zero = 0;
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);
	char *name = bpf_map_lookup_elem(&piece, &zero);
	__u64 page = request->argument, first = first_page(page);
	struct slab *slab = (void *)first;
	struct kmem_cache *cache;

	if (!to || !name || !first || !bpf_core_field_exists(slab->slab_cache))
		return 1;
	cache = BPF_CORE_READ(slab, slab_cache);
	to->first = (page - first) / bpf_core_type_size(struct page);
	to->second = BPF_CORE_READ(cache, size);
	return !cache || bpf_probe_read_kernel_str(name, NAME, BPF_CORE_READ(cache, name)) < 0;
}

enum { SOCK, SOCKET, OPEN_FILE };

/*
 * Returns the owner of the object at an address, if it is an object of that kind: a number that no other owner gets.
 */
SEC("raw_tp")
int find_owner(struct request *request)
{
	__u32 zero = 0;
	struct numbers *to = bpf_map_lookup_elem(&found, &zero);
	__u64 object = request->argument, kind = request->second;
	struct socket_alloc *both = (void *)object;
	struct inode *inode;

	if (!to)
		return 1;
	if (kind == OPEN_FILE) {
		inode = BPF_CORE_READ((struct file *)object, f_inode);
		to->second = (__u64)BPF_CORE_READ((struct file *)object, private_data);
	} else {
		/* Every socket has its own inode, with a new number (sock_alloc() in net/socket.c). */
		if (kind == SOCK)
			both = (void *)BPF_CORE_READ((struct sock *)object, sk_socket);
		if (!both)
			return 1;
		inode = (void *)((__u64)both + bpf_core_field_offset(both->vfs_inode));
		to->second = 0;
	}
	to->first = BPF_CORE_READ(inode, i_ino);
	return 0;
}
