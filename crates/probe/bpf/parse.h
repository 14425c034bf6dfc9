/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Reading a frame: where its bytes lie, which streams it belongs to, which key it has. Nothing here trusts a byte of the
 * frame; what does not parse is counted as malformed, at worst.
 *
 * Sampled Values: IEC 61850-9-2, clause 8.5 and annex C for the link layer; BER: ITU-T X.690.
 */
#ifndef LATPATH_PARSE_H
#define LATPATH_PARSE_H

#define ETH_SV 0x88ba
#define ETH_IP 0x0800
#define ETH_IP6 0x86dd
#define ETH_VLAN 0x8100
#define ETH_QINQ 0x88a8
#define WINDOW 88 /* bytes of the frame that are fetched at once */
#define MAX_ASDU 16
#define MAX_FIELDS 10
#define OFF_MASK 0xfff /* no frame that matters is longer; keeps the verifier's view of an offset small */

/* A frame as the parser sees it: addresses are plain numbers, read through bpf_probe_read_kernel only. */
struct frame {
	__u64 base;     /* address of the Ethernet header */
	__u64 frag;     /* address of the first page fragment's bytes, 0 if none */
	__u32 linear;   /* bytes at base */
	__u32 frag_len; /* bytes at frag */
	__u32 have;     /* bytes in buf */
	__u32 appid;
	__u32 key;      /* what the short way read */
	__u32 work;     /* where this lies in the table of works */
	__u16 vlan;     /* VID, NONE if untagged */
	__u16 ethertype;
	__u8 buf[WINDOW];
};

static __always_inline int pull(struct frame *f, __u32 off, void *to, __u32 len)
{
	if (off + len <= f->linear)
		return bpf_probe_read_kernel(to, len, (void *)(f->base + off));
	if (off >= f->linear && off - f->linear + len <= f->frag_len)
		return bpf_probe_read_kernel(to, len, (void *)(f->frag + off - f->linear));
	return -1;
}

/* Fills buf with the frame's first bytes. */
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
	if (bpf_probe_read_kernel(f->buf, n, (void *)f->base))
		return -1;
	f->have = n;
	/* Drivers that page their frames leave just the headers linear; the rest of the window comes from the fragment. */
	if (f->frag_len && n < 32) {
		__u32 rest = f->frag_len;

		if (rest > WINDOW - 32)
			rest = WINDOW - 32;
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

/* A byte of the frame, -1 beyond its end. */
static __always_inline int byte_at(struct frame *f, __u32 off)
{
	off &= OFF_MASK;
	if (off < f->have && off < WINDOW)
		return f->buf[off];
	return far_byte(f, off);
}

static __always_inline int be16_at(struct frame *f, __u32 off)
{
	int hi = byte_at(f, off), lo = byte_at(f, off + 1);

	return (hi | lo) < 0 ? -1 : hi << 8 | lo;
}

/*
 * Reads a BER tag and length at *off, moves *off to the value, and returns tag << 16 | length; -1 if there is none, or it
 * reaches beyond `end`.
 */
__noinline int tlv(struct frame *f, __u32 *off, __u32 end)
{
	__u32 at, len;
	int tag, b;

	if (!f || !off)
		return -1;
	at = *off & OFF_MASK;
	tag = byte_at(f, at);
	b = byte_at(f, at + 1);
	if ((tag | b) < 0)
		return -1;
	at += 2;
	len = b;
	if (b & 0x80) {
		if (b == 0x81) {
			b = byte_at(f, at);
			at += 1;
		} else if (b == 0x82) {
			b = be16_at(f, at);
			at += 2;
		} else {
			return -1;
		}
		if (b < 0)
			return -1;
		len = b;
	}
	len &= 0xffff;
	if (at > end || len > end - at)
		return -1;
	*off = at;
	return tag << 16 | len;
}

static __always_inline int value_tag(int tl)
{
	return tl >> 16;
}

static __always_inline __u32 value_len(int tl)
{
	return tl & 0xffff;
}

/* Reads the Ethernet header and tags; returns the payload's offset, 0 if there is none. */
static __always_inline __u32 ethernet(struct frame *f)
{
	__u32 off = 14;
	int type;

	if (f->have < 18)
		return 0;
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
	f->ethertype = type;
	return off;
}

/* Whether the Ethernet filters of a stream let this frame pass. */
static __always_inline int link_passes(struct frame *f, struct stream_conf *s)
{
	__u8 filters = s->filters;

	if (!filters)
		return 1;
	if (filters & FILTER_VLAN && s->vlan != f->vlan)
		return 0;
	if (filters & FILTER_APPID && s->appid != f->appid)
		return 0;
	if (filters & FILTER_MAC) {
		for (int i = 0; i < 6; i++)
			if (s->mac[i] != f->buf[i])
				return 0;
	}
	return 1;
}

/* 32-bit hash of `len` bytes from `off`: FNV-1a by bytes, folded at the end. Same function: src/key.rs. */
__noinline int hash_bytes(struct frame *f, __u32 off, __u32 len, __u32 *out)
{
	__u32 h = 2166136261u;

	if (!f || !out)
		return -1;
	for (__u32 i = 0; i < 128; i++) {
		int b;

		if (i >= len)
			break;
		b = byte_at(f, off + i);
		if (b < 0)
			return -1;
		h = (h ^ (__u32)b) * 16777619u;
	}
	*out = h ^ h >> 15;
	return 0;
}

/* The key of a packet whose payload begins at `payload`, by a rule that is not smpCnt. */
static __always_inline int payload_key(struct frame *f, struct stream_conf *s, __u32 payload, __u32 *key)
{
	__u32 off = payload + s->key_off, k = 0;

	if (s->rule == KEY_HASH)
		return hash_bytes(f, off, s->key_len, key);
	for (int i = 0; i < 4; i++) {
		int b;

		if (i >= s->key_len)
			break;
		b = byte_at(f, off + i);
		if (b < 0)
			return -1;
		k = k << 8 | b;
	}
	*key = k;
	return 0;
}

#endif
