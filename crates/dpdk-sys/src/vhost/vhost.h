/*
 * rte_vhost: virtio-net devices of guests, over vhost-user sockets.
 *
 * Vring 2n is guest queue pair n's receive ring (netvm sends there), 2n + 1 its transmit ring.
 */
#ifndef NETVM_DPDK_VHOST_H
#define NETVM_DPDK_VHOST_H

#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

enum netvm_vhost_constant {
	/** Vrings 0 to 2 * NETVM_VHOST_MAX_PAIRS - 1 are served. */
	NETVM_VHOST_MAX_PAIRS = 64,
	/** Packets that one call moves, at most. */
	NETVM_VHOST_BURST = 32,
	/** Longest path of a socket, with its NUL byte. */
	NETVM_VHOST_PATH = 108,
	/** Devices at most, over all sockets. */
	NETVM_VHOST_MAX_DEVICES = 1024,
	/** Pieces of memory that a guest shares at most. */
	NETVM_VHOST_MAX_PIECES = 8,
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

/** Whether to handle a message. */
enum netvm_vhost_verdict {
	/** The library handles it. */
	NETVM_VHOST_HANDLE,
	/** It is ignored. */
	NETVM_VHOST_PASS_OVER,
	/** Its connection ends. */
	NETVM_VHOST_REFUSE,
	/** The same for SET_MEM_TABLE: its descriptors are closed. */
	NETVM_VHOST_REFUSE_MEMORY,
};

/** Called by the thread that serves the sockets, or by the one that closes a port. */
struct netvm_vhost_callbacks {
	/** A guest has connected. Not 0: hang up. */
	int (*met)(int device);
	/** A guest's driver is ready. */
	int (*arrived)(int device);
	/** It is no longer ready: no thread may use the device after this returns. */
	void (*left)(int device);
	/** Its connection is closed. */
	void (*gone)(int device);
	/** A vring was switched on or off. */
	int (*vring)(int device, uint16_t vring, int enabled);
	/** A message is about to be handled, by this thread. */
	enum netvm_vhost_verdict (*message)(int device, uint32_t request);
	/** It has been handled or ignored. Not called for refused messages, which end the connection. */
	void (*handled)(int device, uint32_t request);
};

/** Memory that a guest shares, where it is mapped here. */
struct netvm_vhost_piece {
	uintptr_t start;
	uintptr_t bytes;
};

struct netvm_vhost_spec {
	const char *path;
	struct netvm_vhost_callbacks callbacks;
	/** Connect to the socket, again and again, in place of making it. */
	uint8_t client;
	/** Offer to take TCP segments that are longer than a packet. */
	uint8_t segmentation;
	/** Copies may be handed to a DMA engine. */
	uint8_t dma;
};

/** Begins to serve a socket. 0 or a negative errno. */
int netvm_vhost_open(const struct netvm_vhost_spec *spec);

/** Stops serving it; calls `left` for connected guests. */
int netvm_vhost_close(const char *path);

/** The path of a device's socket. */
int netvm_vhost_path(int device, char path[NETVM_VHOST_PATH]);

/** Offloads that the guest accepts (NETVM_VHOST_*); 0 if the device is gone. */
uint32_t netvm_vhost_accepts(int device);

/** The memory that a guest shares; returns the number of pieces, or 0. */
uint32_t netvm_vhost_memory(int device, struct netvm_vhost_piece pieces[NETVM_VHOST_MAX_PIECES]);

/** The eventfd by which a guest kicks a vring, or a negative errno. */
int netvm_vhost_kick(int device, uint16_t vring);

/** Copies packets out of a transmit ring into mbufs of the pool; at most NETVM_VHOST_BURST. */
uint16_t netvm_vhost_receive(int device, uint16_t vring, struct rte_mempool *pool, struct rte_mbuf **mbufs,
	uint16_t count);

/**
 * Copies packets into a receive ring, frees the copied ones and adds up their bytes; returns their number. The caller
 * keeps the others.
 */
uint16_t netvm_vhost_send(int device, uint16_t vring, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes);

#endif
