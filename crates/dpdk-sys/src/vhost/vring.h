/*
 * Copies packets into guests' receive rings, in place of DPDK's library, which trusts guests too much: with mergeable
 * buffers it writes beyond its list of used ones, with a header in several pieces beyond a guest's memory, and a
 * sending thread waits for the lock of a thread that may be unmapping that memory (virtio_dev_rx_split, mbuf_to_desc
 * and vhost_user_set_mem_table of DPDK 22.11 to 25.11). The library still holds the state of a ring: its addresses and
 * positions.
 *
 * Layouts: virtio 1.2, sections 2.7 (split), 2.8 (packed) and 5.1.6.
 */
#ifndef NETVM_DPDK_VRING_H
#define NETVM_DPDK_VRING_H

#include <stdint.h>

struct rte_mbuf;

/**
 * Reads a guest's memory map after its memory or rings have changed. No thread may fill its rings meanwhile.
 */
void netvm_vring_learn(int device);

/** Drops a guest's memory map. No thread may fill its rings meanwhile. */
void netvm_vring_forget(int device);

/**
 * Copies packets to a guest, from the first on; returns how many. Fewer: its ring is full, the next packet is longer
 * than the room, its ring holds invalid values, or another thread fills the ring.
 */
uint16_t netvm_vring_fill(int device, uint16_t vring, struct rte_mbuf *const *mbufs, uint16_t count);

/**
 * Notes that the guest wants a call for what this thread has just done to its ring, by netvm_vring_fill or by a call of
 * the library. The call has not been sent.
 */
void netvm_vring_want_call(void);

/** Whether netvm_vring_want_call ran in this thread since the last call of this function. */
int netvm_vring_take_call(void);

/** Enables or suppresses kicks for a ring. */
void netvm_vring_notify(int device, uint16_t vring, int enable);

#endif
