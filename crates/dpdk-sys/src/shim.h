/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of DPDK that netvm cannot link to directly or rely on across releases; lib.rs gives the reasons.
 *
 * Conventions: functions that can fail return a negative errno. Bursts are called once per burst, never per packet.
 */
#ifndef NETVM_DPDK_SHIM_H
#define NETVM_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>
#include <rte_version.h>

#if RTE_VERSION < RTE_VERSION_NUM(22, 11, 0, 0)
#error "netvm needs DPDK 22.11 or newer (Debian and Ubuntu: apt install libdpdk-dev)"
#endif

#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>

/** Byte offsets of the fields of struct rte_mbuf that Rust reads, and other values that depend on DPDK's build. */
enum netvm_constant {
	NETVM_MBUF_OFF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	NETVM_MBUF_OFF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	NETVM_MBUF_OFF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	NETVM_MBUF_OFF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	NETVM_MBUF_OFF_PORT = offsetof(struct rte_mbuf, port),
	NETVM_MBUF_OFF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	NETVM_MBUF_OFF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	NETVM_MBUF_OFF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	NETVM_MBUF_OFF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	NETVM_MBUF_OFF_HASH = offsetof(struct rte_mbuf, hash),
	NETVM_MBUF_OFF_VLAN_TCI_OUTER = offsetof(struct rte_mbuf, vlan_tci_outer),
	NETVM_MBUF_OFF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	NETVM_MBUF_OFF_PACKET_TYPE = offsetof(struct rte_mbuf, packet_type),
	NETVM_MBUF_OFF_NEXT = offsetof(struct rte_mbuf, next),
	NETVM_MBUF_SIZE = sizeof(struct rte_mbuf),
	/** Bytes that every driver leaves free before a received packet. */
	NETVM_HEADROOM = RTE_PKTMBUF_HEADROOM,
	/** Largest per-thread cache of a pool. */
	NETVM_CACHE_MAX = RTE_MEMPOOL_CACHE_MAX_SIZE,
	/** Bytes of EAL memory that a pool takes for each buffer, at most. */
	NETVM_POOL_BYTES_PER_BUFFER = 448,
	/** Bytes of EAL memory that a pool takes whatever its size, at most. */
	NETVM_POOL_BYTES_FIXED =
		sizeof(struct rte_mempool) + RTE_MAX_LCORE * sizeof(struct rte_mempool_cache) + (1 << 16),
};

/* EAL, threads, logs */

/** rte_eal_init. */
int netvm_eal_init(int argc, char **argv);

/** Sends log lines up to this level (RTE_LOG_*) to standard error, unless they are captured. */
void netvm_log_print_up_to(uint32_t level);

/** Sends DPDK's log to a buffer until netvm_log_end; callers take turns. 0 or a negative errno. */
int netvm_log_begin(void);

/** Ends netvm_log_begin: copies the log (its end, if it is long) to `text` and returns its length. */
size_t netvm_log_end(char *text, size_t capacity);

/** Gives the calling thread an lcore id, which selects its mempool caches. -EALREADY if it has one. */
int netvm_thread_register(void);

/** Whether devices use virtual addresses. */
int netvm_iova_is_va(void);

/** The counter that rte_get_tsc_hz counts. */
uint64_t netvm_cycles(void);

/* Pools */

struct netvm_pool_spec {
	const char *name;
	/** Name of the mempool handler. */
	const char *handler;
	/** Address of buffer 0. */
	void *buffers;
	uint32_t count;
	/** Distance of buffers. */
	uint32_t stride;
	/** Bytes of a buffer, at most 65,535. */
	uint32_t size;
	uint32_t cache;
	/** NUMA node or -1. */
	int32_t node;
};

/** Whether a mempool handler of that name is loaded. */
int netvm_pool_has_handler(const char *name);

/** Creates a pool whose mbufs use these buffers. One caller at a time. */
int netvm_pool_create(const struct netvm_pool_spec *spec, struct rte_mempool **pool);

