/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and copies of packets in rings of either kind. For this folder. */
#ifndef NETVM_DPDK_VRING_COPY_H
#define NETVM_DPDK_VRING_COPY_H

#include <string.h>

#include <rte_memcpy.h>
#include <rte_prefetch.h>

#include "../record.h"
#include "offload.h"
#include "packed.h"
#include "split.h"

/* Reads how many buffers are available; false if a split ring claims more than it has entries. */
static inline bool
find_waiting(struct ring *ring, bool packed)
{
	ring->waiting = 0;
	if (packed)
		return true;
	ring->waiting = __atomic_load_n(&ring->at.avail->idx, __ATOMIC_ACQUIRE) - ring->avail;
	return ring->waiting <= ring->at.size;
}

/* Adds the buffer that is `*ahead` ahead of the ring's position. */
static inline bool
add_buffer(const struct ring *ring, struct room *room, uint16_t *ahead, bool packed)
{
	return packed ? add_packed(ring, room, ahead) : add_split(ring, room, ahead);
}

/* Collects buffers for `bytes` bytes. */
static inline bool
find_room(const struct ring *ring, struct room *room, uint64_t bytes, bool packed)
{
	uint16_t ahead = 0;
	uint64_t before;

	room->bytes = room->pieces = room->buffers = 0;
	while (room->bytes < bytes) {
		before = room->bytes;
		if (room->buffers == ring->most || room->buffers == PIECES || !add_buffer(ring, room, &ahead, packed))
			return false;
		room->buffer[room->buffers++].bytes = RTE_MIN(room->bytes, bytes) - before;
	}
	return true;
}

/*
 * Prefetches the descriptors of the next buffers, at most `count`, and returns how many of them to read. For split
 * rings, writes the numbers of their heads to `ids`.
 */
static inline uint16_t
prefetch_descriptors(const struct ring *ring, uint16_t *ids, uint16_t count, bool packed)
{
	uint16_t i;
	bool wrap = false;

	if (packed) {
		/* These lines are read now and written later. */
		for (i = 0; i < count; i += RTE_CACHE_LINE_SIZE / sizeof(struct vring_packed_desc))
			prefetch_to_write(&ring->at.desc_packed[packed_place(ring, ring->avail, i, &wrap)]);
		return count;
	}
	count = RTE_MIN(count, ring->waiting);
	for (i = 0; i < count; i++) {
		ids[i] = split_head(ring, i);
		rte_prefetch0(&ring->at.desc[ids[i] & (ring->at.size - 1)]);
	}
	return count;
}

/* Reads the first descriptor of the buffer `ahead` of the position, and its number; false if there is none. */
static inline bool
read_ahead(const struct ring *ring, uint16_t ahead, uint16_t *ids, struct vring_desc *descriptor, bool packed)
{
	const struct vring_packed_desc *at;
	struct vring_packed_desc there;
	bool wrap = ring->avail_wrap;

	if (packed) {
		at = &ring->at.desc_packed[packed_place(ring, ring->avail, ahead, &wrap)];
		if (!packed_is_there(at, wrap))
			return false;
		there = read_packed(at);
		*descriptor = (struct vring_desc){ there.addr, there.len, there.flags, 0 };
		ids[ahead] = there.id;
		return true;
	}
	if (ids[ahead] >= ring->at.size)
		return false;
	*descriptor = read_split(&ring->at.desc[ids[ahead]]);
	return true;
}

/* Whether a buffer has more than this descriptor. */
static inline bool
is_chained(const struct vring_desc *descriptor)
{
	return descriptor->flags & (VRING_DESC_F_NEXT | VRING_DESC_F_INDIRECT);
}

/* Copies bytes to guest memory. */
typedef void (*copy_to_guest)(void *to, const void *from, uint64_t bytes, void *context);

static inline void
copy_now(void *to, const void *from, uint64_t bytes, void *context)
{
	(void)context;
	rte_memcpy(to, from, bytes);
}

/* Copies to a guest that is migrated, whose ring is the context. */
static inline void
copy_logged(void *to, const void *from, uint64_t bytes, void *context)
{
	rte_memcpy(to, from, bytes);
	netvm_log_at(context, to, bytes);
}

/* Copies to the pieces, continuing where the last call ended. */
static inline void
put(struct piece **piece, const void *from, uint64_t bytes, copy_to_guest copy, void *context)
{
	uint64_t part;

	while (bytes > 0) {
		if ((*piece)->bytes == 0)
			(*piece)++;
		part = RTE_MIN(bytes, (*piece)->bytes);
		copy((*piece)->at, from, part, context);
		(*piece)->at += part;
		(*piece)->bytes -= part;
		from = (const char *)from + part;
		bytes -= part;
	}
}

static inline bool
has_offloads(const struct rte_mbuf *mbuf)
{
	return mbuf->ol_flags & (RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IP_CKSUM);
}

/* Copies a packet of any shape into its room: `copy_header` copies the header, and `copy` the packet. */
static inline void
copy_packet(const struct ring *ring, struct room *room, struct rte_mbuf *mbuf, copy_to_guest copy_header,
	copy_to_guest copy, void *context)
{
	struct virtio_net_hdr_mrg_rxbuf header = { .num_buffers = room->buffers };
	struct piece *piece = room->piece;

	if (has_offloads(mbuf))
		netvm_vring_describe_offloads(mbuf, &header.hdr);
	put(&piece, &header, ring->header, copy_header, context);
	for (; mbuf != NULL; mbuf = mbuf->next)
		put(&piece, rte_pktmbuf_mtod(mbuf, const void *), mbuf->data_len, copy, context);
}

/* Takes an available buffer and adds it as used; the guest does not see it yet. */
static inline void
give_back(struct ring *ring, const struct buffer *buffer, bool packed)
{
	if (packed) {
		give_back_packed(ring, buffer);
	} else {
		give_back_split(ring, buffer);
		take_split(ring, 1);
	}
}

/* Publishes the used buffers, of which there is at least one, and notes whether the guest wants a call. */
static inline void
publish(struct ring *ring, struct vring_state *state, bool packed)
{
	uint16_t before = state->last_call;
	bool has_called = state->has_called, wanted;

	if (likely(!state->is_recorded))
		publish_used(ring, packed);
	else
		netvm_publish_recorded(ring, state, packed);
	state->last_call = ring->used;
	state->has_called = true;
	/* Either the guest sees the buffers, or this thread sees its suppression flags. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	wanted = packed ? wants_call_packed(ring, before, has_called) : wants_call_split(ring, before, has_called);
	if (wanted)
		netvm_vhost_call_wanted = 1;
}

/* Attempts per burst to take a ring that another worker fills. */
#define LOCK_TRIES 1000

static inline bool
try_lock(rte_spinlock_t *lock)
{
	int tries;

	for (tries = 0; !rte_spinlock_trylock(lock); tries++) {
		if (tries == LOCK_TRIES)
			return false;
		rte_pause();
	}
	return true;
}

#endif
