// SPDX-License-Identifier: GPL-2.0
/*
 * simpmu: the memory PMUs of Intel and AMD machines for tests in a virtual machine that has none. Not for a real machine.
 * ../README.md says what it models and what it does not.
 */
#include <linux/module.h>

#include "simpmu.h"

static char *machine = "zen3";
module_param(machine, charp, 0444);
MODULE_PARM_DESC(machine, "which machine to be (machine.c has the table)");
static int swfilt = -1;
module_param(swfilt, int, 0444);
MODULE_PARM_DESC(swfilt, "ibs_op filters by privilege in software: 0, 1, or -1 for what this kernel's driver does");
bool sim_kernel;
module_param_named(kernel, sim_kernel, bool, 0644);
MODULE_PARM_DESC(kernel, "samples of kernel code too: its next access, or one of its stack");
bool sim_locks;
module_param_named(locks, sim_locks, bool, 0444);
MODULE_PARM_DESC(locks, "half of the samples of kernel code are of locks, if those are not of copies; takes time at each lock");
int sim_silent;
module_param_named(silent, sim_silent, int, 0644);
MODULE_PARM_DESC(silent, "events open and are never scheduled (1), or are scheduled and never count (2)");
unsigned long sim_floor_ns = 50000;
module_param_named(floor_ns, sim_floor_ns, ulong, 0644);
MODULE_PARM_DESC(floor_ns, "the shortest time between two samples of an event");
unsigned long sim_took_ns;
module_param_named(took_ns, sim_took_ns, ulong, 0644);
MODULE_PARM_DESC(took_ns, "how long the kernel is told that an interrupt took");

static void unregister(void)
{
	int i;

	for (i = 0; i < SIM_PMUS; i++)
		if (sim_pmus[i].registered)
			perf_pmu_unregister(&sim_pmus[i].pmu);
}

static int __init simpmu_init(void)
{
	int i, rc;

	rc = sim_build(machine, swfilt);
	if (rc) {
		pr_err("simpmu: no machine \"%s\"\n", machine);
		return rc;
	}
	rc = sim_find_symbols();
	if (rc)
		return rc;
	rc = sim_log_open();
	if (rc)
		return rc;
	if (sim_locks)
		rc = sim_watch_locks();
	if (rc) {
		sim_log_close();
		return rc;
	}
	for (i = 0; i < SIM_PMUS && sim_pmus[i].name; i++) {
		struct sim_pmu *p = &sim_pmus[i];
		/*
		 * The first core PMU is PERF_TYPE_RAW (arch/x86/events/core.c). But a kernel as old as 6.1 never gives up such a
		 * number, so that it would point into an unloaded module.
		 */
		bool raw = !p->ibs && !i && LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0);

		sim_fill_ops(&p->pmu);
		rc = perf_pmu_register(&p->pmu, p->name, raw ? PERF_TYPE_RAW : -1);
		if (rc) {
			pr_err("simpmu: cannot register %s: %d\n", p->name, rc);
			unregister();
			if (sim_locks)
				sim_watch_no_locks();
			sim_log_close();
			return rc;
		}
		p->registered = true;
	}
	return 0;
}

static void __exit simpmu_exit(void)
{
	unregister();
	if (sim_locks)
		sim_watch_no_locks();
	sim_log_close();
}

module_init(simpmu_init);
module_exit(simpmu_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("simulated memory PMU for tests");
