/* The fast tier: entry programs around the generated `cora_steps`. */
#ifndef CORA_FAST_H
#define CORA_FAST_H

/* Plain reads of `ctx->data` may be shared with 32-bit arithmetic on it, after which the verifier sees no pointer. */
#define CORA_DATA(ctx) ({ u8 *p_; asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(p_) : "r"(ctx)); p_; })
#define CORA_END(ctx) ({ u8 *p_; asm volatile("%0 = *(u32 *)(%1 + 4)" : "=r"(p_) : "r"(ctx)); p_; })

/* Settings that user space changes while the program runs; the only global, so it starts its map. */
struct cora_next {
	u8 own[6];
	u8 next[6];
	u8 routed;	/* write MAC addresses */
	u8 many;	/* several neighbours: look the destination up */
	u8 known;	/* a next hop is known */
	u8 guard;	/* drop what would go up, except ARP */
};
struct cora_shared {
	u64 fixed_ns;
	u64 position;	/* next packet of the trace, which is replayed from start to end */
	u64 trace_start;
	u64 trace_end;
	struct cora_next ports[2];
	u32 unknown;	/* destination of the last packet without a next hop, network order */
} cora_shared;

enum { C_PACKETS, C_FORWARD, C_REPLY, C_DROP, C_UP, C_UNSUPPORTED, C_CROSS, C_NO_NEXT, C_GUARDED, C_ERROR, C_BYTES, C_COUNT };

struct cora_counts {
	u64 at[C_COUNT];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cora_counts);
} cora_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 128);
	__type(key, u32);
	__type(value, u32);
} cora_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u32);
} cora_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} cora_neighbours SEC(".maps");

#define CORA_TRACE_BYTES 96
struct cora_traced {
	u8 frame[CORA_TRACE_BYTES];
	u64 port;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cora_traced);
} cora_trace SEC(".maps");

cora_inline int cora_hand_over(struct xdp_md *ctx, u32 port, u64 now, u32 step, struct cora_hand **hand)
{
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct cora_hand)))
		return CORA_ERROR;
	struct cora_hand *h = (void *)CORA_DATA(ctx);
	if ((u8 *)(h + 1) > CORA_END(ctx))
		return CORA_ERROR;
	h->magic = CORA_MAGIC;
	h->step = step;
	h->port = port;
	h->pad = 0;
	h->now = now;
	*hand = h;
	return CORA_CROSS;
}

cora_inline int cora_steps(struct xdp_md *ctx, u32 port, u64 now);

cora_inline u64 cora_now(void)
{
#ifdef CORA_USES_TIME
	return cora_shared.fixed_ns ? cora_shared.fixed_ns : bpf_ktime_get_ns();
#else
	return 0;
#endif
}

enum { SUPPORTED, UNSUPPORTED, ARP };

cora_inline int cora_process(struct xdp_md *ctx, u32 port, int *kind)
{
	u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx);
	*kind = SUPPORTED;
	if (cora_supported(data, end))
		return cora_steps(ctx, port, cora_now());
	*kind = data + 14 <= end && *(u16 *)(data + 12) == 0x0608 ? ARP : UNSUPPORTED;
	return CORA_UP;
}

cora_inline int cora_address(struct xdp_md *ctx, u32 out, int verdict)
{
	u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx);
	struct cora_next *next = &cora_shared.ports[out & 1];
	if (data + 34 > end)
		return 0;
	if (verdict == CORA_REPLY) {
		u8 mac[6];
		__builtin_memcpy(mac, data, 6);
		__builtin_memcpy(data, data + 6, 6);
		__builtin_memcpy(data + 6, mac, 6);
		return 1;
	}
	if (!next->routed)
		return 1;
	if (next->many) {
		u32 to = *(u32 *)(data + 30);
		u64 *mac = bpf_map_lookup_elem(&cora_neighbours, &to);
		if (!mac) {
			cora_shared.unknown = to;
			return 0;
		}
		__builtin_memcpy(data, mac, 6);
	} else {
		if (!next->known) {
			cora_shared.unknown = *(u32 *)(data + 30);
			return 0;
		}
		__builtin_memcpy(data, next->next, 6);
	}
	__builtin_memcpy(data + 6, next->own, 6);
	return 1;
}

