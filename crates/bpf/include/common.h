/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Shared by all kernel programs: checks for verifiers and compilers, and the location of a packet's bytes. */
#ifndef LATPATH_COMMON_H
#define LATPATH_COMMON_H

#include "bound.h"

/* Defined by newer libbpf. */
#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif

/* Kernel addresses have at least the upper 8 bits set: they begin at 0xff00… with five-level page tables on x86, at
 * 0xfff0… with 52-bit addresses on arm64. In skbs of a socket, the field skb->dev holds other data, with an upper byte
 * of 0 or 1. */
static __always_inline int is_kernel_address(__u64 p)
{
	return p >> 56 == 0xff;
}

/* The VLAN tag that the NIC or the stack removed from a frame, as protocol << 16 | TCI; 0 if none was removed. */
static __always_inline __u32 removed_tag(void *skb, __be16 protocol, __u16 tci)
{
	struct sk_buff___with_vlan_present *old = skb;

	if (bpf_core_field_exists(old->vlan_present)) {
		if (!BPF_CORE_READ_BITFIELD_PROBED(old, vlan_present))
			return 0;
	} else if (!(protocol | tci)) {
		return 0;
	}
	return (__u32)bpf_ntohs(protocol) << 16 | tci;
}

#ifdef __TARGET_ARCH_x86
/* Base addresses of the struct page array and of the direct mapping. */
extern const void vmemmap_base __ksym __weak;
extern const void page_offset_base __ksym __weak;
#endif

/*
 * Finds the first page fragment of an skb whose shared info is at `end`. The index of its struct page in vmemmap gives
 * the address of the page; if vmemmap is unknown, no fragment is found.
 */
static __always_inline void find_fragment(__u64 end, __u64 *at, __u32 *len)
{
#ifdef __TARGET_ARCH_x86
	struct fragment fragment = {};
	__u64 maps = 0, direct = 0;

	if (!&vmemmap_base || !&page_offset_base)
		return;
	if (bpf_probe_read_kernel(&maps, 8, &vmemmap_base) || bpf_probe_read_kernel(&direct, 8, &page_offset_base))
		return;
	end += bpf_core_field_offset(struct skb_shared_info, frags);
	if (bpf_probe_read_kernel(&fragment, sizeof(fragment), (void *)end))
		return;
	if (fragment.page & 1 || fragment.page < maps) /* no struct page: device memory */
		return;
	*at = direct + ((fragment.page - maps) / bpf_core_type_size(struct page) << 12) + fragment.off;
	*len = fragment.len;
#endif
}

/* From linux/if_arp.h, which programs cannot include. */
#define ARPHRD_ETHER 1
#define ARPHRD_LOOPBACK 772

/* Whether frames of a device of this type begin with an Ethernet header. */
static __always_inline int is_ethernet(__u16 type)
{
	return type == ARPHRD_ETHER || type == ARPHRD_LOOPBACK;
}

/* Kinds of devices that the programs distinguish, by the driver's rtnl_link_ops.kind. */
enum device_kind { DEVICE_NIC, DEVICE_TAP, DEVICE_MACVTAP, DEVICE_OTHER };

static __always_inline enum device_kind device_kind(const struct rtnl_link_ops *ops)
{
	char kind[8] = {};

	if (!ops)
		return DEVICE_NIC;
	bpf_probe_read_kernel_str(kind, sizeof(kind), BPF_CORE_READ(ops, kind));
	if (!__builtin_memcmp(kind, "tun", 4))
		return DEVICE_TAP;
	return __builtin_memcmp(kind, "macvtap", 7) ? DEVICE_OTHER : DEVICE_MACVTAP;
}

#endif
