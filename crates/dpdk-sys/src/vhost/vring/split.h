/* SPDX-License-Identifier: Apache-2.0 */
/* Split rings (virtio 1.2, section 2.7). For this folder. */
#ifndef NETVM_DPDK_VRING_SPLIT_H
#define NETVM_DPDK_VRING_SPLIT_H

#include <string.h>

#include "vring.h"

static inline bool
is_sound_split(const struct ring *ring)
{
	const struct memory *memory = ring->memory;
	uint64_t size = ring->at.size;
	/* Behind the lists: used_event and avail_event. */
	uint64_t event = ring->features & BIT(VIRTIO_RING_F_EVENT_IDX) ? sizeof(uint16_t) : 0;

	return (size & (size - 1)) == 0 &&
		is_guests(memory, ring->at.desc, size * sizeof(*ring->at.desc), 16) &&
		is_guests(memory, ring->at.avail, sizeof(*ring->at.avail) + size * sizeof(uint16_t) + event, 2) &&
		is_guests(memory, ring->at.used, sizeof(*ring->at.used) + size * sizeof(struct vring_used_elem) +
			event, 4);
}

static inline struct vring_desc
read_split(const struct vring_desc *at)
{
	return (struct vring_desc){ READ(at->addr), READ(at->len), READ(at->flags), READ(at->next) };
}

static inline uint16_t
split_head(const struct ring *ring, uint16_t ahead)
{
	return READ(ring->at.avail->ring[(uint16_t)(ring->avail + ahead) & (ring->at.size - 1)]);
}

static inline bool
add_split_table(const struct ring *ring, struct room *room, uint64_t table, uint32_t bytes)
{
	uint32_t entries = bytes / sizeof(struct vring_desc);
	const struct vring_desc *at;
	struct vring_desc descriptor = { .flags = VRING_DESC_F_NEXT };

	/* Ends: each entry adds a piece, and pieces are limited. */
	while (descriptor.flags & VRING_DESC_F_NEXT) {
		at = descriptor.next < entries ? entry(ring, table, descriptor.next) : NULL;
		if (at == NULL)
			return false;
		descriptor = read_split(at);
		if ((descriptor.flags & VRING_DESC_F_INDIRECT) || !add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return true;
}

/* Adds the buffer that is `*ahead` buffers ahead of the ring's position. */
static inline bool
add_split(const struct ring *ring, struct room *room, uint16_t *ahead)
{
	struct vring_desc descriptor = { .flags = VRING_DESC_F_NEXT };
	struct buffer *buffer = &room->buffer[room->buffers];

	if (*ahead >= ring->waiting)
		return false;
	descriptor.next = buffer->id = split_head(ring, (*ahead)++);
	while (descriptor.flags & VRING_DESC_F_NEXT) {
		if (descriptor.next >= ring->at.size)
			return false;
		descriptor = read_split(&ring->at.desc[descriptor.next]);
		if (descriptor.flags & VRING_DESC_F_INDIRECT)
			return add_split_table(ring, room, descriptor.addr, descriptor.len);
		if (!add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return true;
}

/* Takes so many available buffers. */
static inline void
take_split(struct ring *ring, uint16_t count)
{
	ring->avail += count;
	ring->waiting -= count;
}

/* Adds a used buffer; the guest does not see it yet. */
static inline void
give_back_split(struct ring *ring, const struct buffer *buffer)
{
	struct vring_used_elem *element = &ring->at.used->ring[ring->used & (ring->at.size - 1)];

	element->id = buffer->id;
	element->len = buffer->bytes;
	ring->used++;
}

static inline bool
wants_call_split(const struct ring *ring, uint16_t before, bool has_called)
{
	if (ring->features & BIT(VIRTIO_RING_F_EVENT_IDX))
		return !has_called || has_passed(READ(ring->at.avail->ring[ring->at.size]), ring->used, before);
	return !(READ(ring->at.avail->flags) & VRING_AVAIL_F_NO_INTERRUPT);
}

static inline void
notify_split(struct ring *ring, bool enable)
{
	if (!(ring->features & BIT(VIRTIO_RING_F_EVENT_IDX)))
		ring->at.used->flags = enable ? 0 : VRING_USED_F_NO_NOTIFY;
	else if (enable)
		/* Behind the ring: avail_event. */
		memcpy(ring->at.used->ring + ring->at.size, &ring->avail, sizeof(ring->avail));
}

#endif
