/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency between two guests of a switch. Packets are offered at even intervals, and each carries the time at which it
 * was due, so that a sender that is late does not hide a delay (coordinated omission). The second guest counts what it
 * receives in a histogram, in a file that the benchmark reads (crates/bench/src/peers/timing.rs).
 *
 * Buckets: 128 for each power of two of cycles, so that the error is below 1 %.
 */
#include "timing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* Behind the UDP header of a frame of 60 bytes. */
#define STAMP 42
#define MAGIC UINT32_C(0x6e76746d)
/* A sender that is later than this, some milliseconds, was stopped: it does not catch up. */
#define LATE (UINT64_C(1) << 24)

#define SUB_BITS 7
#define BUCKETS ((64 - SUB_BITS + 1) << SUB_BITS)

/* As timing.rs has it. */
struct page {
	/* Cycles from packet to packet; 0: as many as the guest can send. Written by the benchmark, all else here. */
	uint64_t interval;
	uint64_t sent;
	uint64_t received;
	uint64_t buckets[BUCKETS];
};

static struct page *page;
static uint64_t interval, next;

static inline void add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

static unsigned bucket(uint64_t value)
{
	unsigned shift;

	if (value < 2 << SUB_BITS)
		return (unsigned)value;
	shift = 63 - (unsigned)__builtin_clzll(value) - SUB_BITS;
	return (shift << SUB_BITS) + (unsigned)(value >> shift);
}

static uint16_t measure(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count, uint16_t most, void *user)
{
	uint64_t now = rte_rdtsc();

	RTE_SET_USED(port);
	RTE_SET_USED(queue);
	RTE_SET_USED(most);
	RTE_SET_USED(user);
	for (uint16_t n = 0; n < count; n++) {
		const uint8_t *frame = rte_pktmbuf_mtod(mbufs[n], const uint8_t *);
		uint64_t stamp;
		uint32_t magic;

		memcpy(&stamp, frame + STAMP, sizeof(stamp));
		memcpy(&magic, frame + STAMP + sizeof(stamp), sizeof(magic));
		if (magic != MAGIC)
			continue;
		add(&page->received, 1);
		add(&page->buckets[bucket(now > stamp ? now - stamp : 0)], 1);
	}
	return count;
}

bool netvm_bench_timing_is_on(void)
{
	return page != NULL;
}

uint16_t netvm_bench_timing_due(uint16_t most)
{
	uint64_t now = rte_rdtsc(), wanted = __atomic_load_n(&page->interval, __ATOMIC_RELAXED), due;

	if (wanted != interval || now - next < UINT64_C(1) << 63) {
		if (wanted != interval || now - next > LATE)
			next = now;
		interval = wanted;
	} else {
		return 0;
	}
	if (interval == 0)
		return most;
	due = (now - next) / interval + 1;
	return due < most ? (uint16_t)due : most;
}

void netvm_bench_timing_stamp(struct rte_mbuf **mbufs, uint16_t count)
{
	if (interval == 0)
		next = rte_rdtsc();
	for (uint16_t n = 0; n < count; n++) {
		uint8_t *frame = rte_pktmbuf_mtod(mbufs[n], uint8_t *);
		const uint32_t magic = MAGIC;

		memcpy(frame + STAMP, &next, sizeof(next));
		memcpy(frame + STAMP + sizeof(next), &magic, sizeof(magic));
		next += interval;
	}
	add(&page->sent, count);
}

int netvm_bench_timing_attach(const char *path, uint16_t receiver)
{
	struct rte_eth_dev_info info;
	void *memory;
	int file;

	if (rte_eth_dev_is_valid_port(receiver) == 0 || rte_eth_dev_info_get(receiver, &info) != 0 ||
	    info.nb_rx_queues == 0)
		return -EAGAIN;
	file = open(path, O_RDWR);
	if (file < 0)
		return -errno;
	memory = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (memory == MAP_FAILED)
		return -errno;
	page = memory;
	return rte_eth_add_rx_callback(receiver, 0, measure, NULL) == NULL ? -rte_errno : 0;
}
