/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The contract between the recorder's programs and user space. The build generates the Rust types from the type
 * information of the compiled programs.
 */
#ifndef LATPATH_FLIGHT_EVENT_H
#define LATPATH_FLIGHT_EVENT_H

#define NAMES 16384 /* entries of the table of thread names, indexed by pid modulo NAMES; a later thread overwrites an earlier one */

/* The numbers are part of the agent's protocol and of runs: add new kinds at the end. */
enum kind {
	SWITCH = 1,          /* b: next pid, prev's state << 32; c: prev prio, next prio << 16, prev policy << 32, next policy << 40, flags << 48 */
	WAKING = 2,          /* b: pid, its CPU << 32; c: prio, policy << 32, flags << 48 */
	WAKEUP = 3,          /* the same */
	MIGRATE = 4,         /* b: pid, new CPU << 32; c: old CPU */
	IRQ_ENTRY = 5,       /* b: number */
	IRQ_EXIT = 6,        /* b: number */
	SOFTIRQ_RAISE = 7,   /* b: vector */
	SOFTIRQ_ENTRY = 8,   /* b: vector */
	SOFTIRQ_EXIT = 9,    /* b: vector */
	VECTOR_ENTRY = 10,   /* b: enum vector */
	VECTOR_EXIT = 11,    /* b: enum vector */
	NMI = 12,            /* at its end; b: ns that the handler took, c: the handler */
	NAPI_POLL = 13,      /* b, c: the device's name; absent for the CPU's own backlog; precedes: */
	NAPI_WORK = 14,      /* b: work, budget << 32; c: interface index, 0 for the CPU's own backlog */
	IDLE = 15,           /* b: state; ~0: leaves idle */
	TIMER_ENTRY = 16,    /* b: function */
	TIMER_EXIT = 17,
	HRTIMER_ENTRY = 18,  /* b: function */
	HRTIMER_EXIT = 19,
	KVM_ENTRY = 20,      /* b: vCPU */
	KVM_EXIT = 21,       /* b: vCPU, reason << 32; c: encoding of the reason: 1 VMX, 2 SVM, 3 ARM */
	KVM_HALT_POLL = 22,  /* b: vCPU, new << 32; c: old */
	KVM_VCPU_WAKEUP = 23,/* b: ns; c: waited, valid << 1 */
	KVM_INJ_VIRQ = 24,   /* b: vector */
	WORK_START = 25,     /* b: function */
	WORK_END = 26,
	OVS_UPCALL = 27,     /* b: command */
	RECLAIM_BEGIN = 28,  /* the thread frees memory before its allocation */
	RECLAIM_END = 29,
	PAGE_FAULTS = 30,    /* before SWITCH; b: page faults of the thread since it was switched in */
	BLOCKED_AT = 31,     /* before SWITCH; b, c: kernel addresses, callee first; 0: none. The next event continues */
	/* The following events are only recorded for transfers (transfers.h). */
	EVENTFD_SIGNAL = 32, /* b: eventfd */
	EVENTFD_READ = 33,   /* b: eventfd */
	VHOST_ROUND = 34,    /* b: eventfd of the kick, of the interrupt << 32; c: 1 if packets go to the guest */
	KVM_IRQFD = 35,      /* b: eventfd, interrupt << 32 */
	KVM_REGISTER_READ = 36,
	KVM_REGISTER_WRITE = 37, /* b: address or port; c: 1 for a port, value << 1 */
	KVM_RAISE_LINE = 38, /* b: number */
	KVM_RAISE_MESSAGE = 39, /* b: data; c: address */
	KVM_ACCEPT = 40,     /* b: vector; c: vCPU */
	KVM_POSTED = 41,     /* the same */
	KVM_END = 42,        /* b: vector */
	TAP_ARRIVE = 43,     /* b: interface index, network namespace << 32 */
	TAP_READ = 44,       /* the same */
	TAP_WRITE = 45,      /* the same */
};

enum vector {
	LOCAL_TIMER = 1,
	RESCHEDULE = 2,
	CALL_FUNCTION = 3,
	CALL_FUNCTION_SINGLE = 4,
	IRQ_WORK = 5,
	PLATFORM_IPI = 6,
	THERMAL = 7,
	IPI = 8, /* of any kind, on ARM */
};

#define FEW_FAULTS 64 /* minimum page faults for an event */
#define SKIPPED 5     /* functions at the top of a stack that belong to the recorder and the scheduler */
#define DEPTH 4       /* functions after them that are recorded for a blocked thread */
/* Reading a stack takes 1 to 2 µs, so at most STACKS are read per CPU in STACKS_NS. */
#define STACKS 10
#define STACKS_NS 10000000

#define FLAG_PREEMPTED 1
#define FLAG_THROTTLED 2 /* its control group had exhausted its quota */

/* Marks an unknown vCPU or reason. */
#define UNKNOWN 0xffffffff

struct event {
	__u64 time; /* CLOCK_MONOTONIC */
	__u32 pid;  /* the running thread */
	__u16 kind;
	__u16 generation; /* written last: marks the event as complete */
	__u64 b;
	__u64 c;
};

/* State of a CPU's ring, which keeps the last ring_size events before `next`. */
struct head {
	__u64 next;
	__u64 limit;   /* place at which the CPU needs another part of the budget; all ones without a budget */
	__u64 refused; /* program runs that recorded nothing, because the budget was used up */
	__u64 faults;  /* page faults of this thread before it was switched in */
	__u32 pid;
	__u32 stacks; /* stacks read since */
	__u64 stacks_since;
	__u64 cost_ns; /* total cost of cost_samples events, measured after reading their time */
	__u64 cost_samples;
};

#define BUDGET_EVENTS 256 /* events per part of the budget */

/* The recording budget: a bucket that fills with time, and from which each CPU takes parts. Its level is stored as a
 * time: the budget is used up to `used_until`. Taking a part advances that time; while little is recorded, the present
 * overtakes it. */
struct allowance {
	__u64 part_ns;    /* time in which the budget allows one part */
	__u64 burst_ns;   /* maximum distance of used_until from the present */
	__u64 used_until; /* CLOCK_MONOTONIC */
	__u64 stopped;    /* when the budget was used up; 0 while events are recorded. Cleared by user space */
};

struct name {
	__u32 pid; /* written last; BUSY during the write */
	__u32 tgid;
	__u32 flags; /* PF_* */
	__u32 pad;
	__u8 comm[16];
};

#define BUSY 0xffffffff

#endif
