/* SPDX-License-Identifier: Apache-2.0 */
/* See shim.h. */
#include "shim.h"

#include "mbuf_free.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mbuf_pool_ops.h>

struct free_section netvm_free_sections[FREE_SECTIONS];

/* Waits for all frees that are in progress; not for those that begin later. */
static int
await_frees(void)
{
	unsigned int i, tries = 0;

	atomic_thread_fence(memory_order_acquire);
	for (i = 0; i < FREE_SECTIONS; i++) {
		uint32_t entered = atomic_load_explicit(&netvm_free_sections[i].entered, memory_order_relaxed);

		for (;;) {
			uint32_t left = atomic_load_explicit(&netvm_free_sections[i].left, memory_order_acquire);

			if (i == SHARED_SECTION) {
				/*
				 * Several threads may be inside: wait for a moment without any. `entered` is read last.
				 */
				entered = atomic_load_explicit(&netvm_free_sections[i].entered, memory_order_relaxed);
				if (left == entered)
					break;
			} else if ((int32_t)(left - entered) >= 0) {
				break;
			}
			/* A driver may wait for the kernel in there, but not for ever. */
			if (++tries > 2000)
				return -ETIMEDOUT;
			if (tries < 1000)
				sched_yield();
			else
				usleep(1000);
		}
	}
	return 0;
}

/*
 * A thread that frees mbufs while its cache is full moves the cache to the store and then shortens the cache; in
 * between, these mbufs count twice. The caller allows no allocation, so the store only grows. If it has not grown
 * between the first count and the last, no such move began in between, and earlier ones have ended; so the count in the
 * middle counts no mbuf twice.
 */
int
netvm_pool_is_whole(struct rte_mempool *pool)
{
	const struct rte_mempool_ops *store = rte_mempool_get_ops(pool->ops_index);
	unsigned int stored = store->get_count(pool);
	unsigned int available;

	if (await_frees() != 0)
		return -ETIMEDOUT;
	available = rte_mempool_avail_count(pool);
	atomic_thread_fence(memory_order_acquire);
	if (store->get_count(pool) != stored)
		return -EAGAIN;
	if (available < pool->size)
		return 0;
	return await_frees() == 0 ? 1 : -ETIMEDOUT;
}

/* EAL, threads, logs */

static struct {
	pthread_mutex_t lock;
	FILE *stream;
	uint32_t print_up_to;
	int catching;
	size_t length;
	char text[8192];
} logs = { .lock = PTHREAD_MUTEX_INITIALIZER, .print_up_to = RTE_LOG_ERR };

static ssize_t
log_write(void *cookie, const char *text, size_t size)
{
	size_t kept = RTE_MIN(size, sizeof(logs.text));

	(void)cookie;
	pthread_mutex_lock(&logs.lock);
	if (logs.catching) {
		/* Keep the end: the last line has the reason. */
		if (logs.length + kept > sizeof(logs.text)) {
			size_t gone = logs.length + kept - sizeof(logs.text);

			memmove(logs.text, logs.text + gone, logs.length - gone);
			logs.length -= gone;
		}
		memcpy(logs.text + logs.length, text + (size - kept), kept);
		logs.length += kept;
	} else if ((uint32_t)rte_log_cur_msg_loglevel() <= logs.print_up_to) {
		fwrite(text, 1, size, stderr);
	}
	pthread_mutex_unlock(&logs.lock);
	return (ssize_t)size;
}

void
netvm_log_print_up_to(uint32_t level)
{
	pthread_mutex_lock(&logs.lock);
	logs.print_up_to = level;
	pthread_mutex_unlock(&logs.lock);
}

int
netvm_log_begin(void)
{
	int error = 0;

	pthread_mutex_lock(&logs.lock);
	if (logs.stream == NULL) {
		logs.stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });
		if (logs.stream == NULL)
			error = -ENOMEM;
		else
			rte_openlog_stream(logs.stream);
	}
	if (error == 0) {
		logs.catching = 1;
		logs.length = 0;
	}
	pthread_mutex_unlock(&logs.lock);
	return error;
}

size_t
netvm_log_end(char *text, size_t capacity)
{
	size_t length;

	pthread_mutex_lock(&logs.lock);
	length = RTE_MIN(logs.length, capacity);
	memcpy(text, logs.text + (logs.length - length), length);
	logs.catching = 0;
	pthread_mutex_unlock(&logs.lock);
	return length;
}

static atomic_int starting;

/* DPDK 25.11 ends the process for some wrong arguments; the captured log would be lost. */
static void
tell_at_exit(void)
{
	if (atomic_load(&starting))
		fwrite(logs.text, 1, logs.length, stderr);
}

int
netvm_eal_init(int argc, char **argv)
{
	int used;

	rte_errno = 0;
	atomic_store(&starting, 1);
	atexit(tell_at_exit);
	used = rte_eal_init(argc, argv);
	atomic_store(&starting, 0);
	if (used >= 0)
		return 0;
	return rte_errno > 0 ? -rte_errno : -EINVAL;
}

