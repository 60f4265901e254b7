// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads the memory around the registers of user code that a timer interrupted, and puts it into the record of the
 * sample: the raw data of a separate event on each CPU, whose samples also contain registers and stack. For kernel
 * code, if it is sampled too, the raw data also contains the registers and the stack.
 *
 * Only one of on_tick, on_tick_of_all and on_clock is loaded, and on_fork and on_exit only if tasks are watched.
 */
#include "arch.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { EVERYTHING, TASKS, CGROUP };

/* Filled in before loading. */
const volatile struct config {
	__u64 handlers[2]; /* the tick's functions */
	__u32 watched;
	__u32 kernel; /* 1: samples of kernel code too */
	/* The function that runs softirqs at once in the task that raised them. */
	__u64 softirq_start, softirq_end;
} config;

#define LINE_SIZE 64
/*
 * Space for all lines that can be added: 3 of the red zone, 2 thread-local, 3 * WANTED_LINES, and 2 for each of 15
 * registers. With 31 registers, there is space for those that point to memory.
 */
#define MAX_LINES 48
#define WANTED_LINES 4
/* The sample contains this many bytes of stack from sp on in any case. */
#define STACK_DUMP 512
#define USER_LOWEST 65536ULL

/* The part of struct line's base that is the address. */
#define LINE_ADDRESS ((1ULL << 56) - 1)
#define ALL_WORDS 0xff

struct line {
	/*
	 * The address; in the highest byte, a bit for each word that other threads write all the time, so that its
	 * value is unknown.
	 */
	__u64 base;
	__u8 bytes[LINE_SIZE];
};

enum { USER, KERNEL };

/* The layout that lines.rs reads; only the used lines are written. */
struct snapshot {
	/* For kernel code, the lowest address of the task's stack. */
	__u64 fs_base;
	__u64 sp;
	__u32 count;
	__u32 mode;
	struct line lines[MAX_LINES];
};

/* The lowest address of the kernel's half. */
#define KERNEL_HALF (0xffULL << 56)

/* For kernel code; the layout that kernel.rs reads. */
struct kernel_snapshot {
	__u64 task;
	/* The lowest address of the task's stack. */
	__u64 stack;
	__u32 size; /* of the dump */
	__u32 mode; /* KERNEL */
	__u64 regs[PERF_REGISTERS];
	/* The stack from sp on, up to the end of the task's stack. */
	__u8 dump[STACK_DUMP];
	struct snapshot memory;
};

struct raw_arguments {
	__u64 args[2];
};

/* Scratch space, because the stack of a BPF program is too small. */
struct room {
	struct registers regs;
	struct snapshot snapshot;
};

struct kernel_room {
	struct registers regs;
	struct kernel_snapshot snapshot;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct room);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kernel_room);
} kernel_scratch SEC(".maps");

#define MAX_CHAIN 48

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[MAX_CHAIN]);
} chain_scratch SEC(".maps");

/* The events to write to, by CPU; loading sets the number of entries to that of the CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} output SEC(".maps");

/* 1 for each CPU that has an event to write to; the others are not sampled. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sampled SEC(".maps");

/* The watched threads, by their ids in the initial pid namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} cgroup SEC(".maps");

/* A place in the code: the process and the instruction. */
struct place {
	__u64 ip;
	__u32 tgid;
	__u32 unused;
};

/* The memory that samples of a place need; see struct Wanted in wanted.rs. */
struct wanted {
	__u64 registers;
	__u64 fixed[WANTED_LINES];
	__u64 lines[WANTED_LINES];
};

/* User space learns this from samples, and writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct place);
	__type(value, struct wanted);
} wanted SEC(".maps");

/* A line of a process's memory. */
struct memory {
	__u64 line;
	__u32 tgid;
	__u32 unused;
};

/*
 * For each line, the words that changed while a thread that would read them was stopped, so other threads write them
 * all the time. Not the whole line: with false sharing, threads read other words of the line.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct memory);
	__type(value, __u8);
} changing SEC(".maps");

struct range {
	__u64 start, end;
};

/*
 * The range of the kernel's direct map of all memory. Elsewhere there may be device registers, which a read can
 * change. User space writes this; until then, no kernel memory is read.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct range);
} all_memory SEC(".maps");

enum { HITS, IN_KERNEL, IN_INTERRUPT, NO_ROOM, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

/*
 * True for the red zone and the line with sp. They belong to the thread, like the stack that the sample contains in
 * any case, so they are not checked for writes by other threads.
 */
static __always_inline bool is_red_zone(struct snapshot *snapshot, __u64 base)
{
	return snapshot->mode == USER && base <= snapshot->sp && snapshot->sp - base < 3 * LINE_SIZE;
}

