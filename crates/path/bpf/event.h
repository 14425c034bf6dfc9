/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The contract between the kernel programs of `path` and user space; the build makes the Rust twins. */
#ifndef LATPATH_PATH_EVENT_H
#define LATPATH_PATH_EVENT_H

#define MAX_PACKETS 4096 /* packets of one search */
#define MAX_CODE 1024    /* instructions of a pcap filter */
#define CAPTURE 2048     /* bytes of a frame that a pcap filter sees */
#define HASHED 128       /* bytes behind the ethertype that tell one packet from another */

enum event_kind { EVENT_FUNCTION = 0, EVENT_TRACEPOINT = 1, EVENT_COPY = 2 };

/* Tracepoints, in the order of the table in src/tracepoints.rs. */
enum tracepoint {
	TP_NET_DEV_QUEUE = 0,
	TP_NET_DEV_START_XMIT = 1,
	TP_NET_DEV_XMIT = 2,
	TP_NAPI_GRO_FRAGS_ENTRY = 3,
	TP_NAPI_GRO_RECEIVE_ENTRY = 4,
	TP_NETIF_RECEIVE_SKB_ENTRY = 5,
	TP_NETIF_RECEIVE_SKB_LIST_ENTRY = 6,
	TP_NETIF_RX_ENTRY = 7,
	TP_NETIF_RECEIVE_SKB = 8,
	TP_NETIF_RX = 9,
	TP_QDISC_ENQUEUE = 10,
	TP_QDISC_DEQUEUE = 11,
	TP_OVS_DP_UPCALL = 12,
	TP_OVS_DO_EXECUTE_ACTION = 13,
	TP_SKB_COPY_DATAGRAM_IOVEC = 14,
	TP_CONSUME_SKB = 15,
	TP_KFREE_SKB = 16,
	TRACEPOINTS = 17,
};

#define FLAG_NEW 1     /* the first event of a packet */
#define FLAG_ADOPTED 2 /* an skb that was not known is this packet: it has the same bytes */
#define FLAG_TAP 4     /* the device is a tun, tap or macvtap */
#define FLAG_MACVTAP 8 /* … a macvtap */
#define FLAG_SOCKET 16 /* a socket owns the skb */
#define FLAG_ARRIVED 32 /* the skb was received on a device */

struct event {
	__u64 t;
	__u64 skb;
	__u64 at; /* the function's address, or the tracepoint's number; of a copy, the function that made it */
	__u64 aux;   /* copy: the new skb; drop: the function that dropped it; upcall: its command */
	__u32 reason; /* drop */
	__u32 packet;
	__u32 netns;
	__u32 ifindex;
	__u32 pid;
	__u32 tid;
	__u32 len;
	__u16 cpu;
	__u8 kind;
	__u8 flags;
	__u8 comm[16];
	__u8 device[16];
};

/* One instruction of classic BPF, as libpcap makes it. */
struct instruction {
	__u16 code;
	__u8 jt;
	__u8 jf;
	__u32 k;
};

struct code {
	__u32 len; /* 0: no pcap filter */
	__u32 pad;
	struct instruction at[MAX_CODE];
};

/* What the interpreter is tried with: a frame, as a device would carry it. */
struct trial {
	__u32 len;
	__u32 verdict; /* what the filter returned */
	__u8 frame[CAPTURE];
};

#define FUNCTION_FREES 1 /* may run on an skb that is being freed */
#define FUNCTION_LAST 2  /* the last thing that happens to an skb */
#define FUNCTION_BEGINS 4 /* from here on the skb is being freed */

/* What user space says, and what was not seen. */
struct counts {
	__u64 open;           /* user space is ready: nothing is chosen before */
	__u64 events_lost;    /* the ring was full */
	__u64 skbs_lost;      /* copies: the table of followed skbs was full */
	__u64 packets_over;   /* packets that would have been chosen, had there not been enough */
	__u64 unreadable;     /* frames whose bytes could not be read */
	__u64 beyond;         /* frames of which the filter asked for more than the programs read (2048 bytes) */
	__u64 looked_at;      /* frames that the filter was run on */
	__u64 recursion_misses; /* runs that the kernel left out because the same program ran on that CPU: user space asks */
};

#endif
