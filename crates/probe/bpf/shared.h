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
#define MAX_OTHER_READERS 64 /* reading threads that have points at a time, beside those that the user named */
#define MAX_NAMED_READERS 64 /* names of readers */

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
	__u32 no_link; /* the device's packets have no Ethernet header */
	__u32 pad;
};

/* What a remark is about. What follows in its key: */
enum remark_kind {
	REMARK_SENDER_MAC = 1,        /* the source MAC of the stream's frames */
	REMARK_SENDER_IP4 = 2,        /* the source address of its packets */
	REMARK_SENDER_IP6 = 3,
	REMARK_FRAGMENT = 4,          /* nothing: packets come as several fragments, of which the first one is followed */
	REMARK_OTHER_VLAN = 5,        /* the VLAN of frames that are the stream's but for it; 0 of untagged ones */
	REMARK_OTHER_MAC = 6,         /* the same of their destination MAC */
	REMARK_OTHER_SOURCE = 7,      /* the same of their source address */
	REMARK_OTHER_DESTINATION = 8, /* the same of their destination address */
};

/* Identifies a remark: of a stream, at a device. */
struct remark_key {
	__u64 device; /* see identity */
	__u16 stream;
	__u8 what;
	__u8 kind; /* of the point */
	__u8 len;  /* bytes of value */
	__u8 pad[3];
	__u8 value[16];
};

struct remark {
	__u64 count; /* of the packets that were looked at for it; not of all */
	__u64 first;
	__u64 last;
	__u32 key; /* of the last packet */
	__u32 netns; /* inode number */
	__u8 name[16]; /* of the device */
};

/* The name of a reading thread, or its beginning: a comm fits where it equals `word` under `mask`. */
struct reader_name {
	__u64 word[2];
	__u64 mask[2];
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
