/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Protocols over UDP. */
#ifndef LATPATH_IP_H
#define LATPATH_IP_H

#define IP_UDP 17
#define IP6_FRAGMENT 44

/* Reads an IPv4 or IPv6 header at `off` and the UDP header after it. Returns the offset of the payload; 0 if the packet
 * is not UDP. In a fragmented packet, only the first fragment contains the ports. */
static __always_inline __u32 udp_header(struct frame *f, __u32 off, __u32 *l4)
{
	int b = byte_at(f, off);
	__u32 at;

	int next, place;

	if (f->ethertype == ETH_IP) {
		if (b < 0 || b >> 4 != 4 || (b & 15) < 5 || byte_at(f, off + 9) != IP_UDP)
			return 0;
		place = be16_at(f, off + 6);
		if (place < 0 || place & 0x1fff)
			return 0;
		f->fragment = place >> 13 & 1;
		at = off + (b & 15) * 4;
	} else {
		if (b < 0 || b >> 4 != 6)
			return 0;
		next = byte_at(f, off + 6);
		at = off + 40;
		if (next == IP6_FRAGMENT) {
			next = byte_at(f, at);
			place = be16_at(f, at + 2);
			if (place < 0 || place & 0xfff8)
				return 0;
			f->fragment = place & 1;
			at += 8;
		}
		if (next != IP_UDP)
			return 0;
	}
	*l4 = at;
	return at + 8;
}

#endif
