/* The slow tier's runtime: tables in user space, AF_XDP sockets in, packet sockets out. */
#define _GNU_SOURCE
#define CORA_SLOTS 0
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "cora_slow.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

#define NONE 0xffffffffu

struct entry {
	u32 chain, before, after, hits; /* before and after: order of use, for LRU tables */
	u64 bytes[];			/* key, padded to eight bytes, then value */
};

#define SKETCH_SLOTS 2048
#define SAMPLE_EVERY 4

cora_inline u32 key_words(const struct table *t) { return (t->key_bytes + 7) / 8; }
cora_inline struct entry *entry_at(const struct table *t, u32 i) { return (struct entry *)(t->store + (u64)i * t->stride); }
cora_inline void *value_of(const struct table *t, struct entry *e) { return e->bytes + key_words(t); }

static u32 bucket_of(const struct table *t, const u64 *key)
{
	u64 state = 0x243F6A8885A308D3ULL;
	for (u32 i = 0; i < key_words(t); i++)
		state = cora_mix(state, key[i]);
	return (u32)(state >> 7) & t->mask;
}

static u32 find_index(const struct table *t, const u64 *key)
{
	for (u32 i = t->heads[bucket_of(t, key)]; i != NONE; i = entry_at(t, i)->chain)
		if (!memcmp(entry_at(t, i)->bytes, key, key_words(t) * 8))
			return i;
	return NONE;
}

static void unlink_use(struct table *t, struct entry *e)
{
	*(e->before == NONE ? &t->oldest : &entry_at(t, e->before)->after) = e->after;
	*(e->after == NONE ? &t->newest : &entry_at(t, e->after)->before) = e->before;
}

static void link_newest(struct table *t, u32 i)
{
	struct entry *e = entry_at(t, i);
	e->before = t->newest;
	e->after = NONE;
	*(t->newest == NONE ? &t->oldest : &entry_at(t, t->newest)->after) = i;
	t->newest = i;
}

int remove_key(struct table *t, const u64 *key)
{
	u32 *link = &t->heads[bucket_of(t, key)];
	while (*link != NONE) {
		struct entry *e = entry_at(t, *link);
		if (!memcmp(e->bytes, key, key_words(t) * 8)) {
			u32 i = *link;
			*link = e->chain;
			if (t->kind == LRU)
				unlink_use(t, e);
			e->chain = t->free;
			t->free = i;
			t->used--;
			return 1;
		}
		link = &e->chain;
	}
	return 0;
}

static long bpf_call(int command, union bpf_attr *attr) { return syscall(SYS_bpf, command, attr, sizeof *attr); }

static int map_call(int command, int fd, const void *key, const void *value, u64 flags)
{
	union bpf_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.map_fd = fd;
	attr.key = (u64)(unsigned long)key;
	attr.value = (u64)(unsigned long)value;
	attr.flags = flags;
	return bpf_call(command, &attr);
}

/* Forget keys of `up` whose entry the fast tier has deleted itself. */
static void purge(struct table *t)
{
	char value[512];
	for (u32 b = 0; b <= t->up->mask; b++)
		for (u32 i = t->up->heads[b], next; i != NONE; i = next) {
			struct entry *e = entry_at(t->up, i);
			next = e->chain;
			if (map_call(BPF_MAP_LOOKUP_ELEM, t->map, e->bytes, value, 0) && errno == ENOENT)
				remove_key(t->up, e->bytes);
		}
}

static struct entry *insert(struct table *t, const u64 *key)
{
	u32 i, b = bucket_of(t, key);
	if (t->up && t->used + t->up->used >= t->entries)
		purge(t);
	if (t->used + (t->up ? t->up->used : 0) >= t->entries) {
		if (t->kind != LRU)
			return NULL;
		u64 oldest[32];
		memcpy(oldest, entry_at(t, t->oldest)->bytes, key_words(t) * 8);
		remove_key(t, oldest);
	}
	if (t->free != NONE) {
		i = t->free;
		t->free = entry_at(t, i)->chain;
	} else {
		i = t->fresh++;
	}
	struct entry *e = entry_at(t, i);
	memset(e, 0, t->stride);
	memcpy(e->bytes, key, key_words(t) * 8);
	e->chain = t->heads[b];
	t->heads[b] = i;
	t->used++;
	if (t->kind == LRU)
		link_newest(t, i);
	return e;
}

