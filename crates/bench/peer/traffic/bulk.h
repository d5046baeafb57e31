/* SPDX-License-Identifier: Apache-2.0 */
/* The null device in bulk; see bulk.c. */
#ifndef NETVM_BENCH_BULK_H
#define NETVM_BENCH_BULK_H

struct rte_mbuf;

/** Makes all null devices of this process work in bulk; `like`: a packet from the receiving one. */
void netvm_bench_bulk_replace(const struct rte_mbuf *like);

#endif
