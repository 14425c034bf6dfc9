/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Building blocks of Sampled Values and GOOSE frames: the link layer of IEC 61850 (8-1 and 9-2, annex C), and BER
 * (ITU-T X.690).
 */
#ifndef LATPATH_BER_H
#define LATPATH_BER_H

/* Reads a BER tag and length at *off, moves *off to the value, and returns tag << 16 | length; -1 if there is no valid
 * element that ends by `end`. */
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

/* Reads the link layer at *off and the outermost element, which must have tag `tag`. Moves *off into the element and
 * returns its end; -1 if there is no such element. */
static __always_inline int pdu(struct frame *f, __u32 *off, int tag)
{
	__u32 end;
	int b = be16_at(f, *off), tl;

	if (b < 0)
		return -1;
	f->appid = b;
	b = be16_at(f, *off + 2);
	if (b < 8)
		return -1;
	end = *off + b; /* APPID to the end of the PDU */
	if (end > f->len || end > OFF_MASK)
		return -1;
	*off += 8;
	tl = tlv(f, off, end);
	return tl < 0 || value_tag(tl) != tag ? -1 : (int)(*off + value_len(tl));
}

#endif
