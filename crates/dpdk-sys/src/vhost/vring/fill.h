/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of packets into guests' receive rings, for those who hold the lock of the ring. */
#ifndef NETVM_DPDK_VRING_FILL_H
#define NETVM_DPDK_VRING_FILL_H

#include "vring.h"

/* Copies packets into a receive ring that no other thread fills; returns how many. */
uint16_t netvm_vring_fill(const struct device *device, struct vring_state *state, struct rte_mbuf *const *mbufs,
			  uint16_t count);

/* Frees packets that were copied, and adds up their bytes. */
void netvm_vring_free_sent(struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes);

#endif
