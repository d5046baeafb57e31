/*
 * Offloads of packets from guests: partial checksums (virtio) and TCP segments longer than a packet (TSO). DPDK's vhost
 * library marks such packets with the flags of transmit offloads.
 */
#ifndef NETVM_DPDK_OFFLOAD_H
#define NETVM_DPDK_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>

#include <rte_mbuf.h>

/** ol_flags: an offload is pending. */
static const uint64_t NETVM_OFFLOAD_ANY = RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_TCP_SEG;
/** ol_flags: the packet must be split. */
static const uint64_t NETVM_OFFLOAD_SEGMENT = RTE_MBUF_F_TX_TCP_SEG;
/** ol_flags: IPv6. */
static const uint64_t NETVM_OFFLOAD_IPV6 = RTE_MBUF_F_TX_IPV6;

enum netvm_offload_constant {
	NETVM_MBUF_OFF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
	/** Bits of tx_offload, from the lowest on: lengths of the headers of layers 2, 3 and 4, and of the segments. */
	NETVM_OFFLOAD_L2_BITS = RTE_MBUF_L2_LEN_BITS,
	NETVM_OFFLOAD_L3_BITS = RTE_MBUF_L3_LEN_BITS,
	NETVM_OFFLOAD_L4_BITS = RTE_MBUF_L4_LEN_BITS,
	NETVM_OFFLOAD_SIZE_BITS = RTE_MBUF_TSO_SEGSZ_BITS,
};

/**
 * Computes the missing checksum from the partial one in its field (virtio 1.2 section 5.1.6.2), and clears the flags.
 * -EINVAL if the headers are not all in the first buffer.
 */
int netvm_offload_checksum(struct rte_mbuf *mbuf);

/** Copies bytes of a packet from all its segments: 0, or -EINVAL if it is shorter. */
int netvm_mbuf_read(const struct rte_mbuf *mbuf, uint32_t offset, uint32_t length, void *to);

/** The Internet checksum of bytes (RFC 1071), neither complemented nor byte-swapped. */
uint16_t netvm_raw_checksum(const void *bytes, size_t length);

/** A copy of a whole packet in mbufs of the pool, with its pending offloads; NULL if the pool has too few. */
struct rte_mbuf *netvm_mbuf_copy(const struct rte_mbuf *mbuf, struct rte_mempool *pool);

#endif
