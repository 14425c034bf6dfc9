/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Protocols over UDP. */
#ifndef LATPATH_IP_H
#define LATPATH_IP_H

/* Reads an IPv4 or IPv6 UDP header at `off`. Returns the payload's offset, 0 if it is no UDP. */
static __always_inline __u32 udp_header(struct frame *f, __u32 off, __u32 *l4)
{
	int b = byte_at(f, off);
	__u32 at;

	if (f->ethertype == ETH_IP) {
		if (b < 0 || b >> 4 != 4 || byte_at(f, off + 9) != 17)
			return 0;
		if (be16_at(f, off + 6) & 0x1fff) /* a later fragment has no ports */
			return 0;
		at = off + (b & 15) * 4;
	} else {
		if (b < 0 || b >> 4 != 6 || byte_at(f, off + 6) != 17)
			return 0;
		at = off + 40;
	}
	*l4 = at;
	return at + 8;
}

#endif
