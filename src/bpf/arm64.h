/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Registers, addresses and system calls of arm64; x86.h has the same names. */

/* The interrupted registers, struct user_pt_regs; arch/arm64/include/uapi/asm/ptrace.h. */
struct registers {
	__u64 x[31], sp, ip, pstate;
};

/* Registers that may point to memory. x30 is the return address; the sample contains the stack. */
#define FOR_EACH_REGISTER(_) \
	_(0, x[0]) _(1, x[1]) _(2, x[2]) _(3, x[3]) _(4, x[4]) _(5, x[5]) _(6, x[6]) _(7, x[7]) \
	_(8, x[8]) _(9, x[9]) _(10, x[10]) _(11, x[11]) _(12, x[12]) _(13, x[13]) _(14, x[14]) _(15, x[15]) \
	_(16, x[16]) _(17, x[17]) _(18, x[18]) _(19, x[19]) _(20, x[20]) _(21, x[21]) _(22, x[22]) _(23, x[23]) \
	_(24, x[24]) _(25, x[25]) _(26, x[26]) _(27, x[27]) _(28, x[28]) _(29, x[29])

#define BEFORE_FS 0
#define AT_FS 0

/* Memory below sp is not preserved (AAPCS64, the stack). */
#define RED_ZONE 0

/* Addresses have up to 52 bits (Documentation/arch/arm64/memory.rst). */
#define USER_END (1ULL << 52)

/* THREAD_SIZE with pages of 4 KiB, arch/arm64/include/asm/memory.h. */
#define KERNEL_STACK 16384

#define PERF_REGISTERS 33

/* In perf's order: x0 to x30, sp, pc (arch/arm64/include/uapi/asm/perf_regs.h). */
static __always_inline void perf_registers(__u64 *to, const struct registers *regs)
{
	__builtin_memcpy(to, regs, PERF_REGISTERS * sizeof(*to));
}

/* PSR_MODE_EL0t; also set for 32-bit tasks (arch/arm64/include/uapi/asm/ptrace.h). */
static __always_inline bool is_user(const struct registers *regs)
{
	return (regs->pstate & 0xf) == 0;
}

/* The highest byte of a user address may be a tag (Documentation/arch/arm64/tagged-pointers.rst). */
static __always_inline __u64 untagged(__u64 addr)
{
	return addr & ((1ULL << 56) - 1);
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* arch/arm64/include/asm/ptrace.h. */
struct pt_regs {
	__u64 regs[31];
	__u64 orig_x0;
	__s32 syscallno;
};

#pragma clang attribute pop

/*
 * Unknown: the kernel saves the thread pointer only at a context switch, and user code can change it without a system
 * call.
 */
static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return 0;
}

/* True if the current interrupt came from user code; the interrupt's registers are then the task's. */
static __always_inline bool was_user(void *context, struct task_struct *task)
{
	void **saved = bpf_this_cpu_ptr(&__irq_regs);

	return *saved == (void *)bpf_task_pt_regs(task);
}

#define NR_BPF 280
#define SYSCALL_NUMBER(regs) BPF_CORE_READ(regs, syscallno)
/* At the end of the call, x0 contains the result. */
#define SYSCALL_ARGUMENT_1(regs) BPF_CORE_READ(regs, orig_x0)
#define SYSCALL_ARGUMENT_2(regs) BPF_CORE_READ(regs, regs[1])
#define SYSCALL_ARGUMENT_3(regs) BPF_CORE_READ(regs, regs[2])
