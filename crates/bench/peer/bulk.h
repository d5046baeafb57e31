/* The null device in bulk; see bulk.c. */
#ifndef NETVM_BENCH_BULK_H
#define NETVM_BENCH_BULK_H

struct rte_mbuf;

/** All null devices of this process work in bulk from now on; `like`: a packet that the one that receives has made. */
void netvm_bench_bulk_replace(const struct rte_mbuf *like);

#endif
