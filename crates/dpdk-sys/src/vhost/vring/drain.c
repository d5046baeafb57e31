/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies packets out of guests' transmit rings.
 *
 * As with receive rings, buffers are read ahead of the copies: a short way for packets in one contiguous buffer that
 * fit into an mbuf, and a general one for chains, tables and segments of up to 64 KB.
 */
#include <rte_mempool.h>

#include "../../mbuf_free.h"
#include "copy.h"

/* The longest packet: a segment of 64 KB behind an Ethernet header with two tags. */
#define LONGEST (65535 + 22)

_Static_assert(sizeof(struct virtio_net_hdr) == NETVM_VHOST_HEADER, "the header without its number of buffers");
_Static_assert(NETVM_VHOST_HEADER <= RTE_PKTMBUF_HEADROOM, "put_request() writes before the packet");

/* What became of a packet. */
enum outcome {
	/* It is in an mbuf. */
	TAKEN,
	/* Its buffer is used, and it is dropped. */
	DROPPED,
	/* There is none, its buffer is invalid, or mbufs have run out. */
	NONE,
};

/* Copies from the pieces, continuing where the last call ended. */
static void
get(struct piece **piece, void *to, uint64_t bytes)
{
	uint64_t part;

	while (bytes > 0) {
		if ((*piece)->bytes == 0)
			(*piece)++;
		part = RTE_MIN(bytes, (*piece)->bytes);
		rte_memcpy(to, (*piece)->at, part);
		(*piece)->at += part;
		(*piece)->bytes -= part;
		to = (char *)to + part;
		bytes -= part;
	}
}

