/*
 * Copies to guests that a DMA engine makes: rte_dmadev under rte_vhost's asynchronous calls.
 *
 * A device has one channel, and one vhost-user port that it works for. While a packet is being copied its mbuf is the
 * library's, and bears the device's mark, so that it can be found if the device never finishes.
 */
#ifndef NETVM_DPDK_DMA_CHANNEL_H
#define NETVM_DPDK_DMA_CHANNEL_H

#include <stdint.h>

#include "vhost.h"

enum netvm_dma_constant {
	/** Longest name of a device, with its NUL byte. */
	NETVM_DMA_NAME = 64,
	/** Descriptors that a device's channel gets, if it can have as many. */
	NETVM_DMA_DESCRIPTORS = 1024,
};

struct netvm_dma_stats {
	/** Copies begun, done, and failed. */
	uint64_t submitted;
	uint64_t completed;
	uint64_t errors;
};

/**
 * Starts a device for a port: the one of this name, or, for an empty name, any that is hardware and free; its name is
 * written back. Descriptors: 0 for the usual number. Its number, or a negative errno: ENODEV (none), EBUSY (has a port),
 * ENOTSUP (does not copy from memory to memory by the process's own addresses).
 */
int netvm_dma_open(char name[NETVM_DMA_NAME], uint16_t descriptors);

/** Stops it: it finishes no copy any more. */
void netvm_dma_stop(int dma);

/** Gives it up, stopped; no vring uses it any more. */
void netvm_dma_close(int dma);

/** What it has done since it was started. */
void netvm_dma_stats(int dma, struct netvm_dma_stats *stats);

/** How many devices are hardware, suit and are free. */
uint32_t netvm_dma_count(void);

/**
 * Lets the device copy to the receive rings of a guest: those of which queue pairs, a bit each. `locked`: within a message
 * that locks the vrings.
 */
uint64_t netvm_dma_begin(int device, int locked);

/**
 * Ends that, after what is under way; frees its mbufs. -ETIMEDOUT if that takes longer than a second: the DMA channel has been
 * stopped then, all its mbufs are back, and it must not be used any more. Sets a bit of `calls` for each queue pair whose
 * guest wants to be calls of what has been copied.
 */
int netvm_dma_end(int device, int dma, int locked, uint64_t *calls);

/**
 * As netvm_vhost_send, but the packets are copied later, in order; those that the device has no room for are copied at
 * once if nothing is under way that they would overtake.
 */
uint16_t netvm_dma_send(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count,
	uint64_t *bytes);

/** Tells the guest of packets that have been copied, and frees them; how many are still under way, -1 if unknown. */
int netvm_dma_reap(int device, uint16_t vring, int dma);

#endif
