/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Sampled Values: IEC 61850-9-2, clause 8.5. Identified by the svID of any ASDU in the frame; key: smpCnt. */
#include "iec61850.h"

#define SV_ASDUS 16
#define SV_FIELDS 10

/* Reads the ASDU whose fields are in [off, end), up to smpSynch. Returns 0 if it has svID and smpCnt. If a field is
 * repeated, the first one counts, as on the fast path. */
__noinline int sv_asdu(struct frame *f, __u32 off, __u32 end, struct named *a)
{
	int have = 0, synch;

	if (!f || !a)
		return -1;
	for (int i = 0; i < SV_FIELDS; i++) {
		int tl;

		off &= OFF_MASK;
		if (off >= end)
			break;
		tl = tlv(f, &off, end);
		if (tl < 0)
			break;
		if (value_tag(tl) == 0x80 && !(have & 1)) {
			a->name_off = off;
			a->name_len = value_len(tl);
			if (!a->name_len)
				return -1;
			have |= 1;
		} else if (value_tag(tl) == 0x82 && !(have & 2)) {
			int cnt = be16_at(f, off);

			if (value_len(tl) != 2 || cnt < 0)
				return -1;
			a->key = cnt;
			have |= 2;
		} else if (value_tag(tl) == 0x85) {
			synch = value_len(tl) == 1 ? byte_at(f, off) : -1;
			f->synch = synch >= 0 && synch < 0xff ? synch + 1 : 0;
			break;
		}
		off += value_len(tl);
	}
	return have == 3 ? 0 : -1;
}

/* Returns -1 for a malformed frame. */
__noinline int match_sv(struct frame *f, __u32 off, struct found *out)
{
	struct named a = { .payload = off };
	int tl = 0, pdu_end;
	__u32 end;

	if (!f || !out)
		return -1;
	pdu_end = pdu(f, &off, 0x60);
	if (pdu_end < 0)
		return -1;
	end = pdu_end;
	for (int i = 0; i < 4; i++) {
		off &= OFF_MASK;
		tl = tlv(f, &off, end);
		if (tl < 0)
			return -1;
		if (value_tag(tl) == 0xa2)
			break;
		off += value_len(tl);
	}
	if (value_tag(tl) != 0xa2)
		return -1;
	end = off + value_len(tl);
	for (int i = 0; i < SV_ASDUS; i++) {
		__u32 asdu_end;

		off &= OFF_MASK;
		if (off >= end)
			return i ? 0 : -1;
		tl = tlv(f, &off, end);
		if (tl < 0 || value_tag(tl) != 0x30)
			return -1;
		asdu_end = off + value_len(tl);
		if (sv_asdu(f, off, asdu_end, &a))
			return -1;
		add_named(f, out, PROTOCOL_SV, &a);
		off = asdu_end;
	}
	return 0;
}
