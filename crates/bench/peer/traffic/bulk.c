/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The null device in bulk, for guests that share a core, whose cost limits the measurable rate of the switch between
 * them. DPDK's device allocates and frees mbufs one by one, a quarter of such a guest's time; these functions use
 * bursts. They replace the device's functions while it runs, on the thread that polls it.
 */
#include "bulk.h"
#include "timing.h"

#include <string.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#define BULK 64

/* The device's initialisation of an mbuf; all its packets have the same pool. */
static struct {
	struct rte_mempool *pool;
	uint64_t rearm;
	uint32_t bytes;
} likeness;

static uint16_t allocate(void *queue, struct rte_mbuf **mbufs, uint16_t count)
{
	RTE_SET_USED(queue);
	if (netvm_bench_timing_is_on()) {
		count = netvm_bench_timing_due(count);
		if (count == 0)
			return 0;
	}
	if (unlikely(rte_mempool_get_bulk(likeness.pool, (void **)mbufs, count) != 0))
		return 0;
	for (uint16_t n = 0; n < count; n++) {
		memcpy(&mbufs[n]->rearm_data, &likeness.rearm, sizeof(likeness.rearm));
		mbufs[n]->ol_flags = 0;
		mbufs[n]->pkt_len = likeness.bytes;
		mbufs[n]->data_len = (uint16_t)likeness.bytes;
	}
	return count;
}

static uint16_t release(void *queue, struct rte_mbuf **mbufs, uint16_t count)
{
	struct rte_mbuf *free[BULK];
	unsigned waiting = 0;

	RTE_SET_USED(queue);
	for (uint16_t n = 0; n < count; n++) {
		struct rte_mbuf *mbuf = mbufs[n];

		if (unlikely(mbuf->nb_segs != 1 || mbuf->pool != likeness.pool)) {
			rte_pktmbuf_free(mbuf);
			continue;
		}
		mbuf = rte_pktmbuf_prefree_seg(mbuf);
		if (likely(mbuf != NULL))
			free[waiting++] = mbuf;
		if (waiting == BULK) {
			rte_mempool_put_bulk(likeness.pool, (void **)free, waiting);
			waiting = 0;
		}
	}
	if (waiting > 0)
		rte_mempool_put_bulk(likeness.pool, (void **)free, waiting);
	return count;
}

void netvm_bench_bulk_replace(const struct rte_mbuf *like)
{
	uint16_t port;

	likeness.pool = like->pool;
	likeness.bytes = like->pkt_len;
	memcpy(&likeness.rearm, &like->rearm_data, sizeof(likeness.rearm));
	RTE_ETH_FOREACH_DEV(port) {
		char name[RTE_ETH_NAME_MAX_LEN];

		if (rte_eth_dev_get_name_by_port(port, name) != 0 || strncmp(name, "net_null", 8) != 0)
			continue;
		rte_eth_fp_ops[port].tx_pkt_burst = release;
		if (port == like->port)
			rte_eth_fp_ops[port].rx_pkt_burst = allocate;
	}
}
