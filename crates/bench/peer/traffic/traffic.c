/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test traffic (frame.h), written into the packets of DPDK's null device.
 *
 * The null device allocates mbufs like a NIC's driver and leaves their data unchanged; a receive callback
 * (rte_eth_add_rx_callback) writes it. So every DPDK program gets the same traffic from the same device at the same
 * cost: netvm in the benchmark's process, Open vSwitch with this file as a plug-in (`-d`). Replaying a capture by
 * net_pcap is unsuitable: it copies from a ring of mbufs, so at 100,000 flows cache misses of the replay take more than
 * half of the time, and a million flows do not fit into Open vSwitch's pool.
 */
#include "frame.h"
#include "traffic.h"

#ifdef NETVM_BENCH_PLUGIN
#include "bulk.h"
#include "timing.h"
#endif

#include <errno.h>
#include <string.h>

#include <rte_common.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* The next flow; only the receiving thread writes it. */
static struct {
	uint64_t next;
	uint64_t flows;
	uint32_t new_macs;
	const uint32_t *destinations;
	uint32_t turns;
	/* Whether the other ends of the flows send. */
	bool answers;
	/* Packets of connections that open and close. */
	uint64_t steps;
	/* The device's functions are not replaced yet. */
	uint32_t replace;
	int port;
	const struct rte_eth_rxtx_callback *callback;
} source __rte_cache_aligned = { .port = -1 };

/* Writes 64 bytes, aligned to 8. */
static inline __attribute__((always_inline)) void
write_frame(uint8_t *frame, uint64_t flow, const bool new_macs, const uint32_t *destination)
{
	write_front(frame, flow, new_macs, destination);
	for (uint32_t n = NETVM_BENCH_FRONT / 8; n < 8; n++)
		put(frame, n, 0);
}

void netvm_bench_traffic_frame(uint8_t frame[64], uint64_t flow, uint32_t new_macs, const uint32_t *destination)
{
	_Alignas(8) uint8_t aligned[64];

	write_frame(aligned, flow, new_macs != 0, destination);
	memcpy(frame, aligned, sizeof(aligned));
}

/* A packet of an end of a flow, or of its other end. */
static inline __attribute__((always_inline)) void write_way(uint8_t *frame, uint64_t flow, bool answers)
{
	struct frame_ends ends = ends_of(flow, NULL);

	write_ends(frame, answers ? answering(ends) : ends, FROM_MAC, 17, (uint64_t)UDP_BYTES << 8);
	for (uint32_t n = NETVM_BENCH_FRONT / 8; n < 8; n++)
		put(frame, n, 0);
}

/* Flags of TCP. */
enum { FIN = 1, SYN = 2, ACK = 16 };

/* The steps of a connection: it opens, both ends close it. Sequence numbers relative to the first of each end. */
static const struct step {
	bool answers;
	uint8_t flags, sequence, acknowledged;
} STEPS[] = {
	{ false, SYN, 0, 0 },	   { true, SYN | ACK, 0, 1 }, { false, ACK, 1, 1 },
	{ false, FIN | ACK, 1, 1 }, { true, FIN | ACK, 1, 2 }, { false, ACK, 2, 2 },
};
#define STEP_COUNT (sizeof(STEPS) / sizeof(STEPS[0]))
/* Connections whose steps take turns. */
#define AT_A_TIME 64
/* Connections that open and close have other ends than flows have. */
#define FIRST_CONNECTION (UINT64_C(1) << 40)

/* Writes a segment without data, with its checksum: Open vSwitch tracks no other. */
static inline void write_step(uint8_t *frame, uint64_t connection, const struct step *step)
{
	struct frame_ends ends = ends_of(FIRST_CONNECTION + connection, NULL);
	const uint32_t window = 0xffff;
	/* In network order. */
	uint32_t sequence = __builtin_bswap32(step->sequence), acknowledged = __builtin_bswap32(step->acknowledged);
	uint32_t flags = 5 << 4 | (uint32_t)step->flags << 8, sum;

	if (step->answers)
		ends = answering(ends);
	sum = (ends.from & 0xffff) + (ends.from >> 16) + (ends.to & 0xffff) + (ends.to >> 16) + (6 << 8) + (20 << 8);
	sum += (ends.ports & 0xffff) + (ends.ports >> 16) + (sequence >> 16) + (acknowledged >> 16) + flags + window;
	sum = (uint16_t)~folded(sum);
	write_ends(frame, ends, FROM_MAC, 6, sequence & 0xffff);
	put(frame, 5, sequence >> 16 | (uint64_t)acknowledged << 16 | (uint64_t)flags << 48);
	put(frame, 6, window | (uint64_t)sum << 16);
	put(frame, 7, 0);
}

