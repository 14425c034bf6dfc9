/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* PTP event messages: IEEE 1588-2019, clause 13.3. Over Ethernet, or UDP to port 319; key: sequenceId. */
#include "ip.h"

struct ptp_conf {
	__u8 source[10]; /* sourcePortIdentity */
	__u16 domain;
	__u16 has_domain;
	__u8 message;
	__u8 has_source;
};

#define PTP_EVENT_PORT 319
#define PTP_HEADER 34
#define PTP_CHUNKS 48 /* bytes read: the header rounded up to whole chunks */

__noinline int match_ptp(struct frame *f, __u32 payload, struct found *out)
{
	__u32 l4 = 0;
	__u8 h[PTP_CHUNKS] = {};

	if (!f || !out)
		return 0;
	if (f->ethertype == ETH_IP || f->ethertype == ETH_IP6) {
		payload = udp_header(f, payload, &l4);
		if (!payload || be16_at(f, l4 + 2) != PTP_EVENT_PORT)
			return 0;
	}
	payload &= OFF_MASK;
	if (fetch_all(f, payload, h, PTP_HEADER, PTP_CHUNKS) || (h[1] & 15) != 2)
		return -1;
	FOR_EACH_STREAM(PROTOCOL_PTP, stream, s) {
		struct ptp_conf *conf = (void *)s->protocol_bytes;
		int same = 1;

		if (conf->message != (h[0] & 15) || (conf->has_domain && conf->domain != h[4]))
			continue;
		for (int i = 0; i < 10; i++)
			same &= conf->source[i] == h[20 + i];
		if (same || !conf->has_source)
			add_stream(f, out, stream, payload, h[30] << 8 | h[31]);
	}
	return 0;
}
