/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Reads a frame: its bytes in the linear part and in fragments, its Ethernet header, a hash of its bytes. No byte of
 * the frame is trusted.
 */
#ifndef LATPATH_FRAME_H
#define LATPATH_FRAME_H

#include "redundancy.h"

#define ETH_IP 0x0800
#define ETH_ARP 0x0806
#define ETH_IP6 0x86dd
#define ETH_VLAN 0x8100
#define ETH_QINQ 0x88a8
#define ETH_HSR 0x892f
#define WINDOW 88 /* bytes of the frame that are fetched at once */
#define OFF_MASK 0x3fff /* above any relevant frame (MTU 9000); bounds an offset for the verifier */

/* A frame for the parser. Addresses are numbers, dereferenced by bpf_probe_read_kernel only. */
struct frame {
	__u64 base;     /* address of the Ethernet header, or of the IP header without one (no_link) */
	__u64 frag;     /* address of the bytes in page fragments, or of a copy of them; 0 if none */
	__u32 linear;   /* bytes at base */
	__u32 frag_len; /* bytes at frag, which follow those at base */
	__u32 len;      /* length of the frame; bytes neither at base nor at frag cannot be read */
	__u32 have;     /* bytes in buf */
	__u32 appid;
	__u32 synch;    /* Sampled Values: smpSynch + 1; 0 if not read */
	__u32 scratch;  /* index of this entry in the table of scratch memory */
	__u16 vlan;     /* VID; 0 for untagged and priority-tagged frames (802.1Q) */
	__u16 ethertype;
	__u16 no_link;  /* the device's packets have no Ethernet header: tun, WireGuard, GRE */
	__u16 fragment; /* IP: the packet is the first one of several fragments */
	__u32 lan;      /* redundant networks (redundancy.h): LAN_A or LAN_B; 0 for other frames */
	__u8 buf[WINDOW + 8]; /* the last 8 bytes are never written */
};

static __always_inline int pull(struct frame *f, __u32 off, void *to, __u32 len)
{
	if (off + len <= f->linear)
		return bpf_probe_read_kernel(to, len, (void *)(f->base + off));
	if (off >= f->linear && off - f->linear + len <= f->frag_len)
		return bpf_probe_read_kernel(to, len, (void *)(f->frag + off - f->linear));
	return -1;
}

/* Copies the frame's first bytes to buf. */
static __always_inline int fill(struct frame *f)
{
	__u32 n = f->linear;

	if (n >= WINDOW) {
		f->have = WINDOW;
		return bpf_probe_read_kernel(f->buf, WINDOW, (void *)f->base);
	}
	__builtin_memset(f->buf, 0, WINDOW);
	if (n < 14)
		return -1;
	BOUND(n, 128); /* 6.1 forgets the bound of a spilled register */
	if (n > WINDOW || bpf_probe_read_kernel(f->buf, n, (void *)f->base))
		return -1;
	f->have = n;
	/* Some drivers leave only the headers in the linear part; the rest of the window is then in the fragment. */
	if (f->frag_len && n < 32) {
		__u32 rest = f->frag_len;

		if (rest > WINDOW - 32)
			rest = WINDOW - 32;
		BOUND(rest, 64); /* likewise */
		if (!bpf_probe_read_kernel(f->buf + (n & 31), rest, (void *)f->frag))
			f->have = n + rest;
	}
	return 0;
}

__noinline int far_byte(struct frame *f, __u32 off)
{
	__u8 b = 0;

	if (!f || pull(f, off, &b, 1))
		return -1;
	return b;
}

/* Returns a byte of the frame; -1 beyond its end. */
static __always_inline int byte_at(struct frame *f, __u32 off)
{
	off &= OFF_MASK;
	if (off < f->have && off < WINDOW)
		return f->buf[off];
	return far_byte(f, off);
}

__noinline int be16_at(struct frame *f, __u32 off)
{
	int hi, lo;

	if (!f)
		return -1;
	hi = byte_at(f, off);
	lo = byte_at(f, off + 1);
	return (hi | lo) < 0 ? -1 : hi << 8 | lo;
}