/** Writes the pool's mbufs to `table` in the order of their buffers, at most `capacity`; returns how many there are. */
uint32_t netvm_pool_table(struct rte_mempool *pool, struct rte_mbuf **table, uint32_t capacity);

/** Makes caller's memory of `pages` pages known to the EAL, with the address that devices use for each page. */
int netvm_memory_register(void *address, uint64_t *iovas, uint32_t pages, size_t page_bytes);

/** Sets the address under which devices reach the mbuf's buffer. */
void netvm_mbuf_set_iova(struct rte_mbuf *mbuf, uint64_t iova);

/**
 * Takes `count` mbufs from the pool, or none, whose packets are `length` bytes `offset` behind the start of their
 * buffers: 0 or a negative errno. As drivers do when they receive, it writes the mbuf's first line only: `tx_offload`
 * is that of the last user, and means nothing until a flag says so.
 */
int netvm_pool_alloc(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint32_t count, uint16_t offset,
	uint16_t length);

/** Frees mbufs of any pools, with their further segments. */
void netvm_mbuf_free(struct rte_mbuf **mbufs, uint32_t count);

/** Moves the contents of the calling thread's cache to the pool. */
void netvm_pool_flush(struct rte_mempool *pool);

/**
 * Whether all mbufs are in the pool and no thread is still freeing one: 1 yes, 0 no, -EAGAIN if concurrent frees hide
 * the answer, -ETIMEDOUT if a free takes longer than a second. No thread may be able to allocate from the pool.
 */
int netvm_pool_is_whole(struct rte_mempool *pool);

/* Ports */

struct netvm_port_info {
	char driver[64];
	uint64_t rss_offloads;
	uint32_t max_packet_bytes;
	/** NUMA node or -1. */
	int32_t node;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint8_t mac[6];
	uint8_t rss_key_bytes;
};

struct netvm_port_config {
	uint16_t rx_queues;
	uint16_t tx_queues;
	/** 0 leaves it to the device. */
	uint16_t mtu;
	/** Spread over the queues by a hash of addresses and ports. */
	uint8_t rss;
	/** With a key under which both directions of a flow hash alike. */
	uint8_t rss_symmetric;
};

struct netvm_link {
	uint32_t megabits;
	uint8_t up;
	uint8_t full_duplex;
};

struct netvm_port_stats {
	uint64_t rx_packets;
	uint64_t rx_bytes;
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t rx_no_mbuf;
	uint64_t tx_packets;
	uint64_t tx_bytes;
	uint64_t tx_errors;
};

int netvm_port_info(uint16_t port, struct netvm_port_info *info);
int netvm_port_configure(uint16_t port, const struct netvm_port_config *config);
int netvm_port_link(uint16_t port, struct netvm_link *link);
int netvm_port_stats(uint16_t port, struct netvm_port_stats *stats);

/** Whether a started port splits packets longer than a buffer over several mbufs: 1 yes, 0 no or unknown. */
int netvm_port_scatters(uint16_t port);

int netvm_port_dma_map(uint16_t port, void *address, uint64_t iova, size_t bytes);
int netvm_port_dma_unmap(uint16_t port, void *address, uint64_t iova, size_t bytes);

int netvm_port_stop(uint16_t port);

/** Closes a stopped port and removes its device. Returns the first error, after all steps. */
int netvm_port_close(uint16_t port);

/** Receives at most `count` packets. */
uint16_t netvm_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/** Sends packets from the first on and returns how many; the driver owns these. */
uint16_t netvm_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* Rings of mbufs, one producer and one consumer */

enum netvm_ring_flags { NETVM_RING_SPSC = RING_F_SP_ENQ | RING_F_SC_DEQ };

uint32_t netvm_ring_enqueue(struct rte_ring *ring, struct rte_mbuf **mbufs, uint32_t count);
uint32_t netvm_ring_dequeue(struct rte_ring *ring, struct rte_mbuf **mbufs, uint32_t count);

#endif
