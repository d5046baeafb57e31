/* See vring.h. */
#include "vring.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

#include <rte_config.h>
#include <rte_mbuf.h>
#include <rte_memcpy.h>
#include <rte_prefetch.h>
#include <rte_spinlock.h>
#include <rte_vhost.h>

#include "vhost.h"
#include "vring_packed.h"
#include "vring_split.h"

/* Packets whose buffers are read before the first is copied. */
#define AHEAD 32
/* Attempts per burst to take a lock that another worker holds. */
#define LOCK_TRIES 1000

/* State of a receive ring beyond what the library keeps. */
struct rx_ring_state {
	_Alignas(RTE_CACHE_LINE_SIZE) rte_spinlock_t lock;
	/* The position at the last publication, if known. */
	uint16_t last_call;
	bool has_called;
};

static __thread int call_wanted;

/* Where guests' memory is, by device. */
static struct rte_vhost_memory *memories[NETVM_VHOST_MAX_DEVICES];
static struct rx_ring_state rx_rings[NETVM_VHOST_MAX_DEVICES][NETVM_VHOST_MAX_PAIRS];

static bool
is_valid(int device)
{
	return device >= 0 && device < NETVM_VHOST_MAX_DEVICES;
}

void
netvm_vring_forget(int device)
{
	int pair;

	if (!is_valid(device))
		return;
	free(memories[device]);
	memories[device] = NULL;
	for (pair = 0; pair < NETVM_VHOST_MAX_PAIRS; pair++)
		rx_rings[device][pair].has_called = false;
}

void
netvm_vring_learn(int device)
{
	netvm_vring_forget(device);
	if (is_valid(device) && rte_vhost_get_mem_table(device, &memories[device]) != 0)
		memories[device] = NULL;
}

/* The library also reports rings that it has found to lie partly outside the guest's memory. */
static bool
is_sound(const struct ring *ring)
{
	if (ring->at.size == 0 || ring->at.size > 32768 || ring->memory->nregions == 0)
		return false;
	return ring->features & BIT(VIRTIO_F_RING_PACKED) ? is_sound_packed(ring) : is_sound_split(ring);
}

static bool
find(struct ring *ring, int device, uint16_t vring)
{
	if (!is_valid(device) || (ring->memory = memories[device]) == NULL ||
			rte_vhost_get_vhost_vring(device, vring, &ring->at) != 0 ||
			rte_vhost_get_vring_base(device, vring, &ring->avail, &ring->used) != 0 ||
			rte_vhost_get_negotiated_features(device, &ring->features) != 0)
		return false;
	if (ring->features & BIT(VIRTIO_F_RING_PACKED)) {
		ring->avail_wrap = ring->avail >> 15;
		ring->used_wrap = ring->used >> 15;
		ring->avail &= 0x7fff;
		ring->used &= 0x7fff;
	}
	if (!is_sound(ring))
		return false;
	ring->region = ring->memory->regions;
	return true;
}

