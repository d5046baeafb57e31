// SPDX-License-Identifier: Apache-2.0
//! Traffic control (tc(8)) of an interface: discards what it receives.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcFilterBpf, TcHandle, TcMessage, TcOption};

use crate::Requests;

/// Attributes of a filter in classic BPF, whose result is what happens to the packet (`linux/pkt_cls.h`).
const BPF_OPS_LEN: u16 = 4;
const BPF_OPS: u16 = 5;
const BPF_FLAGS: u16 = 8;
const DIRECT_ACTION: u32 = 1;
/// One instruction, `BPF_RET | BPF_K` with `TC_ACT_SHOT`: drop the packet.
const RETURN_SHOT: [u8; 8] = {
    let [a, b] = 0x06u16.to_ne_bytes();
    let [c, d, e, f] = 2u32.to_ne_bytes();
    [a, b, 0, 0, c, d, e, f]
};
/// The priority of the filter in the upper half, and the protocol, in network order: all of them (`ETH_P_ALL`).
const OF_ALL: u32 = 1 << 16 | (libc::ETH_P_ALL as u16).to_be() as u32;

/// Has the kernel discard the packets that an interface receives, after packet sockets have seen them.
///
/// # Errors
/// The kernel's error: `ENOENT` if it has no `clsact`, or no filters in BPF.
pub fn discard_received(requests: &mut Requests, index: u32) -> io::Result<()> {
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let clsact = TcHandle { major: 0xffff, minor: 0 };
    let mut qdisc = TcMessage::with_index(index);
    (qdisc.header.handle, qdisc.header.parent) = (clsact, TcHandle::CLSACT);
    qdisc.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
    requests.change(RouteNetlinkMessage::NewQueueDiscipline(qdisc), NLM_F_CREATE | NLM_F_EXCL)?;

    let option = |kind, value: &[u8]| TcOption::Other(DefaultNla::new(kind, value.to_vec()));
    let mut filter = TcMessage::with_index(index);
    filter.header.parent = TcHandle { minor: TcHandle::MIN_INGRESS, ..clsact };
    filter.header.info = OF_ALL;
    filter.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(vec![
            option(BPF_OPS_LEN, &1u16.to_ne_bytes()),
            option(BPF_OPS, &RETURN_SHOT),
            option(BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes()),
        ]),
    ];
    requests.change(RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE | NLM_F_EXCL)
}
