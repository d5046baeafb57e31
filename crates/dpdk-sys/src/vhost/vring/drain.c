/*
 * Copies packets out of guests' transmit rings.
 *
 * As with receive rings, buffers are read ahead of the copies: a short way for packets in one contiguous buffer that fit
 * into an mbuf, and a general one for chains, tables and segments of up to 64 KB.
 */
#include <rte_ether.h>
#include <rte_mempool.h>

#include "../../mbuf_free.h"
#include "../../offload.h"
#include "copy.h"

/* The longest packet: a segment of 64 KB behind an Ethernet header with two tags. */
#define LONGEST (65535 + 22)

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

static uint16_t
read_be16(const uint8_t *at)
{
	return at[0] << 8 | at[1];
}

/* Where the IP header begins: behind Ethernet's and up to two VLAN tags; 0 without one. */
static uint32_t
find_ip(const uint8_t *front, uint32_t length)
{
	uint32_t at, tags;

	for (at = RTE_ETHER_HDR_LEN, tags = 0; tags < 3 && at <= length; at += 4, tags++) {
		switch (read_be16(front + at - 2)) {
		case RTE_ETHER_TYPE_IPV4:
		case RTE_ETHER_TYPE_IPV6:
			return at;
		case RTE_ETHER_TYPE_VLAN:
		case RTE_ETHER_TYPE_QINQ:
			break;
		default:
			return 0;
		}
	}
	return 0;
}

