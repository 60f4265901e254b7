/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Registers, addresses and system calls of x86-64; arm64.h has the same names. */

/* The interrupted registers; arch/x86/include/uapi/asm/ptrace.h. */
struct registers {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

/*
 * Registers that may point to memory, in the numbering of instructions; without sp, because a sample contains the
 * stack.
 */
#define FOR_EACH_REGISTER(_) \
	_(0, ax) _(1, cx) _(2, dx) _(3, bx) _(5, bp) _(6, si) _(7, di) \
	_(8, r8) _(9, r9) _(10, r10) _(11, r11) _(12, r12) _(13, r13) _(14, r14) _(15, r15)

/* The number of sp stands for the line before the one that fs points to. */
#define BEFORE_FS (1ULL << 4)

/* These bits stand for the line that fs points to, and for the red zone (System V ABI: 128 bytes below sp). */
#define AT_FS (1ULL << 63)
#define RED_ZONE (1ULL << 31)

/* The upper bound of addresses of user code. */
#define USER_END 0x7ffffffff000ULL

/* THREAD_SIZE, arch/x86/include/asm/page_64_types.h, without KASAN. */
#define KERNEL_STACK 16384

#define PERF_REGISTERS 18

/* In perf's order: ax bx cx dx si di bp sp ip flags and r8 to r15 (arch/x86/include/uapi/asm/perf_regs.h). */
static __always_inline void perf_registers(__u64 *to, const struct registers *regs)
{
	to[0] = regs->ax;
	to[1] = regs->bx;
	to[2] = regs->cx;
	to[3] = regs->dx;
	to[4] = regs->si;
	to[5] = regs->di;
	to[6] = regs->bp;
	to[7] = regs->sp;
	to[8] = regs->ip;
	to[9] = regs->flags;
	to[10] = regs->r8;
	to[11] = regs->r9;
	to[12] = regs->r10;
	to[13] = regs->r11;
	to[14] = regs->r12;
	to[15] = regs->r13;
	to[16] = regs->r14;
	to[17] = regs->r15;
}

static __always_inline bool is_user(const struct registers *regs)
{
	return regs->cs & 3;
}

static __always_inline __u64 untagged(__u64 addr)
{
	return addr;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_struct {
	unsigned long fsbase;
};

struct task_struct___thread {
	struct thread_struct thread;
};

/* The registers of a system call, arch/x86/include/asm/ptrace.h. */
struct pt_regs {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long orig_ax;
};

#pragma clang attribute pop

/* The address of the thread-local variables. */
static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return BPF_CORE_READ((struct task_struct___thread *)task, thread.fsbase);
}

/* More stack than handlers use, and less than the size of any stack. */
#define HANDLER_STACK 8192

/*
 * True if the current interrupt came from user code. Its handler then runs on the task's kernel stack, which was
 * empty, just below the registers saved there. Handlers of other interrupts run on the CPU's interrupt stack
 * (call_on_irqstack_cond() in arch/x86/include/asm/irq_stack.h; Linux 5.8 and later).
 */
static __always_inline bool was_user(void *context, struct task_struct *task)
{
	/* The arguments are a variable of the function that called this program. */
	return (__u64)bpf_task_pt_regs(task) - (__u64)context < HANDLER_STACK;
}

#define NR_BPF 321
#define SYSCALL_NUMBER(regs) BPF_CORE_READ(regs, orig_ax)
#define SYSCALL_ARGUMENT_1(regs) BPF_CORE_READ(regs, di)
#define SYSCALL_ARGUMENT_2(regs) BPF_CORE_READ(regs, si)
#define SYSCALL_ARGUMENT_3(regs) BPF_CORE_READ(regs, dx)
