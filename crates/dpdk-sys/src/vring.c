/* See vring.h. */
#include "vring.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>

#include <rte_config.h>
#include <rte_mbuf.h>
#include <rte_memcpy.h>
#include <rte_net.h>
#include <rte_prefetch.h>
#include <rte_spinlock.h>
#include <rte_tcp.h>
#include <rte_udp.h>
#include <rte_vhost.h>

#include "vhost.h"

#define BIT(feature) (1ULL << (feature))
/* Pieces of memory that the buffers of one packet may have: more than 64 KB in pages takes. */
#define PIECES 256
/* Packets whose buffers are looked at before the first is copied. */
#define AHEAD 32
/* Looks at a lock that another worker has, for a burst. */
#define LOOKS 1000

/* What is known of a receive ring besides what the library knows. */
struct lane {
	_Alignas(RTE_CACHE_LINE_SIZE) rte_spinlock_t lock;
	/* The position of which the guest was last told, if it is known. */
	uint16_t told;
	bool is_told;
};

/* Where guests' memory is, by device. */
static struct rte_vhost_memory *memories[NETVM_VHOST_MAX_DEVICES];
static struct lane lanes[NETVM_VHOST_MAX_DEVICES][NETVM_VHOST_MAX_PAIRS];

/* A ring for as long as a burst takes. */
struct ring {
	struct rte_vhost_vring at;
	struct rte_vhost_memory *memory;
	/* Where the last buffer was. */
	const struct rte_vhost_mem_region *region;
	uint64_t features;
	/* Bytes of a virtio-net header. */
	uint16_t header;
	/* Most buffers that a packet may take. */
	uint16_t most;
	/* Positions: of the next buffer, and of the next that is given back. Those of packed rings wrap at their size. */
	uint16_t avail, used;
	bool avail_wrap, used_wrap;
	/* Split: buffers that wait. Packed: unused. */
	uint16_t waiting;
	/* Packed: the first of the burst that is given back, whose flags are written last. */
	struct vring_packed_desc *first;
	uint16_t first_flags;
};

struct piece {
	char *at;
	uint64_t bytes;
};

/* A buffer that is given back. */
struct buffer {
	uint32_t bytes;
	uint16_t id;
	/* Packed: descriptors of the ring. */
	uint16_t descriptors;
};

/* Buffers for a packet. */
struct room {
	uint64_t bytes;
	uint32_t pieces, buffers;
	struct piece piece[PIECES];
	struct buffer buffer[PIECES];
};

static bool
is_known(int device)
{
	return device >= 0 && device < NETVM_VHOST_MAX_DEVICES;
}

void
netvm_vring_forget(int device)
{
	int pair;

	if (!is_known(device))
		return;
	free(memories[device]);
	memories[device] = NULL;
	for (pair = 0; pair < NETVM_VHOST_MAX_PAIRS; pair++)
		lanes[device][pair].is_told = false;
}

void
netvm_vring_learn(int device)
{
	netvm_vring_forget(device);
	if (is_known(device) && rte_vhost_get_mem_table(device, &memories[device]) != 0)
		memories[device] = NULL;
}

/* Whether so many bytes from an address of ours are the guest's, and aligned. */
static bool
is_guests(const struct rte_vhost_memory *memory, const void *at, uint64_t bytes, uint64_t alignment)
{
	uint64_t offset;
	uint32_t i;

	for (i = 0; i < memory->nregions; i++) {
		offset = (uintptr_t)at - memory->regions[i].host_user_addr;
		if (offset < memory->regions[i].size)
			return bytes <= memory->regions[i].size - offset && (uintptr_t)at % alignment == 0;
	}
	return false;
}

