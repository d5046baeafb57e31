/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Rust needs and only the C compiler knows: values that depend on DPDK's build, and how long structures are.
 * build.rs has this compiled to assembly, which is not assembled, and reads the lines that start with "@netvm" from it.
 */
#include "../acl.h"
#include "../offload.h"
#include "../shim.h"
#include "../vhost/dma_channel.h"
#include "../vhost/vhost.h"

/* The functions of DPDK that mod.rs declares: a release that changes one of them does not compile here. */
const char *rte_version(void);
uint64_t rte_get_tsc_hz(void);
int rte_dev_probe(const char *devargs);
int rte_eal_has_hugepages(void);
const char *rte_eal_get_runtime_dir(void);
void rte_thread_unregister(void);
uint64_t rte_mem_virt2phy(const void *virt);
int rte_extmem_unregister(void *va_addr, size_t len);
struct rte_ring *rte_ring_create(const char *name, unsigned int count, int socket_id, unsigned int flags);
void rte_ring_free(struct rte_ring *r);
void rte_mempool_free(struct rte_mempool *mp);
unsigned int rte_mempool_avail_count(const struct rte_mempool *mp);
int rte_eth_dev_is_removed(uint16_t port_id);
int rte_eth_rx_queue_setup(uint16_t port_id, uint16_t rx_queue_id, uint16_t nb_rx_desc, unsigned int socket_id,
	const struct rte_eth_rxconf *rx_conf, struct rte_mempool *mb_pool);
int rte_eth_tx_queue_setup(uint16_t port_id, uint16_t tx_queue_id, uint16_t nb_tx_desc, unsigned int socket_id,
	const struct rte_eth_txconf *tx_conf);
int rte_eth_dev_start(uint16_t port_id);
int rte_eth_promiscuous_enable(uint16_t port_id);
int rte_eth_promiscuous_disable(uint16_t port_id);
int rte_eth_dev_get_port_by_name(const char *name, uint16_t *port_id);
int rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port_id, uint16_t *nb_rx_desc, uint16_t *nb_tx_desc);
void rte_acl_free(struct rte_acl_ctx *ctx);

/* `type` is Rust's. */
#define CONSTANT(type, name) __asm__ volatile("\n@netvm constant " #type " " #name " %0" : : "i"(name))
#define STRUCTURE(name) __asm__ volatile("\n@netvm structure " #name " %0" : : "i"(sizeof(struct name)))

void netvm_values(void);

void netvm_values(void)
{
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_BUF_ADDR);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_DATA_OFF);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_REFCNT);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_NB_SEGS);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_PORT);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_OL_FLAGS);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_PKT_LEN);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_DATA_LEN);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_BUF_LEN);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_HASH);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_VLAN_TCI_OUTER);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_VLAN_TCI);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_PACKET_TYPE);
	CONSTANT(netvm_constant, NETVM_MBUF_OFF_NEXT);
	CONSTANT(netvm_constant, NETVM_MBUF_SIZE);
	CONSTANT(netvm_constant, NETVM_HEADROOM);
	CONSTANT(netvm_constant, NETVM_CACHE_MAX);
	CONSTANT(netvm_constant, NETVM_POOL_BYTES_PER_BUFFER);
	CONSTANT(netvm_constant, NETVM_POOL_BYTES_FIXED);

	CONSTANT(netvm_ring_flags, NETVM_RING_SPSC);

	CONSTANT(netvm_acl_constant, NETVM_ACL_MASK);
	CONSTANT(netvm_acl_constant, NETVM_ACL_RANGE);
	CONSTANT(netvm_acl_constant, NETVM_ACL_BITMASK);
	CONSTANT(netvm_acl_constant, NETVM_ACL_MAX_FIELDS);
	CONSTANT(netvm_acl_constant, NETVM_ACL_MAX_PRIORITY);
	CONSTANT(netvm_acl_constant, NETVM_ACL_BURST);

	CONSTANT(u64, NETVM_OFFLOAD_ANY);
	CONSTANT(u64, NETVM_OFFLOAD_SEGMENT);
	CONSTANT(u64, NETVM_OFFLOAD_UDP_SEGMENT);
	CONSTANT(u64, NETVM_OFFLOAD_TCP);
	CONSTANT(u64, NETVM_OFFLOAD_UDP);
	CONSTANT(u64, NETVM_OFFLOAD_L4);
	CONSTANT(u64, NETVM_OFFLOAD_IPV6);
	CONSTANT(u64, NETVM_OFFLOAD_IPV4);

	CONSTANT(netvm_offload_constant, NETVM_MBUF_OFF_TX_OFFLOAD);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_L2_BITS);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_L3_BITS);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_L4_BITS);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_SIZE_BITS);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_OUTER_L3_BITS);
	CONSTANT(netvm_offload_constant, NETVM_OFFLOAD_OUTER_L2_BITS);

	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MAX_PAIRS);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MAX_DEVICES);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MAX_REGIONS);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_INFLIGHT_BYTES);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MIN_ENTRIES);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MAX_ENTRIES);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_MAX_BURST);
	CONSTANT(netvm_vhost_constant, NETVM_VHOST_HEADER);

	CONSTANT(netvm_vhost_accepts, NETVM_VHOST_CSUM);
	CONSTANT(netvm_vhost_accepts, NETVM_VHOST_TSO4);
	CONSTANT(netvm_vhost_accepts, NETVM_VHOST_TSO6);
	CONSTANT(netvm_vhost_accepts, NETVM_VHOST_DMA);

	CONSTANT(netvm_dma_constant, NETVM_DMA_NAME);
	CONSTANT(netvm_dma_constant, NETVM_DMA_DESCRIPTORS);

	STRUCTURE(netvm_pool_spec);
	STRUCTURE(netvm_port_info);
	STRUCTURE(netvm_port_config);
	STRUCTURE(netvm_link);
	STRUCTURE(netvm_port_stats);
	STRUCTURE(netvm_acl_field);
	STRUCTURE(netvm_acl_value);
	STRUCTURE(netvm_acl_rule);
	STRUCTURE(netvm_acl_spec);
	STRUCTURE(netvm_heap);
	STRUCTURE(netvm_part);
	STRUCTURE(netvm_vhost_region);
	STRUCTURE(netvm_vhost_ring_addresses);
	STRUCTURE(netvm_vhost_received);
	STRUCTURE(netvm_dma_stats);
}