/* Bring an entry back from the fast tier: freeze and copy it there in one locked step, insert here, delete there. */
static struct entry *pull(struct table *t, const u64 *key)
{
	u64 frame[192] = {0};
	union bpf_attr attr;
	struct entry *e = NULL;
	memcpy(frame + 2, key, key_words(t) * 8);
	memset(&attr, 0, sizeof attr);
	attr.test.prog_fd = t->freeze;
	attr.test.data_in = attr.test.data_out = (u64)(unsigned long)frame;
	attr.test.data_size_in = attr.test.data_size_out = 16 + key_words(t) * 8 + t->value_bytes;
	attr.test.repeat = 1;
	remove_key(t->up, key);
	if (bpf_call(BPF_PROG_TEST_RUN, &attr) || !attr.test.retval)
		return NULL;
	e = insert(t, key);
	if (e)
		memcpy(value_of(t, e), frame + 2 + key_words(t), t->value_bytes);
	map_call(BPF_MAP_DELETE_ELEM, t->map, key, NULL, 0);
	t->pulls++;
	return e;
}

/* One packet of four votes for its entry in one slot; a vote for another entry takes the slot over at zero. */
cora_inline void sample(struct table *t, u32 i)
{
	if (++t->turn % SAMPLE_EVERY)
		return;
	struct heavy *h = &t->heavy[(i * 2654435761u) >> 21];
	if (h->entry == i && h->count)
		h->count++;
	else if (h->count)
		h->count--;
	else
		*h = (struct heavy){i, 1};
}

void *find_entry(struct table *t, const u64 *key)
{
	if (t->kind == LPM) {
		for (int length = 32; length >= 0; length--) {
			if (!(t->lengths >> length & 1))
				continue;
			u32 address = ((const u32 *)key)[1];
			u32 masked[2] = {length, length ? address & __builtin_bswap32(~0u << (32 - length)) : 0};
			u32 i = find_index(t, (u64 *)masked);
			if (i != NONE)
				return value_of(t, entry_at(t, i));
		}
		return NULL;
	}
	u32 i = find_index(t, key);
	struct entry *e = i == NONE ? NULL : entry_at(t, i);
	if (!e && t->up && find_index(t->up, key) != NONE)
		e = pull(t, key);
	if (!e)
		return NULL;
	e->hits++;
	if (t->heavy && i != NONE)
		sample(t, i);
	if (t->kind == LRU) {
		unlink_use(t, e);
		link_newest(t, i);
	}
	return value_of(t, e);
}

void *cora_make(struct table *t, const void *key)
{
	struct entry *e = insert(t, key);
	return e ? value_of(t, e) : NULL;
}

static u32 power_of_two(u32 n)
{
	u32 p = 16;
	while (p < n && p < 1u << 30)
		p *= 2;
	return p;
}

int table_open(struct table *t, u32 kind, u32 key_bytes, u32 value_bytes, u32 entries, u32 with_up)
{
	memset(t, 0, sizeof *t);
	t->kind = kind;
	t->key_bytes = key_bytes;
	t->value_bytes = value_bytes;
	t->entries = entries;
	t->map = t->freeze = -1;
	t->free = t->oldest = t->newest = NONE;
	t->stride = kind == ARRAY || kind == SKETCH ? value_bytes : sizeof(struct entry) + key_words(t) * 8 + value_bytes;
	t->store = calloc(entries, t->stride);
	if (kind != ARRAY && kind != SKETCH) {
		u32 buckets = power_of_two(entries);
		t->mask = buckets - 1;
		t->heads = malloc(buckets * sizeof(u32));
		if (t->heads)
			memset(t->heads, 0xff, buckets * sizeof(u32));
	}
	if (with_up) {
		t->up = malloc(sizeof *t->up);
		t->heavy = calloc(SKETCH_SLOTS, sizeof *t->heavy);
		if (!t->up || !t->heavy || table_open(t->up, HASH, key_bytes, 0, with_up, 0))
			return -1;
	}
	return t->store && (t->heads || kind == ARRAY || kind == SKETCH) ? 0 : -1;
}

static void table_close(struct table *t)
{
	if (t->up)
		table_close(t->up);
	free(t->up);
	free(t->heavy);
	free(t->heads);
	free(t->store);
}

/* What Python calls. A table is named by its number. */

void cora_close(void)
{
	for (u32 i = 0; i < cora_table_count; i++)
		table_close(&cora_tables[i]);
}

void cora_connect(int table, int map, int freeze)
{
	cora_tables[table].map = map;
	cora_tables[table].freeze = freeze;
}

int cora_set(int table, const void *key, const void *value)
{
	struct table *t = &cora_tables[table];
	if (t->kind == ARRAY || t->kind == SKETCH) {
		memcpy(t->store + (u64) * (const u32 *)key * t->stride, value, t->value_bytes);
		return 0;
	}
	if (t->kind == LPM)
		t->lengths |= 1ull << *(const u32 *)key;
	u32 i = find_index(t, key);
	struct entry *e = i == NONE ? insert(t, key) : entry_at(t, i);
	if (!e)
		return -1;
	memcpy(value_of(t, e), value, t->value_bytes);
	return 0;
}

