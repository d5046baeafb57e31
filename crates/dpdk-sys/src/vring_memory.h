/*
 * A receive ring for as long as a burst takes, and where in a guest's memory that is what it names. For vring.c.
 *
 * What is on the path of every packet is inline, here and in the headers of both kinds of rings.
 */
#ifndef NETVM_DPDK_VRING_MEMORY_H
#define NETVM_DPDK_VRING_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

#include <rte_vhost.h>

#define BIT(feature) (1ULL << (feature))
/* Pieces of memory that the buffers of one packet may have: more than 64 KB in pages takes. */
#define PIECES 256

/* A ring for as long as a burst takes. */
struct ring {
	struct rte_vhost_vring at;
	struct rte_vhost_memory *memory;
	/* Where the last buffer was. */
	const struct rte_vhost_mem_region *region;
	uint64_t features;
	/* Bytes of a virtio-net header. */
	uint16_t header;
	/* Most buffers that a packet may take. */
	uint16_t most;
	/* Positions: of the next buffer, and of the next that is given back. Those of packed rings wrap at their size. */
	uint16_t avail, used;
	bool avail_wrap, used_wrap;
	/* Split: buffers that wait. Packed: unused. */
	uint16_t waiting;
	/* Packed: the first of the burst that is given back, whose flags are written last. */
	struct vring_packed_desc *first;
	uint16_t first_flags;
};

struct piece {
	char *at;
	uint64_t bytes;
};

/* A buffer that is given back. */
struct buffer {
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

/* What guests may write at the same time is read once. */
#define READ(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)

/* Whether so many bytes from an address of ours are the guest's, and aligned. */
static inline bool
is_guests(const struct rte_vhost_memory *memory, const void *at, uint64_t bytes, uint64_t alignment)
{
	uint64_t offset;
	uint32_t i;

	for (i = 0; i < memory->nregions; i++) {
		offset = (uintptr_t)at - memory->regions[i].host_user_addr;
		if (offset < memory->regions[i].size)
			return bytes <= memory->regions[i].size - offset && (uintptr_t)at % alignment == 0;
	}
	return false;
}

/* Where a buffer is that is in one piece, or NULL. Most are where the last one was. */
static inline char *
whole(struct ring *ring, uint64_t address, uint64_t bytes)
{
	const struct rte_vhost_mem_region *region = ring->region;
	uint64_t offset = address - region->guest_phys_addr;
	uint32_t i;

	for (i = 0; offset >= region->size || region->size - offset < bytes; i++) {
		if (i == ring->memory->nregions)
			return NULL;
		region = &ring->memory->regions[i];
		offset = address - region->guest_phys_addr;
	}
	ring->region = region;
	return (char *)(uintptr_t)(region->host_user_addr + offset);
}

/* Adds a descriptor's memory. One without any is refused: a guest could offer so many that others wait. */
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
		piece->at = (char *)(uintptr_t)rte_vhost_va_from_guest_pa(ring->memory, address, &piece->bytes);
		if (piece->at == NULL)
			return false;
		room->bytes += piece->bytes;
		address += piece->bytes;
		bytes -= piece->bytes;
	}
	return true;
}

/* Where an entry of an indirect table is, or NULL. */
static inline const void *
entry(const struct ring *ring, uint64_t table, uint32_t number)
{
	uint64_t bytes = sizeof(struct vring_desc);
	uint64_t at = rte_vhost_va_from_guest_pa(ring->memory, table + number * bytes, &bytes);

	return bytes == sizeof(struct vring_desc) && at % __alignof__(uint64_t) == 0 ? (const void *)(uintptr_t)at : NULL;
}

/* Whether `now` has reached a position that the guest wants to be last_call of, since `before` (section 2.7.10.1). */
static inline bool
has_passed(uint16_t wanted, uint16_t now, uint16_t before)
{
	return (uint16_t)(now - wanted - 1) < (uint16_t)(now - before);
}

#endif