int
netvm_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -EALREADY;
	return rte_thread_register() == 0 ? 0 : -rte_errno;
}

int
netvm_iova_is_va(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_VA;
}

uint64_t
netvm_cycles(void)
{
	return rte_get_tsc_cycles();
}

/* Pools */

int
netvm_pool_has_handler(const char *name)
{
	uint32_t i;

	for (i = 0; i < rte_mempool_ops_table.num_ops; i++)
		if (strcmp(rte_mempool_ops_table.ops[i].name, name) == 0)
			return 1;
	return 0;
}

/*
 * Makes an mbuf look as if its buffer followed it. Freeing an mbuf marked as external reads two more of its cache lines
 * and writes one, only to learn that its buffer is pinned, as all of this pool are. The mark is otherwise needed only
 * to attach other mbufs to its buffer, which netvm never does: NFs pass buffers on, not mbufs. The pool itself stays
 * marked as one of pinned buffers, which drivers check when they map its memory.
 */
static void
call_direct(struct rte_mempool *pool, void *context, void *object, unsigned int index)
{
	struct rte_mbuf *mbuf = object;

	(void)pool;
	(void)context;
	(void)index;
	mbuf->ol_flags &= ~RTE_MBUF_F_EXTERNAL;
}

int
netvm_pool_create(const struct netvm_pool_spec *spec, struct rte_mempool **pool)
{
	/* One piece of memory that DPDK cuts by the stride; or a piece for each buffer whose stride exceeds 16 bits. */
	const uint32_t pieces = spec->stride == spec->size ? 1 : spec->count;
	struct rte_pktmbuf_extmem *memory;
	/* The extbuf constructor takes the handler from here only. */
	int error = rte_mbuf_set_user_mempool_ops(spec->handler);

	if (error != 0)
		return error;
	memory = calloc(pieces, sizeof(*memory));
	if (memory == NULL)
		return -ENOMEM;
	for (uint32_t n = 0; n < pieces; n++) {
		memory[n].buf_ptr = (char *)spec->buffers + (size_t)n * spec->stride;
		memory[n].buf_iova = (uintptr_t)memory[n].buf_ptr;
		memory[n].buf_len = pieces == 1 ? (size_t)spec->count * spec->stride : spec->size;
		memory[n].elt_size = (uint16_t)spec->size;
	}
	rte_errno = 0;
	*pool = rte_pktmbuf_pool_create_extbuf(spec->name, spec->count, spec->cache, 0, (uint16_t)spec->size,
		spec->node < 0 ? SOCKET_ID_ANY : spec->node, memory, pieces);
	free(memory);
	if (*pool == NULL)
		return rte_errno > 0 ? -rte_errno : -ENOMEM;
	rte_mempool_obj_iter(*pool, call_direct, NULL);
	return 0;
}

struct table {
	struct rte_mbuf **mbufs;
	uint32_t capacity;
};

static void
table_add(struct rte_mempool *pool, void *context, void *object, unsigned int index)
{
	struct table *table = context;

	(void)pool;
	if (index < table->capacity)
		table->mbufs[index] = object;
}

uint32_t
netvm_pool_table(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint32_t capacity)
{
	struct table table = { .mbufs = mbufs, .capacity = capacity };

	return rte_mempool_obj_iter(pool, table_add, &table);
}

int
netvm_memory_register(void *address, uint64_t *iovas, uint32_t pages, size_t page_bytes)
{
	return rte_extmem_register(address, pages * page_bytes, iovas, pages, page_bytes) == 0 ? 0 : -rte_errno;
}

void
netvm_mbuf_set_iova(struct rte_mbuf *mbuf, uint64_t iova)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	rte_mbuf_iova_set(mbuf, iova);
#else
	mbuf->buf_iova = iova;
#endif
}

int
netvm_pool_alloc(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint32_t count, uint16_t offset, uint16_t length)
{
	uint32_t i;
	int error = rte_mempool_get_bulk(pool, (void **)mbufs, count);

	if (error != 0)
		return error;
	for (i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		/* The rest of the first line is as it was when the mbuf was freed: one segment, one reference. */
		mbuf->data_off = offset;
		mbuf->port = RTE_MBUF_PORT_INVALID;
		mbuf->ol_flags &= RTE_MBUF_F_EXTERNAL;
		mbuf->packet_type = 0;
		mbuf->pkt_len = length;
		mbuf->data_len = length;
		mbuf->vlan_tci = 0;
		mbuf->vlan_tci_outer = 0;
	}
	return 0;
}

void
netvm_mbuf_free(struct rte_mbuf **mbufs, uint32_t count)
{
	int simple = 1;
	uint32_t i;

	for (i = 0; i < count; i++)
		simple &= is_simple(mbufs[i], mbufs[0]->pool);
	free_mbufs(mbufs, count, simple);
}

void
netvm_pool_flush(struct rte_mempool *pool)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());
	struct free_section *section;

	if (cache == NULL || cache->len == 0)
		return;
	section = free_begin();
	rte_mempool_cache_flush(cache, pool);
	free_end(section);
}
