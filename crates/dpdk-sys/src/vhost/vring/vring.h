/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices, their rings during a burst, and the guest memory that descriptors name. For this folder.
 *
 * The per-packet code is inline, here and in the headers of both kinds of rings. Layouts: virtio 1.2, sections 2.7
 * (split), 2.8 (packed) and 5.1.6.
 */
#ifndef NETVM_DPDK_VRING_H
#define NETVM_DPDK_VRING_H

#include <stdbool.h>
#include <stdint.h>

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>

#include <rte_config.h>

#include <rte_mbuf.h>
#include <rte_spinlock.h>

#include "../vhost.h"

#define BIT(feature) (1ULL << (feature))
/* Pieces of memory that the buffers of one packet may have: more than 64 KB of single pages need. */
#define PIECES 256
/* Packets whose buffers are read before the first is copied. */
#define AHEAD NETVM_VHOST_MIN_ENTRIES

struct memory {
	uint32_t count;
	struct netvm_vhost_region regions[NETVM_VHOST_MAX_REGIONS];
};

/* Parts of a ring; a ring without entries is not started. */
struct ring_addresses {
	union {
		struct vring_desc *desc;
		struct vring_packed_desc *desc_packed;
	};
	union {
		struct vring_avail *avail;
		struct vring_packed_desc_event *driver_event;
	};
	union {
		struct vring_used *used;
		struct vring_packed_desc_event *device_event;
	};
	uint16_t size;
};

/* Pages that were written, for a migration: a bit for each page of the guest's addresses from 0 on. */
struct dirty_log {
	uint8_t *bits;
	uint64_t pages;
};

struct dma_queue;

/* A vring between bursts. */
struct vring_state {
	_Alignas(2 * RTE_CACHE_LINE_SIZE) struct ring_addresses at;
	/* Positions of the next available and the next used buffer. Those of packed rings wrap at their size. */
	uint16_t avail, used;
	bool avail_wrap, used_wrap;
	/* The position at the last publication, if known. */
	bool has_called;
	uint16_t last_call;
	/* What publish() does is recorded: in a dirty log, or in `inflight`. */
	bool is_recorded;
	/* Writes into the used ring are marked in the dirty log, as if the ring were at this address of the guest. */
	bool logs_used;
	uint64_t log_guest;
	/* Where the ring is, for a back-end after a crash (record.h), or NULL. */
	void *inflight;
	/* Receive rings: held while a thread fills it. */
	rte_spinlock_t lock;
	/* Copies by a DMA channel, if one is attached. */
	struct dma_queue *dma;
};

struct device {
	uint64_t features;
	struct memory memory;
	/* NULL bits: none was given. */
	struct dirty_log given_log;
	/* The log while the guest is migrated, else NULL. */
	const struct dirty_log *log;
	struct vring_state vrings[2 * NETVM_VHOST_MAX_PAIRS];
};

/* By number; NULL if there is none. */
extern struct device *netvm_vhost_devices[NETVM_VHOST_MAX_DEVICES];

/* The guest wants a call for what this thread has done. */
extern __thread int netvm_vhost_call_wanted;

/* A ring during a burst. */
struct ring {
	struct ring_addresses at;
	const struct memory *memory;
	/* Where the last buffer was. */
	const struct netvm_vhost_region *region;
	/* NULL: writes are not logged. */
	const struct dirty_log *log;
	uint64_t features;
	/* Bytes of a virtio-net header. */
	uint16_t header;
	/* Buffers that a packet may use at most. */
	uint16_t most;
	/* As in struct vring_state. */
	uint16_t avail, used;
	bool avail_wrap, used_wrap;
	/* Split: available buffers. Packed: unused. */
	uint16_t waiting;
	/* Packed: the first used descriptor of the burst, whose flags are written last. */
	struct vring_packed_desc *first;
	uint16_t first_flags;
};

struct piece {
	char *at;
	uint64_t bytes;
};

/* A used buffer. */
struct buffer {
	/* Bytes that were written to it. */
	uint32_t bytes;
	uint16_t id;
	/* Packed: descriptors of the ring. */
	uint16_t descriptors;
};

/* Buffers for a packet. */
struct room {
	uint64_t bytes;
	uint32_t pieces, buffers;
	struct piece piece[PIECES];
	struct buffer buffer[PIECES];
};

/* Reads memory that a guest may write concurrently, once. */
#define READ(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)

static inline struct device *
find_device(int device)
{
	return device >= 0 && device < NETVM_VHOST_MAX_DEVICES ? netvm_vhost_devices[device] : NULL;
}

/* A vring that is started, or NULL. */
static inline struct vring_state *
find_vring(struct device *device, uint16_t vring)
{
	if (device == NULL || vring >= 2 * NETVM_VHOST_MAX_PAIRS || device->vrings[vring].at.size == 0)
		return NULL;
	return &device->vrings[vring];
}

