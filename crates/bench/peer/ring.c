/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer without an engine: a DPDK program that sends packets to a second thread and back through two rte_rings of mbuf
 * pointers, like openNetVM and DPDK's multi-process examples. It neither checks nor counts packets, and inlines all
 * DPDK functions, so that no wrapper slows it down.
 *
 *   core A   rx_burst(null) -> enqueue(there)                      dequeue(back) -> act -> tx_burst(null)
 *   core B                     dequeue(there) -> verdict, enqueue(back)
 *
 * With rings of mbuf pointers, an NF finds its packet and stores its verdict in the mbuf: openNetVM's simple_forward
 * writes action and destination into the mbuf's user data, and the receiving thread reads them (onvm_nflib.c,
 * onvm_pkt_common.c). Core B here does the same. With `blind` it does not read any mbuf. It is not an NF then, as it
 * can neither find a packet nor give a verdict; it shows the cost of the rings alone.
 *
 * Packets that do not fit into a full ring are freed, as in openNetVM; or (`wait`) core A checks for room before it
 * receives, which saves work on packets that it would drop.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "ring.h"

#define MAX_BURST 64 /* largest burst */
#define SLOTS 512
#define CACHE 256

/* An NF's verdict, like openNetVM's onvm_pkt_meta. */
struct verdict {
	uint8_t action;
	uint8_t from;
	uint16_t destination;
};

enum { ACTION_DROP, ACTION_OUT };

/* In the mbuf's user data, as in openNetVM. */
static inline struct verdict *verdict_of(struct rte_mbuf *mbuf)
{
	return (struct verdict *)&mbuf->dynfield1[0];
}

struct paths {
	struct rte_ring *there;
	struct rte_ring *back;
	unsigned core_b;
	bool blind;
	unsigned burst;
	atomic_bool stop;
	atomic_bool failed;
};

