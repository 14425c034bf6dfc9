/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * A vCPU thread's time by state: a state machine whose times add up to the wall clock, because each event ends one
 * state and begins the next at the same moment. It reads no clock and accesses only its arguments, so tests run it in
 * user space.
 */
#ifndef LATPATH_VCPU_TIME_H
#define LATPATH_VCPU_TIME_H

#include "bound.h"
#include "histogram.h"

/* States of a vCPU thread, with the same numbers as `VcpuState` in Rust. */
#define NOT_KNOWN 0   /* before its first event */
#define GUEST 1       /* runs guest code */
#define KERNEL 2      /* KVM handles an exit, or returns to the guest */
#define USER 3        /* in QEMU */
#define POLLING 4     /* the guest is halted, KVM polls */
#define ASLEEP 5      /* halted, or waiting in the kernel */
#define READY 6       /* runnable, another thread runs */
#define INTERRUPTED 7 /* an interrupt or softirq runs on its CPU */
#define TILES 8       /* a power of two */

#define REASONS 32    /* maximum number of rows; the first is NO_ROW */
#define NO_ROW 0      /* exits that began before the first event, or without a row for their reason */

/* All exits of one vCPU for one reason. */
struct row {
	struct coarse_histogram took;
	__u64 tiles[TILES];
};

struct vcpu {
	__u32 seq; /* odd during an update */
	__u32 tid;
	__u32 tgid;
	__u32 id; /* KVM's number of the vCPU */
	__u32 state;
	__u32 under; /* the state interrupted by an interrupt or another thread */
	__u32 depth; /* nesting depth of interrupts */
	__u32 row;   /* of the open exit */
	__u32 early; /* exit with a pending reason: host activity preceded KVM's exit event */
	__u32 gone;  /* whether the thread has ended, at `since` */
	__u32 used;  /* a bit for each nonzero tile of `open` */
	__u32 pad;
	__u64 from;  /* start of its window */
	__u64 until;
	__u64 since; /* start of the state */
	__u64 exit_at; /* start of the open exit; 0: none, or before the window */
	__u64 guest;
	__u64 open[TILES]; /* times of the open exit */
	__u64 slept_at;    /* first sleep of a halt */
	__u64 kernel_at_sleep;
	__u64 window; /* maximum polling time of the next halt, ns */
	__u64 entries;
	__u64 exits;
	__u64 to_user;
	__u64 halts;
	__u64 waits; /* halts in which it slept */
	__u64 injected;
	__u64 skipped; /* events during the update of another event */
};

/* Ends the state and begins another. */
static __always_inline void turn(struct vcpu *v, __u64 now, __u32 state)
{
	__u64 took = now > v->since ? now - v->since : 0;

	if (v->state == GUEST) {
		v->guest += took;
	} else {
		__u32 tile = v->state;

		BOUND(tile, TILES);
		v->open[tile] += took;
		v->used |= 1u << tile;
	}
	v->state = state;
	v->since += took;
}

/* Sets the state before the first event, which the event implies. */
static __always_inline void was(struct vcpu *v, __u32 state)
{
	if (v->state == NOT_KNOWN)
		v->state = state;
}

/* Ends the open exit: adds it to its reason's row. */
static __always_inline void close_exit(struct vcpu *v, struct row *row)
{
	__u32 i;

	/* Most exits are handled in KVM alone, so the loop is rarely needed. */
	row->tiles[KERNEL] += v->open[KERNEL];
	v->open[KERNEL] = 0;
	if (v->used & ~(1u << KERNEL)) {
		for (i = 0; i < TILES; i++) {
			row->tiles[i] += v->open[i];
			v->open[i] = 0;
		}
	}
	v->used = 0;
	if (v->exit_at)
		histogram_add(&row->took, v->since - v->exit_at);
	v->exit_at = 0;
	v->early = 0;
	v->slept_at = 0;
	v->row = NO_ROW;
}

