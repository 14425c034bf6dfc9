/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* GOOSE: IEC 61850-8-1, annex A. Identified by goID, or by gocbRef if goID is missing. Key: the low 16 bits of stNum,
 * then those of sqNum. */
#include "iec61850.h"

#define GOOSE_FIELDS 8

/* The low 16 bits of an INTEGER of `len` bytes at `off`; -1 if it does not fit in 32 bits. */
static __always_inline int goose_number(struct frame *f, __u32 off, __u32 len)
{
	if (len < 1 || len > 5)
		return -1;
	return len == 1 ? byte_at(f, off) : be16_at(f, off + len - 2);
}

/* Returns -1 for a malformed frame. */
__noinline int match_goose(struct frame *f, __u32 off, struct found *out)
{
	struct named n = { .payload = off };
	int end, st_num = -1;

	if (!f || !out)
		return -1;
	end = pdu(f, &off, 0x61);
	if (end < 0)
		return -1;
	for (int i = 0; i < GOOSE_FIELDS; i++) {
		int tl, tag, number;

		off &= OFF_MASK;
		tl = tlv(f, &off, end);
		if (tl < 0)
			return -1;
		tag = value_tag(tl);
		if (tag == 0x80 || (tag == 0x83 && value_len(tl))) { /* goID comes after gocbRef and replaces it */
			n.name_off = off;
			n.name_len = value_len(tl);
		} else if (tag == 0x85) {
			st_num = goose_number(f, off, value_len(tl));
		} else if (tag == 0x86) {
			number = goose_number(f, off, value_len(tl));
			if ((st_num | number) < 0 || !n.name_len)
				return -1;
			n.key = st_num << 16 | number;
			add_named(f, out, PROTOCOL_GOOSE, &n);
			return 0;
		}
		off += value_len(tl);
	}
	return -1;
}