static int pin(unsigned core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	return pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *second_thread(void *argument)
{
	struct paths *paths = argument;
	struct rte_mbuf *burst[MAX_BURST];

	if (pin(paths->core_b) != 0 || rte_thread_register() != 0) {
		atomic_store(&paths->failed, true);
		return NULL;
	}
	while (!atomic_load_explicit(&paths->stop, memory_order_relaxed)) {
		unsigned count = rte_ring_sc_dequeue_burst(paths->there, (void **)burst, paths->burst, NULL);

		for (unsigned n = 0; n < count && !paths->blind; n++)
			*verdict_of(burst[n]) = (struct verdict){ .action = ACTION_OUT, .from = 1, .destination = 0 };
		for (unsigned done = 0; done < count;) {
			done += rte_ring_sp_enqueue_burst(paths->back, (void **)burst + done, count - done, NULL);
			if (atomic_load_explicit(&paths->stop, memory_order_relaxed))
				break;
		}
	}
	return NULL;
}

/* Applies the verdicts; returns the number of packets to send. */
static inline __attribute__((always_inline)) unsigned act(struct rte_mbuf **burst, unsigned count, uint16_t port)
{
	unsigned kept = 0;

	for (unsigned n = 0; n < count; n++) {
		const struct verdict *verdict = verdict_of(burst[n]);

		if (likely(verdict->action == ACTION_OUT && verdict->destination == port))
			burst[kept++] = burst[n];
		else
			rte_pktmbuf_free(burst[n]);
	}
	return kept;
}

/* Core A's loop for a number of cycles; returns the number of packets sent. */
static inline __attribute__((always_inline)) uint64_t
first_loop(struct paths *paths, uint16_t port, uint64_t cycles, const bool wait, const bool blind)
{
	uint64_t end = rte_rdtsc() + cycles, packets = 0;

	while (rte_rdtsc() < end) {
		struct rte_mbuf *burst[MAX_BURST];
		unsigned count;

		if (!wait || rte_ring_free_count(paths->there) >= paths->burst) {
			count = rte_eth_rx_burst(port, 0, burst, paths->burst);
			unsigned fitted = rte_ring_sp_enqueue_burst(paths->there, (void **)burst, count, NULL);
			if (unlikely(fitted < count))
				rte_pktmbuf_free_bulk(burst + fitted, count - fitted);
		}
		count = rte_ring_sc_dequeue_burst(paths->back, (void **)burst, paths->burst, NULL);
		if (!blind)
			count = act(burst, count, port);
		for (unsigned done = 0; done < count;)
			done += rte_eth_tx_burst(port, 0, burst + done, count - done);
		packets += count;
	}
	return packets;
}

static uint64_t first_thread(struct paths *paths, uint16_t port, uint64_t cycles, bool wait)
{
	if (paths->blind)
		return wait ? first_loop(paths, port, cycles, true, true) : first_loop(paths, port, cycles, false, true);
	return wait ? first_loop(paths, port, cycles, true, false) : first_loop(paths, port, cycles, false, false);
}

/* Mbuf headers separate from data, as in netvm's pools; faster than the ordinary kind. */
static struct rte_mempool *extbuf_pool(unsigned count)
{
	struct rte_pktmbuf_extmem memory = { .elt_size = 2048, .buf_len = (size_t)count * 2048, .buf_iova = RTE_BAD_IOVA };

	memory.buf_ptr = aligned_alloc(4096, memory.buf_len);
	if (memory.buf_ptr == NULL)
		return NULL;
	memset(memory.buf_ptr, 0, memory.buf_len);
	return rte_pktmbuf_pool_create_extbuf("peer", count, CACHE, 0, 2048, SOCKET_ID_ANY, &memory, 1);
}

static int open_port(uint16_t port, struct rte_mempool *pool)
{
	struct rte_eth_conf conf = { 0 };
	int error = rte_eth_dev_configure(port, 1, 1, &conf);

	if (error == 0)
		error = rte_eth_rx_queue_setup(port, 0, 512, SOCKET_ID_ANY, NULL, pool);
	if (error == 0)
		error = rte_eth_tx_queue_setup(port, 0, 512, SOCKET_ID_ANY, NULL);
	return error == 0 ? rte_eth_dev_start(port) : error;
}

static uint64_t cycles_of(uint32_t millis)
{
	return rte_get_tsc_hz() / 1000 * millis;
}

int netvm_bench_ring(const struct netvm_bench_ring_options *options, struct netvm_bench_ring_result *result)
{
	static struct paths paths;
	char memory[] = "256", size[64];
	snprintf(size, sizeof(size), "--vdev=net_null0,size=%u", options->packet_bytes);
	char *huge[] = { "peer", "--in-memory", "--no-pci", "--no-telemetry", "--log-level=*:error", "--iova-mode=va", size };
	char *normal[] = { "peer", "--no-huge", "--no-shconf", "-m", memory, "--no-pci", "--no-telemetry",
			   "--log-level=*:error", "--iova-mode=va", size };
	struct rte_mempool *pool;
	pthread_t second;
	int error;

	/* The EAL makes the calling thread its main lcore, on the first permitted core. */
	if (pin(options->core_a) != 0)
		return -errno;
	error = options->huge_pages ? rte_eal_init(RTE_DIM(huge), huge) : rte_eal_init(RTE_DIM(normal), normal);
	if (error < 0)
		return -rte_errno;
	pool = options->extbuf ? extbuf_pool(options->buffers)
			       : rte_pktmbuf_pool_create("peer", options->buffers, CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
							 SOCKET_ID_ANY);
	paths.there = rte_ring_create("there", SLOTS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	paths.back = rte_ring_create("back", SLOTS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (pool == NULL || paths.there == NULL || paths.back == NULL)
		return -rte_errno;
	error = open_port(0, pool);
	if (error != 0)
		return error;
	paths.core_b = options->core_b;
	paths.blind = options->blind;
	paths.burst = RTE_MIN(options->burst, (uint32_t)MAX_BURST);
	error = pthread_create(&second, NULL, second_thread, &paths);
	if (error != 0)
		return -error;

	first_thread(&paths, 0, cycles_of(options->warm_up_millis), options->wait);
	uint64_t start = rte_rdtsc();
	result->packets = first_thread(&paths, 0, cycles_of(options->window_millis), options->wait);
	result->seconds = (double)(rte_rdtsc() - start) / rte_get_tsc_hz();
	atomic_store(&paths.stop, true);
	pthread_join(second, NULL);
	return atomic_load(&paths.failed) ? -EAGAIN : 0;
}
