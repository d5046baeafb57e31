/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's longest-prefix match with the settings that its documentation recommends for full tables: next hops of two
 * bytes, as in netvm, or of four if the tables do not fit otherwise. Memory in small pages, as huge ones may be
 * unavailable.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_version.h>

#include "fib.h"

#define BURST 64

#if RTE_VERSION >= RTE_VERSION_NUM(24, 11, 0, 0)
#define ADDRESS6(bytes) ((const struct rte_ipv6_addr *)(const void *)(bytes))
#define ADDRESSES6(bytes) ((const struct rte_ipv6_addr *)(const void *)(bytes))
#else
#define ADDRESS6(bytes) (bytes)
#define ADDRESSES6(bytes) ((uint8_t(*)[16])(uintptr_t)(bytes))
#endif

static struct rte_fib *fib;
static struct rte_fib6 *fib6;

static uint64_t allocated(void)
{
	struct rte_malloc_socket_stats stats;
	uint64_t bytes = 0;

	for (unsigned n = 0; n < rte_socket_count(); n++)
		if (rte_malloc_get_socket_stats(rte_socket_id_by_idx(n), &stats) == 0)
			bytes += stats.heap_allocsz_bytes;
	return bytes;
}

static double seconds_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static int load4(const struct netvm_bench_fib_route *routes, uint32_t count)
{
	struct rte_fib_conf conf = { .type = RTE_FIB_DIR24_8, .default_nh = 0, .max_routes = count + 1 };
	int error = 0;

	conf.dir24_8.nh_sz = RTE_FIB_DIR24_8_2B;
	conf.dir24_8.num_tbl8 = INT16_MAX;
	fib = rte_fib_create("peer", SOCKET_ID_ANY, &conf);
	if (fib == NULL)
		return -rte_errno;
	for (uint32_t n = 0; n < count && error == 0; n++) {
		const uint8_t *ip = routes[n].address;
		uint32_t address = (uint32_t)ip[0] << 24 | ip[1] << 16 | ip[2] << 8 | ip[3];

		error = rte_fib_add(fib, address, routes[n].length, routes[n].next_hop);
	}
	return error;
}

static int load6(const struct netvm_bench_fib_route *routes, uint32_t count, enum rte_fib_trie_nh_sz size,
		 uint32_t tables)
{
	struct rte_fib6_conf conf = { .type = RTE_FIB6_TRIE, .default_nh = 0, .max_routes = count + 1 };
	int error = 0;

	conf.trie.nh_sz = size;
	conf.trie.num_tbl8 = tables;
	fib6 = rte_fib6_create("peer", SOCKET_ID_ANY, &conf);
	if (fib6 == NULL)
		return -rte_errno;
	for (uint32_t n = 0; n < count && error == 0; n++)
		error = rte_fib6_add(fib6, ADDRESS6(routes[n].address), routes[n].length, routes[n].next_hop);
	if (error != 0) {
		rte_fib6_free(fib6);
		fib6 = NULL;
	}
	return error;
}

int netvm_bench_fib_start(uint32_t ipv6, uint32_t vector_bits, const struct netvm_bench_fib_route *routes,
			  uint32_t count, uint64_t *memory_bytes, double *load_seconds)
{
	char memory[] = "2048";
	char vectors[40];
	char *arguments[] = { "peer", "--no-huge", "--no-shconf", "-m", memory, "--no-pci", "--no-telemetry",
			      "--log-level=*:error", "--iova-mode=va", vectors };
	uint64_t before;
	double start;
	int error;

	snprintf(vectors, sizeof(vectors), "--force-max-simd-bitwidth=%u", vector_bits);
	if (rte_eal_init(RTE_DIM(arguments), arguments) < 0)
		return -rte_errno;
	before = allocated();
	start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
	if (!ipv6) {
		error = load4(routes, count);
	} else {
		/* Its tables do not grow, and how many it needs shows only as it fills. */
		error = load6(routes, count, RTE_FIB6_TRIE_2B, INT16_MAX);
		for (uint32_t tables = 1 << 18; error == -ENOSPC && tables <= 1 << 20; tables <<= 1) {
			start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
			error = load6(routes, count, RTE_FIB6_TRIE_4B, tables);
		}
	}
	*load_seconds = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
	*memory_bytes = allocated() - before;
	return error;
}

int netvm_bench_fib_select(uint32_t lookup)
{
	bool scalar = lookup == NETVM_BENCH_FIB_SCALAR;

	if (fib6 != NULL)
		return rte_fib6_select_lookup(fib6, scalar ? RTE_FIB6_LOOKUP_TRIE_SCALAR : RTE_FIB6_LOOKUP_DEFAULT);
	return rte_fib_select_lookup(fib, scalar ? RTE_FIB_LOOKUP_DIR24_8_SCALAR_INLINE : RTE_FIB_LOOKUP_DEFAULT);
}

static inline int burst(const void *addresses, uint32_t first, uint32_t count, uint64_t *next_hops)
{
	if (fib6 != NULL)
		return rte_fib6_lookup_bulk(fib6, ADDRESSES6((const uint8_t *)addresses + (size_t)first * 16), next_hops,
					    count);
	return rte_fib_lookup_bulk(fib, (uint32_t *)(uintptr_t)addresses + first, next_hops, count);
}

int netvm_bench_fib_once(const void *addresses, uint32_t count, uint64_t *next_hops)
{
	int error = 0;

	for (uint32_t n = 0; n < count && error == 0; n += BURST)
		error = burst(addresses, n, RTE_MIN(count - n, (uint32_t)BURST), next_hops + n);
	return error;
}

int netvm_bench_fib_measure(const void *addresses, uint32_t count, uint32_t millis, uint64_t *lookups, double *seconds)
{
	/* Bursts between two readings of the clock. */
	const uint32_t pass = 1024 * BURST;
	double start = seconds_of(CLOCK_THREAD_CPUTIME_ID), had = 0;
	volatile uint64_t sink = 0;
	uint64_t next_hops[BURST];
	uint32_t at = 0;

	*lookups = 0;
	while (had < millis / 1e3) {
		for (uint32_t done = 0; done < pass; done += BURST) {
			int error = burst(addresses, at, BURST, next_hops);

			if (error != 0)
				return error;
			sink += next_hops[0];
			at = at + 2 * BURST <= count ? at + BURST : 0;
		}
		*lookups += pass;
		had = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
	}
	*seconds = had;
	return 0;
}
