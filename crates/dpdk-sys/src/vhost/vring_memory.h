/*
 * A receive ring during a burst, and the guest memory that its descriptors name. For vring.c.
 *
 * The per-packet code is inline, here and in the headers of both kinds of rings.
 */
#ifndef NETVM_DPDK_VRING_MEMORY_H
#define NETVM_DPDK_VRING_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>

#include <rte_mbuf.h>
#include <rte_net.h>
#include <rte_tcp.h>
#include <rte_udp.h>
#include <rte_vhost.h>

#define BIT(feature) (1ULL << (feature))
/* Pieces of memory that the buffers of one packet may have: more than 64 KB of single pages need. */
#define PIECES 256

/* A ring during a burst. */
struct ring {
	struct rte_vhost_vring at;
	struct rte_vhost_memory *memory;
	/* Where the last buffer was. */
	const struct rte_vhost_mem_region *region;
	uint64_t features;
	/* Bytes of a virtio-net header. */
	uint16_t header;
	/* Buffers that a packet may use at most. */
	uint16_t most;
	/* Positions of the next available and the next used buffer. Those of packed rings wrap at their size. */
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

/* Whether the bytes at an address of ours are all the guest's, and aligned. */
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

/* Address of a contiguous buffer, or NULL. Most are in the last one's region. */
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
		piece->at = (char *)(uintptr_t)rte_vhost_va_from_guest_pa(ring->memory, address, &piece->bytes);
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
	uint64_t at = rte_vhost_va_from_guest_pa(ring->memory, table + number * bytes, &bytes);

	return bytes == sizeof(struct vring_desc) && at % __alignof__(uint64_t) == 0 ? (const void *)(uintptr_t)at : NULL;
}

/* Whether `now` has passed the position at which the guest wants a call, since `before` (section 2.7.10.1). */
static inline bool
has_passed(uint16_t wanted, uint16_t now, uint16_t before)
{
	return (uint16_t)(now - wanted - 1) < (uint16_t)(now - before);
}

/* Describes offloads in the header, for a guest that accepts them. */
static inline void
describe_offloads(struct rte_mbuf *mbuf, struct virtio_net_hdr *header)
{
	uint64_t sum = mbuf->ol_flags & RTE_MBUF_F_TX_L4_MASK;

	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG)
		sum = RTE_MBUF_F_TX_TCP_CKSUM;
	/* Sums of pseudo-headers (section 5.1.6.2), and those of IPv4. */
	rte_net_intel_cksum_prepare(mbuf);
	if (sum != 0) {
		header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		header->csum_start = mbuf->l2_len + mbuf->l3_len;
		header->csum_offset = sum == RTE_MBUF_F_TX_UDP_CKSUM ? offsetof(struct rte_udp_hdr, dgram_cksum) :
			offsetof(struct rte_tcp_hdr, cksum);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_IP_CKSUM) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, mbuf->l2_len);

		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
		header->gso_type = mbuf->ol_flags & RTE_MBUF_F_TX_IPV4 ? VIRTIO_NET_HDR_GSO_TCPV4 :
			VIRTIO_NET_HDR_GSO_TCPV6;
		header->gso_size = mbuf->tso_segsz;
		header->hdr_len = mbuf->l2_len + mbuf->l3_len + mbuf->l4_len;
	}
}

static inline bool
has_offloads(const struct rte_mbuf *mbuf)
{
	return mbuf->ol_flags & (RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IP_CKSUM);
}

#endif
