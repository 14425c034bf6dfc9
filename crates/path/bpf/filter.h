/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* An interpreter for classic BPF (Linux: Documentation/networking/filter.rst), for the filters that libpcap generates.
 * It works on a copy of the frame as it was on the wire: a tag that the NIC removed is put back. The state is kept in
 * memory, so that the verifier checks the execution of an instruction once, instead of every path through a filter. */
#ifndef LATPATH_PATH_FILTER_H
#define LATPATH_PATH_FILTER_H

/* The first bytes of a frame, and the interpreter's registers. */
struct capture {
	__u64 ctx; /* owner: the address of the program's arguments, which identifies the program */
	__u64 skb;
	__u64 aux;
	__u32 reason;
	__u32 tracepoint;
	__u32 hook;
	__u32 busy;
	__u32 have; /* number of bytes in frame */
	__u32 len;  /* length of the frame on the wire */
	__u32 pc;
	__u32 a;
	__u32 x;
	__u32 verdict;
	__u32 beyond; /* the filter needs bytes that the frame has and the copy lacks */
	__u32 mem[16];
	__u8 frame[CAPTURE + 8];
	__u8 copy[SKB_BYTES]; /* copy of the struct sk_buff */
};

MAP(code, ARRAY, 1, __u32, struct code);

#define OP_CLASS(c) ((c) & 7)
#define OP_SIZE(c) ((c) & 0x18)
#define OP_MODE(c) ((c) & 0xe0)
#define OP_DO(c) ((c) & 0xf0)

/* Reads 1, 2 or 4 bytes in network byte order. Returns 0 if the copy contains them. */
static __always_inline int load(struct capture *c, __u64 off, __u32 size, __u32 *to)
{
	__u64 at = off;

	if (off + size > c->have) {
		if (off + size <= c->len)
			c->beyond = 1;
		return -1;
	}
	BOUND(at, CAPTURE);
	if (size == 1)
		*to = c->frame[at];
	else if (size == 2)
		*to = c->frame[at] << 8 | c->frame[at + 1];
	else
		*to = (__u32)c->frame[at] << 24 | c->frame[at + 1] << 16 | c->frame[at + 2] << 8 | c->frame[at + 3];
	return 0;
}

static __always_inline __u32 size_of(__u16 code)
{
	return OP_SIZE(code) == 0x10 ? 1 : OP_SIZE(code) == 0x08 ? 2 : 4;
}

/* Executes an instruction of class LD (0) or LDX (1). Returns 0 if the filter continues. */
static __always_inline int step_load(struct capture *c, struct instruction *i)
{
	__u32 v = 0;

	switch (OP_MODE(i->code)) {
	case 0x00: /* IMM */
		v = i->k;
		break;
	case 0x20: /* ABS */
		if (load(c, i->k, size_of(i->code), &v))
			return 1;
		break;
	case 0x40: /* IND */
		if (load(c, (__u64)c->x + i->k, size_of(i->code), &v))
			return 1;
		break;
	case 0x60: /* MEM */
		v = c->mem[i->k & 15];
		break;
	case 0x80: /* LEN */
		v = c->len;
		break;
	case 0xa0: /* MSH: four times the low half of a byte, an IPv4 header's length */
		if (load(c, i->k, 1, &v))
			return 1;
		v = (v & 15) << 2;
		break;
	default:
		return 1;
	}
	if (OP_CLASS(i->code))
		c->x = v;
	else
		c->a = v;
	return 0;
}

static __always_inline int step_alu(struct capture *c, struct instruction *i)
{
	__u32 v = i->code & 8 ? c->x : i->k, a = c->a;

	switch (OP_DO(i->code)) {
	case 0x00:
		a += v;
		break;
	case 0x10:
		a -= v;
		break;
	case 0x20:
		a *= v;
		break;
	case 0x30:
		if (!v)
			return 1;
		a /= v;
		break;
	case 0x40:
		a |= v;
		break;
	case 0x50:
		a &= v;
		break;
	case 0x60:
		a = v < 32 ? a << (v & 31) : 0;
		break;
	case 0x70:
		a = v < 32 ? a >> (v & 31) : 0;
		break;
	case 0x80:
		a = -a;
		break;
	case 0x90:
		if (!v)
			return 1;
		a %= v;
		break;
	case 0xa0:
		a ^= v;
		break;
	default:
		return 1;
	}
	c->a = a;
	return 0;
}

static __always_inline int step_jump(struct capture *c, struct instruction *i)
{
	__u32 v = i->code & 8 ? c->x : i->k;
	int yes;

	switch (OP_DO(i->code)) {
	case 0x00: /* JA */
		c->pc += i->k;
		return 0;
	case 0x10:
		yes = c->a == v;
		break;
	case 0x20:
		yes = c->a > v;
		break;
	case 0x30:
		yes = c->a >= v;
		break;
	case 0x40:
		yes = (c->a & v) != 0;
		break;
	default:
		return 1;
	}
	c->pc += yes ? i->jt : i->jf;
	return 0;
}

/* Executes one instruction. Returns 0 if the filter continues. */
__noinline int filter_step(struct capture *c)
{
	struct instruction i;
	struct code *p;
	__u32 zero = 0;
	__u64 pc;

	if (!c)
		return 1;
	p = bpf_map_lookup_elem(&code, &zero);
	pc = c->pc;
	if (!p || pc >= p->len)
		return 1;
	BOUND(pc, MAX_CODE);
	i = p->at[pc];
	c->pc = pc + 1;
	switch (OP_CLASS(i.code)) {
	case 0:
	case 1:
		return step_load(c, &i);
	case 2: /* ST */
		c->mem[i.k & 15] = c->a;
		return 0;
	case 3: /* STX */
		c->mem[i.k & 15] = c->x;
		return 0;
	case 4:
		return step_alu(c, &i);
	case 5:
		return step_jump(c, &i);
	case 6: /* RET */
		c->verdict = i.code & 0x10 ? c->a : i.k;
		return 1;
	default: /* TAX, TXA */
		if (i.code & 0x80)
			c->a = c->x;
		else
			c->x = c->a;
		return 0;
	}
}

/*
 * Runs the pcap filter on a frame; returns its result, 0 for "no match". Filters only jump forward, so the loop ends.
 */
static __always_inline __u32 run_filter(struct capture *c)
{
	__builtin_memset(c->mem, 0, sizeof(c->mem));
	c->pc = c->a = c->x = c->verdict = c->beyond = 0;
	for (int n = 0; n < MAX_CODE; n++)
		if (filter_step(c))
			break;
	return c->verdict;
}

#endif