/* True if the memory at an address may be read. */
static __always_inline bool is_memory(struct snapshot *snapshot, __u64 addr)
{
	struct range *memory;
	__u32 zero = 0;

	if (snapshot->mode == USER)
		return addr >= USER_LOWEST && addr < USER_END;
	if (addr >= snapshot->sp && addr - snapshot->fs_base < KERNEL_STACK)
		return true;
	memory = bpf_map_lookup_elem(&all_memory, &zero);
	return memory && addr >= memory->start && addr < memory->end;
}

static __always_inline long read_line(struct snapshot *snapshot, void *to, __u64 base)
{
	if (snapshot->mode == USER)
		return bpf_probe_read_user(to, LINE_SIZE, (void *)base);
	return bpf_probe_read_kernel(to, LINE_SIZE, (void *)base);
}

/* All processes have the same kernel memory. */
static __always_inline __u32 address_space(struct snapshot *snapshot)
{
	return snapshot->mode == USER ? bpf_get_current_pid_tgid() >> 32 : 0;
}

/* A global function is verified only once, not for each caller. */
__attribute__((noinline)) int add_line(struct snapshot *snapshot, __u64 addr)
{
	struct memory memory = {};
	__u64 base, words = 0;
	__u32 count, at;
	__u8 *known;

	if (!snapshot)
		return 0;
	if (snapshot->mode == USER)
		addr = untagged(addr);
	if (!is_memory(snapshot, addr))
		return 0;
	base = addr & ~(__u64)(LINE_SIZE - 1);
	if (base >= snapshot->sp && base + LINE_SIZE <= snapshot->sp + STACK_DUMP)
		return 0;
	count = snapshot->count;
	for (at = 0; at < MAX_LINES; at++) {
		if (at >= count)
			break;
		if ((snapshot->lines[at].base & LINE_ADDRESS) == (base & LINE_ADDRESS))
			return 0;
	}
	if (count >= MAX_LINES)
		return 0;
	if (!is_red_zone(snapshot, base)) {
		memory.line = base;
		memory.tgid = address_space(snapshot);
		known = bpf_map_lookup_elem(&changing, &memory);
		if (known)
			words = *known;
		if (words == ALL_WORDS)
			return 0;
	}
	if (read_line(snapshot, snapshot->lines[count].bytes, base))
		return 0;
	snapshot->lines[count].base = (base & LINE_ADDRESS) | words << 56;
	snapshot->count = count + 1;
	return 1;
}

/* Adds the line at an address in a register and the line after it, if they are wanted (bits 0 and 32). */
__attribute__((noinline)) int add_lines(struct snapshot *snapshot, __u64 addr, __u64 which)
{
	if (!snapshot)
		return 0;
	if (which & 1)
		add_line(snapshot, addr);
	if (which & 1ULL << 32)
		add_line(snapshot, addr + LINE_SIZE);
	return 0;
}

/*
 * Adds a fixed line of struct Wanted: an address, or a distance from sp or from the base of fs. Distances are rounded
 * down, so the memory may be in the next line.
 */
__attribute__((noinline)) int add_wanted(struct snapshot *snapshot, __u64 line)
{
	__u64 from = 0;

	if (!snapshot || !line)
		return 0;
	if (line < USER_LOWEST)
		from = snapshot->sp;
	else if (line >= -USER_LOWEST)
		from = snapshot->fs_base;
	add_line(snapshot, from + line);
	if (from)
		add_line(snapshot, from + line + LINE_SIZE);
	return 0;
}

/*
 * Marks the words of a line that have changed since they were read. The thread itself is stopped, so other threads
 * write these words all the time, and the thread may read another value.
 */
__attribute__((noinline)) int mark_if_changed(struct snapshot *snapshot, __u32 at)
{
	__u64 again[LINE_SIZE / 8];
	struct memory memory = {};
	struct line *line;
	__u64 address, index = at;
	__u32 word;
	__u8 known, words;

	if (!snapshot || index >= MAX_LINES)
		return 0;
	/* The verifier tracks the bound of this register only. */
	asm volatile("" : "+r"(index));
	line = &snapshot->lines[index];
	address = line->base & LINE_ADDRESS;
	if (snapshot->mode == KERNEL)
		address |= KERNEL_HALF;
	if (is_red_zone(snapshot, address))
		return 0;
	if (read_line(snapshot, again, address))
		return 0;
	known = words = line->base >> 56;
	for (word = 0; word < LINE_SIZE / 8; word++) {
		if (again[word] != ((__u64 *)line->bytes)[word])
			words |= 1 << word;
	}
	if (words == known)
		return 0;
	memory.line = address;
	memory.tgid = address_space(snapshot);
	bpf_map_update_elem(&changing, &memory, &words, 0);
	line->base = (address & LINE_ADDRESS) | (__u64)words << 56;
	return 0;
}