static inline bool
is_packed(const struct device *device)
{
	return device->features & BIT(VIRTIO_F_RING_PACKED);
}

/* Begins a burst. */
static inline void
begin_burst(struct ring *ring, const struct device *device, const struct vring_state *state)
{
	const uint64_t long_header = BIT(VIRTIO_NET_F_MRG_RXBUF) | BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_F_RING_PACKED);

	ring->at = state->at;
	ring->memory = &device->memory;
	ring->region = device->memory.regions;
	ring->log = device->log;
	ring->features = device->features;
	ring->header = device->features & long_header ? sizeof(struct virtio_net_hdr_mrg_rxbuf) :
		sizeof(struct virtio_net_hdr);
	ring->most = device->features & BIT(VIRTIO_NET_F_MRG_RXBUF) ? state->at.size : 1;
	ring->avail = state->avail;
	ring->used = state->used;
	ring->avail_wrap = state->avail_wrap;
	ring->used_wrap = state->used_wrap;
	ring->first = NULL;
}

/* Keeps the positions for the next burst. */
static inline void
end_burst(const struct ring *ring, struct vring_state *state)
{
	state->avail = ring->avail;
	state->used = ring->used;
	state->avail_wrap = ring->avail_wrap;
	state->used_wrap = ring->used_wrap;
}

/* Whether the bytes at an address of ours are all the guest's, and aligned. */
static inline bool
is_guests(const struct memory *memory, const void *at, uint64_t bytes, uint64_t alignment)
{
	uint64_t offset;
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		offset = (uintptr_t)at - memory->regions[i].start;
		if (offset < memory->regions[i].bytes)
			return bytes <= memory->regions[i].bytes - offset && (uintptr_t)at % alignment == 0;
	}
	return false;
}

/* Address of a contiguous buffer, or NULL. Most are in the last one's region. */
static inline char *
whole(struct ring *ring, uint64_t address, uint64_t bytes)
{
	const struct netvm_vhost_region *region = ring->region;
	uint64_t offset = address - region->guest;
	uint32_t i;

	for (i = 0; offset >= region->bytes || region->bytes - offset < bytes; i++) {
		if (i == ring->memory->count)
			return NULL;
		region = &ring->memory->regions[i];
		offset = address - region->guest;
	}
	ring->region = region;
	return (char *)(region->start + offset);
}

/* Where an address of the guest is mapped, or NULL; limits `bytes` to those that are contiguous. */
static inline char *
mapped(const struct memory *memory, uint64_t address, uint64_t *bytes)
{
	uint64_t offset;
	uint32_t i;

	for (i = 0; i < memory->count; i++) {
		offset = address - memory->regions[i].guest;
		if (offset < memory->regions[i].bytes) {
			*bytes = RTE_MIN(*bytes, memory->regions[i].bytes - offset);
			return (char *)(memory->regions[i].start + offset);
		}
	}
	return NULL;
}

/* Adds a descriptor's memory. Empty descriptors are refused: a guest could offer enough of them to stall others. */
static inline bool
add(const struct ring *ring, struct room *room, uint64_t address, uint32_t bytes)
{
	struct piece *piece;

	if (bytes == 0)
		return false;
	while (bytes > 0) {
		if (room->pieces == PIECES)
			return false;
		piece = &room->piece[room->pieces++];
		piece->bytes = bytes;
		piece->at = mapped(ring->memory, address, &piece->bytes);
		if (piece->at == NULL)
			return false;
		room->bytes += piece->bytes;
		address += piece->bytes;
		bytes -= piece->bytes;
	}
	return true;
}

/* Address of an entry of an indirect table, or NULL. */
static inline const void *
entry(const struct ring *ring, uint64_t table, uint32_t number)
{
	uint64_t bytes = sizeof(struct vring_desc);
	char *at = mapped(ring->memory, table + number * bytes, &bytes);

	return bytes == sizeof(struct vring_desc) && (uintptr_t)at % __alignof__(uint64_t) == 0 ? at : NULL;
}

/* Shows the guest the used buffers, of which there is at least one. */
static inline void
publish_used(struct ring *ring, bool packed)
{
	if (packed)
		__atomic_store_n(&ring->first->flags, ring->first_flags, __ATOMIC_RELEASE);
	else
		__atomic_store_n(&ring->at.used->idx, ring->used, __ATOMIC_RELEASE);
}

/* Whether `now` has passed the position at which the guest wants a call, since `before` (section 2.7.10.1). */
static inline bool
has_passed(uint16_t wanted, uint16_t now, uint16_t before)
{
	return (uint16_t)(now - wanted - 1) < (uint16_t)(now - before);
}

/* The compiler emits this instruction for few targets; processors without it ignore it. */
static inline void
prefetch_to_write(const void *at)
{
#ifdef __x86_64__
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

#endif
