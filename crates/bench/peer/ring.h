/* SPDX-License-Identifier: Apache-2.0 */
/* A DPDK program as a peer; see ring.c. */
#ifndef NETVM_BENCH_RING_H
#define NETVM_BENCH_RING_H

#include <stdint.h>

struct netvm_bench_ring_options {
	uint32_t core_a;
	uint32_t core_b;
	uint32_t packet_bytes;
	/** Mbufs of the pool. */
	uint32_t buffers;
	/** Packet data separate from the mbuf headers. */
	uint32_t extbuf;
	/** Check for room in the ring before receiving, instead of freeing packets that do not fit. */
	uint32_t wait;
	/** The second thread neither reads packets nor gives verdicts. */
	uint32_t blind;
	/** Burst size, at most 64. */
	uint32_t burst;
	/** Use huge pages. */
	uint32_t huge_pages;
	uint32_t warm_up_millis;
	uint32_t window_millis;
};

struct netvm_bench_ring_result {
	uint64_t packets;
	double seconds;
};

/** Starts DPDK in this process, runs, and reports the packets sent in the window. Returns 0 or a negative errno. */
int netvm_bench_ring(const struct netvm_bench_ring_options *options, struct netvm_bench_ring_result *result);

#endif
