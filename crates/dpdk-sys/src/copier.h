/*
 * Copies to guests that a DMA engine makes: rte_dmadev under rte_vhost's asynchronous calls.
 *
 * A device has one channel, and one vhost-user port that it works for. While a packet is being copied its mbuf is the
 * library's, and bears the device's mark, so that it can be found if the device never finishes.
 */
#ifndef NETVM_DPDK_COPIER_H
#define NETVM_DPDK_COPIER_H

#include <stdint.h>

#include "vhost.h"

enum netvm_copier_constant {
	/** Longest name of a device, with its NUL byte. */
	NETVM_COPIER_NAME = 64,
	/** Descriptors that a device's channel gets, if it can have as many. */
	NETVM_COPIER_DESCRIPTORS = 1024,
};

struct netvm_copier_stats {
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
int netvm_copier_open(char name[NETVM_COPIER_NAME], uint16_t descriptors);

/** Stops it: it finishes no copy any more. */
void netvm_copier_stop(int copier);

/** Gives it up, stopped; no vring uses it any more. */
void netvm_copier_close(int copier);

/** What it has done since it was started. */
void netvm_copier_stats(int copier, struct netvm_copier_stats *stats);

/** How many devices are hardware, suit and are free. */
uint32_t netvm_copier_count(void);

/**
 * Lets the device copy to the receive rings of a guest: those of which queue pairs, a bit each. `locked`: within a message
 * that locks the vrings.
 */
uint64_t netvm_copier_begin(int device, int locked);

/**
 * Ends that, after what is under way; frees its mbufs. -ETIMEDOUT if that takes longer than a second: the copier has been
 * stopped then, all its mbufs are back, and it must not be used any more. Sets a bit of `told` for each queue pair whose
 * guest wants to be told of what has been copied.
 */
int netvm_copier_end(int device, int copier, int locked, uint64_t *told);

/**
 * As netvm_vhost_send, but the packets are copied later, in order; those that the device has no room for are copied at
 * once if nothing is under way that they would overtake.
 */
uint16_t netvm_copier_send(int device, uint16_t vring, int copier, struct rte_mbuf **mbufs, uint16_t count,
	uint64_t *bytes);

/** Tells the guest of packets that have been copied, and frees them; how many are still under way, -1 if unknown. */
int netvm_copier_reap(int device, uint16_t vring, int copier);

#endif