/* Marks a TCP segment to be cut into packets, if its headers are those that the guest says. */
static bool
note_segment(struct rte_mbuf *mbuf, const struct virtio_net_hdr *header)
{
	const uint8_t *front = rte_pktmbuf_mtod(mbuf, const uint8_t *);
	bool v6 = (header->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_TCPV6;
	uint32_t l2 = find_ip(front, mbuf->data_len), l4 = header->csum_start, tcp;

	if (l2 == 0 || l4 < l2 + (v6 ? 40 : 20) || l4 + 20 > mbuf->data_len || header->gso_size == 0 ||
			header->csum_offset != 16 || front[l2] >> 4 != (v6 ? 6 : 4))
		return false;
	tcp = (front[l4 + 12] >> 4) * 4;
	if ((!v6 && (front[l2] & 15) * 4u != l4 - l2) || tcp < 20 || l4 + tcp > mbuf->data_len ||
			l4 - l2 >= 1 << RTE_MBUF_L3_LEN_BITS)
		return false;
	mbuf->ol_flags |= RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TCP_CKSUM | (v6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4);
	mbuf->l2_len = l2;
	mbuf->l3_len = l4 - l2;
	mbuf->l4_len = tcp;
	mbuf->tso_segsz = header->gso_size;
	return true;
}

/* Marks a checksum to be computed, or computes it if an mbuf cannot express it. */
static bool
note_checksum(struct rte_mbuf *mbuf, const struct virtio_net_hdr *header)
{
	const uint8_t *front = rte_pktmbuf_mtod(mbuf, const uint8_t *);
	uint32_t l2 = find_ip(front, mbuf->data_len), l4 = header->csum_start;
	bool tcp = header->csum_offset == 16, udp = header->csum_offset == 6;

	if (l4 < RTE_ETHER_HDR_LEN || l4 + header->csum_offset + 2u > mbuf->data_len)
		return false;
	if (l2 == 0 || l4 <= l2 || l4 - l2 >= 1 << RTE_MBUF_L3_LEN_BITS || !(tcp || udp))
		return netvm_checksum_at(mbuf, l4, l4 + header->csum_offset) == 0;
	mbuf->ol_flags |= tcp ? RTE_MBUF_F_TX_TCP_CKSUM : RTE_MBUF_F_TX_UDP_CKSUM;
	mbuf->ol_flags |= front[l2] >> 4 == 6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;
	mbuf->l2_len = l2;
	mbuf->l3_len = l4 - l2;
	return true;
}

/* Marks the offloads that the guest leaves to netvm; false if its header contradicts the packet. */
static bool
note_offloads(const struct ring *ring, struct rte_mbuf *mbuf, const struct virtio_net_hdr *header)
{
	if (!(ring->features & BIT(VIRTIO_NET_F_CSUM)))
		return true;
	/* A segment always has an unfinished checksum. */
	if (!(header->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM))
		return header->gso_type == VIRTIO_NET_HDR_GSO_NONE;
	switch (header->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) {
	case VIRTIO_NET_HDR_GSO_NONE:
		return note_checksum(mbuf, header);
	case VIRTIO_NET_HDR_GSO_TCPV4:
	case VIRTIO_NET_HDR_GSO_TCPV6:
		return note_segment(mbuf, header);
	default:
		return false;
	}
}

static inline bool
leaves_work(const struct virtio_net_hdr *header)
{
	return (header->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || header->gso_type != VIRTIO_NET_HDR_GSO_NONE;
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
drain_one(struct ring *ring, struct rte_mempool *pool, struct rte_mbuf **packet, bool packed)
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
		dropped = leaves_work(&header) && !note_offloads(ring, mbuf, &header);
		if (dropped)
			free_mbufs(&mbuf, 1, 0);
		else
			*packet = mbuf;
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

/* Copies such packets into as many mbufs; returns how many remain after drops. */
static inline uint16_t
take(struct ring *ring, const struct source *sources, const uint16_t *ids, struct rte_mbuf **mbufs, uint16_t count,
	bool packed)
{
	struct virtio_net_hdr header;
	uint16_t i, taken = 0;

	for (i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[i];
		const struct buffer buffer = { 0, ids[i], 1 };
		uint32_t length = sources[i].bytes - ring->header;

		memcpy(&header, sources[i].at, sizeof(header));
		rte_memcpy(rte_pktmbuf_mtod(mbuf, void *), sources[i].at + ring->header, length);
		mbuf->pkt_len = mbuf->data_len = length;
		give_back(ring, &buffer, packed);
		if (unlikely(leaves_work(&header)) && !note_offloads(ring, mbuf, &header))
			free_mbufs(&mbuf, 1, 0);
		else
			mbufs[taken++] = mbuf;
	}
	return taken;
}

/* Takes packets, of at most `count` buffers; returns whether it has used any. */
static inline bool
drain(struct ring *ring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t *count, uint64_t *malformed,
	bool packed)
{
	const uint32_t most = rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM + ring->header;
	struct source sources[AHEAD];
	uint16_t ids[AHEAD];
	uint16_t seen, got, taken, used = 0, done = 0;
	enum outcome outcome;

	while (used < *count) {
		seen = got = look_ahead(ring, *count - used, most, sources, ids, packed);
		while (got > 0 && rte_pktmbuf_alloc_bulk(pool, mbufs + done, got) != 0)
			got /= 2;
		if (got > 0) {
			taken = take(ring, sources, ids, mbufs + done, got, packed);
			*malformed += got - taken;
			done += taken;
			used += got;
		}
		if (got < seen)
			break;
		if (seen == AHEAD || used == *count)
			continue;
		outcome = drain_one(ring, pool, &mbufs[done], packed);
		if (outcome == NONE)
			break;
		used++;
		done += outcome == TAKEN;
		*malformed += outcome == DROPPED;
	}
	*count = done;
	return used > 0;
}

uint16_t
netvm_vhost_receive(int device, uint16_t vring, struct rte_mempool *pool, struct rte_mbuf **mbufs, uint16_t count,
	uint64_t *malformed)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	bool packed, has_used;
	struct ring ring;

	if (state == NULL)
		return 0;
	packed = is_packed(guest);
	begin_burst(&ring, guest, state);
	if (!find_waiting(&ring, packed))
		return 0;
	has_used = packed ? drain(&ring, pool, mbufs, &count, malformed, true) :
		drain(&ring, pool, mbufs, &count, malformed, false);
	if (has_used) {
		publish(&ring, state, packed);
		end_burst(&ring, state);
	}
	return count;
}
