/* SPDX-License-Identifier: Apache-2.0 */
/* Ports and rings of mbufs; see shim.h. */
#include "shim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_errno.h>

#include "mbuf_free.h"

int
netvm_port_info(uint16_t port, struct netvm_port_info *info)
{
	struct rte_eth_dev_info device;
	struct rte_ether_addr mac;
	int error = rte_eth_dev_info_get(port, &device);

	if (error != 0)
		return error;
	memset(info, 0, sizeof(*info));
	if (device.driver_name != NULL)
		snprintf(info->driver, sizeof(info->driver), "%s", device.driver_name);
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	info->rss_offloads = device.flow_type_rss_offloads;
	info->max_packet_bytes = device.max_rx_pktlen;
	info->node = rte_eth_dev_socket_id(port);
	info->max_rx_queues = device.max_rx_queues;
	info->max_tx_queues = device.max_tx_queues;
	info->min_mtu = device.min_mtu;
	info->max_mtu = device.max_mtu;
	info->rss_key_bytes = device.hash_key_size;
	return 0;
}

int
netvm_port_configure(uint16_t port, const struct netvm_port_config *config)
{
	/* A key of one repeated 16-bit word hashes both directions of a flow alike (Woo and Park, 2012). */
	uint8_t key[UINT8_MAX + 1];
	struct rte_eth_dev_info device;
	struct rte_eth_conf conf = { 0 };
	size_t i;
	int error = rte_eth_dev_info_get(port, &device);

	if (error != 0)
		return error;
	conf.rxmode.mtu = config->mtu;
	if (config->rss) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = device.flow_type_rss_offloads &
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP);
		if (config->rss_symmetric && device.hash_key_size > 0) {
			for (i = 0; i < device.hash_key_size; i++)
				key[i] = i % 2 == 0 ? 0x6d : 0x5a;
			conf.rx_adv_conf.rss_conf.rss_key = key;
			conf.rx_adv_conf.rss_conf.rss_key_len = device.hash_key_size;
		}
	}
	return rte_eth_dev_configure(port, config->rx_queues, config->tx_queues, &conf);
}

int
netvm_port_link(uint16_t port, struct netvm_link *link)
{
	struct rte_eth_link now;
	int error;

	memset(&now, 0, sizeof(now));
	error = rte_eth_link_get_nowait(port, &now);
	if (error != 0)
		return error;
	link->megabits = now.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : now.link_speed;
	link->up = now.link_status == RTE_ETH_LINK_UP;
	link->full_duplex = now.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return 0;
}

int
netvm_port_stats(uint16_t port, struct netvm_port_stats *stats)
{
	struct rte_eth_stats now;
	int error;

	memset(&now, 0, sizeof(now));
	error = rte_eth_stats_get(port, &now);
	if (error != 0)
		return error;
	stats->rx_packets = now.ipackets;
	stats->rx_bytes = now.ibytes;
	stats->rx_missed = now.imissed;
	stats->rx_errors = now.ierrors;
	stats->rx_no_mbuf = now.rx_nombuf;
	stats->tx_packets = now.opackets;
	stats->tx_bytes = now.obytes;
	stats->tx_errors = now.oerrors;
	return 0;
}

int
netvm_port_scatters(uint16_t port)
{
	struct rte_eth_rxq_info queue;

	memset(&queue, 0, sizeof(queue));
	return rte_eth_rx_queue_info_get(port, 0, &queue) == 0 && queue.scattered_rx != 0;
}

static struct rte_device *
port_device(uint16_t port)
{
	struct rte_eth_dev_info device;

	return rte_eth_dev_info_get(port, &device) == 0 ? device.device : NULL;
}

int
netvm_port_dma_map(uint16_t port, void *address, uint64_t iova, size_t bytes)
{
	struct rte_device *device = port_device(port);

	if (device == NULL)
		return -ENODEV;
	return rte_dev_dma_map(device, address, iova, bytes) == 0 ? 0 : -rte_errno;
}

int
netvm_port_dma_unmap(uint16_t port, void *address, uint64_t iova, size_t bytes)
{
	struct rte_device *device = port_device(port);

	if (device == NULL)
		return -ENODEV;
	return rte_dev_dma_unmap(device, address, iova, bytes) == 0 ? 0 : -rte_errno;
}

int
netvm_port_stop(uint16_t port)
{
	struct free_section *section = free_begin();
	int error = rte_eth_dev_stop(port);

	free_end(section);
	return error;
}

int
netvm_port_close(uint16_t port)
{
	struct rte_device *device = port_device(port);
	struct free_section *section = free_begin();
	int error = rte_eth_dev_close(port);
	int then;

	if (device != NULL) {
		then = rte_dev_remove(device);
		if (error == 0)
			error = then;
	}
	free_end(section);
	return error;
}

uint16_t
netvm_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, mbufs, count);
}

uint16_t
netvm_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	struct free_section *section = free_begin();
	uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, count);

	free_end(section);
	return sent;
}

/* Rings */

uint32_t
netvm_ring_enqueue(struct rte_ring *ring, struct rte_mbuf **mbufs, uint32_t count)
{
	return rte_ring_sp_enqueue_burst(ring, (void **)mbufs, count, NULL);
}

uint32_t
netvm_ring_dequeue(struct rte_ring *ring, struct rte_mbuf **mbufs, uint32_t count)
{
	return rte_ring_sc_dequeue_burst(ring, (void **)mbufs, count, NULL);
}
