/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offloads of packets from guests and from interfaces of the kernel: partial checksums (virtio), and TCP segments (TSO)
 * and UDP datagrams (USO) to be cut into packets. Such packets have the flags of transmit offloads.
 */
#ifndef NETVM_DPDK_OFFLOAD_H
#define NETVM_DPDK_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>

#include <rte_mbuf.h>

/** ol_flags: an offload is pending. */
static const uint64_t NETVM_OFFLOAD_ANY =
	RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG;
/** ol_flags: the packet must be split. */
static const uint64_t NETVM_OFFLOAD_SEGMENT = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG;
/** ol_flags: those of UDP. */
static const uint64_t NETVM_OFFLOAD_UDP_SEGMENT = RTE_MBUF_F_TX_UDP_SEG;
/** ol_flags: an unfinished checksum of TCP, and of UDP; and the bits of both. */
static const uint64_t NETVM_OFFLOAD_TCP = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t NETVM_OFFLOAD_UDP = RTE_MBUF_F_TX_UDP_CKSUM;
static const uint64_t NETVM_OFFLOAD_L4 = RTE_MBUF_F_TX_L4_MASK;
/** ol_flags: IPv6. */
static const uint64_t NETVM_OFFLOAD_IPV6 = RTE_MBUF_F_TX_IPV6;
/** ol_flags: IPv4. */
static const uint64_t NETVM_OFFLOAD_IPV4 = RTE_MBUF_F_TX_IPV4;

/** A part of a packet: an iovec of readv(2). */
struct netvm_part {
	void *bytes;
	size_t length;
};

enum netvm_offload_constant {
	NETVM_MBUF_OFF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
	/** Bits of tx_offload, from the lowest on: lengths of the headers of layers 2, 3 and 4, and of the segments. */
	NETVM_OFFLOAD_L2_BITS = RTE_MBUF_L2_LEN_BITS,
	NETVM_OFFLOAD_L3_BITS = RTE_MBUF_L3_LEN_BITS,
	NETVM_OFFLOAD_L4_BITS = RTE_MBUF_L4_LEN_BITS,
	NETVM_OFFLOAD_SIZE_BITS = RTE_MBUF_TSO_SEGSZ_BITS,
	/** After them: lengths of the headers of layers 3 and 2 of a tunnel. */
	NETVM_OFFLOAD_OUTER_L3_BITS = RTE_MBUF_OUTL3_LEN_BITS,
	NETVM_OFFLOAD_OUTER_L2_BITS = RTE_MBUF_OUTL2_LEN_BITS,
};

/**
 * Computes the missing checksum from the partial one in its field (virtio 1.2 section 5.1.6.2), and clears the flags.
 * -EINVAL if the headers are not all in the first buffer.
 */
int netvm_offload_checksum(struct rte_mbuf *mbuf);

/**
 * Writes the Internet checksum (RFC 1071) of the bytes from `from` to the end of the packet to `at`, for protocols that
 * the flags have no name for. -EINVAL if the field is not in the first buffer.
 */
int netvm_checksum_at(struct rte_mbuf *mbuf, uint32_t from, uint32_t at);

/** Copies bytes of a packet from all its segments: 0, or -EINVAL if it is shorter. */
int netvm_mbuf_read(const struct rte_mbuf *mbuf, uint32_t offset, uint32_t length, void *to);

/**
 * Makes one packet of `count` mbufs of one segment each, at least 1, over which `length` bytes were written: as many as
 * each had room for. All but the last are then full.
 */
void netvm_mbuf_link(struct rte_mbuf *const *mbufs, uint32_t count, uint32_t length);

/** Where the bytes of a packet are: a part for each segment, at most `most`. Returns how many segments it has. */
uint32_t netvm_mbuf_parts(const struct rte_mbuf *mbuf, struct netvm_part *parts, uint32_t most);

/** The Internet checksum of bytes (RFC 1071), neither complemented nor byte-swapped. */
uint16_t netvm_raw_checksum(const void *bytes, size_t length);

/** A copy of a whole packet in mbufs of the pool, with its pending offloads; NULL if the pool has too few. */
struct rte_mbuf *netvm_mbuf_copy(const struct rte_mbuf *mbuf, struct rte_mempool *pool);

#endif
