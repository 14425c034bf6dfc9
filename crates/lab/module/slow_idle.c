// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Idle states for machines that have none, for tests. A CPU leaves LP-HALT at once. It leaves LP-SLOW exit_us after it
 * is woken, before it does anything else, interrupts included, as with deep states of real CPUs. That is about a
 * hundred times the exit latency that LP-SLOW claims.
 *
 * LP-SLOW is initially disabled; /sys/devices/system/cpu/cpuN/cpuidle/stateM/disable switches a CPU's states on and
 * off. `exits` in /sys/module/slow_idle/parameters lists the times at which CPUs left LP-SLOW.
 */
#include <linux/atomic.h>
#include <linux/cpuidle.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/idle.h>
#include <linux/sysfs.h>
#include <linux/timekeeping.h>
#include <asm/apic.h>

#define MAX_EXIT_US 200000U

static uint exit_us = 40000;
module_param(exit_us, uint, 0644);
MODULE_PARM_DESC(exit_us, "how long a CPU takes to leave LP-SLOW; at most 200 ms");

/* Maximum number of recorded exits: a line of `exits` is shorter than 64 bytes, and all lines must fit into a page. */
#define KEPT 60

struct exit {
	u64 woken;
	u64 left;
	int cpu;
};

static struct exit kept[KEPT];
static atomic_t exits;

static int exits_get(char *buffer, const struct kernel_param *param)
{
	int count = min(atomic_read(&exits), KEPT), at = 0, i;

	for (i = 0; i < count; i++) {
		u64 left = smp_load_acquire(&kept[i].left);

		if (left)
			at += sysfs_emit_at(buffer, at, "%d %llu %llu\n", kept[i].cpu, kept[i].woken, left);
	}
	return at;
}

static int exits_forget(const char *text, const struct kernel_param *param)
{
	int i;

	for (i = 0; i < KEPT; i++)
		WRITE_ONCE(kept[i].left, 0);
	atomic_set(&exits, 0);
	return 0;
}

static const struct kernel_param_ops exits_ops = { .get = exits_get, .set = exits_forget };
module_param_cb(exits, &exits_ops, NULL, 0644);
MODULE_PARM_DESC(exits, "the first 60 times that a CPU left LP-SLOW: its number, when it was woken, when it was awake "
			"(CLOCK_MONOTONIC); to write to it forgets them");

static void keep(int cpu, u64 woken, u64 left)
{
	int at = atomic_fetch_add_unless(&exits, 1, KEPT);

	if (at >= KEPT)
		return;
	kept[at].cpu = cpu;
	kept[at].woken = woken;
	smp_store_release(&kept[at].left, left);
}

/* Whether this CPU's local APIC has a pending interrupt while interrupts are off. */
static bool is_interrupt_pending(void)
{
	u32 i, pending = 0;

	for (i = 0; i < 8; i++) {
		u32 reg = APIC_IRR + i * 0x10;

		pending |= x2apic_enabled() ? native_apic_msr_read(reg) : native_apic_mem_read(reg);
	}
	return pending;
}

static int enter_halt(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	if (!need_resched())
		raw_safe_halt();
	raw_local_irq_disable();
	return index;
}

/*
 * Interrupts stay off, as in states entered by MWAIT: the interrupt that wakes the CPU is served after the exit. The
 * CPU also sets its polling flag, so that other CPUs wake it without an interrupt.
 */
static int enter_slow(struct cpuidle_device *dev, struct cpuidle_driver *drv, int index)
{
	u64 wait = min(READ_ONCE(exit_us), MAX_EXIT_US) * 1000ULL, woken, now;
	int i;

	if (!current_set_polling_and_test())
		while (!need_resched() && !is_interrupt_pending())
			for (i = 0; i < 20; i++)
				cpu_relax();
	current_clr_polling();
	woken = ktime_get_mono_fast_ns();
	do {
		cpu_relax();
		now = ktime_get_mono_fast_ns();
	} while (now < woken + wait);
	keep(dev->cpu, woken, now);
	return index;
}

static struct cpuidle_driver slow_idle = {
	.name = "slow_idle",
	/* No owner, so that the module can be removed in use: removal waits until no CPU is in one of its states. */
	.states = {
		{
			.name = "LP-HALT",
			.desc = "HLT",
			.exit_latency = 1,
			.target_residency = 1,
			.enter = enter_halt,
		},
		{
			.name = "LP-SLOW",
			.desc = "leaves late",
			.exit_latency = 200,
			.target_residency = 200,
			.flags = CPUIDLE_FLAG_OFF,
			.enter = enter_slow,
		},
	},
	.state_count = 2,
};

static int __init slow_idle_begin(void)
{
	return cpuidle_register(&slow_idle, NULL);
}

static void __exit slow_idle_end(void)
{
	cpuidle_unregister(&slow_idle);
}

module_init(slow_idle_begin);
module_exit(slow_idle_end);
/* Of the two licences above, the kernel accepts only this one. */
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("an idle state that is slow to leave, for latpath's tests");
