/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Redundant networks (IEC 62439-3): a sender sends each packet over two LANs. PRP appends a trailer (clause 4.1.8), HSR
 * inserts a tag (clause 5.1.3). */
#ifndef LATPATH_REDUNDANCY_H
#define LATPATH_REDUNDANCY_H

enum lan { LAN_A = 1, LAN_B = 2 };

#define LAN_SHIFT 62 /* position of the LAN in the identity of a device and LAN */

#define PRP_TRAILER 6 /* bytes: sequence number, LAN and size, suffix */
#define PRP_SUFFIX 0x88fb
#define HSR_TAG 6 /* bytes after its ethertype: path and size, sequence number, ethertype of the payload */

/* The LAN of an HSR tag: the lowest bit of its path identifier is the sender's port number. */
static __always_inline __u32 hsr_lan(__u32 path)
{
	return path >> 12 & 1 ? LAN_B : LAN_A;
}

/* The LAN of a PRP trailer, from its 16-bit field of LAN and size, and its suffix; 0 if these do not form a trailer.
 * `size`: bytes of the frame after the Ethernet header and its tags. */
static __always_inline __u32 prp_lan(__u32 field, __u32 suffix, __u32 size)
{
	if (likely(suffix != PRP_SUFFIX) || field >> 13 != 0xa >> 1 || (field & 0xfff) != size)
		return 0;
	return field >> 12 & 1 ? LAN_B : LAN_A;
}

/* Like prp_lan, but from the last eight bytes of a frame of `len` bytes, in native byte order, with up to two 802.1Q
 * tags. */
static __always_inline __u32 lan_of_end(__u64 last, __u32 len)
{
	__u32 field = __builtin_bswap16(last >> 32), size = len - 14;

	if (likely(last >> 48 != __builtin_bswap16(PRP_SUFFIX)))
		return 0;
	if ((field & 0xfff) == size - 4 || (field & 0xfff) == size - 8)
		size = field & 0xfff;
	return prp_lan(field, PRP_SUFFIX, size);
}

#endif
