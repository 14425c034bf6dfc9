/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* UDP flows over IPv4 and IPv6. */
#include "ip.h"

struct udp_conf {
	__u8 src[16];
	__u8 dst[16];
	__u16 src_port; /* 0: any */
	__u16 dst_port;
	__u8 ip_version; /* 0: either */
	__u8 has_src;
	__u8 has_dst;
};

static __noinline int udp_address_is(struct frame *f, __u32 off, const __u8 *address, __u32 len)
{
	if (!f || !address)
		return 0;
	for (__u32 i = 0; i < 16; i++) {
		if (i >= len)
			break;
		if (byte_at(f, off + i) != address[i])
			return 0;
	}
	return 1;
}

__noinline int match_udp(struct frame *f, __u32 ip, struct found *out)
{
	__u32 l4 = 0, payload, len, version;
	int src_port, dst_port;

	if (!f || !out)
		return 0;
	payload = udp_header(f, ip, &l4);
	if (!payload)
		return 0;
	src_port = be16_at(f, l4);
	dst_port = be16_at(f, l4 + 2);
	if ((src_port | dst_port) < 0)
		return 0;
	version = f->ethertype == ETH_IP ? 4 : 6;
	len = version == 4 ? 4 : 16;
	FOR_EACH_STREAM(PROTOCOL_UDP, stream, s) {
		struct udp_conf *conf = (void *)s->protocol_bytes;

		int is_to, is_from;

		if (conf->ip_version && conf->ip_version != version)
			continue;
		is_to = !conf->dst_port || conf->dst_port == dst_port;
		if (is_to && conf->has_dst)
			is_to = udp_address_is(f, version == 4 ? ip + 16 : ip + 24, conf->dst, len);
		/* A packet with another destination is a near match only if the stream specifies a source and the packet has it. */
		if (!is_to && !conf->has_src)
			continue;
		is_from = !conf->src_port || conf->src_port == src_port;
		if (is_from && conf->has_src)
			is_from = udp_address_is(f, version == 4 ? ip + 12 : ip + 8, conf->src, len);
		if (!is_from && (!is_to || !conf->has_dst))
			continue;
		add_stream_unless(f, out, stream << 16 | (payload & OFF_MASK), 0,
				  !is_to ? DIFFERENCE_DESTINATION : !is_from ? DIFFERENCE_SOURCE : 0);
	}
	return 0;
}