cora_inline int cora_entry(struct xdp_md *ctx, u32 port)
{
	u32 zero = 0, out;
	int kind, verdict;
	struct cora_counts *counts = bpf_map_lookup_elem(&cora_counts, &zero);
	if (!counts)
		return XDP_ABORTED;
	counts->at[C_PACKETS]++;
	counts->at[C_BYTES] += CORA_END(ctx) - CORA_DATA(ctx);
	verdict = cora_process(ctx, port, &kind);
	if (verdict == CORA_UP) {
		counts->at[C_UP]++;
		counts->at[C_UNSUPPORTED] += kind != SUPPORTED;
		if (cora_shared.ports[port].guard && kind != ARP) {
			counts->at[C_GUARDED]++;
			return XDP_DROP;
		}
		return XDP_PASS;
	}
	if (verdict == CORA_CROSS) {
		counts->at[C_CROSS]++;
		return bpf_redirect_map(&cora_sockets, port * 64 + ctx->rx_queue_index, XDP_DROP);
	}
	if (verdict == CORA_DROP || verdict == CORA_ERROR) {
		counts->at[verdict == CORA_DROP ? C_DROP : C_ERROR]++;
		return XDP_DROP;
	}
	out = verdict == CORA_REPLY ? port : !port;
	if (!cora_address(ctx, out, verdict)) {
		counts->at[C_NO_NEXT]++;
		return XDP_DROP;
	}
	counts->at[verdict == CORA_REPLY ? C_REPLY : C_FORWARD]++;
	return bpf_redirect_map(&cora_devices, out, XDP_DROP);
}

SEC("xdp") int cora_in0(struct xdp_md *ctx) { return cora_entry(ctx, 0); }
SEC("xdp") int cora_in1(struct xdp_md *ctx) { return cora_entry(ctx, 1); }

/* For BPF_PROG_TEST_RUN: the verdict is returned, nothing is sent. */
SEC("xdp") int cora_test0(struct xdp_md *ctx) { int u; return cora_process(ctx, 0, &u); }
SEC("xdp") int cora_test1(struct xdp_md *ctx) { int u; return cora_process(ctx, 1, &u); }

#ifdef CORA_BOUNCE
/* Continue a packet that the slow tier hands back, with its header in front. */
cora_inline int cora_back(struct xdp_md *ctx)
{
	struct cora_hand *h = (void *)CORA_DATA(ctx);
	if ((u8 *)(h + 1) > CORA_END(ctx))
		return CORA_ERROR;
	struct cora_hand saved = *h;
	if (bpf_xdp_adjust_head(ctx, sizeof(struct cora_hand)))
		return CORA_ERROR;
	return cora_resume(ctx, &saved);
}
SEC("xdp") int cora_bounce(struct xdp_md *ctx) { return cora_back(ctx); }
#endif

/* Each run processes the next packet of `cora_trace` in place of the one handed in. */
SEC("xdp") int cora_replay(struct xdp_md *ctx)
{
	int kind, verdict;
	u8 *data = CORA_DATA(ctx), *end = CORA_END(ctx);
	u32 at = cora_shared.position;
	cora_shared.position = at + 1 < cora_shared.trace_end ? at + 1 : cora_shared.trace_start;
	struct cora_traced *traced = bpf_map_lookup_elem(&cora_trace, &at);
	if (!traced || data + CORA_TRACE_BYTES > end)
		return CORA_ERROR;
	__builtin_memcpy(data, traced->frame, CORA_TRACE_BYTES);
	verdict = traced->port ? cora_process(ctx, 1, &kind) : cora_process(ctx, 0, &kind);
	if (verdict == CORA_CROSS && bpf_xdp_adjust_head(ctx, sizeof(struct cora_hand)))
		return CORA_ERROR;
	return verdict;
}

char _license[] SEC("license") = "Dual MIT/GPL";

#endif