u32 cora_used(int table) { return cora_tables[table].used; }
u64 cora_pulls(int table) { return cora_tables[table].pulls; }
void *cora_array(int table) { return cora_tables[table].store; }

/* Copy hits, keys and values of all entries. Returns the number. */
u32 cora_dump(int table, char *out, u32 room)
{
	struct table *t = &cora_tables[table];
	u32 count = 0, body = key_words(t) * 8 + t->value_bytes;
	for (u32 b = 0; t->heads && b <= t->mask; b++)
		for (u32 i = t->heads[b]; i != NONE; i = entry_at(t, i)->chain) {
			struct entry *e = entry_at(t, i);
			u64 hits = e->hits;
			if (count >= room)
				return count;
			memcpy(out + (u64)count * (8 + body), &hits, 8);
			memcpy(out + (u64)count * (8 + body) + 8, e->bytes, body);
			count++;
		}
	return count;
}

/* Copy (estimated uses, key) of the sketch's entries, and empty it. Returns the number. */
u32 cora_heavy(int table, char *out)
{
	struct table *t = &cora_tables[table];
	u32 count = 0, stride = 8 + key_words(t) * 8;
	for (u32 i = 0; t->heavy && i < SKETCH_SLOTS; i++) {
		if (!t->heavy[i].count)
			continue;
		struct entry *e = entry_at(t, t->heavy[i].entry);
		u64 uses = (u64)t->heavy[i].count * SAMPLE_EVERY;
		t->heavy[i].count = 0;
		if (find_index(t, e->bytes) == NONE) /* it has left since */
			continue;
		memcpy(out + (u64)count * stride, &uses, 8);
		memcpy(out + (u64)count * stride + 8, e->bytes, stride - 8);
		count++;
	}
	return count;
}

/* Move an entry up: 0 done, 1 there is none, -1 the fast tier has no room. `header` bytes stand before its value. */
int cora_raise(int table, const void *key, u32 header)
{
	struct table *t = &cora_tables[table];
	u64 value[64] = {0}, copy[32] = {0};
	u32 i = find_index(t, key);
	if (i == NONE)
		return 1;
	memcpy(copy, key, key_words(t) * 8);
	memcpy((char *)value + header, value_of(t, entry_at(t, i)), t->value_bytes);
	if (map_call(BPF_MAP_UPDATE_ELEM, t->map, copy, value, BPF_NOEXIST))
		return -1;
	remove_key(t, copy);
	if (!insert(t->up, copy)) {
		pull(t, copy);
		return -1;
	}
	return 0;
}

/* Move an entry down: 0 done, 1 the fast tier has none. */
int cora_lower(int table, const void *key)
{
	u64 copy[32] = {0};
	memcpy(copy, key, key_words(&cora_tables[table]) * 8);
	return pull(&cora_tables[table], copy) ? 0 : 1;
}

/* Process one packet with its header in front; the verdict is returned, and what is left of the header is updated. */
int cora_run(u8 *frame, u32 length)
{
	struct cora_hand *hand = (struct cora_hand *)frame;
	if (length < cora_hand_bytes + 34 || hand->magic != CORA_MAGIC)
		return CORA_ERROR;
	return slow_steps(frame + cora_hand_bytes, frame + length, hand->port, hand->now, hand);
}

