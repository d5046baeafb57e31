/* SPDX-License-Identifier: Apache-2.0 */
/* Pending offloads of packets, as guests see them (virtio 1.2, section 5.1.6.2). For this folder. */
#ifndef NETVM_DPDK_VRING_OFFLOAD_H
#define NETVM_DPDK_VRING_OFFLOAD_H

#include <linux/virtio_net.h>

#include <rte_config.h>

#include <rte_mbuf.h>

/* Describes a packet's pending offloads, for a guest that accepts them. */
void netvm_vring_describe_offloads(struct rte_mbuf *mbuf, struct virtio_net_hdr *header);

#endif