void netvm_bench_traffic_step(uint8_t frame[64], uint64_t connection, uint32_t step)
{
	_Alignas(8) uint8_t aligned[64];

	write_step(aligned, connection, &STEPS[step]);
	memcpy(frame, aligned, sizeof(aligned));
}

/* Writes packets of both ends of flows; with `has_new`, every other packet is of a connection that opens or closes. */
static inline __attribute__((always_inline)) void
write_conversations(struct rte_mbuf **mbufs, uint16_t count, const bool has_new)
{
	uint64_t flow = source.next, steps = source.steps;
	bool answers = source.answers;

	for (uint16_t n = 0; n < count; n++) {
		uint8_t *frame = rte_pktmbuf_mtod(mbufs[n], uint8_t *);

		if (has_new && n % 2 == 1) {
			uint64_t group = steps / (AT_A_TIME * STEP_COUNT), place = steps % (AT_A_TIME * STEP_COUNT);

			write_step(frame, group * AT_A_TIME + place % AT_A_TIME, &STEPS[place / AT_A_TIME]);
			steps++;
			continue;
		}
		write_way(frame, flow, answers);
		if (++flow == source.flows) {
			flow = 0;
			answers = !answers;
		}
	}
	source.next = flow;
	source.steps = steps;
	source.answers = answers;
}

static void write_flows(struct rte_mbuf **mbufs, uint16_t count)
{
	uint64_t flow = source.next, flows = source.flows;

	for (uint16_t n = 0; n < count; n++) {
		uint8_t *frame = rte_pktmbuf_mtod(mbufs[n], uint8_t *);

		if (source.destinations != NULL)
			write_frame(frame, flow, false, source.destinations + flow);
		else if (source.new_macs)
			write_frame(frame, flow, true, NULL);
		else
			write_frame(frame, flow, false, NULL);
		flow = flow + 1 == flows ? 0 : flow + 1;
	}
	source.next = flow;
}

static uint16_t write_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count, uint16_t most, void *user)
{
	RTE_SET_USED(port);
	RTE_SET_USED(queue);
	RTE_SET_USED(most);
	RTE_SET_USED(user);
	if (source.turns == NETVM_BENCH_ONE_WAY)
		write_flows(mbufs, count);
	else if (source.turns == NETVM_BENCH_BOTH_WAYS)
		write_conversations(mbufs, count, false);
	else
		write_conversations(mbufs, count, true);
#ifdef NETVM_BENCH_PLUGIN
	if (netvm_bench_timing_is_on())
		netvm_bench_timing_stamp(mbufs, count);
	if (unlikely(source.replace && count > 0)) {
		source.replace = 0;
		netvm_bench_bulk_replace(mbufs[0]);
	}
#endif
	return count;
}

int netvm_bench_traffic_attach(const struct netvm_bench_traffic *traffic)
{
	uint16_t port;

	if (source.callback != NULL)
		return -EBUSY;
	RTE_ETH_FOREACH_DEV(port) {
		char name[RTE_ETH_NAME_MAX_LEN];

		if (rte_eth_dev_get_name_by_port(port, name) != 0 || strncmp(name, "net_null", 8) != 0)
			continue;
		source.next = 0;
		source.flows = traffic->flows;
		source.new_macs = traffic->new_macs;
		source.destinations = traffic->destinations;
		source.turns = traffic->turns;
		source.answers = false;
		source.steps = 0;
		source.port = port;
		source.callback = rte_eth_add_rx_callback(port, 0, write_burst, NULL);
		/*
		 * EINVAL: the program has not set up the queue yet. Its rte_eth_dev_info is another one in another
		 * release.
		 */
		return source.callback != NULL ? port : rte_errno == EINVAL ? -EAGAIN : -rte_errno;
	}
	return -EAGAIN;
}

