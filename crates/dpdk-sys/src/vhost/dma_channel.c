/* See dma_channel.h. */
#include "dma_channel.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_vhost.h>
#include <rte_vhost_async.h>

#include "../mbuf_free.h"
#include "vring.h"

#define CHANNEL 0
#define REAPED 64
#define PATIENCE_NS 1000000000LL

/* Drivers that copy with the processor. */
static const char software[] = "dma_skeleton";

static uint8_t taken[RTE_DMADEV_DEFAULT_MAX];
/* Offset of the mark in an mbuf: 0, or its DMA channel's number plus one. */
static int mark_at = -1;

static uint8_t *
mark(struct rte_mbuf *mbuf)
{
	return RTE_MBUF_DYNFIELD(mbuf, mark_at, uint8_t *);
}

static int
register_mark(void)
{
	static const struct rte_mbuf_dynfield field = {
		.name = "netvm_dynfield_dma_channel",
		.size = sizeof(uint8_t),
		.align = __alignof__(uint8_t),
	};

	if (mark_at < 0)
		mark_at = rte_mbuf_dynfield_register(&field);
	return mark_at >= 0 ? 0 : -rte_errno;
}

/* The library passes the process's addresses to devices if the EAL does. */
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
		if (id < RTE_DMADEV_DEFAULT_MAX && !taken[id] && rte_dma_info_get(id, info) == 0 &&
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
	if (taken[id])
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
	if (rte_vhost_async_dma_configure(id, CHANNEL) != 0) {
		rte_dma_stop(id);
		return -ENOMEM;
	}
	return 0;
}

int
netvm_dma_open(char name[NETVM_DMA_NAME], uint16_t descriptors)
{
	struct rte_dma_info info;
	int error = register_mark();
	int id;

	if (error != 0)
		return error;
	id = name[0] == '\0' ? find_any(&info) : find(name, &info);
	if (id < 0)
		return id;
	error = start(id, &info, descriptors != 0 ? descriptors : NETVM_DMA_DESCRIPTORS);
	if (error != 0)
		return error;
	taken[id] = 1;
	snprintf(name, NETVM_DMA_NAME, "%s", info.dev_name);
	return id;
}

void
netvm_dma_stop(int dma)
{
	rte_dma_stop(dma);
}

void
netvm_dma_close(int dma)
{
	/* Fails if the device was stopped with copies in flight: then the library keeps its record of it. */
	rte_vhost_async_dma_unconfigure(dma, CHANNEL);
	netvm_dma_stop(dma);
	taken[dma] = 0;
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
		count += id < RTE_DMADEV_DEFAULT_MAX && !taken[id] && rte_dma_info_get(id, &info) == 0 &&
			is_hardware(&info) && suits(&info);
	return count;
}

static void
unregister(int device, uint16_t vring, int locked)
{
	if (locked)
		rte_vhost_async_channel_unregister_thread_unsafe(device, vring);
	else
		rte_vhost_async_channel_unregister(device, vring);
}

uint64_t
netvm_dma_begin(int device, int locked)
{
	int vrings = RTE_MIN((int)rte_vhost_get_vring_num(device), 2 * NETVM_VHOST_MAX_PAIRS);
	uint64_t pairs = 0;
	int vring, error;

	for (vring = 0; vring < vrings; vring += 2) {
		/* A leftover channel could belong to a ring of another size. */
		unregister(device, vring, locked);
		error = locked ? rte_vhost_async_channel_register_thread_unsafe(device, vring) :
			rte_vhost_async_channel_register(device, vring);
		if (error == 0)
			pairs |= UINT64_C(1) << vring / 2;
	}
	return pairs;
}

static void
give_back(struct rte_mbuf **mbufs, uint16_t count)
{
	uint16_t i;

	for (i = 0; i < count; i++)
		*mark(mbufs[i]) = 0;
	free_mbufs(mbufs, count, 0);
}

static int
under_way(int device, uint16_t vring, int locked)
{
	return locked ? rte_vhost_async_get_inflight_thread_unsafe(device, vring) :
		rte_vhost_async_get_inflight(device, vring);
}

