/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The parts of the programs that depend on the CPU's architecture. */
#ifndef SCXPROF_ARCH_H
#define SCXPROF_ARCH_H

#include "kernel.h"

struct pt_regs;

/* The registers that the CPU's current interrupt saved; lib/irq_regs.c. */
extern struct pt_regs *__irq_regs __ksym;

#if defined(__TARGET_ARCH_arm64)
#include "arm64.h"
#else
#include "x86.h"
#endif

/* struct bpf_perf_event_data, linux/bpf_perf_event.h. */
struct clock_context {
	struct registers regs;
	__u64 sample_period;
	__u64 addr;
};

#endif
