/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The kernel types that the programs need. Only names matter: the loader finds the offset of each field in the BTF of
 * the running kernel, so building this needs no kernel headers.
 */
#ifndef SCXPROF_KERNEL_H
#define SCXPROF_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed short __s16;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* linux/bpf.h; these numbers are the kernel's ABI. */
#define BPF_MAP_UPDATE_ELEM 2
#define BPF_MAP_DELETE_ELEM 3
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERF_EVENT_ARRAY 4
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_CGROUP_ARRAY 8
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_F_CURRENT_CPU 0xffffffffULL
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0
/* include/linux/err.h */
#define MAX_ERRNO 4095
/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000
/* include/linux/sched/ext.h */
#define SCX_TASK_QUEUED 1
#define SCX_DSQ_INVALID (1ULL << 63)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct pid {
	unsigned int level;
	struct hlist_head tasks[1];
	struct upid numbers[1];
};

struct super_block {
	__u32 s_dev;
};

struct inode {
	unsigned short i_mode;
	void *i_private;
	unsigned long i_ino;
	struct super_block *i_sb;
	struct hlist_head i_dentry;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	union {
		struct hlist_node d_alias;
	} d_u;
};

struct address_space {
	struct inode *host;
};

struct page {
	unsigned long compound_info;
};

/* Before Linux 7. */
struct page___6 {
	unsigned long compound_head;
};

struct folio {
	struct address_space *mapping;
	unsigned long index;
};

struct kmem_cache {
	const char *name;
	unsigned int size;
};

/* The struct page of a slab. */
struct slab {
	struct kmem_cache *slab_cache;
};

struct vm_struct {
	struct page **pages;
};

struct file {
	void *private_data;
	struct inode *f_inode;
};

struct socket {
	int state;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct sock {
	struct socket *sk_socket;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct hrtimer {
	void *function;
};

struct scx_dispatch_q {
	__u64 id;
};

struct sched_ext_entity {
	struct scx_dispatch_q *dsq;
	__u32 flags;
	__u64 slice;
};

struct scx_bpf_dsq_insert_vtime_args {
	__u64 dsq_id;
	__u64 slice;
};

struct mm_struct {
	void *pgd;
};

struct rq;
struct task_group;

struct cfs_rq {
	struct rq *rq;
	struct task_group *tg;
};

struct task_group {
	struct cfs_rq **cfs_rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct task_struct {
	void *stack;
	struct mm_struct *mm;
	struct vm_struct *stack_vm_area;
	struct sched_entity se;
	unsigned int flags;
	int pid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct hlist_node pid_links[1];
	struct files_struct *files;
	char comm[16];
	struct sched_ext_entity scx;
};

struct bpf_map {
	__u32 id;
};

struct bpf_local_storage_map {
	struct bpf_map map;
};

struct bpf_local_storage_data {
	struct bpf_local_storage_map *smap;
};

struct bpf_local_storage {
	void *owner;
};

struct bpf_local_storage_elem {
	struct bpf_local_storage *local_storage;
	struct bpf_local_storage_data sdata;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
