// SPDX-License-Identifier: Apache-2.0
//! What states go by: the flow of a packet, and whether it may begin one.

use netvm_wire::{Address, FiveTuple, Fragment, Headers, IpProto, TcpFlags};

/// Bytes of an ICMP header.
const ICMP: usize = 8;
/// ICMP errors (RFC 792, RFC 1812): unreachable, source quench, time exceeded, parameter problem. They quote a packet
/// of the flow that they are about.
const ERRORS_V4: [u8; 4] = [3, 4, 11, 12];
/// The same of ICMPv6: unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
const ERRORS_V6: std::ops::RangeInclusive<u8> = 1..=4;

/// How a packet stands to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowOf {
    /// Its flow; if `begins`, the packet may be the first of one that a rule allows.
    Is { flow: FiveTuple, begins: bool },
    /// It is about a packet of this flow.
    About(FiveTuple),
    /// It is of no flow: rules alone decide.
    None,
    /// No TCP sends it: an impossible combination of flags, such as a FIN without ACK.
    Invalid,
}

impl FlowOf {
    /// `frame` holds the packet that `headers` and `tuple` describe.
    pub(crate) fn new(frame: &[u8], headers: &Headers, tuple: FiveTuple) -> Self {
        let key = headers.key();
        if key.fragment == Fragment::Later {
            return if tuple.protocol == IpProto::TCP {
                Self::None
            } else {
                Self::Is { flow: tuple, begins: true }
            };
        }
        match tuple.protocol {
            IpProto::TCP => of_tcp(key.tcp_flags, tuple),
            IpProto::ICMP | IpProto::ICMPV6 => {
                let message = headers.l4_offset().and_then(|at| frame.get(at..)).unwrap_or_default();
                of_icmp(message, tuple)
            }
            _ => Self::Is { flow: tuple, begins: true },
        }
    }
}

/// The combinations are those of Linux (`tcp_valid_flags` of `nf_conntrack_proto_tcp.c`). A flow begins with a SYN, or
/// with a segment of a connection that is older than this NF.
fn of_tcp(flags: TcpFlags, flow: FiveTuple) -> FlowOf {
    let (syn, ack) = (flags.contains(TcpFlags::SYN), flags.contains(TcpFlags::ACK));
    let (fin, rst) = (flags.contains(TcpFlags::FIN), flags.contains(TcpFlags::RST));
    let is_valid = match (syn, fin, rst) {
        (true, false, false) | (false, false, true) => true,
        (false, true | false, false) => ack,
        _ => false,
    };
    if is_valid { FlowOf::Is { flow, begins: (syn != ack) && !fin && !rst } } else { FlowOf::Invalid }
}

/// Echo messages go by their identifier, and the request begins the flow.
fn of_icmp(message: &[u8], tuple: FiveTuple) -> FlowOf {
    let Some(&[kind, _, _, _, high, low, ..]) = message.first_chunk::<ICMP>() else { return FlowOf::None };
    let is_v4 = tuple.protocol == IpProto::ICMP;
    let (request, reply) = if is_v4 { (8, 0) } else { (128, 129) };
    if kind == request || kind == reply {
        let flow = with_identifier(tuple, [high, low]);
        return FlowOf::Is { flow, begins: kind == request };
    }
    let is_error = if is_v4 { ERRORS_V4.contains(&kind) } else { ERRORS_V6.contains(&kind) };
    let quoted = quoted(&message[ICMP..], is_v4).filter(|quoted| quoted.source == tuple.destination);
    quoted.filter(|_| is_error).map_or(FlowOf::None, FlowOf::About)
}

fn with_identifier(tuple: FiveTuple, identifier: [u8; 2]) -> FiveTuple {
    let identifier = u16::from_be_bytes(identifier);
    FiveTuple { source_port: identifier, destination_port: identifier, ..tuple }
}

/// The flow of a quoted packet, of which only 8 bytes behind its IP header need be there. Not behind extension headers.
fn quoted(packet: &[u8], is_v4: bool) -> Option<FiveTuple> {
    let (source, destination, protocol, rest) = if is_v4 {
        let header = packet.first_chunk::<20>().filter(|header| header[0] >> 4 == 4)?;
        let is_later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
        let rest = packet.get(usize::from(header[0] & 0x0f) * 4..).filter(|_| !is_later)?;
        let address = |at: usize| header[at..].first_chunk().map(|bytes| Address::from_v4_octets(*bytes));
        (address(12)?, address(16)?, header[9], rest)
    } else {
        let header = packet.first_chunk::<40>().filter(|header| header[0] >> 4 == 6)?;
        let address = |at: usize| header[at..].first_chunk().map(|bytes| Address::from_v6_octets(*bytes));
        (address(8)?, address(24)?, header[6], &packet[40..])
    };
    let &[a, b, c, d, high, low, ..] = rest.first_chunk::<8>()?;
    let protocol = IpProto(protocol);
    let mut flow = FiveTuple { source, destination, source_port: 0, destination_port: 0, protocol };
    match protocol {
        IpProto::ICMP | IpProto::ICMPV6 => flow = with_identifier(flow, [high, low]),
        other if other.has_ports() => {
            (flow.source_port, flow.destination_port) =
                (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        }
        _ => {}
    }
    Some(flow)
}