/* A trace to measure with: `count` frames of `stride` bytes, header in front. Returns ns for all. */
u64 cora_replay(const u8 *frames, u32 stride, u32 count)
{
	u8 frame[2048];
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (u32 i = 0; i < count; i++) {
		memcpy(frame, frames + (u64)i * stride, stride);
		cora_run(frame, stride);
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (b.tv_sec - a.tv_sec) * 1000000000ULL + b.tv_nsec - a.tv_nsec;
}

/* The loop: AF_XDP sockets in, one packet socket for each device out. */

#define FRAMES 4096
#define FRAME_BYTES 4096
#define RING 4096
#define BATCH 64
#define GATHER_NS 150000 /* pause after a small batch, so that the next one is larger: wake-ups cost more than packets */

struct ring {
	u32 *producer, *consumer;
	void *items;
};

struct socket_in {
	int fd, port;
	char *memory;
	struct ring rx, fill;
};

struct next_hop { /* as struct cora_next of the fast tier */
	u8 own[6], next[6], routed, many, known, guard;
};

static struct socket_in sockets[128];
static int socket_count, out_socket[2] = {-1, -1}, bounce_program = -1, neighbours = -1;
static struct next_hop *next_hops;
enum { S_PACKETS, S_FORWARD, S_REPLY, S_DROP, S_UP, S_ERROR, S_NO_NEXT, S_BOUNCED, S_BAD_CHECKSUM, S_CHECKED, S_UNSENT, S_COUNT };
u64 cora_slow_counts[S_COUNT];
u32 cora_unknown_next; /* destination of the last packet without a next hop, network order */

static int map_ring(int fd, struct ring *ring, const struct xdp_ring_offset *offset, u64 page, u64 item)
{
	char *at = mmap(NULL, offset->desc + RING * item, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
	if (at == MAP_FAILED)
		return -1;
	ring->producer = (u32 *)(at + offset->producer);
	ring->consumer = (u32 *)(at + offset->consumer);
	ring->items = at + offset->desc;
	return 0;
}

/* Open an AF_XDP socket on a queue of a device; returns its descriptor or -errno. */
int cora_listen(int port, int ifindex, int queue)
{
	struct socket_in *s = &sockets[socket_count];
	struct xdp_umem_reg memory = {.len = (u64)FRAMES * FRAME_BYTES, .chunk_size = FRAME_BYTES};
	struct sockaddr_xdp to = {.sxdp_family = AF_XDP, .sxdp_ifindex = ifindex, .sxdp_queue_id = queue, .sxdp_flags = XDP_COPY};
	struct xdp_mmap_offsets offsets;
	socklen_t size = sizeof offsets;
	int ring = RING, ignored = 64;
	s->port = port;
	s->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	s->memory = mmap(NULL, memory.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	memory.addr = (u64)(unsigned long)s->memory;
	if (s->fd < 0 || s->memory == MAP_FAILED || setsockopt(s->fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory) ||
	    setsockopt(s->fd, SOL_XDP, XDP_UMEM_FILL_RING, &ring, sizeof ring) ||
	    setsockopt(s->fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &ignored, sizeof ignored) ||
	    setsockopt(s->fd, SOL_XDP, XDP_RX_RING, &ring, sizeof ring) ||
	    getsockopt(s->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) ||
	    map_ring(s->fd, &s->rx, &offsets.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc)) ||
	    map_ring(s->fd, &s->fill, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(u64)))
		return -errno;
	for (u32 i = 0; i < RING; i++)
		((u64 *)s->fill.items)[i] = (u64)i * FRAME_BYTES;
	__atomic_store_n(s->fill.producer, RING, __ATOMIC_RELEASE);
	if (bind(s->fd, (struct sockaddr *)&to, sizeof to)) {
		int why = errno;
		close(s->fd);
		munmap(s->memory, memory.len);
		return -why;
	}
	socket_count++;
	return s->fd;
}

/* Open the packet socket by which frames leave a device; returns 0 or -errno. */
int cora_send_by(int port, int ifindex)
{
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = ifindex};
	int on = 1, fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to))
		return -errno;
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
	out_socket[port] = fd;
	return 0;
}

void cora_wire(void *hops, int neighbour_map, int bounce)
{
	next_hops = hops;
	neighbours = neighbour_map;
	bounce_program = bounce;
}

static int address_frame(u8 *data, int out, int verdict)
{
	struct next_hop *next = &next_hops[out];
	if (verdict == CORA_REPLY) {
		u8 mac[6];
		memcpy(mac, data, 6);
		memcpy(data, data + 6, 6);
		memcpy(data + 6, mac, 6);
		return 1;
	}
	if (!next->routed)
		return 1;
	u64 mac;
	if (next->many ? map_call(BPF_MAP_LOOKUP_ELEM, neighbours, data + 30, &mac, 0) : !next->known) {
		memcpy(&cora_unknown_next, data + 30, 4);
		return 0;
	}
	memcpy(data, next->many ? (u8 *)&mac : next->next, 6);
	memcpy(data + 6, next->own, 6);
	return 1;
}