/* The library tells where a ring is also when it has found that not all of it is the guest's. */
static bool
is_sound(const struct ring *ring)
{
	const struct rte_vhost_memory *memory = ring->memory;
	uint64_t size = ring->at.size;
	/* Behind the split rings: what is wanted to be told of. */
	uint64_t event = ring->features & BIT(VIRTIO_RING_F_EVENT_IDX) ? sizeof(uint16_t) : 0;

	if (size == 0 || size > 32768 || memory->nregions == 0)
		return false;
	if (ring->features & BIT(VIRTIO_F_RING_PACKED))
		return ring->avail < size && ring->used < size &&
			is_guests(memory, ring->at.desc_packed, size * sizeof(*ring->at.desc_packed), 16) &&
			is_guests(memory, ring->at.driver_event, sizeof(*ring->at.driver_event), 4) &&
			is_guests(memory, ring->at.device_event, sizeof(*ring->at.device_event), 4);
	return (size & (size - 1)) == 0 &&
		is_guests(memory, ring->at.desc, size * sizeof(*ring->at.desc), 16) &&
		is_guests(memory, ring->at.avail, sizeof(*ring->at.avail) + size * sizeof(uint16_t) + event, 2) &&
		is_guests(memory, ring->at.used, sizeof(*ring->at.used) + size * sizeof(struct vring_used_elem) +
			event, 4);
}

