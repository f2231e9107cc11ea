/* What the generated code of both tiers shares: hand-over header, arithmetic, checksums. */
#ifndef CORA_COMMON_H
#define CORA_COMMON_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { CORA_FORWARD, CORA_REPLY, CORA_DROP, CORA_UP, CORA_CROSS, CORA_ERROR };

/* Stands in front of a packet that goes from the fast to the slow tier; `slot` holds the live locals of `step`. */
struct cora_hand {
	u32 magic;
	u16 step;
	u8 port;
	u8 pad;
	u64 now;
	u64 slot[CORA_SLOTS];
};
#define CORA_MAGIC 0x61726f63u

#define cora_inline static inline __attribute__((always_inline))

cora_inline u64 cora_max(u64 a, u64 b) { return a > b ? a : b; }
cora_inline u64 cora_min(u64 a, u64 b) { return a < b ? a : b; }
cora_inline u64 cora_div(u64 a, u64 b) { return b ? a / b : 0; }
cora_inline u64 cora_mod(u64 a, u64 b) { return b ? a % b : 0; }
cora_inline u64 cora_mix(u64 state, u64 value)
{
	state = (state ^ value) * 0x9E3779B97F4A7C15ULL;
	return state ^ (state >> 32);
}

cora_inline u16 cora_swap16(u16 x) { return __builtin_bswap16(x); }

cora_inline u64 cora_read(const u8 *data, u32 offset, u32 bytes)
{
	if (bytes == 1)
		return data[offset];
	if (bytes == 2)
		return __builtin_bswap16(*(const u16 *)(data + offset));
	if (bytes == 4)
		return __builtin_bswap32(*(const u32 *)(data + offset));
	return __builtin_bswap64(*(const u64 *)(data + offset));
}

/* Store a field and return what it adds to a ones' complement sum: ~old + new, word by word (RFC 1624). */
cora_inline u32 cora_write(u8 *data, u32 offset, u32 bytes, u64 value)
{
	u32 sum = 0, start = offset & ~1u, words = (bytes + 1) / 2, i;
	for (i = 0; i < words; i++)
		sum += (u16)~cora_swap16(*(u16 *)(data + start + 2 * i));
	if (bytes == 1)
		data[offset] = value;
	else if (bytes == 2)
		*(u16 *)(data + offset) = __builtin_bswap16((u16)value);
	else if (bytes == 4)
		*(u32 *)(data + offset) = __builtin_bswap32((u32)value);
	else
		*(u64 *)(data + offset) = __builtin_bswap64(value);
	for (i = 0; i < words; i++)
		sum += cora_swap16(*(u16 *)(data + start + 2 * i));
	return sum;
}

cora_inline u16 cora_fold(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

cora_inline void cora_adapt(u8 *data, u32 offset, u32 sum)
{
	u16 *field = (u16 *)(data + offset);
	*field = cora_swap16((u16)~cora_fold((u16)~cora_swap16(*field) + sum));
}

/* Adapt the IPv4 checksum by `ip`, and that of TCP or UDP by `l4`. */
cora_inline void cora_checksums(u8 *data, u8 *end, u32 ip, u32 l4)
{
	if (ip)
		cora_adapt(data, 24, ip);
	if (!l4)
		return;
	if (data[23] == 6 && data + 54 <= end) {
		cora_adapt(data, 50, l4);
	} else if (data[23] == 17 && data + 42 <= end && *(u16 *)(data + 40)) {
		cora_adapt(data, 40, l4);
		if (!*(u16 *)(data + 40))
			*(u16 *)(data + 40) = 0xffff;
	}
}

/* True for IPv4 without options and fragments whose length fits the frame. */
cora_inline int cora_supported(const u8 *data, const u8 *end)
{
	if (data + 34 > end || *(const u16 *)(data + 12) != 0x0008 || data[14] != 0x45)
		return 0;
	u64 length = cora_read(data, 16, 2);
	return !(cora_read(data, 20, 2) & 0x3fff) && length >= 20 && length <= (u64)(end - data) - 14;
}

cora_inline int cora_has_ports(const u8 *data, const u8 *end)
{
	return data + 42 <= end && (data[23] == 17 || (data[23] == 6 && data + 54 <= end));
}

cora_inline int cora_has(const u8 *data, const u8 *end, u32 protocol, u32 least)
{
	return data + least <= end && (!protocol || data[23] == protocol);
}

#endif
