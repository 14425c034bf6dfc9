/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Exit reasons of a vCPU. Their names are in crates/vms/src/exit_reason.rs. */
#ifndef LATPATH_KVM_H
#define LATPATH_KVM_H

#include "kernel.h"

#define NO_REASON 0xffffffff

/* Architecture or vendor that defines the reasons; the first two values are those of KVM's tracepoint. */
#define ISA_VMX 1
#define ISA_SVM 2
#define ISA_ARM 3

#if defined(__TARGET_ARCH_x86)
/* The tracepoint gets the reason from the vendor's module (kvm_x86_ops.get_exit_info), which keeps it in the struct
 * that contains the vCPU. */
static __always_inline __u32 exit_reason(struct kvm_vcpu *vcpu, __u32 isa)
{
	void *whole = vcpu;

	if (!vcpu)
		return NO_REASON;
	if (isa == ISA_SVM && bpf_core_field_exists(struct vcpu_svm, vmcb))
		return BPF_CORE_READ((struct vcpu_svm *)whole, vmcb, control.exit_code);
	if (isa == ISA_VMX && bpf_core_field_exists(struct vcpu_vmx, exit_reason))
		return BPF_CORE_READ((struct vcpu_vmx *)whole, exit_reason.full);
	if (isa == ISA_VMX && bpf_core_field_exists(struct vcpu_vmx___vt, vt))
		return BPF_CORE_READ((struct vcpu_vmx___vt *)whole, vt.exit_reason.full);
	return NO_REASON;
}
#else
/* arch/arm64/include/asm/kvm_asm.h: the exception class is valid only for traps; for other exits it is left over from
 * an earlier trap. */
static __always_inline __u32 exit_reason(int ret, __u32 class)
{
	__u32 code = ret & 0x7fffffff;

	return code == 2 ? class : 0x100 | (code > 0xff ? 0xff : code);
}
#endif

#endif