static int sum_is_right(const u8 *data, const u8 *end)
{
	u32 length = cora_read(data, 16, 2) - 20, sum = 6 + length, i;
	if (data + 34 + length > end)
		return 1;
	for (i = 26; i < 34; i += 2)
		sum += cora_read(data, i, 2);
	for (i = 0; i + 1 < length; i += 2)
		sum += cora_read(data, 34 + i, 2);
	if (length & 1)
		sum += data[34 + i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Let the fast tier take the next steps of a packet; returns the verdict, and CORA_CROSS if it came back. */
static int bounce(u8 *frame, u32 *length)
{
	u8 out[FRAME_BYTES];
	union bpf_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.test.prog_fd = bounce_program;
	attr.test.data_in = (u64)(unsigned long)frame;
	attr.test.data_out = (u64)(unsigned long)out;
	attr.test.data_size_in = *length;
	attr.test.data_size_out = sizeof out;
	attr.test.repeat = 1;
	cora_slow_counts[S_BOUNCED]++;
	if (bpf_call(BPF_PROG_TEST_RUN, &attr))
		return CORA_ERROR;
	u32 at = attr.test.retval == CORA_CROSS ? 0 : cora_hand_bytes;
	memcpy(frame + at, out, attr.test.data_size_out);
	*length = at + attr.test.data_size_out;
	return attr.test.retval;
}

int cora_finish(u8 *frame, u32 *length)
{
	for (int turns = 0; turns < 64; turns++) {
		int verdict = cora_run(frame, *length);
		if (verdict == CORA_CROSS)
			verdict = bounce(frame, length);
		if (verdict != CORA_CROSS)
			return verdict;
	}
	return CORA_ERROR;
}

static u32 drain(struct socket_in *s)
{
	struct mmsghdr out[2][BATCH];
	struct iovec parts[2][BATCH];
	u32 outs[2] = {0, 0}, at = *s->rx.consumer, fill = *s->fill.producer;
	u32 ready = __atomic_load_n(s->rx.producer, __ATOMIC_ACQUIRE) - at;
	if (ready > BATCH)
		ready = BATCH;
	for (u32 i = 0; i < ready; i++) {
		struct xdp_desc d = ((struct xdp_desc *)s->rx.items)[(at + i) & (RING - 1)];
		u8 *frame = (u8 *)s->memory + d.addr, *data = frame + cora_hand_bytes;
		cora_slow_counts[S_PACKETS]++;
		if (cora_slow_counts[S_CHECKED] < 64 && data[23] == 6 && d.len > cora_hand_bytes + 54) {
			cora_slow_counts[S_CHECKED]++;
			cora_slow_counts[S_BAD_CHECKSUM] += !sum_is_right(data, frame + d.len);
		}
		u32 length = d.len;
		int verdict = cora_finish(frame, &length);
		if (verdict == CORA_FORWARD || verdict == CORA_REPLY) {
			int port = verdict == CORA_REPLY ? s->port : !s->port;
			if (!address_frame(data, port, verdict)) {
				cora_slow_counts[S_NO_NEXT]++;
				continue;
			}
			parts[port][outs[port]] = (struct iovec){data, length - cora_hand_bytes};
			out[port][outs[port]] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[port][outs[port]], .msg_iovlen = 1}};
			outs[port]++;
		}
		cora_slow_counts[S_FORWARD + (verdict > CORA_UP ? S_ERROR - S_FORWARD : verdict)]++;
	}
	for (int port = 0; port < 2; port++)
		for (u32 sent = 0; sent < outs[port];) {
			int done = sendmmsg(out_socket[port], out[port] + sent, outs[port] - sent, 0);
			if (done < 1) { /* the device refuses one frame; the others go on */
				cora_slow_counts[S_UNSENT]++;
				done = 1;
			}
			sent += done;
		}
	for (u32 i = 0; i < ready; i++) {
		struct xdp_desc d = ((struct xdp_desc *)s->rx.items)[(at + i) & (RING - 1)];
		((u64 *)s->fill.items)[(fill + i) & (RING - 1)] = d.addr & ~(u64)(FRAME_BYTES - 1);
	}
	__atomic_store_n(s->fill.producer, fill + ready, __ATOMIC_RELEASE);
	__atomic_store_n(s->rx.consumer, at + ready, __ATOMIC_RELEASE);
	return ready;
}

/* Process packets until the time is over or, if `until_empty`, all rings are empty; returns the number. */
u64 cora_poll(int ms, int until_empty)
{
	struct pollfd wait[128];
	struct timespec start, now;
	u64 total = 0;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		u32 done = 0;
		for (int i = 0; i < socket_count; i++)
			done += drain(&sockets[i]);
		total += done;
		clock_gettime(CLOCK_MONOTONIC, &now);
		int left = ms - (int)((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000);
		if (left <= 0 || (until_empty && !done))
			return total;
		if (done && done < BATCH && !until_empty)
			nanosleep(&(struct timespec){0, GATHER_NS}, NULL);
		if (!done) {
			for (int i = 0; i < socket_count; i++)
				wait[i] = (struct pollfd){sockets[i].fd, POLLIN, 0};
			poll(wait, socket_count, left);
		}
	}
}
