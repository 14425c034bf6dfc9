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

/* An untrusted pointer to the same struct, for reading its pointer fields. For each pointer field of a trusted struct
 * (an argument of a tracepoint, the current task), verifiers from 6.2 on look up whether the field is trusted too: they
 * compare some 100,000 names, which takes a millisecond of CPU time when loading. They skip this for an untrusted
 * struct and for all structs that it points to. A load through an untrusted pointer takes a nanosecond longer, so
 * numeric fields are read from the trusted struct. */
#define UNTRUSTED(p)                                                                                              \
	((__typeof__(p))(reads_directly() ? bpf_rdonly_cast((p), bpf_core_type_id_kernel(__typeof__(*(p)))) : (p)))

#endif
