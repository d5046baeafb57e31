/* Test traffic for both sides of a comparison; see traffic.c. */
#ifndef NETVM_BENCH_TRAFFIC_H
#define NETVM_BENCH_TRAFFIC_H

#include <stdint.h>

/** Bytes of a frame, without FCS. */
#define NETVM_BENCH_FRAME 60

struct netvm_bench_traffic {
	/** Flows, which come round in order; 0: no flow ever comes again. */
	uint64_t flows;
	/** Each flow has a source MAC address of its own, else all have one. */
	uint32_t new_macs;
	/** For each flow where it goes to, in network order, for ever; NULL: anywhere. Not together with new_macs. */
	const uint32_t *destinations;
};

/** Writes the frame of a flow, to a destination if there is one; 64 bytes are written. */
void netvm_bench_traffic_frame(uint8_t frame[64], uint64_t flow, uint32_t new_macs, const uint32_t *destination);

/**
 * From now on, what the first net_null port of this process receives is this traffic. One port of a process at a time,
 * with one receive queue. Returns the port, -EAGAIN if there is none yet that has been set up, or another negative errno.
 */
int netvm_bench_traffic_attach(const struct netvm_bench_traffic *traffic);

/** Takes the traffic away from the port again. */
void netvm_bench_traffic_detach(void);

#endif
