/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtio-net devices of guests: their rings in shared memory, and copies between them and mbufs.
 *
 * The vhost-user front end (crates/dpdk/src/vhost) creates a device for each connection and starts its vrings. Vring
 * 2n is guest queue pair n's receive ring (netvm sends there), 2n + 1 its transmit ring.
 *
 * The front end changes a device only while no thread moves its packets. A transmit ring is used by one thread only, a
 * receive ring by any.
 */
#ifndef NETVM_DPDK_VHOST_H
#define NETVM_DPDK_VHOST_H

#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

enum netvm_vhost_constant {
	/** Vrings 0 to 2 * NETVM_VHOST_MAX_PAIRS - 1 exist. */
	NETVM_VHOST_MAX_PAIRS = 64,
	/** Devices at most, over all sockets. */
	NETVM_VHOST_MAX_DEVICES = 1024,
	/** Regions of memory that a guest shares at most. */
	NETVM_VHOST_MAX_REGIONS = 32,
	/**
	 * Bytes of a queue's part of the memory for inflight I/O: without descriptors' states, which always are empty, so
	 * that a part is as long as two cache lines whatever the queue's size.
	 */
	NETVM_VHOST_INFLIGHT_BYTES = 128,
	/** Entries of the shortest ring: buffers that are read ahead. */
	NETVM_VHOST_MIN_ENTRIES = 32,
	/** Entries of the longest ring (virtio 1.2, section 2.6). */
	NETVM_VHOST_MAX_ENTRIES = 32768,
	/** Packets that are received at a time at most. */
	NETVM_VHOST_MAX_BURST = 64,
	/** Bytes of the virtio-net header without its number of buffers (virtio 1.2 section 5.1.6). */
	NETVM_VHOST_HEADER = 10,
};

/** Offloads that a guest accepts. */
enum netvm_vhost_accepts {
	/** TCP and UDP packets without a checksum. */
	NETVM_VHOST_CSUM = 1,
	/** TCP segments longer than its MTU, over IPv4. */
	NETVM_VHOST_TSO4 = 2,
	/** The same over IPv6. */
	NETVM_VHOST_TSO6 = 4,
	/** Not the guest's: a DMA engine may copy to it. */
	NETVM_VHOST_DMA = 8,
};

/** A region of memory that a guest shares: its address in the guest, and where it is mapped here. */
struct netvm_vhost_region {
	uint64_t guest;
	uint64_t bytes;
	uintptr_t start;
};

/** Where the parts of a ring are mapped here. */
struct netvm_vhost_ring_addresses {
	void *descriptors;
	/** The area that the driver writes: available buffers, or event suppression. */
	void *driver;
	/** The area that the device writes: used buffers, or event suppression. */
	void *device;
};

/** Creates a device with a number that is free; 0 or -ENOMEM. */
int netvm_vhost_create(int device);

/** Removes it. */
void netvm_vhost_remove(int device);

/** Sets the negotiated virtio features. No vring is started. */
void netvm_vhost_set_features(int device, uint64_t features);

/** Sets the guest's memory, of at most NETVM_VHOST_MAX_REGIONS regions. Started vrings must be started again. */
void netvm_vhost_set_memory(int device, const struct netvm_vhost_region *regions, uint32_t count);

/**
 * Sets the dirty log of migrations, a bit for each page of the guest from address 0 on, or NULL. It is written while
 * the features have VHOST_F_LOG_ALL.
 */
void netvm_vhost_set_log(int device, void *bits, uint64_t bytes);

/** Whether writes into a started vring's used ring are logged, as if this were its address in the guest. */
void netvm_vhost_log_used(int device, uint16_t vring, int logs, uint64_t guest);

/**
 * Starts a vring of `size` entries at a position, which has the wrap counter of a packed ring in bit 15. -EINVAL if
 * parts of it are not in the guest's memory, or the position is not in the ring. `inflight`: NULL, or
 * NETVM_VHOST_INFLIGHT_BYTES in which the vring's position is kept, and which may have one already.
 */
int netvm_vhost_start(int device, uint16_t vring, const struct netvm_vhost_ring_addresses *addresses, uint16_t size,
	uint16_t position, void *inflight);

/** Stops a vring, if it is started; returns its position. */
uint16_t netvm_vhost_stop(int device, uint16_t vring);

/** What a burst of received packets has besides them. */
struct netvm_vhost_received {
	/** Packets that were dropped because they are too short or too long. */
	uint64_t malformed;
	/**
	 * A bit for each packet that leaves checksums or segmentation to netvm. Its virtio-net header, unchecked, is in
	 * the NETVM_VHOST_HEADER bytes before the packet.
	 */
	uint64_t requests;
};

/** Copies packets out of a transmit ring into mbufs of the pool: at most `count`, and at most NETVM_VHOST_MAX_BURST. */
uint16_t netvm_vhost_receive(int device, uint16_t vring, struct rte_mempool *pool, struct rte_mbuf **mbufs,
	uint16_t count, struct netvm_vhost_received *received);

/**
 * Copies packets into a receive ring, from the first on, frees the copied ones and adds up their bytes; returns their
 * number. The caller keeps the others: the ring is full, the next packet is longer than the room, the ring holds
 * invalid values, or another thread fills the ring.
 */
uint16_t netvm_vhost_send(int device, uint16_t vring, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes);

/** Whether the guest wants a call for what this thread has done to its rings since the last call of this function. */
int netvm_vhost_take_call(void);

/** Enables or suppresses kicks for a vring. */
void netvm_vhost_notify(int device, uint16_t vring, int enable);

#endif