__attribute__((noinline)) int mark_changed(struct snapshot *snapshot)
{
	__u32 at;

	if (!snapshot)
		return 0;
	for (at = 0; at < MAX_LINES; at++) {
		if (at >= snapshot->count)
			break;
		mark_if_changed(snapshot, at);
	}
	return 0;
}

static __always_inline struct wanted *find_wanted(struct snapshot *snapshot, __u64 ip)
{
	struct place place = { .ip = ip, .tgid = address_space(snapshot) };

	return bpf_map_lookup_elem(&wanted, &place);
}

/* Adds the wanted lines of the place or, if they are not known, the lines at all registers. */
static __always_inline void add_all(struct snapshot *snapshot, struct wanted *known, const struct registers *regs)
{
	__u64 which = ~0ULL;
	__u32 at;

	if (known) {
		which = known->registers;
		for (at = 0; at < WANTED_LINES; at++) {
			add_wanted(snapshot, known->fixed[at]);
			add_line(snapshot, known->lines[at]);
		}
	}
	if (which & BEFORE_FS && snapshot->mode == USER)
		add_line(snapshot, snapshot->fs_base - LINE_SIZE);
#define ADD(number, name) add_lines(snapshot, regs->name, which >> number);
	FOR_EACH_REGISTER(ADD)
	mark_changed(snapshot);
}

/* If the wanted lines are not known yet, all lines at registers are read if `all` is set. */
static __always_inline void take(void *context, struct task_struct *task, bool all)
{
	struct snapshot *snapshot;
	struct registers *regs;
	struct wanted *known;
	struct room *room;
	__u64 which = ~0ULL, size;
	__u32 zero = 0;

	room = bpf_map_lookup_elem(&scratch, &zero);
	if (!room)
		return;
	regs = &room->regs;
	snapshot = &room->snapshot;
	if (bpf_probe_read_kernel(regs, sizeof(*regs), (void *)bpf_task_pt_regs(task)))
		return;
	snapshot->count = 0;
	snapshot->mode = USER;
	snapshot->sp = regs->sp;
	snapshot->fs_base = thread_pointer(task);
	known = find_wanted(snapshot, regs->ip);
	if (!known && !all)
		goto output;
	if (known)
		which = known->registers;
	if (which & RED_ZONE) {
		/*
		 * These are three lines, or two if sp is at the beginning of a line. The last one also contains the
		 * first bytes of the stack dump.
		 */
		add_line(snapshot, regs->sp - 1);
		add_line(snapshot, regs->sp - LINE_SIZE);
		add_line(snapshot, regs->sp - 2 * LINE_SIZE);
	}
	/* The thread-local variables end at fs_base. The word there is its own address, which shows that it is right. */
	if (which & AT_FS)
		add_line(snapshot, snapshot->fs_base);
	add_all(snapshot, known, regs);
output:
	size = sizeof(*snapshot) - sizeof(snapshot->lines) + (__u64)snapshot->count * sizeof(struct line);
	if (size > sizeof(*snapshot))
		return;
	bpf_perf_event_output(context, &output, BPF_F_CURRENT_CPU, snapshot, size);
	/* A few lines are read too fast to notice a change, so check them after the output, which takes some time. */
	if (known)
		mark_changed(snapshot);
}

/*
 * True for a softirq that the task's own code runs when it enables softirqs again: data that it sent over loopback
 * arrives there. Other softirqs run after an interrupt, in an arbitrary task.
 */
static __always_inline bool is_own_softirq(void *context)
{
	__u64 *chain;
	__u32 zero = 0, at;
	long size;

	chain = bpf_map_lookup_elem(&chain_scratch, &zero);
	if (!chain || !config.softirq_end)
		return false;
	size = bpf_get_stack(context, chain, MAX_CHAIN * sizeof(*chain), 0);
	for (at = 0; at < MAX_CHAIN; at++) {
		if ((long)(at * sizeof(*chain)) >= size)
			break;
		if (chain[at] > config.softirq_start && chain[at] < config.softirq_end)
			return true;
	}
	return false;
}

/*
 * Takes a sample of kernel code that runs for the task itself. Interrupts and softirqs run on stacks of the CPU
 * (call_on_irqstack_cond() in arch/x86/include/asm/irq_stack.h).
 */
