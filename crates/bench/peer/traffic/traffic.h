/* SPDX-License-Identifier: Apache-2.0 */
/* Test traffic for both sides of a comparison; see traffic.c. */
#ifndef NETVM_BENCH_TRAFFIC_H
#define NETVM_BENCH_TRAFFIC_H

#include <stdint.h>

struct netvm_bench_traffic {
	/** Number of flows, repeated in order; 0: no flow repeats. */
	uint64_t flows;
	/** Each flow has a different source MAC address, else all have the same. */
	uint32_t new_macs;
	/** Destination of each flow in network order, valid for ever; NULL: anywhere. Not with new_macs. */
	const uint32_t *destinations;
	/** One of enum netvm_bench_turns. Other than NETVM_BENCH_ONE_WAY not with the fields above but `flows`. */
	uint32_t turns;
};

/** Who sends. */
enum netvm_bench_turns {
	/** One end of each flow. */
	NETVM_BENCH_ONE_WAY,
	/** One end of each flow, then the other end of each. */
	NETVM_BENCH_BOTH_WAYS,
	/** The same in every other packet; between them TCP connections that open and close, and never repeat. */
	NETVM_BENCH_BESIDE_NEW,
};

/** Writes the frame of a flow, with an optional destination; writes 64 bytes. */
void netvm_bench_traffic_frame(uint8_t frame[64], uint64_t flow, uint32_t new_macs, const uint32_t *destination);

/** Writes the frame of a step of a TCP connection: see traffic.c. Writes 64 bytes. */
void netvm_bench_traffic_step(uint8_t frame[64], uint64_t connection, uint32_t step);

/**
 * Makes the first net_null port of this process receive this traffic. One port per process at a time, with one receive
 * queue. Returns the port, -EAGAIN if no port is set up yet, or another negative errno.
 */
int netvm_bench_traffic_attach(const struct netvm_bench_traffic *traffic);

/** Detaches the traffic from the port. */
void netvm_bench_traffic_detach(void);

#endif