/* The compiler emits this instruction for few targets; processors without it ignore it. */
static inline void
prefetch_to_write(const void *at)
{
#ifdef __x86_64__
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

/* Collects buffers for `bytes` bytes. */
static bool
find_room(const struct ring *ring, struct room *room, uint64_t bytes, bool packed)
{
	uint16_t ahead = 0;
	uint64_t before;

	room->bytes = room->pieces = room->buffers = 0;
	while (room->bytes < bytes) {
		before = room->bytes;
		if (room->buffers == ring->most || room->buffers == PIECES ||
				!(packed ? add_packed(ring, room, &ahead) : add_split(ring, room, &ahead)))
			return false;
		room->buffer[room->buffers++].bytes = RTE_MIN(room->bytes, bytes) - before;
	}
	return true;
}

/* Copies to the pieces, continuing where the last call ended. */
static void
put(struct piece **piece, const void *from, uint64_t bytes)
{
	uint64_t part;

	while (bytes > 0) {
		if ((*piece)->bytes == 0)
			(*piece)++;
		part = RTE_MIN(bytes, (*piece)->bytes);
		rte_memcpy((*piece)->at, from, part);
		(*piece)->at += part;
		(*piece)->bytes -= part;
		from = (const char *)from + part;
		bytes -= part;
	}
}

static void
copy(const struct ring *ring, struct room *room, struct rte_mbuf *mbuf)
{
	struct virtio_net_hdr_mrg_rxbuf header = { .num_buffers = room->buffers };
	struct piece *piece = room->piece;

	if (has_offloads(mbuf))
		describe_offloads(mbuf, &header.hdr);
	put(&piece, &header, ring->header);
	for (; mbuf != NULL; mbuf = mbuf->next)
		put(&piece, rte_pktmbuf_mtod(mbuf, const void *), mbuf->data_len);
}

/* Adds a used buffer; the guest does not see it yet. */
static inline void
give_back(struct ring *ring, const struct buffer *buffer, bool packed)
{
	if (packed)
		give_back_packed(ring, buffer);
	else
		give_back_split(ring, buffer);
}

/* A packet of any shape. */
static bool
fill_one(struct ring *ring, struct rte_mbuf *mbuf, bool packed)
{
	struct room room;
	uint32_t i;

	if (!find_room(ring, &room, (uint64_t)ring->header + mbuf->pkt_len, packed))
		return false;
	copy(ring, &room, mbuf);
	for (i = 0; i < room.buffers; i++)
		give_back(ring, &room.buffer[i], packed);
	return true;
}

/* Finds contiguous buffers for single-segment packets: how many, and their addresses. */
static inline uint16_t
look_ahead(struct ring *ring, struct rte_mbuf *const *mbufs, uint16_t count, char **places, uint16_t *ids,
	bool packed)
{
	const struct vring_packed_desc *at;
	struct vring_packed_desc there;
	struct vring_desc descriptor;
	uint64_t bytes;
	uint16_t i, head;
	bool wrap = false;

	count = RTE_MIN(count, AHEAD);
	if (!packed) {
		count = RTE_MIN(count, ring->waiting);
		for (i = 0; i < count; i++) {
			ids[i] = head = split_head(ring, i);
			rte_prefetch0(&ring->at.desc[head & (ring->at.size - 1)]);
		}
	} else {
		/* These lines are read now and written later. */
		for (i = 0; i < count; i += RTE_CACHE_LINE_SIZE / sizeof(*at))
			prefetch_to_write(&ring->at.desc_packed[packed_place(ring, ring->avail, i, &wrap)]);
	}
	for (i = 0; i < count; i++) {
		if (packed) {
			wrap = ring->avail_wrap;
			at = &ring->at.desc_packed[packed_place(ring, ring->avail, i, &wrap)];
			if (!packed_is_there(at, wrap))
				break;
			there = read_packed(at);
			descriptor = (struct vring_desc){ there.addr, there.len, there.flags, 0 };
			ids[i] = there.id;
		} else {
			if (ids[i] >= ring->at.size)
				break;
			descriptor = read_split(&ring->at.desc[ids[i]]);
		}
		bytes = ring->header + mbufs[i]->pkt_len;
		if ((descriptor.flags & (VRING_DESC_F_NEXT | VRING_DESC_F_INDIRECT)) || descriptor.len < bytes ||
				mbufs[i]->nb_segs != 1 || has_offloads(mbufs[i]))
			break;
		places[i] = whole(ring, descriptor.addr, bytes);
		if (places[i] == NULL)
			break;
		prefetch_to_write(places[i]);
		prefetch_to_write(places[i] + RTE_CACHE_LINE_SIZE);
	}
	return i;
}

/* Of either length. */
static inline void
put_header(char *to, const struct virtio_net_hdr_mrg_rxbuf *header, uint16_t bytes)
{
	if (likely(bytes == sizeof(*header)))
		memcpy(to, header, sizeof(*header));
	else
		memcpy(to, header, sizeof(header->hdr));
}

static inline uint16_t
fill(struct ring *ring, struct rte_mbuf *const *mbufs, uint16_t count, bool packed)
{
	struct virtio_net_hdr_mrg_rxbuf header = { .num_buffers = 1 };
	uint16_t ids[AHEAD];
	char *places[AHEAD];
	uint16_t i, seen, done = 0;

	while (done < count) {
		seen = look_ahead(ring, mbufs + done, count - done, places, ids, packed);
		for (i = 0; i < seen; i++, done++) {
			const struct rte_mbuf *mbuf = mbufs[done];
			const struct buffer buffer = { ring->header + mbuf->data_len, ids[i], 1 };

			put_header(places[i], &header, ring->header);
			rte_memcpy(places[i] + ring->header, rte_pktmbuf_mtod(mbuf, const void *), mbuf->data_len);
			give_back(ring, &buffer, packed);
		}
		if (seen < AHEAD && done < count) {
			if (!fill_one(ring, mbufs[done], packed))
				break;
			done++;
		}
	}
	return done;
}

void
netvm_vring_want_call(void)
{
	call_wanted = 1;
}

int
netvm_vring_take_call(void)
{
	int wanted = call_wanted;

	call_wanted = 0;
	return wanted;
}

/* Publishes the used buffers, and notes whether the guest wants a call. */
static void
publish(struct ring *ring, struct rx_ring_state *state, bool packed)
{
	uint16_t before = state->last_call;
	bool has_called = state->has_called, wanted;

	if (packed)
		__atomic_store_n(&ring->first->flags, ring->first_flags, __ATOMIC_RELEASE);
	else
		__atomic_store_n(&ring->at.used->idx, ring->used, __ATOMIC_RELEASE);
	state->last_call = ring->used;
	state->has_called = true;
	/* Either the guest sees the buffers, or this thread sees its suppression flags. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	wanted = packed ? wants_call_packed(ring, before, has_called) : wants_call_split(ring, before, has_called);
	if (wanted && ring->at.callfd >= 0)
		netvm_vring_want_call();
}

static bool
take(struct rx_ring_state *state)
{
	int tries;

	for (tries = 0; !rte_spinlock_trylock(&state->lock); tries++) {
		if (tries == LOCK_TRIES)
			return false;
		rte_pause();
	}
	return true;
}

static uint16_t
fill_taken(int device, uint16_t vring, struct rx_ring_state *state, struct rte_mbuf *const *mbufs, uint16_t count)
{
	struct ring ring = { .first = NULL };
	bool packed;
	uint16_t done;

	if (!find(&ring, device, vring))
		return 0;
	packed = ring.features & BIT(VIRTIO_F_RING_PACKED);
	ring.most = ring.features & BIT(VIRTIO_NET_F_MRG_RXBUF) ? ring.at.size : 1;
	ring.header = ring.features & (BIT(VIRTIO_NET_F_MRG_RXBUF) | BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_F_RING_PACKED)) ?
		sizeof(struct virtio_net_hdr_mrg_rxbuf) : sizeof(struct virtio_net_hdr);
	if (packed) {
		done = fill(&ring, mbufs, count, true);
	} else {
		ring.waiting = __atomic_load_n(&ring.at.avail->idx, __ATOMIC_ACQUIRE) - ring.avail;
		if (ring.waiting > ring.at.size)
			return 0;
		done = fill(&ring, mbufs, count, false);
	}
	if (done == 0)
		return 0;
	publish(&ring, state, packed);
	rte_vhost_set_vring_base(device, vring, packed ? ring.avail | ring.avail_wrap << 15 : ring.avail,
		packed ? ring.used | ring.used_wrap << 15 : ring.used);
	return done;
}

uint16_t
netvm_vring_fill(int device, uint16_t vring, struct rte_mbuf *const *mbufs, uint16_t count)
{
	struct rx_ring_state *state;
	uint16_t done;

	if (!is_valid(device) || vring / 2 >= NETVM_VHOST_MAX_PAIRS)
		return 0;
	state = &rx_rings[device][vring / 2];
	if (!take(state))
		return 0;
	done = fill_taken(device, vring, state, mbufs, count);
	rte_spinlock_unlock(&state->lock);
	return done;
}

void
netvm_vring_notify(int device, uint16_t vring, int enable)
{
	struct ring ring;

	if (!find(&ring, device, vring))
		return;
	if (ring.features & BIT(VIRTIO_F_RING_PACKED))
		notify_packed(&ring, enable);
	else
		notify_split(&ring, enable);
}