static __always_inline void on_entry(struct vcpu *v, __u64 now, struct row *row)
{
	v->entries++;
	was(v, KERNEL);
	turn(v, now, GUEST);
	close_exit(v, row);
}

/* `row`: row of the previous exit, which is still open if KVM entered the guest without an event. */
static __always_inline void on_exit(struct vcpu *v, __u64 now, __u32 reason_row, struct row *row)
{
	v->exits++;
	was(v, GUEST);
	if (v->early) {
		turn(v, now, v->state);
		v->early = 0;
	} else {
		_Bool unseen_entry = v->state != GUEST;

		turn(v, now, KERNEL);
		if (unseen_entry)
			close_exit(v, row);
		v->exit_at = v->since;
	}
	v->row = reason_row;
}

static __always_inline void on_user_exit(struct vcpu *v, __u64 now)
{
	v->to_user++;
	was(v, KERNEL);
	turn(v, now, USER);
}

/* KVM_RUN begins. */
static __always_inline void on_run(struct vcpu *v, __u64 now)
{
	was(v, USER);
	if (v->state == USER)
		turn(v, now, KERNEL);
}

static __always_inline void on_switch_out(struct vcpu *v, __u64 now, _Bool ready)
{
	if (!v->depth)
		v->under = v->state;
	v->depth = 0;
	if (v->state == GUEST)
		v->under = KERNEL;
	turn(v, now, v->state == NOT_KNOWN ? NOT_KNOWN : ready ? READY : ASLEEP);
	if (!ready && !v->slept_at) {
		v->slept_at = now;
		v->kernel_at_sleep = v->open[KERNEL];
	}
}

static __always_inline void on_wakeup(struct vcpu *v, __u64 now)
{
	if (v->state == ASLEEP || v->state == NOT_KNOWN) {
		was(v, ASLEEP);
		turn(v, now, READY);
	}
}

static __always_inline void on_switch_in(struct vcpu *v, __u64 now)
{
	v->depth = 0;
	turn(v, now, v->under);
}

static __always_inline void on_interrupt(struct vcpu *v, __u64 now)
{
	if (v->depth++ || v->state == NOT_KNOWN)
		return;
	v->under = v->state;
	/* KVM on AMD (before Linux 6.5) and on ARM reports the exit only after the interrupt has been handled, so the exit
	 * begins here. */
	if (v->state == GUEST) {
		v->under = KERNEL;
		turn(v, now, INTERRUPTED);
		v->exit_at = v->since;
		v->early = 1;
		return;
	}
	turn(v, now, INTERRUPTED);
}

static __always_inline void on_interrupt_end(struct vcpu *v, __u64 now)
{
	if (!v->depth)
		return;
	if (!--v->depth && v->state == INTERRUPTED)
		turn(v, now, v->under);
}

/*
 * The guest was halted for `ns`. KVM polled until the thread slept, or throughout, but no longer than its maximum
 * polling time.
 */
static __always_inline void on_halt_end(struct vcpu *v, __u64 now, __u64 ns, _Bool waited)
{
	__u64 from = now - ns, to = now, most, polled;

	v->halts++;
	v->waits += waited;
	was(v, KERNEL);
	turn(v, now, v->state);
	most = v->open[KERNEL];
	if (v->slept_at > from) {
		to = v->slept_at;
		most = v->kernel_at_sleep;
	}
	polled = to > from ? to - from : 0;
	if (polled > most)
		polled = most;
	if (polled > v->open[KERNEL])
		polled = v->open[KERNEL];
	if (polled > v->window)
		polled = v->window;
	v->open[KERNEL] -= polled;
	v->open[POLLING] += polled;
	v->used |= 1u << POLLING;
	v->slept_at = 0;
}

static __always_inline void on_thread_end(struct vcpu *v, __u64 now)
{
	turn(v, now, v->state);
	v->gone = 1;
}

#endif
