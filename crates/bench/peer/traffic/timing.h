/* SPDX-License-Identifier: Apache-2.0 */
/* Times of packets between two guests; see timing.c. All but `attach` are for the thread that polls the guests. */
#ifndef NETVM_BENCH_TIMING_H
#define NETVM_BENCH_TIMING_H

#include <stdbool.h>
#include <stdint.h>

struct rte_mbuf;

/** Whether packets are timed. */
bool netvm_bench_timing_is_on(void);

/** How many packets are due, at most `most`. */
uint16_t netvm_bench_timing_due(uint16_t most);

/** Writes into packets when they were due. */
void netvm_bench_timing_stamp(struct rte_mbuf **mbufs, uint16_t count);

/**
 * Times packets that port `receiver` receives, in the file at `path`. Returns 0, -EAGAIN if the port is not
 * set up yet, or another negative errno.
 */
int netvm_bench_timing_attach(const char *path, uint16_t receiver);

#endif
