/*
 * Receive rings of guests, filled by this code and not by DPDK's library, which believes guests too much: with mergeable
 * buffers it writes behind its list of used ones, with a header in pieces behind a guest's memory, and a thread that sends
 * waits for the lock of a thread that may just be taking that memory away (virtio_dev_rx_split, mbuf_to_desc and
 * vhost_user_set_mem_table of DPDK 22.11 to 25.11). The library keeps what there is to know of a ring: where it is, and
 * how far it has been used.
 *
 * Layouts: virtio 1.2, sections 2.7 (split), 2.8 (packed) and 5.1.6.
 */
#ifndef NETVM_DPDK_VRING_H
#define NETVM_DPDK_VRING_H

#include <stdint.h>

struct rte_mbuf;

/**
 * Learns where a guest's memory is, and that its rings may be others. While nobody fills them.
 */
void netvm_vring_learn(int device);

/** The opposite. */
void netvm_vring_forget(int device);

/**
 * Copies packets to a guest; of how many it had room for the first. Fewer: its ring is full, the next packet is longer than
 * what it has room for, its ring says what cannot be, or another thread fills the ring.
 */
uint16_t netvm_vring_fill(int device, uint16_t vring, struct rte_mbuf *const *mbufs, uint16_t count);

/**
 * The guest of a ring wants to be last_call of what this thread has just done there: by netvm_vring_fill, or by a call of the
 * library. Nobody has last_call it.
 */
void netvm_vring_want_call(void);

/** Whether that was so since the last call of this, by this thread. */
int netvm_vring_take_call(void);

/** Whether a guest is to tell of what it puts into a ring, of either kind. */
void netvm_vring_notify(int device, uint16_t vring, int enable);

#endif
