/* See vhost.h. */
#include "vhost.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/virtio_net.h>

#include <rte_config.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_vhost.h>

#include "../mbuf_free.h"
#include "vring.h"

#define BIT(feature) (1ULL << (feature))

/* Fragmentation of UDP by the peer (UFO) is left out: no driver since Linux 4.14 sends it. */
/*
 * The dirty log of migration is not offered either: the library writes it at an offset beyond its mapping that the
 * other side chooses (log_base of vhost_user_set_log_base, DPDK 22.11 to 25.11).
 */
#define NEVER (BIT(VIRTIO_NET_F_HOST_UFO) | BIT(VIRTIO_NET_F_GUEST_UFO) | BIT(VHOST_F_LOG_ALL))

/* Offered protocol features; protocol.rs has their messages. */
#define OFFERED (BIT(VHOST_USER_PROTOCOL_F_MQ) | BIT(VHOST_USER_PROTOCOL_F_REPLY_ACK) | \
		BIT(VHOST_USER_PROTOCOL_F_NET_MTU) | BIT(VHOST_USER_PROTOCOL_F_STATUS))

/* The library keeps a pointer to these. */
static struct rte_vhost_device_ops callbacks;
static struct netvm_vhost_callbacks ours;

/* A message (vhost-user, "Message Specification"); the library has read its payload. */
struct heading {
	uint32_t request;
	uint32_t flags;
	uint32_t bytes;
	uint8_t payload[];
};

#define IS_REPLY (1u << 2)
#define NEED_REPLY (1u << 3)

/* NEED_REPLY of the message that this thread handles. */
static __thread uint32_t need_reply;

/*
 * If a failed message asks for a reply, the library does not disconnect, but continues with partly changed rings or
 * memory. So the flag is hidden from it until the message has been handled.
 */
static enum rte_vhost_msg_result
before(int device, void *message)
{
	struct heading *heading = message;
	enum netvm_vhost_verdict verdict = ours.message(device, heading->request);
	uint32_t regions = UINT32_MAX;

	need_reply = heading->flags & NEED_REPLY;
	heading->flags &= ~NEED_REPLY;
	switch (verdict) {
	case NETVM_VHOST_PASS_OVER:
		return RTE_VHOST_MSG_RESULT_OK;
	case NETVM_VHOST_REFUSE:
		return RTE_VHOST_MSG_RESULT_ERR;
	case NETVM_VHOST_REFUSE_MEMORY:
		/* The library closes the descriptors of a message that it refuses: here one with too many regions. */
		memcpy(heading->payload, &regions, sizeof(regions));
		break;
	case NETVM_VHOST_HANDLE:
		break;
	}
	return RTE_VHOST_MSG_RESULT_NOT_HANDLED;
}

static enum rte_vhost_msg_result
after(int device, void *message)
{
	struct heading *heading = message;

	ours.handled(device, heading->request);
	if (!(heading->flags & IS_REPLY))
		heading->flags |= need_reply;
	return RTE_VHOST_MSG_RESULT_NOT_HANDLED;
}

static const struct rte_vhost_user_extern_ops hooks = { .pre_msg_handle = before, .post_msg_handle = after };

static int
met(int device)
{
	int error = rte_vhost_extern_callback_register(device, &hooks, NULL);

	return error == 0 ? ours.met(device) : error;
}

/* The library has written to the eventfd that it takes for the guest's (calls.rs). */
static void
notified(int device)
{
	(void)device;
	netvm_vring_want_call();
}

static int
serve(const struct netvm_vhost_spec *spec)
{
	uint64_t flags = 0, offered = 0;
	int error;

	if (spec->client)
		flags |= RTE_VHOST_USER_CLIENT;
	/* Without segmentation, a packet that needs a second mbuf is too long. */
	if (!spec->segmentation)
		flags |= RTE_VHOST_USER_LINEARBUF_SUPPORT;
	if (spec->dma)
		flags |= RTE_VHOST_USER_ASYNC_COPY;
	errno = 0;
	error = rte_vhost_driver_register(spec->path, flags);
	if (error != 0)
		return errno > 0 ? -errno : -EINVAL;
	if (rte_vhost_driver_disable_features(spec->path, NEVER) != 0 ||
			rte_vhost_driver_get_protocol_features(spec->path, &offered) != 0 ||
			rte_vhost_driver_set_protocol_features(spec->path, offered & OFFERED) != 0 ||
			rte_vhost_driver_callback_register(spec->path, &callbacks) != 0) {
		rte_vhost_driver_unregister(spec->path);
		return -EINVAL;
	}
	errno = 0;
	if (rte_vhost_driver_start(spec->path) != 0) {
		error = errno > 0 ? -errno : -EINVAL;
		rte_vhost_driver_unregister(spec->path);
		return error;
	}
	return 0;
}

