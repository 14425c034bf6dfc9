/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs and user space share, beside vcpu_time.h. */
#ifndef LATPATH_EXITS_SHARED_H
#define LATPATH_EXITS_SHARED_H

#define MARKS 1024      /* words of 64 threads; a power of two */
#define CODES 2048      /* places of reasons; a power of two */
#define NO_ID 0xffffffff

/* The slot of the vCPU thread that a CPU runs; 0: another thread. */
struct here {
	__u32 slot;
	__u32 pad[15];
};

struct shared {
	__u32 next_slot; /* from 1 on */
	__u32 next_row;  /* from 1 on */
	__u32 isa;
	__u32 pad;
	__u64 from; /* the window */
	__u64 until;
	__u64 no_room; /* entries of vCPUs that got no slot */
	__u64 accepted;
	__u64 marks[MARKS];
	__u32 reasons[REASONS];
	__u8 row_of_code[CODES];
};

#endif