/* Whether the guest leaves a checksum or segmentation to netvm. */
static inline bool
leaves_work(const struct ring *ring, const struct virtio_net_hdr *header)
{
	return ((header->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || header->gso_type != VIRTIO_NET_HDR_GSO_NONE) &&
			(ring->features & BIT(VIRTIO_NET_F_CSUM));
}

/* Puts the header of packet `number` of the burst in front of the packet, for the caller. */
static inline void
put_request(struct netvm_vhost_received *received, uint16_t number, struct rte_mbuf *mbuf,
	const struct virtio_net_hdr *header)
{
	memcpy(rte_pktmbuf_mtod(mbuf, char *) - sizeof(*header), header, sizeof(*header));
	received->requests |= 1ULL << number;
}

/* Allocates mbufs for a packet, of which `bytes` fill all but the last; NULL if there are too few. */
static struct rte_mbuf *
allocate(struct rte_mempool *pool, uint32_t bytes)
{
	struct rte_mbuf *head = NULL, **end = &head, *mbuf;

	for (;;) {
		mbuf = rte_pktmbuf_alloc(pool);
		if (mbuf == NULL)
			break;
		*end = mbuf;
		end = &mbuf->next;
		mbuf->data_len = RTE_MIN(bytes, rte_pktmbuf_tailroom(mbuf));
		head->pkt_len += mbuf->data_len;
		head->nb_segs += mbuf != head;
		bytes -= mbuf->data_len;
		if (bytes == 0)
			return head;
	}
	if (head != NULL)
		free_mbufs(&head, 1, 0);
	return NULL;
}

/* A packet of any shape. */
static enum outcome
drain_one(struct ring *ring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t number,
	struct netvm_vhost_received *received, bool packed)
{
	struct room room;
	struct virtio_net_hdr header;
	struct piece *piece = room.piece;
	struct rte_mbuf *mbuf, *part;
	uint16_t ahead = 0;
	bool dropped;

	room.bytes = room.pieces = room.buffers = 0;
	if (!add_buffer(ring, &room, &ahead, packed))
		return NONE;
	room.buffer[0].bytes = 0;
	dropped = room.bytes <= ring->header || room.bytes - ring->header > LONGEST;
	if (!dropped) {
		mbuf = allocate(pool, room.bytes - ring->header);
		if (mbuf == NULL)
			return NONE;
		get(&piece, &header, sizeof(header));
		/* The number of buffers. */
		if (ring->header > sizeof(header))
			get(&piece, &(uint16_t){ 0 }, ring->header - sizeof(header));
		for (part = mbuf; part != NULL; part = part->next)
			get(&piece, rte_pktmbuf_mtod(part, void *), part->data_len);
		if (leaves_work(ring, &header))
			put_request(received, number, mbuf, &header);
		mbufs[number] = mbuf;
	}
	give_back(ring, &room.buffer[0], packed);
	return dropped ? DROPPED : TAKEN;
}

/* A contiguous buffer with a packet. */
struct source {
	const char *at;
	uint32_t bytes;
};

/* Finds packets in one contiguous buffer of at most `most` bytes: how many, and where they are. */
static inline uint16_t
look_ahead(struct ring *ring, uint16_t count, uint32_t most, struct source *sources, uint16_t *ids, bool packed)
{
	struct vring_desc descriptor;
	uint16_t i;

	count = prefetch_descriptors(ring, ids, RTE_MIN(count, AHEAD), packed);
	for (i = 0; i < count; i++) {
		if (!read_ahead(ring, i, ids, &descriptor, packed) || is_chained(&descriptor) ||
				descriptor.len <= ring->header || descriptor.len > most)
			break;
		sources[i].bytes = descriptor.len;
		sources[i].at = whole(ring, descriptor.addr, descriptor.len);
		if (sources[i].at == NULL)
			break;
		rte_prefetch0(sources[i].at);
		rte_prefetch0(sources[i].at + RTE_CACHE_LINE_SIZE);
	}
	return i;
}

/* Copies such packets into as many mbufs, from number `first` of the burst on. */
static inline void
take(struct ring *ring, const struct source *sources, const uint16_t *ids, struct rte_mbuf **mbufs, uint16_t first,
	uint16_t count, struct netvm_vhost_received *received, bool packed)
{
	struct virtio_net_hdr header;
	uint16_t i;

	for (i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[first + i];
		const struct buffer buffer = { 0, ids[i], 1 };
		uint32_t length = sources[i].bytes - ring->header;

		memcpy(&header, sources[i].at, sizeof(header));
		rte_memcpy(rte_pktmbuf_mtod(mbuf, void *), sources[i].at + ring->header, length);
		mbuf->pkt_len = mbuf->data_len = length;
		give_back(ring, &buffer, packed);
		if (unlikely(leaves_work(ring, &header)))
			put_request(received, first + i, mbuf, &header);
	}
}

/* Takes packets, of at most `count` buffers; returns whether it has used any. */
static inline bool
drain(struct ring *ring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t *count,
	struct netvm_vhost_received *received, bool packed)
{
	const uint32_t most = rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM + ring->header;
	struct source sources[AHEAD];
	uint16_t ids[AHEAD];
	uint16_t seen, got, used = 0, done = 0;
	enum outcome outcome;

	while (used < *count) {
		seen = got = look_ahead(ring, *count - used, most, sources, ids, packed);
		while (got > 0 && rte_pktmbuf_alloc_bulk(pool, mbufs + done, got) != 0)
			got /= 2;
		if (got > 0) {
			take(ring, sources, ids, mbufs, done, got, received, packed);
			done += got;
			used += got;
		}
		if (got < seen)
			break;
		if (seen == AHEAD || used == *count)
			continue;
		outcome = drain_one(ring, pool, mbufs, done, received, packed);
		if (outcome == NONE)
			break;
		used++;
		done += outcome == TAKEN;
		received->malformed += outcome == DROPPED;
	}
	*count = done;
	return used > 0;
}

uint16_t
netvm_vhost_receive(int device, uint16_t vring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t count,
	struct netvm_vhost_received *received)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	bool packed, has_used;
	struct ring ring;

	received->malformed = received->requests = 0;
	if (state == NULL)
		return 0;
	packed = is_packed(guest);
	count = RTE_MIN(count, NETVM_VHOST_MAX_BURST);
	begin_burst(&ring, guest, state);
	if (!find_waiting(&ring, packed))
		return 0;
	has_used = packed ? drain(&ring, pool, mbufs, &count, received, true) :
		drain(&ring, pool, mbufs, &count, received, false);
	if (has_used) {
		publish(&ring, state, packed);
		end_burst(&ring, state);
	}
	return count;
}
