/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Reads kernel memory by direct loads; a faulting load yields zeros. Linux 6.2 and later. */
#ifndef LATPATH_DIRECT_H
#define LATPATH_DIRECT_H

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* Whether the kernel supports direct loads. The verifier removes the branch that is not taken. */
static __always_inline int reads_directly(void)
{
	return bpf_ksym_exists(bpf_rdonly_cast);
}

/*
 * A pointer to the same struct, through which fields that are pointers are read. For each such field of a struct that it trusts (an
 * argument of a tracepoint, the current task) a verifier from 6.2 on looks up whether the field is trusted too: it compares some 100,000
 * names, a millisecond in which the CPU of the loading thread does nothing else. For fields of an untrusted struct, and of all structs
 * that it points to, it does not. A load from it takes a nanosecond more, so fields that are numbers are read from the trusted struct.
 */
#define UNTRUSTED(p)                                                                                              \
	((__typeof__(p))(reads_directly() ? bpf_rdonly_cast((p), bpf_core_type_id_kernel(__typeof__(*(p)))) : (p)))

#endif
