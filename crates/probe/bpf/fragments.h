/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Bytes of a packet outside its linear part: a jumbo frame sent through a packet socket has only 14 linear bytes. From
 * Linux 6.11 on, the kernel copies these bytes for programs at tracepoints; on older kernels, find_fragment finds the
 * first page fragment. */
#ifndef LATPATH_FRAGMENTS_H
#define LATPATH_FRAGMENTS_H

extern int LINUX_KERNEL_VERSION __kconfig;
extern int bpf_dynptr_from_skb(struct sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym __weak;

#define FRAGMENT_BYTES 16384 /* OFF_MASK + 1 */

struct fragment_bytes {
	__u8 byte[FRAGMENT_BYTES];
};

/* One copy per scratch buffer. */
MAP(fragment_copies, ARRAY, SCRATCHES, __u32, struct fragment_bytes);

/* The kfunc is older than Linux 6.11, but was not available to tracepoint programs. */
static __always_inline int loads_fragments(void)
{
	return LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 11, 0) && bpf_ksym_exists(bpf_dynptr_from_skb);
}

/* Copies the bytes beyond the linear part, as far as any stream may need them. */
static __noinline int load_fragments(struct frame *f, struct sk_buff *skb)
{
	__u32 at = f->scratch, linear = skb->len - skb->data_len, len = skb->data_len;
	__u32 reach = is_ip(skb->protocol) ? selection.reach_ip : selection.reach;
	struct fragment_bytes *to = bpf_map_lookup_elem(&fragment_copies, &at);
	struct bpf_dynptr bytes;

	if (!to || bpf_dynptr_from_skb(skb, 0, &bytes))
		return -1;
	if (len > reach)
		len = reach;
	BOUND(len, FRAGMENT_BYTES);
	if (bpf_dynptr_read(to->byte, len, &bytes, linear, 0))
		return -1;
	f->frag = (__u64)to->byte;
	f->frag_len = len;
	return 0;
}

#endif
