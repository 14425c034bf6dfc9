/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The contract between the kernel programs and user space: what both keep in shared maps. The build makes the Rust twin of
 * every struct from the type information of the compiled programs.
 */
#ifndef LATPATH_SHARED_H
#define LATPATH_SHARED_H

#include "point_kinds.h"

#define MAX_POINTS 255 /* points of one machine at a time */
#define REFUSED_POINT 255 /* one that nobody requested */
#define KNOWN_KEYS 4096 /* points and refused points that are remembered */
#define CACHE 32 /* devices that a CPU knows, for each kind of point */

/* Identifies a point. For app-read the device is the thread's name. */
struct point_key {
	__u32 space; /* the namespace: see space_of */
	__u32 ifindex;
	__u8 kind;
	__u8 pad[7];
	__u8 comm[16];
};

struct point_entry {
	struct point_key key;
	__u8 device[16];
	__u8 link[16];
	__u32 valid; /* set when the rest is written; user space takes it back when it releases the index */
	__u32 netns; /* inode number */
};

/* One sighting on its way to user space. `generation` is written last: it says that the record is whole. */
struct record {
	__u64 t;
	__u64 aux; /* drop: location in the low 48 bits, reason above */
	__u32 key;
	__u32 tid;
	__u16 stream;
	__u16 cpu;
	__u8 point;
	__u8 synch; /* Sampled Values: smpSynch plus one, 0 where it was not read */
	__u16 generation; /* times that the ring was written round, with the top bit set */
};

/*
 * What a CPU knows of a device and its point: the device's identity (namespace and index), and the same with the point's index
 * laid over its upper eight bits. An interrupt may refill an entry between its two stores; then they do not match.
 */
struct cached {
	__u64 device;
	__u64 with_point;
};

/*
 * One CPU's counters and its ring's ends. What a sighting needs is in the first cache line, what is rare in the second.
 * `tail` is written by user space alone, on a cache line of its own.
 */
struct percpu {
	__u64 head;
	__u64 tail_seen; /* `tail` as it was when there seemed to be no room */
	__u64 sample_mask; /* keys with any of these bits are left out */
	__u64 others; /* packets that were looked at and are in no stream */
	__u64 cost_ns;
	__u64 cost_samples;
	__u64 cpu; /* set by user space before the programs are attached */
	__u64 left_out; /* sightings of packets that are not in the sample */
	__u64 dropped;
	__u64 malformed;
	__u64 points_overflow;
	__u64 unreadable;
	__u64 points_of_others; /* that were refused: in network namespaces of other user namespaces */
	__u64 pad1[3];
	__u64 tail;
	__u64 pad2[7];
	struct layout layouts[LAYOUTS];
	struct cached known[POINT_KINDS][CACHE];
};

#endif
