/* SPDX-License-Identifier: Apache-2.0 */
/* Packed rings (virtio 1.2, section 2.8). For this folder. */
#ifndef NETVM_DPDK_VRING_PACKED_H
#define NETVM_DPDK_VRING_PACKED_H

#include "vring.h"

static inline bool
is_sound_packed(const struct ring *ring)
{
	const struct memory *memory = ring->memory;
	uint64_t size = ring->at.size;

	return ring->avail < size && ring->used < size &&
		is_guests(memory, ring->at.desc_packed, size * sizeof(*ring->at.desc_packed), 16) &&
		is_guests(memory, ring->at.driver_event, sizeof(*ring->at.driver_event), 4) &&
		is_guests(memory, ring->at.device_event, sizeof(*ring->at.device_event), 4);
}

static inline struct vring_packed_desc
read_packed(const struct vring_packed_desc *at)
{
	return (struct vring_packed_desc){ READ(at->addr), READ(at->len), READ(at->id), READ(at->flags) };
}

/* The position `ahead` descriptors further in a packed ring; toggles `wrap` if it wraps. */
static inline uint32_t
packed_place(const struct ring *ring, uint16_t position, uint32_t ahead, bool *wrap)
{
	uint32_t place = (uint32_t)position + ahead;

	if (place < ring->at.size)
		return place;
	*wrap = !*wrap;
	return place - ring->at.size;
}

static inline bool
packed_is_there(const struct vring_packed_desc *at, bool wrap)
{
	uint16_t flags = __atomic_load_n(&at->flags, __ATOMIC_ACQUIRE);

	return !!(flags & 1 << VRING_PACKED_DESC_F_AVAIL) == wrap && !!(flags & 1 << VRING_PACKED_DESC_F_USED) != wrap;
}

static inline bool
add_packed_table(const struct ring *ring, struct room *room, uint64_t table, uint32_t bytes)
{
	uint32_t i, entries = bytes / sizeof(struct vring_packed_desc);
	const struct vring_packed_desc *at;
	struct vring_packed_desc descriptor;

	for (i = 0; i < entries; i++) {
		at = entry(ring, table, i);
		if (at == NULL)
			return false;
		descriptor = read_packed(at);
		if ((descriptor.flags & VRING_DESC_F_INDIRECT) || !add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return entries > 0;
}

/* Adds the buffer that is `*ahead` descriptors ahead of the ring's position. */
static inline bool
add_packed(const struct ring *ring, struct room *room, uint16_t *ahead)
{
	struct buffer *buffer = &room->buffer[room->buffers];
	struct vring_packed_desc descriptor;
	bool wrap = ring->avail_wrap;
	uint32_t place;

	/* No chain can be all there that is longer than the ring. */
	if (*ahead >= ring->at.size)
		return false;
	place = packed_place(ring, ring->avail, *ahead, &wrap);
	if (!packed_is_there(&ring->at.desc_packed[place], wrap))
		return false;
	buffer->descriptors = 0;
	do {
		if (*ahead >= ring->at.size)
			return false;
		wrap = ring->avail_wrap;
		place = packed_place(ring, ring->avail, (*ahead)++, &wrap);
		descriptor = read_packed(&ring->at.desc_packed[place]);
		buffer->descriptors++;
		buffer->id = descriptor.id;
		if (descriptor.flags & VRING_DESC_F_INDIRECT)
			return add_packed_table(ring, room, descriptor.addr, descriptor.len);
		if (!add(ring, room, descriptor.addr, descriptor.len))
			return false;
	} while (descriptor.flags & VRING_DESC_F_NEXT);
	return true;
}

/* Takes an available buffer and adds it as used; the guest does not see the burst's first one yet. */
static inline void
give_back_packed(struct ring *ring, const struct buffer *buffer)
{
	struct vring_packed_desc *at = &ring->at.desc_packed[ring->used];
	uint16_t flags = (buffer->bytes > 0 ? VRING_DESC_F_WRITE : 0) |
		(ring->used_wrap ? 1 << VRING_PACKED_DESC_F_AVAIL | 1 << VRING_PACKED_DESC_F_USED : 0);

	at->id = buffer->id;
	at->len = buffer->bytes;
	if (ring->first == NULL) {
		ring->first = at;
		ring->first_flags = flags;
	} else {
		__atomic_store_n(&at->flags, flags, __ATOMIC_RELEASE);
	}
	ring->used = packed_place(ring, ring->used, buffer->descriptors, &ring->used_wrap);
	ring->avail = packed_place(ring, ring->avail, buffer->descriptors, &ring->avail_wrap);
}

static inline bool
wants_call_packed(const struct ring *ring, uint16_t before, bool has_called)
{
	uint16_t flags = READ(ring->at.driver_event->flags), wanted;

	if (flags != VRING_PACKED_EVENT_FLAG_DESC || !(ring->features & BIT(VIRTIO_RING_F_EVENT_IDX)))
		return flags != VRING_PACKED_EVENT_FLAG_DISABLE;
	if (!has_called)
		return true;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	wanted = READ(ring->at.driver_event->off_wrap);
	if (ring->used <= before)
		before -= ring->at.size;
	if (ring->used_wrap != wanted >> 15)
		return has_passed((wanted & 0x7fff) - ring->at.size, ring->used, before);
	return has_passed(wanted & 0x7fff, ring->used, before);
}

static inline void
notify_packed(struct ring *ring, bool enable)
{
	bool by_position = enable && (ring->features & BIT(VIRTIO_RING_F_EVENT_IDX));
	uint16_t flags = by_position ? VRING_PACKED_EVENT_FLAG_DESC : VRING_PACKED_EVENT_FLAG_ENABLE;

	if (by_position)
		ring->at.device_event->off_wrap = ring->avail | ring->avail_wrap << 15;
	__atomic_store_n(&ring->at.device_event->flags, enable ? flags : VRING_PACKED_EVENT_FLAG_DISABLE,
		__ATOMIC_RELEASE);
}

#endif
