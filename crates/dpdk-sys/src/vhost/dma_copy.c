/* SPDX-License-Identifier: Apache-2.0 */
/* Copies to guests by a DMA channel. See dma_channel.h. */
#include "dma_copy.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "../mbuf_free.h"
#include "dma_channel.h"
#include "vring/copy.h"
#include "vring/fill.h"

#define REAPED 64
#define PATIENCE_NS 1000000000LL
#define PAUSE_NS 20000

/* A packet in flight. */
struct dma_packet {
	struct rte_mbuf *mbuf;
	/* Copies that are not done. */
	uint32_t lacks;
	/* Buffers that it uses. */
	uint16_t buffers;
};

/* Packets in flight of a ring, in order, and their buffers: of both at most as many as the ring has entries. */
struct dma_queue {
	uint16_t mask;
	uint16_t first, first_buffer;
	uint32_t count, buffers;
	struct dma_packet *packets;
	struct buffer *buffer;
};

static struct dma_queue *
create_queue(uint16_t size)
{
	struct dma_queue *queue = calloc(1, sizeof(*queue));

	if (queue == NULL)
		return NULL;
	queue->mask = size - 1;
	queue->packets = calloc(size, sizeof(*queue->packets));
	queue->buffer = calloc(size, sizeof(*queue->buffer));
	if (queue->packets != NULL && queue->buffer != NULL)
		return queue;
	free(queue->packets);
	free(queue->buffer);
	free(queue);
	return NULL;
}

static void
detach(struct vring_state *state)
{
	free(state->dma->packets);
	free(state->dma->buffer);
	free(state->dma);
	state->dma = NULL;
}

/*
 * In packed rings, the used buffer of a chain takes the place of its first descriptor: the processor copies to these.
 */
uint64_t
netvm_dma_begin(int device)
{
	struct device *guest = find_device(device);
	struct vring_state *state;
	uint64_t pairs = 0;
	uint16_t pair;

	/* While a guest is migrated, the processor copies, too: it marks a page once it is written. */
	if (guest == NULL || is_packed(guest) || guest->log != NULL)
		return 0;
	for (pair = 0; pair < NETVM_VHOST_MAX_PAIRS; pair++) {
		state = find_vring(guest, 2 * pair);
		if (state == NULL)
			continue;
		state->dma = create_queue(state->at.size);
		if (state->dma != NULL)
			pairs |= UINT64_C(1) << pair;
	}
	return pairs;
}

static void
note_done(const struct channel *channel, uint16_t last, uint16_t count)
{
	uint32_t *lacks;
	uint16_t i;

	for (i = 0; i < count; i++) {
		lacks = channel->lacks[(uint16_t)(last - i) & channel->mask];
		__atomic_store_n(lacks, *lacks - 1, __ATOMIC_RELEASE);
	}
}

/*
 * Asks which copies are done. What a device has failed to copy counts in its statistics, and the guest gets it as it
 * is.
 */
static void
poll_channel(const struct channel *channel, int dma)
{
	enum rte_dma_status_code codes[REAPED];
	bool has_failed = false;
	uint16_t last, count;

	count = rte_dma_completed(dma, CHANNEL, UINT16_MAX, &last, &has_failed);
	note_done(channel, last, count);
	if (has_failed) {
		count = rte_dma_completed_status(dma, CHANNEL, REAPED, &last, codes);
		note_done(channel, last, count);
	}
}

/* Gives the guest the buffers of packets that are copied, and frees these. */
static void
retire(const struct device *guest, struct vring_state *state)
{
	struct dma_queue *queue = state->dma;
	struct rte_mbuf *done[REAPED];
	struct dma_packet *packet;
	struct ring ring;
	uint32_t count = 0;

	begin_burst(&ring, guest, state);
	while (queue->count > 0 && count < REAPED) {
		packet = &queue->packets[queue->first & queue->mask];
		if (__atomic_load_n(&packet->lacks, __ATOMIC_ACQUIRE) != 0)
			break;
		for (; packet->buffers > 0; packet->buffers--, queue->buffers--)
			give_back_split(&ring, &queue->buffer[queue->first_buffer++ & queue->mask]);
		done[count++] = packet->mbuf;
		queue->first++;
		queue->count--;
	}
	if (count == 0)
		return;
	publish(&ring, state, false);
	end_burst(&ring, state);
	free_mbufs(done, count, 0);
}

/* Forgets packets in flight: their buffers are available again. */
static void
forget(struct vring_state *state)
{
	struct dma_queue *queue = state->dma;

	for (; queue->count > 0; queue->count--)
		free_mbufs(&queue->packets[queue->first++ & queue->mask].mbuf, 1, 0);
	state->avail = state->used;
}

static int64_t
now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Waits for a ring's copies; false if they take too long. */
static bool
wait_for_copies(const struct device *guest, struct vring_state *state, int dma, int64_t end)
{
	struct channel *channel = &netvm_dma_channels[dma];
	const struct timespec pause = { .tv_nsec = PAUSE_NS };

	while (state->dma->count > 0) {
		/* Workers use it for other guests of the port. */
		rte_spinlock_lock(&channel->lock);
		if (channel->lacks != NULL)
			poll_channel(channel, dma);
		rte_spinlock_unlock(&channel->lock);
		retire(guest, state);
		if (state->dma->count == 0)
			break;
		if (channel->lacks == NULL || now_ns() > end)
			return false;
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
	}
	return true;
}