int
netvm_vhost_open(const struct netvm_vhost_spec *spec)
{
	int error;

	ours = spec->callbacks;
	callbacks.new_connection = met;
	callbacks.new_device = spec->callbacks.arrived;
	callbacks.destroy_device = spec->callbacks.left;
	callbacks.destroy_connection = spec->callbacks.gone;
	callbacks.vring_state_changed = spec->callbacks.vring;
	callbacks.guest_notified = notified;
	/* Guests must not be able to fill a log; only this call may log. */
	rte_log_set_level_pattern("lib.vhost.data", RTE_LOG_CRIT);
	rte_log_set_level_pattern("lib.vhost.config", RTE_LOG_ERR);
	error = serve(spec);
	rte_log_set_level_pattern("lib.vhost.config", RTE_LOG_CRIT);
	return error;
}

int
netvm_vhost_close(const char *path)
{
	struct free_section *section = free_begin();
	int error = rte_vhost_driver_unregister(path);

	free_end(section);
	return error == 0 ? 0 : -ENOENT;
}

int
netvm_vhost_path(int device, char path[NETVM_VHOST_PATH])
{
	return rte_vhost_get_ifname(device, path, NETVM_VHOST_PATH) == 0 ? 0 : -ENODEV;
}

uint32_t
netvm_vhost_accepts(int device)
{
	uint64_t features = 0;
	uint32_t accepts = 0;

	if (rte_vhost_get_negotiated_features(device, &features) != 0)
		return 0;
	if (features & BIT(VIRTIO_NET_F_GUEST_CSUM))
		accepts |= NETVM_VHOST_CSUM;
	if (features & BIT(VIRTIO_NET_F_GUEST_TSO4))
		accepts |= NETVM_VHOST_TSO4;
	if (features & BIT(VIRTIO_NET_F_GUEST_TSO6))
		accepts |= NETVM_VHOST_TSO6;
	return accepts;
}

uint32_t
netvm_vhost_memory(int device, struct netvm_vhost_piece pieces[NETVM_VHOST_MAX_PIECES])
{
	struct rte_vhost_memory *memory = NULL;
	uint32_t i, count;

	if (rte_vhost_get_mem_table(device, &memory) != 0)
		return 0;
	count = RTE_MIN(memory->nregions, (uint32_t)NETVM_VHOST_MAX_PIECES);
	for (i = 0; i < count; i++) {
		pieces[i].start = (uintptr_t)memory->regions[i].mmap_addr;
		pieces[i].bytes = memory->regions[i].mmap_size;
	}
	free(memory);
	return count;
}

int
netvm_vhost_kick(int device, uint16_t vring)
{
	struct rte_vhost_vring ring;

	return rte_vhost_get_vhost_vring(device, vring, &ring) == 0 ? ring.kickfd : -ENODEV;
}

uint16_t
netvm_vhost_receive(int device, uint16_t vring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t count)
{
	struct free_section *section = free_begin();
	uint16_t received = rte_vhost_dequeue_burst(device, vring, pool, mbufs, count);

	free_end(section);
	return received;
}

uint16_t
netvm_vhost_send(int device, uint16_t vring, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	uint16_t sent = netvm_vring_fill(device, vring, mbufs, count);
	uint64_t sum = 0;
	int simple = 1;
	uint16_t i;

	for (i = 0; i < sent; i++) {
		sum += mbufs[i]->pkt_len;
		simple &= is_simple(mbufs[i], mbufs[0]->pool);
	}
	*bytes += sum;
	free_mbufs(mbufs, sent, simple);
	return sent;
}
