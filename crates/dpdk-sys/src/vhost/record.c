/* SPDX-License-Identifier: Apache-2.0 */
/* See record.h. */
#include "record.h"

#include <stddef.h>

/* VHOST_LOG_PAGE. */
#define LOG_PAGE 4096
/* The only version of both structures. */
#define INFLIGHT_VERSION 1

_Static_assert(sizeof(struct inflight_split) == 16 && sizeof(struct inflight_packed) == 32, "vhost-user's layout");

void
netvm_log_pages(const struct dirty_log *log, uint64_t guest, uint64_t bytes)
{
	uint64_t page = guest / LOG_PAGE, last = (guest + bytes - 1) / LOG_PAGE;

	for (; page <= last && page < log->pages; page++)
		/* A front-end that sees the bit sees the page as written. It clears bits at the same time. */
		__atomic_fetch_or(&log->bits[page / 8], 1 << page % 8, __ATOMIC_RELEASE);
}

void
netvm_log_at(const struct ring *ring, const void *at, uint64_t bytes)
{
	const struct memory *memory = ring->memory;
	uint64_t offset;
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		offset = (uintptr_t)at - memory->regions[i].start;
		if (offset < memory->regions[i].bytes) {
			netvm_log_pages(ring->log, memory->regions[i].guest + offset, bytes);
			return;
		}
	}
}

/* Marks a part of the used ring, or of the device's event suppression, at the address that the front-end gave. */
static void
log_used_part(const struct ring *ring, const struct vring_state *state, uint64_t offset, uint64_t bytes)
{
	if (state->logs_used && bytes > 0)
		netvm_log_pages(ring->log, state->log_guest + offset, bytes);
}

static void
log_used_split(const struct ring *ring, const struct vring_state *state)
{
	const uint64_t element = sizeof(struct vring_used_elem), size = ring->at.size;
	const uint64_t begin = offsetof(struct vring_used, ring);
	uint64_t first = state->used & (size - 1), count = (uint16_t)(ring->used - state->used);
	uint64_t before_end = RTE_MIN(count, size - first);

	log_used_part(ring, state, begin + first * element, before_end * element);
	log_used_part(ring, state, begin, RTE_MIN(count - before_end, size) * element);
	log_used_part(ring, state, offsetof(struct vring_used, idx), sizeof(uint16_t));
}

static void
log_used_packed(const struct ring *ring, const struct vring_state *state)
{
	const struct vring_packed_desc *descriptors = ring->at.desc_packed;
	bool wraps = ring->used_wrap != state->used_wrap;
	uint16_t end = wraps ? ring->at.size : ring->used;

	if (end > state->used)
		netvm_log_at(ring, &descriptors[state->used], (end - state->used) * sizeof(*descriptors));
	if (wraps && ring->used > 0)
		netvm_log_at(ring, descriptors, ring->used * sizeof(*descriptors));
}

void
netvm_log_notify(const struct ring *ring, const struct vring_state *state, bool packed)
{
	const uint64_t event = offsetof(struct vring_used, ring) + ring->at.size * sizeof(struct vring_used_elem);

	if (packed) {
		log_used_part(ring, state, 0, sizeof(struct vring_packed_desc_event));
		return;
	}
	log_used_part(ring, state, offsetof(struct vring_used, flags), sizeof(uint16_t));
	if (ring->features & BIT(VIRTIO_RING_F_EVENT_IDX))
		log_used_part(ring, state, event, sizeof(uint16_t));
}

/* The next back-end, if this one ends between the two parts, looks into the ring which of both positions holds. */
static void
begin_inflight(const struct ring *ring, const struct vring_state *state, bool packed)
{
	struct inflight_packed *inflight = state->inflight;

	if (inflight == NULL || !packed)
		return;
	inflight->used_wrap_counter = ring->used_wrap;
	__atomic_store_n(&inflight->used_idx, ring->used, __ATOMIC_RELEASE);
}

static void
end_inflight(const struct ring *ring, const struct vring_state *state, bool packed)
{
	struct inflight_split *split = state->inflight;
	struct inflight_packed *inflight = state->inflight;

	if (inflight == NULL)
		return;
	if (packed) {
		inflight->old_used_wrap_counter = ring->used_wrap;
		__atomic_store_n(&inflight->old_used_idx, ring->used, __ATOMIC_RELEASE);
	} else {
		__atomic_store_n(&split->used_idx, ring->used, __ATOMIC_RELEASE);
	}
}

void
netvm_publish_recorded(struct ring *ring, const struct vring_state *state, bool packed)
{
	begin_inflight(ring, state, packed);
	/* begin_inflight() has only stored, which this store does not overtake. */
	publish_used(ring, packed);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	end_inflight(ring, state, packed);
	if (ring->log == NULL)
		return;
	if (packed)
		log_used_packed(ring, state);
	else
		log_used_split(ring, state);
}

/* The front-end can write the record, too: a position that is none of the ring's is not taken. */
static void
continue_packed(const struct inflight_packed *inflight, struct vring_state *state)
{
	uint16_t used = READ(inflight->used_idx), old = READ(inflight->old_used_idx), flags;
	bool used_wrap = READ(inflight->used_wrap_counter), old_wrap = READ(inflight->old_used_wrap_counter);
	bool is_published;

	if (used >= state->at.size || old >= state->at.size)
		return;
	flags = READ(state->at.desc_packed[old].flags);
	is_published = !!(flags & 1 << VRING_PACKED_DESC_F_AVAIL) == old_wrap &&
		!!(flags & 1 << VRING_PACKED_DESC_F_USED) == old_wrap;
	state->used = state->avail = is_published ? used : old;
	state->used_wrap = state->avail_wrap = is_published ? used_wrap : old_wrap;
}

void
netvm_inflight_begin(const struct device *device, struct vring_state *state)
{
	struct inflight_split *split = state->inflight;
	struct inflight_packed *inflight = state->inflight;

	if (split == NULL)
		return;
	/* Both structures begin alike. A split ring says itself what was used. */
	if (is_packed(device) && split->version == INFLIGHT_VERSION)
		continue_packed(inflight, state);
	split->version = INFLIGHT_VERSION;
	split->desc_num = state->at.size;
	if (!is_packed(device)) {
		split->used_idx = state->used;
		return;
	}
	inflight->used_idx = inflight->old_used_idx = state->used;
	inflight->used_wrap_counter = inflight->old_used_wrap_counter = state->used_wrap;
}