int
netvm_dma_end(int device, int dma, uint64_t *calls)
{
	struct device *guest = find_device(device);
	struct channel *channel = &netvm_dma_channels[dma];
	int64_t end = now_ns() + PATIENCE_NS;
	struct vring_state *state;
	uint16_t pair;
	int error = 0;

	*calls = 0;
	netvm_vhost_take_call();
	for (pair = 0; pair < NETVM_VHOST_MAX_PAIRS; pair++) {
		state = find_vring(guest, 2 * pair);
		if (state == NULL || state->dma == NULL)
			continue;
		if (!wait_for_copies(guest, state, dma, end)) {
			rte_spinlock_lock(&channel->lock);
			netvm_dma_give_up(channel, dma);
			rte_spinlock_unlock(&channel->lock);
			forget(state);
			error = -ETIMEDOUT;
		}
		if (netvm_vhost_take_call())
			*calls |= UINT64_C(1) << pair;
		detach(state);
	}
	return error;
}

/* What a copy belongs to. */
struct copy {
	const struct channel *channel;
	int dma;
	struct dma_packet *packet;
};

/* Submits a copy; what the device refuses, the processor copies. */
static void
copy_later(void *to, const void *from, uint64_t bytes, void *context)
{
	const struct copy *copy = context;
	int number = rte_dma_copy(copy->dma, CHANNEL, (uintptr_t)from, (uintptr_t)to, bytes, 0);

	if (number < 0) {
		copy_now(to, from, bytes, NULL);
		return;
	}
	copy->packet->lacks++;
	copy->channel->lacks[number & copy->channel->mask] = &copy->packet->lacks;
}

/* Submits copies of packets, from the first on, to a channel that is locked; returns how many. */
static uint16_t
submit(const struct device *guest, struct vring_state *state, int dma, struct rte_mbuf **mbufs, uint16_t count)
{
	struct dma_queue *queue = state->dma;
	struct copy copy = { .channel = &netvm_dma_channels[dma], .dma = dma };
	struct dma_packet *packet;
	struct ring ring;
	struct room room;
	uint16_t done = 0;
	uint32_t i;

	begin_burst(&ring, guest, state);
	if (!find_waiting(&ring, false))
		return 0;
	for (; done < count; done++) {
		struct rte_mbuf *mbuf = mbufs[done];

		/* A guest may offer buffers again that are in flight. */
		if (!find_room(&ring, &room, (uint64_t)ring.header + mbuf->pkt_len, false) ||
				queue->buffers + room.buffers > queue->mask + 1u ||
				room.pieces + mbuf->nb_segs > rte_dma_burst_capacity(dma, CHANNEL))
			break;
		packet = &queue->packets[(queue->first + queue->count) & queue->mask];
		*packet = (struct dma_packet){ .mbuf = mbuf, .buffers = room.buffers };
		for (i = 0; i < room.buffers; i++)
			queue->buffer[(queue->first_buffer + queue->buffers++) & queue->mask] = room.buffer[i];
		queue->count++;
		copy.packet = packet;
		copy_packet(&ring, &room, mbuf, copy_now, copy_later, &copy);
		take_split(&ring, room.buffers);
	}
	rte_dma_submit(dma, CHANNEL);
	end_burst(&ring, state);
	return done;
}

/* Begins to use a ring and the channel, which other threads may use. */
static bool
enter(struct vring_state *state, struct channel *channel)
{
	if (!try_lock(&state->lock))
		return false;
	if (try_lock(&channel->lock)) {
		/* The device was given up. */
		if (channel->lacks == NULL)
			forget(state);
		return true;
	}
	rte_spinlock_unlock(&state->lock);
	return false;
}

static void
leave(struct vring_state *state, struct channel *channel)
{
	rte_spinlock_unlock(&channel->lock);
	rte_spinlock_unlock(&state->lock);
}

uint16_t
netvm_dma_send(int device, uint16_t vring, int dma, struct rte_mbuf **mbufs, uint16_t count, uint64_t *bytes)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	struct channel *channel = &netvm_dma_channels[dma];
	uint16_t i, submitted = 0, filled = 0;

	if (state == NULL || state->dma == NULL || !enter(state, channel))
		return 0;
	if (channel->lacks != NULL)
		submitted = submit(guest, state, dma, mbufs, count);
	for (i = 0; i < submitted; i++)
		*bytes += mbufs[i]->pkt_len;
	if (submitted < count && state->dma->count == 0)
		filled = netvm_vring_fill(guest, state, mbufs + submitted, count - submitted);
	leave(state, channel);
	netvm_vring_free_sent(mbufs + submitted, filled, bytes);
	return submitted + filled;
}

int
netvm_dma_reap(int device, uint16_t vring, int dma)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	struct channel *channel = &netvm_dma_channels[dma];
	int left;

	if (state == NULL || state->dma == NULL)
		return 0;
	if (!enter(state, channel))
		return -1;
	if (channel->lacks != NULL)
		poll_channel(channel, dma);
	retire(guest, state);
	left = state->dma->count;
	leave(state, channel);
	return left;
}