void netvm_bench_traffic_detach(void)
{
	if (source.callback != NULL)
		rte_eth_remove_rx_callback((uint16_t)source.port, 0, source.callback);
	source.callback = NULL;
}

#ifdef NETVM_BENCH_PLUGIN
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct netvm_bench_traffic wanted;

/* The second guest's port, as crates/bench/src/peers/guests.rs has it. */
#define SECOND_GUEST 2

/* Packets sent, in a file of 8 bytes that another process maps; only the sending thread writes it. */
static volatile uint64_t *sent;

static uint16_t count_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count, void *user)
{
	RTE_SET_USED(port);
	RTE_SET_USED(queue);
	RTE_SET_USED(mbufs);
	RTE_SET_USED(user);
	*sent += count;
	return count;
}

/* Counts what leaves by the second null port, if NETVM_BENCH_SENT names a file. */
static int count_sent(void)
{
	const char *path = getenv("NETVM_BENCH_SENT");
	int port = source.port;

	if (path == NULL)
		return 0;
	int file = open(path, O_RDWR);
	void *memory = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (file >= 0)
		close(file);
	if (memory == MAP_FAILED)
		return -errno;
	sent = memory;
	/* Every queue: the program may have one for each of its threads. */
	do {
		uint16_t queue = 0;

		port = (int)rte_eth_find_next((uint16_t)(port + 1));
		while (port < RTE_MAX_ETHPORTS && rte_eth_add_tx_callback((uint16_t)port, queue, count_burst, NULL) != NULL)
			queue++;
		if (queue > 0)
			return 0;
		usleep(5000);
		port = source.port;
	} while (true);
}

/* Destinations in network order, from a file that is mapped. */
static int read_destinations(const char *path)
{
	struct stat status;
	int file = open(path, O_RDONLY);

	if (file < 0 || fstat(file, &status) != 0 || status.st_size < 4)
		return -EINVAL;
	wanted.destinations = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	wanted.flows = (uint64_t)status.st_size / sizeof(uint32_t);
	return wanted.destinations == MAP_FAILED ? -errno : 0;
}

/* The program sets up ports at any time: poll until one exists, then create the file. */
static void *attach_when_ready(void *path)
{
	const char *timing = getenv("NETVM_BENCH_TIMING");
	int got;

	if (timing != NULL) {
		while ((got = netvm_bench_timing_attach(timing, SECOND_GUEST)) == -EAGAIN)
			usleep(5000);
		if (got < 0)
			return NULL;
	}
	while ((got = netvm_bench_traffic_attach(&wanted)) == -EAGAIN)
		usleep(5000);
	if (got >= 0 && count_sent() == 0) {
		FILE *file = fopen(path, "w");

		if (file != NULL)
			fclose(file);
	}
	return NULL;
}

__attribute__((constructor)) static void start(void)
{
	const char *flows = getenv("NETVM_BENCH_FLOWS"), *new_macs = getenv("NETVM_BENCH_NEW_MACS");
	const char *destinations = getenv("NETVM_BENCH_DESTINATIONS"), *turns = getenv("NETVM_BENCH_TURNS");
	char *ready = getenv("NETVM_BENCH_READY");
	pthread_t thread;

	if (flows == NULL || ready == NULL)
		return;
	wanted.flows = strtoull(flows, NULL, 10);
	wanted.new_macs = new_macs != NULL;
	wanted.turns = turns != NULL ? (uint32_t)strtoul(turns, NULL, 10) : NETVM_BENCH_ONE_WAY;
	if (destinations != NULL && read_destinations(destinations) != 0)
		return;
	source.replace = getenv("NETVM_BENCH_BULK") != NULL;
	if (pthread_create(&thread, NULL, attach_when_ready, ready) == 0)
		pthread_detach(thread);
}
#endif
