/* SPDX-License-Identifier: Apache-2.0 */
/* See offload.h. */
#include "offload.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include <rte_ip.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#include "mbuf_free.h"

_Static_assert(sizeof(struct netvm_part) == sizeof(struct iovec) &&
		offsetof(struct netvm_part, bytes) == offsetof(struct iovec, iov_base) &&
		offsetof(struct netvm_part, length) == offsetof(struct iovec, iov_len),
	"a part is an iovec");

static int
write_checksum(struct rte_mbuf *mbuf, uint32_t from, uint32_t at, int udp)
{
	uint16_t sum;

	if (at + sizeof(sum) > mbuf->data_len || from > mbuf->pkt_len)
		return -EINVAL;
	if (rte_raw_cksum_mbuf(mbuf, from, mbuf->pkt_len - from, &sum) != 0)
		return -EINVAL;
	sum = (uint16_t)~sum;
	/* 0 means no checksum (RFC 768); 0xffff stands for the same sum. */
	if (sum == 0 && udp)
		sum = 0xffff;
	memcpy(rte_pktmbuf_mtod_offset(mbuf, char *, at), &sum, sizeof(sum));
	return 0;
}

int
netvm_offload_checksum(struct rte_mbuf *mbuf)
{
	uint64_t wanted = mbuf->ol_flags & RTE_MBUF_F_TX_L4_MASK;
	uint32_t start = mbuf->l2_len + mbuf->l3_len;
	uint32_t at;

	mbuf->ol_flags &= ~NETVM_OFFLOAD_ANY;
	if (wanted == RTE_MBUF_F_TX_TCP_CKSUM)
		at = start + offsetof(struct rte_tcp_hdr, cksum);
	else if (wanted == RTE_MBUF_F_TX_UDP_CKSUM)
		at = start + offsetof(struct rte_udp_hdr, dgram_cksum);
	else
		return wanted == 0 ? 0 : -EINVAL;
	return write_checksum(mbuf, start, at, wanted == RTE_MBUF_F_TX_UDP_CKSUM);
}

int
netvm_checksum_at(struct rte_mbuf *mbuf, uint32_t from, uint32_t at)
{
	return write_checksum(mbuf, from, at, 0);
}

int
netvm_mbuf_read(const struct rte_mbuf *mbuf, uint32_t offset, uint32_t length, void *to)
{
	char *out = to;

	while (mbuf != NULL && offset >= mbuf->data_len) {
		offset -= mbuf->data_len;
		mbuf = mbuf->next;
	}
	while (length > 0) {
		uint32_t part;

		if (mbuf == NULL)
			return -EINVAL;
		part = RTE_MIN(length, mbuf->data_len - offset);
		memcpy(out, rte_pktmbuf_mtod_offset(mbuf, const char *, offset), part);
		out += part;
		length -= part;
		offset = 0;
		mbuf = mbuf->next;
	}
	return 0;
}

void
netvm_mbuf_link(struct rte_mbuf *const *mbufs, uint32_t count, uint32_t length)
{
	struct rte_mbuf *head = mbufs[0];
	uint32_t i, left = length;

	for (i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		mbuf->data_len = (uint16_t)RTE_MIN(left, (uint32_t)(mbuf->buf_len - mbuf->data_off));
		left -= mbuf->data_len;
		if (i + 1 < count)
			mbuf->next = mbufs[i + 1];
	}
	head->pkt_len = length;
	head->nb_segs = (uint16_t)count;
}

uint32_t
netvm_mbuf_parts(const struct rte_mbuf *mbuf, struct netvm_part *parts, uint32_t most)
{
	uint32_t count = 0;

	for (; mbuf != NULL; mbuf = mbuf->next, count++) {
		if (count < most)
			parts[count] = (struct netvm_part){ rte_pktmbuf_mtod(mbuf, void *), mbuf->data_len };
	}
	return count;
}

uint16_t
netvm_raw_checksum(const void *bytes, size_t length)
{
	return rte_raw_cksum(bytes, length);
}

struct rte_mbuf *
netvm_mbuf_copy(const struct rte_mbuf *mbuf, struct rte_mempool *pool)
{
	/* It frees its mbufs if the pool has too few. */
	struct free_section *section = free_begin();
	struct rte_mbuf *copy = rte_pktmbuf_copy(mbuf, pool, 0, UINT32_MAX);

	free_end(section);
	return copy;
}
