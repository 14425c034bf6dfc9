/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Types shared by the programs and user space. */
#ifndef LATPATH_PROFILE_SHARED_H
#define LATPATH_PROFILE_SHARED_H

/* Maximum number of kernel frames, and of user-space frames; a power of two, one more than the kernel returns. */
#define FRAMES 128
#define GUEST 1    /* the vCPU's thread ran its guest */
#define KERNEL_THREAD 2

/* One CPU. */
struct here {
	__u64 since;        /* time until which its time is accounted */
	__u64 unattributed; /* ns of threads for which the table had no room */
	__u64 lost;         /* samples for which the ring had no room */
	__u32 tid;          /* the running thread */
	__u32 watched;
	__u64 pad[3];
	__u32 inside; /* the vCPU thread in its guest on this CPU */
	__u32 more;
};

/* A thread. All idle threads have TID 0, so `cpu` distinguishes them. */
struct thread {
	__u32 tid;
	__u32 cpu; /* for idle threads; otherwise 0 */
};

/* Identity and run time of a thread. */
struct thread_time {
	__u64 ns;
	__u32 tgid;
	__u32 flags;
	char comm[16];
	char process[16]; /* name of the process's main thread */
};

struct sample {
	__u64 t;
	__u32 cpu;
	__u32 tid;
	__u32 tgid;
	__u32 flags;
	__u32 kernel; /* number of kernel frames, innermost first; 0: in user space */
	__u32 user;   /* number of user-space frames, after the kernel's */
	char comm[16];
	char process[16];
	__u64 frames[2 * FRAMES];
};

struct shared {
	__u64 from; /* the window; no counting before user space sets it */
	__u64 until;
	__u32 threads; /* entries of the table of threads */
	__u32 calls; /* entries of the table of system calls */
	__u64 absences_lost; /* absences for which the ring had no room */
	__u64 calls_lost; /* system calls for which the table had no room */
};

/* Guest time of a vCPU. */
struct guest_time {
	__u64 ns;
	__u64 since; /* time of the entry; 0: outside the guest, or no event yet */
	__u32 seen;  /* whether an event was seen */
	__u32 pad;
};

/* Minimum recorded absence, ns: guests' clocks are rarely precise enough to check shorter ones. */
#define SHORTEST_ABSENCE (5000)

/* An interval in which a vCPU was outside its guest. */
struct absence {
	__u64 from;
	__u64 until;
	__u32 tid;
	__u32 pad;
};

/* A system call of a thread. A TID may be reused by another process, so `tgid` is part of the key. */
struct call {
	__u32 tid;
	__u32 tgid;
	__u32 nr; /* for an ioctl: request << 16 | number */
};

struct call_time {
	__u64 count;
	__u64 ns;
	__u64 longest;
	__u64 failed;
	char comm[16];
};

/* A system call that has not returned. */
struct open_call {
	__u64 since;
	__u32 nr;
	__u32 pad;
};

#endif
