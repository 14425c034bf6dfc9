/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Types of the maps shared by the kernel programs and user space. The build generates the Rust types from the type
 * information of the compiled programs.
 */
#ifndef LATPATH_SHARED_H
#define LATPATH_SHARED_H

#include "point_kinds.h"

#define MAX_POINTS 255 /* concurrent points per machine */
#define REFUSED_POINT 255 /* a point that was not requested */
#define KNOWN_KEYS 4096 /* remembered points, refused ones included */
#define CACHE 32 /* cached devices per CPU and kind of point */
#define MAX_OTHER_READERS 64 /* concurrent points of readers that the user did not name */
#define MAX_NAMED_READERS 64 /* names of readers */

/* Identity of a point. For app-read, the thread's name (`comm`) takes the place of the device. */
struct point_key {
	__u32 space; /* the namespace, and the LAN: see space_of and with_lan */
	__u32 ifindex;
	__u8 kind;
	__u8 lan; /* of redundant networks: enum lan, 0 for packets without one */
	__u8 pad[6];
	__u8 comm[16];
};

struct point_entry {
	struct point_key key;
	__u8 device[16];
	__u8 link[16];
	__u32 valid; /* set after the other fields; cleared by user space when it releases the index */
	__u32 netns; /* inode number */
	__u16 no_link; /* the device's packets have no Ethernet header */
	__u8 mac[6]; /* the device's MAC address if a program set it; 0 if the kernel chose it at random */
};

/* Kinds of remarks. The comments describe the value in the key. */
enum remark_kind {
	REMARK_SENDER_MAC = 1,        /* the source MAC of the stream's frames */
	REMARK_SENDER_IP4 = 2,        /* the source address of its packets */
	REMARK_SENDER_IP6 = 3,
	REMARK_FRAGMENT = 4,          /* none: packets arrive in several fragments; only the first is followed */
	REMARK_OTHER_VLAN = 5,        /* VLAN of frames that differ from the stream in it; 0 if untagged */
	REMARK_OTHER_MAC = 6,         /* likewise, destination MAC */
	REMARK_OTHER_SOURCE = 7,      /* likewise, source address */
	REMARK_OTHER_DESTINATION = 8, /* likewise, destination address */
};

/* Identity of a remark on a stream at a device. */
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
	__u64 count; /* of examined packets, which are a sample */
	__u64 first;
	__u64 last;
	__u32 key; /* of the last packet */
	__u32 netns; /* inode number */
	__u8 name[16]; /* of the device */
};

/* Name of a reading thread, or its prefix: a comm matches if it equals `word` under `mask`. */
struct reader_name {
	__u64 word[2];
	__u64 mask[2];
};

/* A sighting for user space. `generation` is written last and marks the record as complete. */
struct record {
	__u64 t;
	/* At drops: location in the low 48 bits, drop reason in the top 16. At points of NIC timestamps: the time by the NIC's
	 * clock. Elsewhere: the last eight bytes of the frame as a big-endian number, where a talker writes its send time (0
	 * if not read). */
	__u64 aux;
	__u32 key;
	__u32 tid;
	__u16 stream;
	__u16 cpu;
	__u8 point;
	__u8 synch; /* Sampled Values: smpSynch + 1; 0 if not read */
	__u16 generation; /* number of passes over the ring, with the top bit set */
};

/* A CPU's cached device and its point. `device`: the device's identity (namespace, index, LAN); `with_point`: the same
 * identity, XORed with the point's index in the upper eight bits. If an interrupt replaces the entry between the two
 * stores, the two do not match, and the entry is not used. */
struct cached {
	__u64 device;
	__u64 with_point;
};

/* Counters of one CPU, and head and tail of its ring. The first cache line holds the fields used for every sighting,
 * the second the rarely used ones. Only user space writes `tail`, which is in a separate cache line. */
struct percpu {
	__u64 head;
	__u64 tail_seen; /* `tail` when room last seemed short */
	__u64 sample_mask; /* keys with any of these bits set are not sampled */
	__u64 others; /* examined packets of no stream */
	__u64 cost_ns;
	__u64 cost_samples;
	__u64 cpu; /* set by user space before the programs are attached */
	__u64 left_out; /* sightings of packets outside the sample */
	__u64 dropped;
	__u64 malformed;
	__u64 points_overflow;
	__u64 unreadable;
	__u64 points_of_others; /* refused points in network namespaces of other user namespaces */
	__u64 stamps_of_driver; /* packets whose arrival time only their driver can read */
	__u64 pad1[2];
	__u64 tail;
	__u64 pad2[7];
	struct layout layouts[LAYOUTS];
	struct cached known[POINT_KINDS][CACHE];
};

#endif
