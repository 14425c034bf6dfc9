/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The contract between the programs at Open vSwitch's datapaths and user space. The build generates the Rust types from
 * the type information of the compiled programs.
 */
#ifndef LATPATH_FLIGHT_UPCALLS_H
#define LATPATH_FLIGHT_UPCALLS_H

#define FLOW_KEY_BYTES 640 /* maximum size of struct sw_flow_key: some 500 bytes in current kernels */
#define FLOW_CPUS 1024     /* maximum number of CPUs whose statistics of a flow are read */
#define NEVER_USED 0xffffffffffffffff

enum datapath_event {
	FLOW_INSERTED = 1, /* with key and mask */
	FLOW_REMOVED = 2,  /* with key and mask; packets, idle */
	TABLE_FLUSHED = 3, /* all flows of the table were removed */
	UPCALL_SENT = 4,   /* with the packet's key; command, port */
	UPCALL_LOST = 5,   /* the last upcall of this CPU did not reach its socket */
	UPCALL_READ = 6,   /* by a handler of ovs-vswitchd; port */
	QUEUE_EMPTY = 7,   /* a handler found no upcall; port */
	REPLY_SENT = 8,    /* a handler sends messages to the kernel */
};

struct datapath_record {
	__u64 time;    /* CLOCK_MONOTONIC */
	__u64 table;   /* address of the datapath's flow table */
	__u64 packets; /* packets that matched the flow */
	__u64 idle;    /* jiffies since the last one, or NEVER_USED */
	__u32 event;
	__u32 cpu;
	__u32 pid;     /* the running thread */
	__u32 tgid;
	__u32 flows;   /* number of flows in the table, before the event */
	__u32 port;    /* number of the netlink socket */
	__u32 command; /* OVS_PACKET_CMD_* */
	__u16 start;   /* the part of the key that the mask covers */
	__u16 end;
	__u8 comm[16]; /* the running thread's name */
};

/* A record that is followed by a packet's key. */
struct upcall_record {
	struct datapath_record head;
	__u8 key[FLOW_KEY_BYTES];
};

/* A record that is followed by a flow's masked key and its mask. */
struct flow_record {
	struct datapath_record head;
	__u8 key[FLOW_KEY_BYTES];
	__u8 mask[FLOW_KEY_BYTES];
};

#endif
