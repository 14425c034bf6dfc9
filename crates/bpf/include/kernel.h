/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The kernel types that the programs read, reduced to the fields they use. CO-RE relocates each access to the field's
 * offset in the running kernel, so the build needs no generated vmlinux.h and works on any machine. A new field or type
 * must be added here.
 */
#ifndef LATPATH_KERNEL_H
#define LATPATH_KERNEL_H

/* skb_frag_t is a struct bio_vec in some kernels and a separate struct in others; both have this layout. */
struct fragment {
	__u64 page;
	__u32 len;
	__u32 off;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct user_namespace {
	int level; /* 0: the initial namespace */
};

struct net {
	struct user_namespace *user_ns;
	struct ns_common ns;
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct rtnl_link_ops {
	const char *kind;
};

struct net_device {
	char name[16];
	int ifindex;
	unsigned short type;
	unsigned char addr_assign_type;
	const unsigned char *dev_addr;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
};

struct sock;
struct xdp_sock;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned int len;
	unsigned int data_len;
	int skb_iif;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__be16 protocol;
	__u16 mac_header;
	__u16 network_header;
	__u8 pkt_type : 3;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
};

/* A frame in XDP. */
struct xdp_rxq_info {
	struct net_device *dev;
};

struct xdp_buff {
	void *data;
	void *data_end;
	struct xdp_rxq_info *rxq;
};

struct xdp_frame {
	void *data;
	__u32 len; /* 16 bits wide in some kernels */
};

/* drivers/net/tun.c */
struct tun_struct {
	struct net_device *dev;
};

/* Open vSwitch, net/openvswitch/flow.h, flow_table.h and datapath.h */
struct sw_flow_key {
	__u32 recirc_id;
};

struct sw_flow_key_range {
	unsigned short start;
	unsigned short end;
};

struct sw_flow_mask {
	struct sw_flow_key_range range;
	struct sw_flow_key key;
};

struct sw_flow_stats {
	__u64 packet_count;
	unsigned long used;
};

struct sw_flow {
	struct sw_flow_key key;
	struct sw_flow_mask *mask;
	struct sw_flow_stats *stats[1];
};

struct flow_table {
	unsigned int count;
};

struct datapath {
	struct flow_table table;
};

struct dp_upcall_info {
	__u32 portid;
	__u8 cmd;
};

/* include/linux/net.h, net/netlink/af_netlink.h */
struct socket {
	struct sock *sk;
};

struct netlink_sock {
	__u32 portid;
};

/* Up to Linux 6.1, a separate bit marks vlan_tci as valid; if it is clear, vlan_tci may be stale. */
struct sk_buff___with_vlan_present {
	__u8 vlan_present : 1;
};

struct nsproxy {
	struct net *net_ns;
};

struct thread_info {
	__u32 cpu;
};

struct cfs_rq {
	int throttle_count;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	int prio;
	unsigned int policy;
	struct sched_entity se;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct nsproxy *nsproxy;
	char comm[16];
};

/* Up to Linux 5.15, the CPU number is a field of task_struct itself. */
struct task_struct___with_cpu {
	unsigned int cpu;
};

/* From Linux 6.18 on, tasks are throttled individually. */
struct task_struct___throttled {
	_Bool throttled;
};

struct hrtimer {
	void *function;
};

struct timer_list {
	void *function;
};

struct work_struct {
	void *func;
};

struct skb_shared_hwtstamps {
	__s64 hwtstamp;
};

struct skb_shared_info {
	__u8 nr_frags;
	__u8 tx_flags;
	struct skb_shared_hwtstamps hwtstamps;
	struct fragment frags[1];
};

/* A type with a long byte array that exists in every kernel; direct loads use it as their type. */
struct new_utsname {
	char sysname[65];
};

struct page {
	unsigned long flags;
};

struct napi_struct {
	struct net_device *dev;
};

/* include/linux/pid.h */
struct upid {
	int nr;
};

struct pid {
	struct upid numbers[1];
};

struct kvm_vcpu {
	int vcpu_id;
	unsigned int halt_poll_ns;
	struct pid *pid;
};

/* arch/x86/kvm/lapic.h */
struct kvm_lapic {
	struct kvm_vcpu *vcpu;
	_Bool apicv_active;
};

/* Before Linux 5.19 */
struct kvm_vcpu_arch {
	_Bool apicv_active;
};

struct kvm_vcpu___apicv {
	struct kvm_vcpu_arch arch;
};

/* fs/eventfd.c */
struct eventfd_ctx {
	int id;
};

struct file {
	void *private_data;
};

struct kiocb {
	struct file *ki_filp;
};

struct wait_queue_entry {
	unsigned int flags;
};

/* include/linux/kvm_irqfd.h */
struct kvm_kernel_irqfd {
	struct wait_queue_entry wait;
	int gsi;
	struct eventfd_ctx *eventfd;
};

/* drivers/vhost/vhost.h and net.c */
struct vhost_work {
	unsigned long flags;
};

struct vhost_poll {
	struct vhost_work work;
};

struct vhost_vring_call {
	struct eventfd_ctx *ctx;
};

struct mm_struct {
	struct task_struct *owner;
};

struct vhost_dev {
	struct mm_struct *mm;
	struct vhost_virtqueue **vqs;
	int nvqs;
};

struct vhost_virtqueue {
	struct vhost_dev *dev;
	unsigned int num;
	void *avail;
	struct file *kick;
	struct vhost_vring_call call_ctx;
	struct vhost_poll poll;
	void *handle_kick;
	__u16 last_avail_idx;
	__u16 last_used_idx;
	void *private_data;
	__u64 acked_features;
};

/* Linux 6.18 and later: heads come in batches; nheads has the number of heads in each. */
struct vhost_virtqueue___batches {
	__u16 *nheads;
};

struct vhost_net_virtqueue {
	struct vhost_virtqueue vq;
	unsigned long vhost_hlen;
	unsigned long sock_hlen;
};

struct vhost_net {
	struct vhost_net_virtqueue vqs[2];
	struct vhost_poll poll[2];
};

/* arch/x86/kvm/svm/svm.h and vmx/vmx.h: both structs begin with the vCPU. */
struct vmcb_control_area {
	__u32 exit_code;
};

struct vmcb {
	struct vmcb_control_area control;
};

struct vcpu_svm {
	struct vmcb *vmcb;
};

union vmx_exit_reason {
	__u32 full;
};

struct vcpu_vmx {
	union vmx_exit_reason exit_reason;
};

/* Linux 6.16 and later: arch/x86/kvm/vmx/common.h */
struct vcpu_vt {
	union vmx_exit_reason exit_reason;
};

struct vcpu_vmx___vt {
	struct vcpu_vt vt;
};

#pragma clang attribute pop

#endif
