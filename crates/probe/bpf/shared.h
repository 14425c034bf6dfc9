/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The contract between the kernel programs and user space: what both keep in shared maps. The build makes the Rust twin of
 * every struct from the type information of the compiled programs.
 */
#ifndef LATPATH_SHARED_H
#define LATPATH_SHARED_H

#define MAX_STREAMS 256
#define MAX_POINTS 32        /* points of one machine */
#define SVID_SHORT 32        /* svIDs up to this length take the open table */
#define SVID_PLACES 2048
#define SVID_PROBES 4
#define SVID_LONG 135
#define NONE 0xffff

enum stream_kind { KIND_SV = 0, KIND_UDP = 1, KIND_ETHER = 2 };
enum key_rule { KEY_SMPCNT = 0, KEY_SEQ = 1, KEY_HASH = 2 };
#define KINDS 13 /* of points */
#define CACHE 32 /* devices that a CPU knows, for each kind of point */
enum point_kind {
	POINT_TX = 0,
	POINT_NIC_RX = 1,
	POINT_VM_READ = 2,
	POINT_APP_READ = 3,
	POINT_DROP = 4,
	POINT_VM_WRITE = 5, /* user space's name for nic-rx at a tap, and tx at a macvtap */
	POINT_TX_DONE = 6,
	POINT_OVS_EXEC = 7,
	POINT_OVS_UPCALL = 8,
	POINT_OVS_SLOW = 9,
	POINT_OVS_RETURN = 10,
	POINT_XDP_REDIRECT = 11,
	POINT_XSK_RX = 12,
};

#define FILTER_APPID 1
#define FILTER_MAC 2
#define FILTER_VLAN 4
#define FILTER_SRC 8
#define FILTER_DST 16

/* One stream as the user asked for it. Streams with the same svID hang together by `next`. */
struct stream_conf {
	__u8 kind;
	__u8 rule;
	__u8 filters;
	__u8 ip_version;
	__u16 key_off;
	__u16 key_len;
	__u16 appid;
	__u16 vlan;
	__u16 ethertype;
	__u16 next;
	__u16 src_port;
	__u16 dst_port;
	__u8 mac[6];
	__u8 pad[2];
	__u8 src[16];
	__u8 dst[16];
};

/* svIDs up to 32 bytes: an open table that user space fills, each within SVID_PROBES places of where its hash says. */
struct svid_short {
	__u64 word[4]; /* the bytes, zeros behind them */
	__u16 len;
	__u16 simple; /* one stream alone, by smpCnt, without filters: nothing else of the frame is asked for */
	__u32 first;  /* stream plus one; 0 is an empty place */
	__u64 pad[3];
};

struct svid_long {
	__u8 len;
	__u8 id[SVID_LONG];
};

/* Identifies a point. For app-read the device is the thread's name. */
struct point_key {
	__u32 netns;
	__u32 ifindex;
	__u8 kind;
	__u8 pad[7];
	__u8 comm[16];
};

struct point_entry {
	struct point_key key;
	__u8 device[16];
	__u8 link[16];
	__u32 valid;
	__u32 pad;
};

/* One sighting on its way to user space. `lap` is written last: it says that the record is whole. */
struct record {
	__u64 t;
	__u64 aux; /* drop: location in the low 48 bits, reason above */
	__u32 key;
	__u32 tid;
	__u16 stream;
	__u16 cpu;
	__u8 point;
	__u8 pad;
	__u16 lap;
};

/*
 * What a CPU knows of a device and its point: the device's identity (namespace and index), and the same with the point's index
 * laid over its upper five bits. An interrupt may refill an entry between its two stores; then they do not match.
 */
struct cached {
	__u64 device;
	__u64 with_point;
};

/* One CPU's counters and its ring's ends. `tail` is written by user space alone, on a cache line of its own. */
struct percpu {
	__u64 head;
	__u64 dropped;
	__u64 malformed;
	__u64 points_overflow;
	__u64 unreadable;
	__u64 others; /* packets that were looked at and are in no stream */
	__u64 pad0[2];
	__u64 cost_ns;
	__u64 cost_samples;
	__u64 pad1[6];
	__u64 tail;
	__u64 pad2[7];
	struct cached known[KINDS][CACHE];
};

#endif
