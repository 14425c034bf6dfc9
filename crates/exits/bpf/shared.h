/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Types shared by the programs and user space, in addition to vcpu_time.h. */
#ifndef LATPATH_EXITS_SHARED_H
#define LATPATH_EXITS_SHARED_H

#define MARKS 1024      /* words of 64 threads; a power of two */
#define CODES 2048      /* hash slots of reason codes; a power of two */
#define NO_ID 0xffffffff

#define VECTORS 256     /* of interrupts; a power of two */
#define DELIVERY_MODES 8 /* a power of two */

/* Slot of the vCPU thread that a CPU runs; 0 for any other thread. */
struct here {
	__u32 slot;
	__u32 pad[15];
};

/* Interrupts that a vCPU's virtual APIC accepted. */
struct interrupts {
	__u64 accepted[VECTORS];
	__u64 posted[VECTORS]; /* delivered by the CPU itself (APICv, AVIC) */
	/* By delivery mode (arch/x86/include/asm/apicdef.h): 0 and 1 have vectors; 2 SMI, 4 NMI, 5 INIT, 6 start-up IPI
	 * (SIPI). */
	__u64 modes[DELIVERY_MODES];
};

#define PROCESS_EVENTS 16384

/* State of the event counters. */
struct event_count {
	__u32 on;
	__u32 pad;
	__u64 no_room;
};

struct process_event {
	__u32 pid;
	__u32 event;
};

struct shared {
	__u32 next_slot; /* from 1 */
	__u32 next_row;  /* from 1 */
	__u32 isa;
	__u32 pad;
	__u64 from; /* the window */
	__u64 until;
	__u64 no_room; /* entries of vCPUs without a slot */
	__u64 accepted; /* interrupts accepted by virtual APICs of unknown vCPUs */
	__u64 marks[MARKS];
	__u32 reasons[REASONS];
	__u8 row_of_code[CODES];
};

#endif
