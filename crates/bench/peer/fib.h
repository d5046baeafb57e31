/* SPDX-License-Identifier: Apache-2.0 */
/* DPDK's rte_fib and rte_fib6 as a peer; see fib.c. */
#ifndef NETVM_BENCH_FIB_H
#define NETVM_BENCH_FIB_H

#include <stdint.h>

struct netvm_bench_fib_route {
	/** As on the wire; IPv4 uses the first four bytes. */
	uint8_t address[16];
	uint16_t next_hop;
	uint8_t length;
};

enum netvm_bench_fib_lookup {
	NETVM_BENCH_FIB_SCALAR,
	/** rte_fib's default with vectors of the width given at the start. */
	NETVM_BENCH_FIB_DEFAULT,
};

/** Starts DPDK in this process and creates the table. Returns 0 or a negative errno. */
int netvm_bench_fib_start(uint32_t ipv6, uint32_t vector_bits, const struct netvm_bench_fib_route *routes,
			  uint32_t count, uint64_t *memory_bytes, double *load_seconds);

/** Selects the lookup function. Returns 0 or a negative errno. */
int netvm_bench_fib_select(uint32_t lookup);

/** Looks up all addresses once, 4 bytes each in host order, or 16 each as on the wire. */
int netvm_bench_fib_once(const void *addresses, uint32_t count, uint64_t *next_hops);

/** The same repeatedly, in bursts of 32, until the thread has had enough CPU time. */
int netvm_bench_fib_measure(const void *addresses, uint32_t count, uint32_t millis, uint64_t *lookups, double *seconds);

#endif
