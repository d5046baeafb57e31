/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks threads that are freeing mbufs.
 *
 * All mbufs of a pool may count as free while the thread that freed the last one still runs the mempool's code; freeing
 * the pool then would free memory in use. So each thread counts its frees in a section that its lcore id selects:
 * `entered` is ahead of `left` during a free. Threads without an lcore id share one section and pay for an atomic
 * addition.
 */
#ifndef NETVM_DPDK_MBUF_FREE_H
#define NETVM_DPDK_MBUF_FREE_H

#include <stdatomic.h>
#include <stdint.h>

#include <rte_common.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

struct free_section {
	_Alignas(2 * RTE_CACHE_LINE_SIZE) _Atomic uint32_t entered;
	_Atomic uint32_t left;
};

#define SHARED_SECTION RTE_MAX_LCORE
#define FREE_SECTIONS (RTE_MAX_LCORE + 1)

extern struct free_section netvm_free_sections[FREE_SECTIONS];

static inline struct free_section *
free_begin(void)
{
	unsigned int id = rte_lcore_id();
	struct free_section *section;

	if (likely(id < RTE_MAX_LCORE)) {
		section = &netvm_free_sections[id];
		atomic_store_explicit(&section->entered,
			atomic_load_explicit(&section->entered, memory_order_relaxed) + 1, memory_order_relaxed);
	} else {
		section = &netvm_free_sections[SHARED_SECTION];
		atomic_fetch_add_explicit(&section->entered, 1, memory_order_relaxed);
	}
	atomic_thread_fence(memory_order_release);
	return section;
}

static inline void
free_end(struct free_section *section)
{
	if (likely(section != &netvm_free_sections[SHARED_SECTION]))
		atomic_store_explicit(&section->left,
			atomic_load_explicit(&section->left, memory_order_relaxed) + 1, memory_order_release);
	else
		atomic_fetch_add_explicit(&section->left, 1, memory_order_release);
}

/*
 * Whether an mbuf can return to this pool unchanged: one segment, its own buffer, and one reference. Its second cache
 * line, with `next`, is not read: `next` is null for one segment (rte_mbuf.h).
 */
static inline int
is_simple(const struct rte_mbuf *mbuf, const struct rte_mempool *pool)
{
	return mbuf->nb_segs == 1 && mbuf->refcnt == 1 && mbuf->pool == pool && RTE_MBUF_DIRECT(mbuf);
}

/* Frees mbufs; `simple`: is_simple() holds for all, with the first one's pool. */
static inline void
free_mbufs(struct rte_mbuf **mbufs, uint32_t count, int simple)
{
	struct free_section *section;

	if (count == 0)
		return;
	section = free_begin();
	if (likely(simple))
		rte_mempool_put_bulk(mbufs[0]->pool, (void **)mbufs, count);
	else
		rte_pktmbuf_free_bulk(mbufs, count);
	free_end(section);
}

#endif
