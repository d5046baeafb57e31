/* SPDX-License-Identifier: Apache-2.0 */
/* Pending offloads of packets for guests. */
#include "offload.h"

#include <rte_ip.h>
#include <rte_net.h>
#include <rte_tcp.h>
#include <rte_udp.h>

void
netvm_vring_describe_offloads(struct rte_mbuf *mbuf, struct virtio_net_hdr *header)
{
	uint64_t sum = mbuf->ol_flags & RTE_MBUF_F_TX_L4_MASK;

	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG)
		sum = RTE_MBUF_F_TX_TCP_CKSUM;
	/* Sums of pseudo-headers (section 5.1.6.2), and those of IPv4. */
	rte_net_intel_cksum_prepare(mbuf);
	if (sum != 0) {
		header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		header->csum_start = mbuf->l2_len + mbuf->l3_len;
		header->csum_offset = sum == RTE_MBUF_F_TX_UDP_CKSUM ? offsetof(struct rte_udp_hdr, dgram_cksum) :
			offsetof(struct rte_tcp_hdr, cksum);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_IP_CKSUM) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, mbuf->l2_len);

		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	if (mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
		header->gso_type = mbuf->ol_flags & RTE_MBUF_F_TX_IPV4 ? VIRTIO_NET_HDR_GSO_TCPV4 :
			VIRTIO_NET_HDR_GSO_TCPV6;
		header->gso_size = mbuf->tso_segsz;
		header->hdr_len = mbuf->l2_len + mbuf->l3_len + mbuf->l4_len;
	}
}
