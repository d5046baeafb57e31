/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies to guests by a DMA engine (rte_dmadev), in place of the processor.
 *
 * A device has one channel and serves one vhost-user port. A receive ring records its packets in flight, in order, with
 * their mbufs and buffers. The processor writes virtio-net headers; the guest sees a packet once it and all before it
 * are copied.
 */
#ifndef NETVM_DPDK_DMA_CHANNEL_H
#define NETVM_DPDK_DMA_CHANNEL_H

#include <stdint.h>

#include "vhost.h"

enum netvm_dma_constant {
	/** Longest name of a device, with its NUL byte. */
	NETVM_DMA_NAME = 64,
	/** Descriptors of a channel, if the device supports as many. */
	NETVM_DMA_DESCRIPTORS = 1024,
};

struct netvm_dma_stats {
	/** Copies begun, done, and failed. */
	uint64_t submitted;
	uint64_t completed;
	uint64_t errors;
};

/**
 * Starts a device for a port: the one with this name, or, for an empty name, any free hardware device; its name is
 * written back. `descriptors`: 0 for the default. Returns its number, or a negative errno: ENODEV (none), EBUSY (serves
 * another port), ENOTSUP (cannot copy from memory to memory with the process's addresses).
 */
int netvm_dma_open(char name[NETVM_DMA_NAME], uint16_t descriptors);

/** Stops it: copies in flight never finish. */
void netvm_dma_stop(int dma);

/** Stops and releases it; no vring uses it any more. */
void netvm_dma_close(int dma);

/** Its counters since it was started. */
void netvm_dma_stats(int dma, struct netvm_dma_stats *stats);

/** How many suitable hardware devices are free. */
uint32_t netvm_dma_count(void);

/** Attaches the channel to a guest's started receive rings; returns a bit mask of their queue pairs. */
uint64_t netvm_dma_begin(int device);

/**
 * Detaches it after the copies in flight, and frees their mbufs. -ETIMEDOUT if they take longer than a second: the DMA
 * channel is stopped, the copies in flight are given up, and it must not be used any more. Sets a bit of `calls` for
 * each queue pair whose guest wants a call.
 */
int netvm_dma_end(int device, int dma, uint64_t *calls);

/**
 * As netvm_vhost_send, but the packets are copied later, in order. Packets that the device has no room for are copied
 * at once, unless they would overtake copies in flight.
 */
uint16_t netvm_dma_send(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count,
	uint64_t *bytes);

/** Publishes copied packets to the guest and frees them; returns how many are still in flight, -1 if unknown. */
int netvm_dma_reap(int device, uint16_t vring, int dma);

#endif