static bool
find(struct ring *ring, int device, uint16_t vring)
{
	if (!is_known(device) || (ring->memory = memories[device]) == NULL ||
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

/* The compiler knows the instruction for it of few processors; those that do not have it do nothing. */
static inline void
prefetch_to_write(const void *at)
{
#ifdef __x86_64__
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

/* What guests may write at the same time is read once. */
#define READ(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)

static inline struct vring_desc
read_split(const struct vring_desc *at)
{
	return (struct vring_desc){ READ(at->addr), READ(at->len), READ(at->flags), READ(at->next) };
}

static inline struct vring_packed_desc
read_packed(const struct vring_packed_desc *at)
{
	return (struct vring_packed_desc){ READ(at->addr), READ(at->len), READ(at->id), READ(at->flags) };
}

/* Where a buffer is that is in one piece, or NULL. Most are where the last one was. */
static inline char *
whole(struct ring *ring, uint64_t address, uint64_t bytes)
{
	const struct rte_vhost_mem_region *region = ring->region;
	uint64_t offset = address - region->guest_phys_addr;
	uint32_t i;

	for (i = 0; offset >= region->size || region->size - offset < bytes; i++) {
		if (i == ring->memory->nregions)
			return NULL;
		region = &ring->memory->regions[i];
		offset = address - region->guest_phys_addr;
	}
	ring->region = region;
	return (char *)(uintptr_t)(region->host_user_addr + offset);
}

/* Adds a descriptor's memory. One without any is refused: a guest could offer so many that others wait. */
static bool
add(const struct ring *ring, struct room *room, uint64_t address, uint32_t bytes)
{
	struct piece *piece;

	if (bytes == 0)
		return false;
	while (bytes > 0) {
		if (room->pieces == PIECES)
			return false;
		piece = &room->piece[room->pieces++];
		piece->bytes = bytes;
		piece->at = (char *)(uintptr_t)rte_vhost_va_from_guest_pa(ring->memory, address, &piece->bytes);
		if (piece->at == NULL)
			return false;
		room->bytes += piece->bytes;
		address += piece->bytes;
		bytes -= piece->bytes;
	}
	return true;
}

/* Where an entry of an indirect table is, or NULL. */
static const void *
entry(const struct ring *ring, uint64_t table, uint32_t number)
{
	uint64_t bytes = sizeof(struct vring_desc);
	uint64_t at = rte_vhost_va_from_guest_pa(ring->memory, table + number * bytes, &bytes);

	return bytes == sizeof(struct vring_desc) && at % __alignof__(uint64_t) == 0 ? (const void *)(uintptr_t)at : NULL;
}

static bool
add_split_table(const struct ring *ring, struct room *room, uint64_t table, uint32_t bytes)
{
	uint32_t entries = bytes / sizeof(struct vring_desc);
	const struct vring_desc *at;
	struct vring_desc descriptor = { .flags = VRING_DESC_F_NEXT };

	/* Each adds a piece, of which there is an end. */
	while (descriptor.flags & VRING_DESC_F_NEXT) {
		at = descriptor.next < entries ? entry(ring, table, descriptor.next) : NULL;
		if (at == NULL)
			return false;
		descriptor = read_split(at);
		if ((descriptor.flags & VRING_DESC_F_INDIRECT) || !add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return true;
}

static bool
add_packed_table(const struct ring *ring, struct room *room, uint64_t table, uint32_t bytes)
{
	uint32_t i, entries = bytes / sizeof(struct vring_packed_desc);
	const struct vring_packed_desc *at;
	struct vring_packed_desc descriptor;

	for (i = 0; i < entries; i++) {
		at = entry(ring, table, i);
		if (at == NULL)
			return false;
		descriptor = read_packed(at);
		if ((descriptor.flags & VRING_DESC_F_INDIRECT) || !add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return entries > 0;
}

static inline uint16_t
split_head(const struct ring *ring, uint16_t ahead)
{
	return READ(ring->at.avail->ring[(uint16_t)(ring->avail + ahead) & (ring->at.size - 1)]);
}

/* Adds the buffer that is `*ahead` buffers ahead of the ring's position. */
static bool
add_split(const struct ring *ring, struct room *room, uint16_t *ahead)
{
	struct vring_desc descriptor = { .flags = VRING_DESC_F_NEXT };
	struct buffer *buffer = &room->buffer[room->buffers];

	if (*ahead >= ring->waiting)
		return false;
	descriptor.next = buffer->id = split_head(ring, (*ahead)++);
	while (descriptor.flags & VRING_DESC_F_NEXT) {
		if (descriptor.next >= ring->at.size)
			return false;
		descriptor = read_split(&ring->at.desc[descriptor.next]);
		if (descriptor.flags & VRING_DESC_F_INDIRECT)
			return add_split_table(ring, room, descriptor.addr, descriptor.len);
		if (!add(ring, room, descriptor.addr, descriptor.len))
			return false;
	}
	return true;
}

/* A position of a packed ring so many descriptors ahead; how often it wraps then. */
static inline uint32_t
packed_place(const struct ring *ring, uint16_t position, uint32_t ahead, bool *wrap)
{
	uint32_t place = (uint32_t)position + ahead;

	if (place < ring->at.size)
		return place;
	*wrap = !*wrap;
	return place - ring->at.size;
}

static inline bool
packed_is_there(const struct vring_packed_desc *at, bool wrap)
{
	uint16_t flags = __atomic_load_n(&at->flags, __ATOMIC_ACQUIRE);

	return !!(flags & 1 << VRING_PACKED_DESC_F_AVAIL) == wrap && !!(flags & 1 << VRING_PACKED_DESC_F_USED) != wrap;
}

/* The same for packed rings: `*ahead` descriptors. */
static bool
add_packed(const struct ring *ring, struct room *room, uint16_t *ahead)
{
	struct buffer *buffer = &room->buffer[room->buffers];
	struct vring_packed_desc descriptor;
	bool wrap = ring->avail_wrap;
	uint32_t place;

	/* No chain can be all there that is longer than the ring. */
	if (*ahead >= ring->at.size)
		return false;
	place = packed_place(ring, ring->avail, *ahead, &wrap);
	if (!packed_is_there(&ring->at.desc_packed[place], wrap))
		return false;
	buffer->descriptors = 0;
	do {
		if (*ahead >= ring->at.size)
			return false;
		wrap = ring->avail_wrap;
		place = packed_place(ring, ring->avail, (*ahead)++, &wrap);
		descriptor = read_packed(&ring->at.desc_packed[place]);
		buffer->descriptors++;
		buffer->id = descriptor.id;
		if (descriptor.flags & VRING_DESC_F_INDIRECT)
			return add_packed_table(ring, room, descriptor.addr, descriptor.len);
		if (!add(ring, room, descriptor.addr, descriptor.len))
			return false;
	} while (descriptor.flags & VRING_DESC_F_NEXT);
	return true;
}

/* Finds buffers for so many bytes. */
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

/* Leaves work to the guest that it has agreed to do. */
static void
leave_work(struct rte_mbuf *mbuf, struct virtio_net_hdr *header)
{
	uint64_t sum = mbuf->ol_flags & RTE_MBUF_F_TX_L4_MASK;

	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG)
		sum = RTE_MBUF_F_TX_TCP_CKSUM;
	/* Sums of pseudo-headers (section 5.1.6.2), and those of IPv4. */
	rte_net_intel_cksum_prepare(mbuf);
	if (sum != 0) {
		header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		header->csum_start = mbuf->l2_len + mbuf->l3_len;
		header->csum_offset = sum == RTE_MBUF_F_TX_UDP_CKSUM ? offsetof(struct rte_udp_hdr, dgram_cksum) :
			offsetof(struct rte_tcp_hdr, cksum);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_IP_CKSUM) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, mbuf->l2_len);

		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
		header->gso_type = mbuf->ol_flags & RTE_MBUF_F_TX_IPV4 ? VIRTIO_NET_HDR_GSO_TCPV4 :
			VIRTIO_NET_HDR_GSO_TCPV6;
		header->gso_size = mbuf->tso_segsz;
		header->hdr_len = mbuf->l2_len + mbuf->l3_len + mbuf->l4_len;
	}
}

static inline bool
leaves_work(const struct rte_mbuf *mbuf)
{
	return mbuf->ol_flags & (RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IP_CKSUM);
}

/* Copies to the pieces from where the last call ended. */
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

	if (leaves_work(mbuf))
		leave_work(mbuf, &header.hdr);
	put(&piece, &header, ring->header);
	for (; mbuf != NULL; mbuf = mbuf->next)
		put(&piece, rte_pktmbuf_mtod(mbuf, const void *), mbuf->data_len);
}

/* Gives a buffer back; the guest does not see it yet. */
static inline void
give_back(struct ring *ring, const struct buffer *buffer, bool packed)
{
	struct vring_packed_desc *at;
	uint16_t flags;

	if (!packed) {
		struct vring_used_elem *element = &ring->at.used->ring[ring->used & (ring->at.size - 1)];

		element->id = buffer->id;
		element->len = buffer->bytes;
		ring->used++;
		ring->avail++;
		ring->waiting--;
		return;
	}
	at = &ring->at.desc_packed[ring->used];
	at->id = buffer->id;
	at->len = buffer->bytes;
	flags = VRING_DESC_F_WRITE |
		(ring->used_wrap ? 1 << VRING_PACKED_DESC_F_AVAIL | 1 << VRING_PACKED_DESC_F_USED : 0);
	if (ring->first == NULL) {
		ring->first = at;
		ring->first_flags = flags;
	} else {
		__atomic_store_n(&at->flags, flags, __ATOMIC_RELEASE);
	}
	ring->used = packed_place(ring, ring->used, buffer->descriptors, &ring->used_wrap);
	ring->avail = packed_place(ring, ring->avail, buffer->descriptors, &ring->avail_wrap);
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

/* Packets in one piece for buffers in one piece: how many, and where these are. */
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
		/* Lines that are read now and written afterwards. */
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
				mbufs[i]->nb_segs != 1 || leaves_work(mbufs[i]))
			break;
		places[i] = whole(ring, descriptor.addr, bytes);
		if (places[i] == NULL)
			break;
		prefetch_to_write(places[i]);
		prefetch_to_write(places[i] + RTE_CACHE_LINE_SIZE);
	}
	return i;
}

/* Both lengths that there are. */
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

/* Whether `now` has reached a position that the guest wants to be told of, since `before` (section 2.7.10.1). */
static inline bool
has_passed(uint16_t wanted, uint16_t now, uint16_t before)
{
	return (uint16_t)(now - wanted - 1) < (uint16_t)(now - before);
}

static bool
wants_to_be_told_split(const struct ring *ring, uint16_t before, bool is_told)
{
	if (ring->features & BIT(VIRTIO_RING_F_EVENT_IDX))
		return !is_told || has_passed(READ(ring->at.avail->ring[ring->at.size]), ring->used, before);
	return !(READ(ring->at.avail->flags) & VRING_AVAIL_F_NO_INTERRUPT);
}

static bool
wants_to_be_told_packed(const struct ring *ring, uint16_t before, bool is_told)
{
	uint16_t flags = READ(ring->at.driver_event->flags), wanted;

	if (flags != VRING_PACKED_EVENT_FLAG_DESC || !(ring->features & BIT(VIRTIO_RING_F_EVENT_IDX)))
		return flags != VRING_PACKED_EVENT_FLAG_DISABLE;
	if (!is_told)
		return true;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	wanted = READ(ring->at.driver_event->off_wrap);
	if (ring->used <= before)
		before -= ring->at.size;
	if (ring->used_wrap != wanted >> 15)
		return has_passed((wanted & 0x7fff) - ring->at.size, ring->used, before);
	return has_passed(wanted & 0x7fff, ring->used, before);
}

/* Lets the guest see what has been given back, and tells it if it wants to be told. */
static void
publish(struct ring *ring, struct lane *lane, bool packed)
{
	uint16_t before = lane->told;
	bool is_told = lane->is_told, wanted;

	if (packed)
		__atomic_store_n(&ring->first->flags, ring->first_flags, __ATOMIC_RELEASE);
	else
		__atomic_store_n(&ring->at.used->idx, ring->used, __ATOMIC_RELEASE);
	lane->told = ring->used;
	lane->is_told = true;
	/* It sees them, or what it wants is seen here. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	wanted = packed ? wants_to_be_told_packed(ring, before, is_told) : wants_to_be_told_split(ring, before, is_told);
	if (wanted && ring->at.callfd >= 0)
		eventfd_write(ring->at.callfd, 1);
}

static bool
take(struct lane *lane)
{
	int looks;

	for (looks = 0; !rte_spinlock_trylock(&lane->lock); looks++) {
		if (looks == LOOKS)
			return false;
		rte_pause();
	}
	return true;
}

static uint16_t
fill_taken(int device, uint16_t vring, struct lane *lane, struct rte_mbuf *const *mbufs, uint16_t count)
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
	publish(&ring, lane, packed);
	rte_vhost_set_vring_base(device, vring, packed ? ring.avail | ring.avail_wrap << 15 : ring.avail,
		packed ? ring.used | ring.used_wrap << 15 : ring.used);
	return done;
}

uint16_t
netvm_vring_fill(int device, uint16_t vring, struct rte_mbuf *const *mbufs, uint16_t count)
{
	struct lane *lane;
	uint16_t done;

	if (!is_known(device) || vring / 2 >= NETVM_VHOST_MAX_PAIRS)
		return 0;
	lane = &lanes[device][vring / 2];
	if (!take(lane))
		return 0;
	done = fill_taken(device, vring, lane, mbufs, count);
	rte_spinlock_unlock(&lane->lock);
	return done;
}

void
netvm_vring_notify(int device, uint16_t vring, int enable)
{
	struct ring ring;

	if (!find(&ring, device, vring))
		return;
	if (ring.features & BIT(VIRTIO_F_RING_PACKED)) {
		bool by_position = enable && (ring.features & BIT(VIRTIO_RING_F_EVENT_IDX));
		uint16_t flags = by_position ? VRING_PACKED_EVENT_FLAG_DESC : VRING_PACKED_EVENT_FLAG_ENABLE;

		if (by_position)
			ring.at.device_event->off_wrap = ring.avail | ring.avail_wrap << 15;
		__atomic_store_n(&ring.at.device_event->flags, enable ? flags : VRING_PACKED_EVENT_FLAG_DISABLE,
			__ATOMIC_RELEASE);
	} else if (!(ring.features & BIT(VIRTIO_RING_F_EVENT_IDX))) {
		ring.at.used->flags = enable ? 0 : VRING_USED_F_NO_NOTIFY;
	} else if (enable) {
		/* Behind the ring: avail_event. */
		memcpy(ring.at.used->ring + ring.at.size, &ring.avail, sizeof(ring.avail));
	}
}