static void
clear(int device, uint16_t vring, int dma, int locked)
{
	struct rte_mbuf *done[REAPED];
	uint16_t count = locked ?
		rte_vhost_clear_queue_thread_unsafe(device, vring, done, REAPED, dma, CHANNEL) :
		rte_vhost_clear_queue(device, vring, done, REAPED, dma, CHANNEL);

	if (count <= REAPED)
		give_back(done, count);
}

static void
reclaim_mbuf(struct rte_mempool *pool, void *dma, void *object, unsigned int index)
{
	struct rte_mbuf *mbuf = object;

	(void)pool;
	(void)index;
	if (*mark(mbuf) == *(const uint8_t *)dma)
		give_back(&mbuf, 1);
}

static void
reclaim_pool(struct rte_mempool *pool, void *dma)
{
	/* Other mempools hold no mbufs. */
	if (pool->elt_size >= sizeof(struct rte_mbuf) && pool->private_data_size >= sizeof(struct rte_pktmbuf_pool_private))
		rte_mempool_obj_iter(pool, reclaim_mbuf, dma);
}

static int64_t
now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int
netvm_dma_end(int device, int dma, int locked, uint64_t *calls)
{
	int vring, vrings = rte_vhost_get_vring_num(device);
	int64_t end = now_ns() + PATIENCE_NS;

	*calls = 0;
	netvm_vring_take_call();
	for (vring = 0; vring < vrings; vring += 2) {
		while (under_way(device, vring, locked) > 0) {
			clear(device, vring, dma, locked);
			if (now_ns() > end) {
				uint8_t own = dma + 1;

				netvm_dma_stop(dma);
				rte_mempool_walk(reclaim_pool, &own);
				return -ETIMEDOUT;
			}
			if (under_way(device, vring, locked) > 0)
				sched_yield();
		}
		if (netvm_vring_take_call() && vring / 2 < NETVM_VHOST_MAX_PAIRS)
			*calls |= 1ULL << (vring / 2);
		unregister(device, vring, locked);
	}
	return 0;
}

/*
 * The library keeps the buffers that a call has used in a list as long as the ring. With mergeable buffers, a guest can
 * make one packet use a whole ring of empty ones (DPDK 22.11 to 25.11), so the next would be written beyond the list.
 * In packed rings, chains of such buffers lead it out of the ring, so the processor copies to these.
 */
static uint16_t
hand_over(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count)
{
	uint64_t features = 0;
	uint16_t step = count, taken, handed = 0;

	if (rte_vhost_get_negotiated_features(device, &features) != 0 || (features & (1ULL << VIRTIO_F_RING_PACKED)))
		return 0;
	if (features & (1ULL << VIRTIO_NET_F_MRG_RXBUF))
		step = 1;
	do {
		taken = rte_vhost_submit_enqueue_burst(device, vring, mbufs + handed, step, dma, CHANNEL);
		handed += taken;
	} while (taken == step && handed < count);
	return handed;
}

/* At most NETVM_VHOST_BURST packets. */
static uint16_t
send_some(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	uint32_t lengths[NETVM_VHOST_BURST];
	uint16_t i, handed;

	for (i = 0; i < count; i++) {
		lengths[i] = mbufs[i]->pkt_len;
		*mark(mbufs[i]) = dma + 1;
	}
	/* Its packets may be back in their pool before it returns. */
	handed = hand_over(device, vring, dma, mbufs, count);
	for (i = 0; i < handed; i++)
		*bytes += lengths[i];
	for (; i < count; i++)
		*mark(mbufs[i]) = 0;
	if (handed < count && rte_vhost_async_get_inflight(device, vring) == 0)
		handed += netvm_vhost_send(device, vring, mbufs + handed, count - handed, bytes);
	return handed;
}

uint16_t
netvm_dma_send(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	uint16_t some, gone, sent = 0;

	do {
		some = RTE_MIN(count - sent, NETVM_VHOST_BURST);
		gone = send_some(device, vring, dma, mbufs + sent, some, bytes);
		sent += gone;
	} while (gone == some && sent < count);
	return sent;
}

int
netvm_dma_reap(int device, uint16_t vring, int dma)
{
	struct rte_mbuf *done[REAPED];
	uint16_t count = rte_vhost_poll_enqueue_completed(device, vring, done, REAPED, dma, CHANNEL);

	give_back(done, RTE_MIN(count, (uint16_t)REAPED));
	return rte_vhost_async_get_inflight(device, vring);
}
