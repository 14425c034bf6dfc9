/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The few kernel types that the programs read, cut down to the fields they use; CO-RE finds where this kernel keeps them. */
#ifndef LATPATH_FLIGHT_KERNEL_H
#define LATPATH_FLIGHT_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

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
	int prio;
	unsigned int policy;
	struct sched_entity se;
	int pid;
	int tgid;
	char comm[16];
};

/* Up to Linux 5.15 the CPU stands in the task itself. */
struct task_struct___with_cpu {
	unsigned int cpu;
};

/* From Linux 6.18 on each task is throttled by itself. */
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

struct net_device {
	char name[16];
	int ifindex;
};

struct napi_struct {
	struct net_device *dev;
};

struct kvm_vcpu {
	int vcpu_id;
};

/* arch/x86/kvm/svm/svm.h and vmx/vmx.h: in both the vCPU comes first. */
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

/* net/openvswitch/datapath.h */
struct dp_upcall_info {
	__u8 cmd;
};

#pragma clang attribute pop

#endif
