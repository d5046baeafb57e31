/* See shim.h. */
#include "shim.h"

#include "mbuf_free.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mbuf_pool_ops.h>

struct free_section netvm_free_sections[FREE_SECTIONS];

/* Waits until everybody who is giving mbufs back now has finished; not for those who begin later. */
static int
await_givers(void)
{
	unsigned int i, tries = 0;

	atomic_thread_fence(memory_order_acquire);
	for (i = 0; i < FREE_SECTIONS; i++) {
		uint32_t entered = atomic_load_explicit(&netvm_free_sections[i].entered, memory_order_relaxed);

		for (;;) {
			uint32_t left = atomic_load_explicit(&netvm_free_sections[i].left, memory_order_acquire);

			if (i == SHARED_SECTION) {
				/* Several may be inside: it takes a moment when none is. `entered` is read after. */
				entered = atomic_load_explicit(&netvm_free_sections[i].entered, memory_order_relaxed);
				if (left == entered)
					break;
			} else if ((int32_t)(left - entered) >= 0) {
				break;
			}
			/* A driver may wait for the kernel in there; not for ever. */
			if (++tries > 2000)
				return -ETIMEDOUT;
			if (tries < 1000)
				sched_yield();
			else
				usleep(1000);
		}
	}
	return 0;
}

/*
 * A thread that gives mbufs back while its cache is full moves the cache to the store, then shortens the cache: in
 * between these mbufs count twice. The caller lets nobody take mbufs, so the store only grows. If it has not grown from
 * the first look to the last, no such move began in between, and those begun before have ended; so the count in the
 * middle holds no mbuf twice.
 */
int
netvm_pool_is_whole(struct rte_mempool *pool)
{
	const struct rte_mempool_ops *store = rte_mempool_get_ops(pool->ops_index);
	unsigned int stored = store->get_count(pool);
	unsigned int available;

	if (await_givers() != 0)
		return -ETIMEDOUT;
	available = rte_mempool_avail_count(pool);
	atomic_thread_fence(memory_order_acquire);
	if (store->get_count(pool) != stored)
		return -EAGAIN;
	if (available < pool->size)
		return 0;
	return await_givers() == 0 ? 1 : -ETIMEDOUT;
}

/* EAL, threads, logs */

static struct {
	pthread_mutex_t lock;
	FILE *stream;
	uint32_t print_up_to;
	int catching;
	size_t length;
	char text[8192];
} logs = { .lock = PTHREAD_MUTEX_INITIALIZER, .print_up_to = RTE_LOG_ERR };

static ssize_t
log_write(void *cookie, const char *text, size_t size)
{
	size_t kept = RTE_MIN(size, sizeof(logs.text));

	(void)cookie;
	pthread_mutex_lock(&logs.lock);
	if (logs.catching) {
		/* Keep the end: the last line tells why. */
		if (logs.length + kept > sizeof(logs.text)) {
			size_t gone = logs.length + kept - sizeof(logs.text);

			memmove(logs.text, logs.text + gone, logs.length - gone);
			logs.length -= gone;
		}
		memcpy(logs.text + logs.length, text + (size - kept), kept);
		logs.length += kept;
	} else if ((uint32_t)rte_log_cur_msg_loglevel() <= logs.print_up_to) {
		fwrite(text, 1, size, stderr);
	}
	pthread_mutex_unlock(&logs.lock);
	return (ssize_t)size;
}

void
netvm_log_print_up_to(uint32_t level)
{
	pthread_mutex_lock(&logs.lock);
	logs.print_up_to = level;
	pthread_mutex_unlock(&logs.lock);
}

int
netvm_log_begin(void)
{
	int error = 0;

	pthread_mutex_lock(&logs.lock);
	if (logs.stream == NULL) {
		logs.stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });
		if (logs.stream == NULL)
			error = -ENOMEM;
		else
			rte_openlog_stream(logs.stream);
	}
	if (error == 0) {
		logs.catching = 1;
		logs.length = 0;
	}
	pthread_mutex_unlock(&logs.lock);
	return error;
}

size_t
netvm_log_end(char *text, size_t capacity)
{
	size_t length;

	pthread_mutex_lock(&logs.lock);
	length = RTE_MIN(logs.length, capacity);
	memcpy(text, logs.text + (logs.length - length), length);
	logs.catching = 0;
	pthread_mutex_unlock(&logs.lock);
	return length;
}

static atomic_int starting;

/* DPDK 25.11 ends the process for some wrong arguments; what it has said of them is caught, and would be lost. */
static void
tell_at_exit(void)
{
	if (atomic_load(&starting))
		fwrite(logs.text, 1, logs.length, stderr);
}

