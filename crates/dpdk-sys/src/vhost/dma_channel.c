/* SPDX-License-Identifier: Apache-2.0 */
/* See dma_channel.h. */
#include "dma_channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_dmadev.h>
#include <rte_eal.h>

#include "dma_copy.h"

/* Drivers that copy with the processor. */
static const char software[] = "dma_skeleton";

struct channel netvm_dma_channels[RTE_DMADEV_DEFAULT_MAX];

/* The channel copies from the process's addresses, which a device can use if the EAL gives them to devices. */
static int
suits(const struct rte_dma_info *info)
{
	const uint64_t needed = RTE_DMA_CAPA_MEM_TO_MEM | RTE_DMA_CAPA_OPS_COPY | RTE_DMA_CAPA_SVA;

	return (info->dev_capa & needed) == needed && rte_eal_iova_mode() == RTE_IOVA_VA;
}

static int
is_hardware(const struct rte_dma_info *info)
{
	return strncmp(info->dev_name, software, sizeof(software) - 1) != 0;
}

/* Finds any suitable free hardware device. */
static int
find_any(struct rte_dma_info *info)
{
	int16_t id;

	for (id = rte_dma_next_dev(0); id >= 0; id = rte_dma_next_dev(id + 1)) {
		if (id < RTE_DMADEV_DEFAULT_MAX && !netvm_dma_channels[id].is_taken &&
		    rte_dma_info_get(id, info) == 0 &&
				is_hardware(info) && suits(info))
			return id;
	}
	return -ENODEV;
}

static int
find(const char *name, struct rte_dma_info *info)
{
	int id = rte_dma_get_dev_id_by_name(name);

	if (id < 0) {
		/* Not probed yet: a virtual device, or one on a bus that is not scanned for all. */
		if (rte_dev_probe(name) != 0)
			return -ENODEV;
		id = rte_dma_get_dev_id_by_name(name);
	}
	if (id < 0 || id >= RTE_DMADEV_DEFAULT_MAX || rte_dma_info_get(id, info) != 0)
		return -ENODEV;
	if (netvm_dma_channels[id].is_taken)
		return -EBUSY;
	return suits(info) ? id : -ENOTSUP;
}

static int
start(int id, const struct rte_dma_info *info, uint16_t descriptors)
{
	struct rte_dma_conf conf = { .nb_vchans = 1 };
	struct rte_dma_vchan_conf channel = { .direction = RTE_DMA_DIR_MEM_TO_MEM };
	int error;

	channel.nb_desc = RTE_MAX(RTE_MIN(descriptors, info->max_desc), info->min_desc);
	error = rte_dma_configure(id, &conf);
	if (error == 0)
		error = rte_dma_vchan_setup(id, CHANNEL, &channel);
	if (error == 0)
		error = rte_dma_start(id);
	if (error != 0)
		return error;
	netvm_dma_channels[id].mask = rte_align32pow2(channel.nb_desc) - 1;
	netvm_dma_channels[id].lacks = calloc(netvm_dma_channels[id].mask + 1u, sizeof(*netvm_dma_channels[id].lacks));
	if (netvm_dma_channels[id].lacks == NULL) {
		rte_dma_stop(id);
		return -ENOMEM;
	}
	return 0;
}

int
netvm_dma_open(char name[NETVM_DMA_NAME], uint16_t descriptors)
{
	struct rte_dma_info info;
	int id = name[0] == '\0' ? find_any(&info) : find(name, &info);
	int error;

	if (id < 0)
		return id;
	error = start(id, &info, descriptors != 0 ? descriptors : NETVM_DMA_DESCRIPTORS);
	if (error != 0)
		return error;
	netvm_dma_channels[id].is_taken = true;
	snprintf(name, NETVM_DMA_NAME, "%s", info.dev_name);
	return id;
}

void
netvm_dma_stop(int dma)
{
	rte_dma_stop(dma);
}

void
netvm_dma_give_up(struct channel *channel, int dma)
{
	netvm_dma_stop(dma);
	free(channel->lacks);
	channel->lacks = NULL;
}

void
netvm_dma_close(int dma)
{
	netvm_dma_give_up(&netvm_dma_channels[dma], dma);
	netvm_dma_channels[dma].is_taken = false;
}

void
netvm_dma_stats(int dma, struct netvm_dma_stats *stats)
{
	struct rte_dma_stats found;

	memset(&found, 0, sizeof(found));
	rte_dma_stats_get(dma, CHANNEL, &found);
	stats->submitted = found.submitted;
	stats->completed = found.completed;
	stats->errors = found.errors;
}

uint32_t
netvm_dma_count(void)
{
	struct rte_dma_info info;
	uint32_t count = 0;
	int16_t id;

	for (id = rte_dma_next_dev(0); id >= 0; id = rte_dma_next_dev(id + 1))
		count += id < RTE_DMADEV_DEFAULT_MAX && !netvm_dma_channels[id].is_taken &&
			rte_dma_info_get(id, &info) == 0 &&
			is_hardware(&info) && suits(&info);
	return count;
}
