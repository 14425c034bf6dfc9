// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Clocks that count CLOCK_MONOTONIC's nanoseconds plus a configured offset, drift, slew and steps: the time of such a
 * clock is known exactly.
 */
#include <linux/math64.h>
#include <linux/moduleparam.h>
#include <linux/ptp_clock_kernel.h>
#include <linux/spinlock.h>
#include <linux/timekeeping.h>
#include "phc.h"

static uint phcs = 1;
module_param(phcs, uint, 0444);
MODULE_PARM_DESC(phcs, "1: one clock for both NICs; 2: one for each");

static long offset_ns[NICS];
module_param_array(offset_ns, long, NULL, 0444);
MODULE_PARM_DESC(offset_ns, "what a clock is ahead of CLOCK_REALTIME when it begins");

static int drift_ppb[NICS];
module_param_array(drift_ppb, int, NULL, 0444);
MODULE_PARM_DESC(drift_ppb, "how much faster than CLOCK_MONOTONIC a clock runs when nobody slews it");

static bool precise;
module_param(precise, bool, 0444);
MODULE_PARM_DESC(precise, "PTP_SYS_OFFSET_PRECISE can be had");

static bool frozen[NICS];
module_param_array(frozen, bool, NULL, 0644);
MODULE_PARM_DESC(frozen, "the clock stands still, in readings and in stamps");

struct phc {
	struct ptp_clock_info info;
	struct ptp_clock *ptp;
	spinlock_t lock;
	int nr;
	u64 began;	/* at this time of CLOCK_MONOTONIC ... */
	u64 base;	/* ... it showed this */
	long slew;	/* scaled ppm, as in adjfine: 65536 is 1 ppm */
	long drift;	/* likewise */
	u64 shown;	/* its last reading, which a frozen clock repeats */
};

static struct phc clocks[NICS];

/* The clock's time if it were not frozen. */
static u64 phc_at(const struct phc *phc, u64 monotonic)
{
	long rate = phc->slew + phc->drift;
	s64 elapsed = monotonic - phc->began;
	s64 gained = mul_u64_u64_div_u64(abs(elapsed), abs(rate), 65536ULL * 1000000);

	return phc->base + elapsed + ((elapsed < 0) == (rate < 0) ? gained : -gained);
}

static u64 phc_show_locked(struct phc *phc, u64 monotonic)
{
	if (!READ_ONCE(frozen[phc->nr]))
		phc->shown = phc_at(phc, monotonic);
	return phc->shown;
}

u64 phc_show(struct phc *phc, u64 monotonic)
{
	u64 shown;

	spin_lock_bh(&phc->lock);
	shown = phc_show_locked(phc, monotonic);
	spin_unlock_bh(&phc->lock);
	return shown;
}

static struct phc *phc_of(struct ptp_clock_info *info)
{
	return container_of(info, struct phc, info);
}

static int phc_gettimex(struct ptp_clock_info *info, struct timespec64 *ts, struct ptp_system_timestamp *sts)
{
	struct phc *phc = phc_of(info);

	spin_lock_bh(&phc->lock);
	ptp_read_system_prets(sts);
	*ts = ns_to_timespec64(phc_show_locked(phc, ktime_get_ns()));
	ptp_read_system_postts(sts);
	spin_unlock_bh(&phc->lock);
	return 0;
}

/* This clock and the system's clock at the same instant. */
static int phc_getcrosststamp(struct ptp_clock_info *info, struct system_device_crosststamp *at)
{
	struct system_time_snapshot now;

	ktime_get_snapshot(&now);
	at->sys_realtime = now.real;
	at->sys_monoraw = now.raw;
	at->device = phc_show(phc_of(info), ktime_sub(now.real, ktime_mono_to_real(0)));
	return 0;
}

static int phc_settime(struct ptp_clock_info *info, const struct timespec64 *ts)
{
	struct phc *phc = phc_of(info);

	spin_lock_bh(&phc->lock);
	phc->began = ktime_get_ns();
	phc->base = timespec64_to_ns(ts);
	spin_unlock_bh(&phc->lock);
	return 0;
}

static int phc_adjtime(struct ptp_clock_info *info, s64 delta)
{
	struct phc *phc = phc_of(info);

	spin_lock_bh(&phc->lock);
	phc->base += delta;
	spin_unlock_bh(&phc->lock);
	return 0;
}

static int phc_adjfine(struct ptp_clock_info *info, long scaled_ppm)
{
	struct phc *phc = phc_of(info);
	u64 now;

	spin_lock_bh(&phc->lock);
	now = ktime_get_ns();
	phc->base = phc_at(phc, now);
	phc->began = now;
	phc->slew = scaled_ppm;
	spin_unlock_bh(&phc->lock);
	return 0;
}

static int phc_begin(struct phc *phc, int nr)
{
	phc->info = (struct ptp_clock_info) {
		.owner = THIS_MODULE,
		.max_adj = 100000000,
		.gettimex64 = phc_gettimex,
		.settime64 = phc_settime,
		.adjtime = phc_adjtime,
		.adjfine = phc_adjfine,
		.getcrosststamp = precise ? phc_getcrosststamp : NULL,
	};
	snprintf(phc->info.name, sizeof(phc->info.name), "latpath lab");
	spin_lock_init(&phc->lock);
	phc->nr = nr;
	phc->drift = (long)div_s64((s64)drift_ppb[nr] * 65536, 1000);
	phc->began = ktime_get_ns();
	/* The time of CLOCK_REALTIME at `began`, so two clocks without an offset show the same time. */
	phc->base = ktime_to_ns(ktime_mono_to_real(ns_to_ktime(phc->began))) + offset_ns[nr];
	phc->shown = phc->base;
	phc->ptp = ptp_clock_register(&phc->info, NULL);
	return PTR_ERR_OR_ZERO(phc->ptp);
}

int phcs_begin(void)
{
	int error = 0;
	uint i;

	if (phcs < 1 || phcs > NICS)
		return -EINVAL;
	for (i = 0; i < phcs && !error; i++)
		error = phc_begin(&clocks[i], i);
	if (error)
		phcs_end();
	return error;
}

void phcs_end(void)
{
	uint i;

	for (i = 0; i < NICS; i++)
		if (!IS_ERR_OR_NULL(clocks[i].ptp))
			ptp_clock_unregister(clocks[i].ptp);
}

struct phc *phc_of_nic(int nr)
{
	return &clocks[phcs == 1 ? 0 : nr];
}

int phc_index(const struct phc *phc)
{
	return ptp_clock_index(phc->ptp);
}

/* For tests: a time of CLOCK_MONOTONIC, and what each clock would show at that time if it were not frozen. */
static int truth_get(char *buffer, const struct kernel_param *kp)
{
	u64 now = ktime_get_ns();
	int length = sprintf(buffer, "%llu", now);
	uint i;

	for (i = 0; i < phcs; i++) {
		spin_lock_bh(&clocks[i].lock);
		length += sprintf(buffer + length, " %llu", phc_at(&clocks[i], now));
		spin_unlock_bh(&clocks[i].lock);
	}
	return length + sprintf(buffer + length, "\n");
}

static const struct kernel_param_ops truth_ops = { .get = truth_get };
module_param_cb(truth, &truth_ops, NULL, 0444);
MODULE_PARM_DESC(truth, "CLOCK_MONOTONIC, and the clocks at that moment, ns");