int
netvm_eal_init(int argc, char **argv)
{
	int used;

	rte_errno = 0;
	atomic_store(&starting, 1);
	atexit(tell_at_exit);
	used = rte_eal_init(argc, argv);
	atomic_store(&starting, 0);
	if (used >= 0)
		return 0;
	return rte_errno > 0 ? -rte_errno : -EINVAL;
}

int
netvm_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -EALREADY;
	return rte_thread_register() == 0 ? 0 : -rte_errno;
}

int
netvm_iova_is_va(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_VA;
}

uint64_t
netvm_cycles(void)
{
	return rte_get_tsc_cycles();
}

/* Pools */

int
netvm_pool_has_handler(const char *name)
{
	uint32_t i;

	for (i = 0; i < rte_mempool_ops_table.num_ops; i++)
		if (strcmp(rte_mempool_ops_table.ops[i].name, name) == 0)
			return 1;
	return 0;
}

/*
 * Lets an mbuf pass for one whose buffer follows it. Freeing one that is marked as external reads two more of its cache
 * lines and writes one, to learn that its buffer stays with it for ever; that is so for every mbuf of the pool. What the
 * mark is needed for otherwise is attaching other mbufs to its buffer, which nobody does: NFs hand buffers on, not mbufs.
 * The pool itself stays marked as one of pinned buffers, which is what drivers go by that map its memory.
 */
static void
call_direct(struct rte_mempool *pool, void *context, void *object, unsigned int index)
{
	struct rte_mbuf *mbuf = object;

	(void)pool;
	(void)context;
	(void)index;
	mbuf->ol_flags &= ~RTE_MBUF_F_EXTERNAL;
}

int
netvm_pool_create(const struct netvm_pool_spec *spec, struct rte_mempool **pool)
{
	const struct rte_pktmbuf_extmem memory = {
		.buf_ptr = spec->buffers,
		.buf_iova = (uintptr_t)spec->buffers,
		.buf_len = (size_t)spec->count * spec->stride,
		.elt_size = (uint16_t)spec->stride,
	};
	/* The extbuf constructor takes the handler from here only. */
	int error = rte_mbuf_set_user_mempool_ops(spec->handler);

	if (error != 0)
		return error;
	rte_errno = 0;
	*pool = rte_pktmbuf_pool_create_extbuf(spec->name, spec->count, spec->cache, 0, (uint16_t)spec->stride,
		spec->node < 0 ? SOCKET_ID_ANY : spec->node, &memory, 1);
	if (*pool == NULL)
		return rte_errno > 0 ? -rte_errno : -ENOMEM;
	rte_mempool_obj_iter(*pool, call_direct, NULL);
	return 0;
}

struct table {
	struct rte_mbuf **mbufs;
	uint32_t capacity;
};

static void
table_add(struct rte_mempool *pool, void *context, void *object, unsigned int index)
{
	struct table *table = context;

	(void)pool;
	if (index < table->capacity)
		table->mbufs[index] = object;
}

uint32_t
netvm_pool_table(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint32_t capacity)
{
	struct table table = { .mbufs = mbufs, .capacity = capacity };

	return rte_mempool_obj_iter(pool, table_add, &table);
}

int
netvm_memory_register(void *address, uint64_t *iovas, uint32_t pages, size_t page_bytes)
{
	return rte_extmem_register(address, pages * page_bytes, iovas, pages, page_bytes) == 0 ? 0 : -rte_errno;
}

void
netvm_mbuf_set_iova(struct rte_mbuf *mbuf, uint64_t iova)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	rte_mbuf_iova_set(mbuf, iova);
#else
	mbuf->buf_iova = iova;
#endif
}

int
netvm_pool_alloc(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint32_t count, uint16_t offset, uint16_t length)
{
	uint32_t i;
	int error = rte_mempool_get_bulk(pool, (void **)mbufs, count);

	if (error != 0)
		return error;
	for (i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		/* The rest of the first line is as it was when the mbuf was freed: one segment, one reference. */
		mbuf->data_off = offset;
		mbuf->port = RTE_MBUF_PORT_INVALID;
		mbuf->ol_flags &= RTE_MBUF_F_EXTERNAL;
		mbuf->packet_type = 0;
		mbuf->pkt_len = length;
		mbuf->data_len = length;
		mbuf->vlan_tci = 0;
		mbuf->vlan_tci_outer = 0;
	}
	return 0;
}

void
netvm_mbuf_free(struct rte_mbuf **mbufs, uint32_t count)
{
	int simple = 1;
	uint32_t i;

	for (i = 0; i < count; i++)
		simple &= is_simple(mbufs[i], mbufs[0]->pool);
	free_mbufs(mbufs, count, simple);
}

void
netvm_pool_flush(struct rte_mempool *pool)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());
	struct free_section *section;

	if (cache == NULL || cache->len == 0)
		return;
	section = free_begin();
	rte_mempool_cache_flush(cache, pool);
	free_end(section);
}

/* Ports */

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
