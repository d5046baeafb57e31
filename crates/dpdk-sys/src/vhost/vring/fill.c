/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies packets into guests' receive rings.
 *
 * Buffers are read ahead of the copies, which hides the latency of guest memory. Short ways for what most guests offer,
 * one contiguous buffer a packet, and a general one for chains, tables, mergeable buffers and offloads.
 */
#include "fill.h"

#include <rte_prefetch.h>

#include "../../mbuf_free.h"
#include "copy.h"

/* A burst of at most this many packets shows that the guest waits for single ones. */
#define SHORT_BURST 8
/* Buffers that are prepared after such a burst. */
#define NEXT 2

/* A packet of any shape. */
static inline __attribute__((always_inline)) bool
fill_shape(struct ring *ring, struct rte_mbuf *mbuf, bool packed, copy_to_guest copy)
{
	struct room room;
	uint32_t i;

	if (!find_room(ring, &room, (uint64_t)ring->header + mbuf->pkt_len, packed))
		return false;
	copy_packet(ring, &room, mbuf, copy, copy, ring);
	for (i = 0; i < room.buffers; i++)
		give_back(ring, &room.buffer[i], packed);
	return true;
}

static __attribute__((noinline)) bool
fill_one(struct ring *ring, struct rte_mbuf *mbuf, bool packed)
{
	return fill_shape(ring, mbuf, packed, copy_now);
}

static __attribute__((noinline)) bool
fill_one_logged(struct ring *ring, struct rte_mbuf *mbuf, bool packed)
{
	return fill_shape(ring, mbuf, packed, copy_logged);
}

/* Finds contiguous buffers for single-segment packets: how many, and their addresses. */
static inline uint16_t
look_ahead(struct ring *ring, struct rte_mbuf *const *mbufs, uint16_t count, char **places, uint16_t *ids,
	bool packed)
{
	struct vring_desc descriptor;
	uint64_t bytes;
	uint16_t i;

	count = prefetch_descriptors(ring, ids, RTE_MIN(count, AHEAD), packed);
	for (i = 0; i < count; i++) {
		if (!read_ahead(ring, i, ids, &descriptor, packed))
			break;
		bytes = ring->header + mbufs[i]->pkt_len;
		if (is_chained(&descriptor) || descriptor.len < bytes || mbufs[i]->nb_segs != 1 ||
		    has_offloads(mbufs[i]))
			break;
		places[i] = whole(ring, descriptor.addr, bytes);
		if (places[i] == NULL)
			break;
		prefetch_to_write(places[i]);
		prefetch_to_write(places[i] + RTE_CACHE_LINE_SIZE);
	}
	return i;
}

/*
 * Brings the buffers of the next packets into this core's caches, for which nobody waits now. The guest reads the line
 * with the next descriptor all the time, so that line is read and not prefetched to be written.
 */
static inline void
prepare_next(struct ring *ring, bool packed)
{
	struct vring_desc descriptor;
	uint16_t ids[NEXT];
	uint16_t i, count = packed ? NEXT : prefetch_descriptors(ring, ids, NEXT, false);
	const char *place;

	for (i = 0; i < count; i++) {
		if (!read_ahead(ring, i, ids, &descriptor, packed))
			break;
		place = whole(ring, descriptor.addr, descriptor.len);
		if (place == NULL)
			break;
		prefetch_to_write(place);
		prefetch_to_write(place + RTE_CACHE_LINE_SIZE);
	}
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

/* Of either kind of ring, with or without a dirty log: the compiler makes a function for each. */
static inline __attribute__((always_inline)) uint16_t
fill(struct ring *ring, struct rte_mbuf *const *mbufs, uint16_t count, bool packed, bool logged)
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
			if (logged)
				netvm_log_at(ring, places[i], buffer.bytes);
			give_back(ring, &buffer, packed);
		}
		if (seen < AHEAD && done < count) {
			if (!(logged ? fill_one_logged : fill_one)(ring, mbufs[done], packed))
				break;
			done++;
		}
	}
	return done;
}

/* Out of the way of bursts to guests that are not migrated. */
static __attribute__((noinline, cold)) uint16_t
fill_logged(struct ring *ring, struct rte_mbuf *const *mbufs, uint16_t count, bool packed)
{
	return packed ? fill(ring, mbufs, count, true, true) : fill(ring, mbufs, count, false, true);
}

uint16_t
netvm_vring_fill(const struct device *device, struct vring_state *state, struct rte_mbuf *const *mbufs, uint16_t count)
{
	struct ring ring;
	uint16_t done;

	begin_burst(&ring, device, state);
	if (!find_waiting(&ring, is_packed(device)))
		return 0;
	if (unlikely(ring.log != NULL))
		done = fill_logged(&ring, mbufs, count, is_packed(device));
	else if (is_packed(device))
		done = fill(&ring, mbufs, count, true, false);
	else
		done = fill(&ring, mbufs, count, false, false);
	if (done == 0)
		return 0;
	publish(&ring, state, is_packed(device));
	end_burst(&ring, state);
	if (done <= SHORT_BURST)
		prepare_next(&ring, is_packed(device));
	return done;
}

void
netvm_vring_free_sent(struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	uint64_t sum = 0;
	int simple = 1;
	uint16_t i;

	for (i = 0; i < count; i++) {
		sum += mbufs[i]->pkt_len;
		simple &= is_simple(mbufs[i], mbufs[0]->pool);
	}
	*bytes += sum;
	free_mbufs(mbufs, count, simple);
}

uint16_t
netvm_vhost_send(int device, uint16_t vring, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	uint16_t sent;

	if (state == NULL || !try_lock(&state->lock))
		return 0;
	sent = netvm_vring_fill(guest, state, mbufs, count);
	rte_spinlock_unlock(&state->lock);
	netvm_vring_free_sent(mbufs, sent, bytes);
	return sent;
}
