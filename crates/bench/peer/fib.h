/* DPDK's rte_fib and rte_fib6 to compare with; see fib.c. */
#ifndef NETVM_BENCH_FIB_H
#define NETVM_BENCH_FIB_H

#include <stdint.h>

struct netvm_bench_fib_route {
	/** As on the wire; of IPv4 the first four. */
	uint8_t address[16];
	uint16_t next_hop;
	uint8_t length;
};

enum netvm_bench_fib_lookup {
	NETVM_BENCH_FIB_SCALAR,
	/** What rte_fib chooses by itself where it may use 512-bit vectors. */
	NETVM_BENCH_FIB_DEFAULT,
};

/** Starts DPDK in this process and makes the table. 0 or a negative errno. */
int netvm_bench_fib_start(uint32_t ipv6, const struct netvm_bench_fib_route *routes, uint32_t count,
			  uint64_t *memory_bytes, double *load_seconds);

/** Chooses how it looks up. 0 or a negative errno. */
int netvm_bench_fib_select(uint32_t lookup);

/** Looks up addresses, 4 bytes each in host order, or 16 each as on the wire: all of them, once. */
int netvm_bench_fib_once(const void *addresses, uint32_t count, uint64_t *next_hops);

/** The same over and over, in bursts of 32, until the thread has had its core for some time. */
int netvm_bench_fib_measure(const void *addresses, uint32_t count, uint32_t millis, uint64_t *lookups, double *seconds);

#endif
