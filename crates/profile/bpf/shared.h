/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs and user space share. */
#ifndef LATPATH_PROFILE_SHARED_H
#define LATPATH_PROFILE_SHARED_H

#define FRAMES 128 /* of a call chain, in the kernel and in user space each; a power of two, one more than the kernel gives */
#define GUEST 1    /* the vCPU's thread ran its guest */
#define KERNEL_THREAD 2

/* One CPU. */
struct here {
	__u64 since;        /* until then its time is added up */
	__u64 unattributed; /* ns of threads for which there was no room */
	__u64 lost;         /* samples for which the ring had no room */
	__u32 tid;          /* who runs there */
	__u32 watched;
	__u64 pad[3];
	__u32 inside; /* the vCPU's thread that is in its guest here */
	__u32 more;
};

/* A thread; idle threads have all the same number, so each is told by its CPU. */
struct thread {
	__u32 tid;
	__u32 cpu; /* of an idle thread; 0 of any other */
};

/* What a thread is, and for how long it ran. */
struct thread_time {
	__u64 ns;
	__u32 tgid;
	__u32 flags;
	char comm[16];
	char process[16]; /* the name of its process's first thread */
};

struct sample {
	__u64 t;
	__u32 cpu;
	__u32 tid;
	__u32 tgid;
	__u32 flags;
	__u32 kernel; /* frames in the kernel, innermost first; none: it ran in user space */
	__u32 user;   /* frames in user space, behind those */
	char comm[16];
	char process[16];
	__u64 frames[2 * FRAMES];
};

struct shared {
	__u64 from; /* the window; nothing is counted before user space sets it */
	__u64 until;
	__u32 threads; /* entries of the table of threads */
	__u32 calls; /* entries of the table of system calls */
	__u64 absences_lost; /* for which the ring had no room */
	__u64 calls_lost; /* system calls for which the table had no room */
};

/* How long a vCPU was in its guest. */
struct guest_time {
	__u64 ns;
	__u64 since; /* it is in it; 0: it is not, or no event of it has come */
	__u32 seen;  /* an event of it has come */
	__u32 pad;
};

#define SHORTEST_ABSENCE (5000) /* ns; clocks are rarely known so well that a shorter one says anything */

/* A time in which a vCPU was not in its guest. */
struct absence {
	__u64 from;
	__u64 until;
	__u32 tid;
	__u32 pad;
};

/* A system call of a thread. A thread's number may be that of an ended thread of another process. */
struct call {
	__u32 tid;
	__u32 tgid;
	__u32 nr; /* an ioctl's: its request << 16 | its number */
};

struct call_time {
	__u64 count;
	__u64 ns;
	__u64 longest;
	__u64 failed;
	char comm[16];
};

/* One that has not returned. */
struct open_call {
	__u64 since;
	__u32 nr;
	__u32 pad;
};

#endif