static __always_inline bool take_kernel(void *context, struct task_struct *task, struct kernel_room *room, bool all)
{
	struct kernel_snapshot *snapshot = &room->snapshot;
	struct registers *regs = &room->regs;
	struct wanted *known;
	__u64 stack = (__u64)BPF_CORE_READ(task, stack), left = stack + KERNEL_STACK - regs->sp, size;

	if (left > KERNEL_STACK) {
		if (!is_own_softirq(context))
			return false;
		left = STACK_DUMP;
	}
	snapshot->task = (__u64)task;
	snapshot->stack = stack;
	snapshot->mode = KERNEL;
	perf_registers(snapshot->regs, regs);
	if (left > STACK_DUMP)
		left = STACK_DUMP;
	if (bpf_probe_read_kernel(snapshot->dump, left, (void *)regs->sp))
		left = 0;
	snapshot->size = left;
	snapshot->memory.count = 0;
	snapshot->memory.mode = KERNEL;
	snapshot->memory.sp = regs->sp;
	snapshot->memory.fs_base = stack;
	known = find_wanted(&snapshot->memory, regs->ip);
	if (known || all)
		add_all(&snapshot->memory, known, regs);
	size = sizeof(*snapshot) - sizeof(snapshot->memory.lines) + (__u64)snapshot->memory.count * sizeof(struct line);
	if (size > sizeof(*snapshot))
		return false;
	bpf_perf_event_output(context, &output, BPF_F_CURRENT_CPU, snapshot, size);
	if (known)
		mark_changed(&snapshot->memory);
	return true;
}

static __always_inline bool is_watched(void)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid(), cpu = bpf_get_smp_processor_id();
	__u32 *is_sampled = bpf_map_lookup_elem(&sampled, &cpu);

	if (!is_sampled || !*is_sampled)
		return false;
	if (config.watched == TASKS)
		return bpf_map_lookup_elem(&tasks, &tid);
	if (config.watched == CGROUP)
		return bpf_current_task_under_cgroup(&cgroup, 0) == 1;
	return true;
}

static __always_inline int ticked(struct raw_arguments *context, bool kernel)
{
	struct hrtimer *timer = (void *)context->args[0];
	__u64 function = (__u64)BPF_CORE_READ(timer, function);
	struct kernel_room *room;
	struct task_struct *task;
	__u32 what = HITS, zero = 0;
	void **saved;
	__u64 *hits;
	bool all;

	if (function != config.handlers[0] && function != config.handlers[1])
		return 0;
	task = bpf_get_current_task_btf();
	if (BPF_CORE_READ(task, flags) & PF_KTHREAD || !is_watched())
		return 0;
	/*
	 * Reading the memory at all registers takes longest. Do that only at every second tick, so that sampling takes
	 * less than 0.5 % of a CPU.
	 */
	hits = bpf_map_lookup_elem(&counters, &what);
	all = hits && *hits % 2 == 0;
	count(HITS);
	if (was_user(context, task)) {
		take(context, task, all);
		return 0;
	}
	if (!kernel) {
		count(IN_KERNEL);
		return 0;
	}
	saved = bpf_this_cpu_ptr(&__irq_regs);
	room = bpf_map_lookup_elem(&kernel_scratch, &zero);
	if (!room || bpf_probe_read_kernel(&room->regs, sizeof(room->regs), *saved) || !take_kernel(context, task, room, all))
		count(IN_INTERRUPT);
	return 0;
}

SEC("raw_tp/hrtimer_expire_entry")
int on_tick(struct raw_arguments *context)
{
	return ticked(context, false);
}

/* Not every kernel has the symbol of the interrupted registers. */
SEC("raw_tp/hrtimer_expire_entry")
int on_tick_of_all(struct raw_arguments *context)
{
	return ticked(context, true);
}

static __always_inline bool take_clocked(struct clock_context *context, struct task_struct *task)
{
	struct kernel_room *room;
	__u32 zero = 0;

	room = bpf_map_lookup_elem(&kernel_scratch, &zero);
	if (!room)
		return false;
	/* The verifier does not allow to pass a pointer into the context to a function. */
	room->regs = context->regs;
	return take_kernel(context, task, room, true);
}

/* The event that calls this program already watches the right tasks. */
SEC("perf_event")
int on_clock(struct clock_context *context)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (BPF_CORE_READ(task, flags) & PF_KTHREAD)
		return 0;
	count(HITS);
	if (is_user(&context->regs))
		take(context, task, true);
	else if (!config.kernel)
		count(IN_KERNEL);
	else if (!take_clocked(context, task))
		count(IN_INTERRUPT);
	return 0;
}

SEC("raw_tp/sched_process_fork")
int on_fork(struct raw_arguments *context)
{
	struct task_struct *parent = (void *)context->args[0], *child = (void *)context->args[1];
	__u32 maker = BPF_CORE_READ(parent, pid), made = BPF_CORE_READ(child, pid);
	__u8 value = 1;

	if (bpf_map_lookup_elem(&tasks, &maker) && bpf_map_update_elem(&tasks, &made, &value, 0))
		count(NO_ROOM);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int on_exit(void *context)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&tasks, &tid);
	return 0;
}