/* Removes the PRP trailer from a frame whose bytes after the Ethernet header and its tags begin at `payload`. */
static __always_inline void remove_trailer(struct frame *f, __u32 payload)
{
	__u32 end = f->linear + f->frag_len;
	__u8 last[PRP_TRAILER] = {};

	if (end != f->len || end < payload + PRP_TRAILER || pull(f, end - PRP_TRAILER, last, PRP_TRAILER))
		return;
	f->lan = prp_lan(last[2] << 8 | last[3], last[4] << 8 | last[5], f->len - payload);
	if (!f->lan)
		return;
	f->len -= PRP_TRAILER;
	if (f->frag_len)
		f->frag_len -= PRP_TRAILER;
	else
		f->linear -= PRP_TRAILER;
	if (f->have > f->len)
		f->have = f->len;
}

/* Reads the Ethernet header with 802.1Q and HSR tags; returns the offset of the payload, or -1 if there is none. A
 * separate function, so that the verifier follows the code after the call once, not once per number of tags. */
__noinline int ethernet(struct frame *f)
{
	__u32 off = 14;
	int type;

	if (!f)
		return -1;
	if (f->no_link)
		return 0;
	if (f->have < 18)
		return -1;
	type = f->buf[12] << 8 | f->buf[13];
	if (type == ETH_VLAN || type == ETH_QINQ) {
		f->vlan = (f->buf[14] << 8 | f->buf[15]) & 0xfff;
		type = f->buf[16] << 8 | f->buf[17];
		off = 18;
		if ((type == ETH_VLAN || type == ETH_QINQ) && f->have >= 22) {
			f->vlan = (f->buf[18] << 8 | f->buf[19]) & 0xfff;
			type = f->buf[20] << 8 | f->buf[21];
			off = 22;
		}
	}
	if (type == ETH_HSR) {
		int path = be16_at(f, off), inner = be16_at(f, off + 4);

		if ((path | inner) < 0)
			return -1;
		f->lan = hsr_lan(path);
		type = inner;
		off += HSR_TAG;
	}
	f->ethertype = type;
	if (!f->lan)
		remove_trailer(f, off);
	return off;
}

#define CHUNK 16

struct chunk {
	__u8 byte[CHUNK];
};

/* Copies `len` bytes from `off`, at most one chunk, from the linear part and the fragment. */
__noinline int fetch(struct frame *f, __u32 off, __u32 len, struct chunk *to)
{
	if (!f || !to)
		return -1;
	off &= OFF_MASK;
	len = len < CHUNK ? len : CHUNK;
	BOUND(len, 2 * CHUNK);
	if (!pull(f, off, to->byte, len))
		return 0;
	for (__u32 i = 0; i < CHUNK && i < len; i++)
		if (pull(f, off + i, &to->byte[i], 1))
			return -1;
	return 0;
}

/*
 * Copies `len` bytes from `off`, at most `most` (a constant), from the linear part and the fragment. The size of `to`
 * is a multiple of a chunk.
 */
static __always_inline int fetch_all(struct frame *f, __u32 off, void *to, __u32 len, __u32 most)
{
	if (!pull(f, off & OFF_MASK, to, len))
		return 0;
	for (__u32 i = 0; i < most; i += CHUNK) {
		if (i >= len)
			break;
		if (fetch(f, off + i, len - i, to + i))
			return -1;
	}
	return 0;
}

/* Computes a 32-bit hash of `len` bytes (at most 128) from `off`: FNV-1a by bytes, folded at the end. */
__noinline int hash_bytes(struct frame *f, __u32 off, __u32 len, __u32 *out)
{
	__u32 h = 2166136261u;
	struct chunk c = {};

	if (!f || !out)
		return -1;
	for (__u32 done = 0; done < 128 && done < len; done += CHUNK) {
		if (fetch(f, off + done, len - done, &c))
			return -1;
		for (__u32 i = 0; i < CHUNK && done + i < len; i++)
			h = (h ^ c.byte[i]) * 16777619u;
	}
	*out = h ^ h >> 15;
	return 0;
}

#endif
