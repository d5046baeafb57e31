/* SPDX-License-Identifier: Apache-2.0 */
/* DMA channels, for the files of this folder. */
#ifndef NETVM_DPDK_DMA_COPY_H
#define NETVM_DPDK_DMA_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include <rte_config.h>

#include <rte_dmadev.h>
#include <rte_spinlock.h>

#define CHANNEL 0

/* The channel of a device. */
struct channel {
	/* Held while a thread submits copies or asks which are done. */
	rte_spinlock_t lock;
	bool is_taken;
	/*
	 * Copies in flight: what their packets lack, by the low bits of their numbers. NULL: the device is not used any
	 * more.
	 */
	uint32_t **lacks;
	uint16_t mask;
};

extern struct channel netvm_dma_channels[RTE_DMADEV_DEFAULT_MAX];

/* Stops a device for good; its channel is locked, or has no other user. */
void netvm_dma_give_up(struct channel *channel, int dma);

#endif
