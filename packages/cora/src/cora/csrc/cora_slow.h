/* What the generated code of the slow tier sees of the runtime, cora_slow.c. */
#ifndef CORA_SLOW_H
#define CORA_SLOW_H
#include "cora_common.h"

struct heavy { /* a slot of the sampled heavy-hitter sketch: an entry and how far it leads the others of its slot */
	u32 entry, count;
};

struct table {
	u32 kind, key_bytes, value_bytes, entries, stride, mask;
	u32 used, fresh, free, oldest, newest;
	u64 lengths; /* prefix lengths in an LPM table */
	u32 *heads;
	char *store;
	struct table *up;  /* keys that are in the fast tier */
	int map, freeze;   /* descriptors of the fast tier's map and freeze program, or -1 */
	u64 pulls;
	u32 turn;
	struct heavy *heavy;
};
enum { ARRAY, HASH, LRU, LPM, SKETCH };

/* The generated file defines these. */
extern struct table cora_tables[];
extern const u32 cora_table_count, cora_hand_bytes;
int cora_open(void);
int slow_steps(u8 *data, u8 *end, u32 port, u64 now, struct cora_hand *hand);

int table_open(struct table *t, u32 kind, u32 key_bytes, u32 value_bytes, u32 entries, u32 with_up);
void *find_entry(struct table *t, const u64 *key);
void *cora_make(struct table *t, const void *key);
int remove_key(struct table *t, const u64 *key);

cora_inline void *cora_find(struct table *t, const void *key)
{
	u32 index = *(const u32 *)key;
	if (t->kind != ARRAY && t->kind != SKETCH)
		return find_entry(t, key);
	return index < t->entries ? t->store + (u64)index * t->stride : 0;
}

#endif
