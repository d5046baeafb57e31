// SPDX-License-Identifier: Apache-2.0
//! Events of NAT for a collector (RFC 8158). In: what happens to connections and ports. Out: what the collector gets.
//!
//! A session begins when it has a translation: of its destination at once, of its source when its first packet leaves.
//! One that has both begins twice, the second time with both.

use netvm_conntrack::{BlockEvent, Event, Happened, Tuple};
use netvm_engine::{LogEvent, NoPort};
use netvm_flowmon::export::{NatBlock, NatEnd, NatEvent, NatEventKind, NatSession};

use super::line::{TickTime, is_translated};

/// The event for a collector; `None`: it gets none.
pub(super) fn nat_event(event: &LogEvent, now: TickTime) -> Option<NatEvent> {
    match event {
        LogEvent::Connection(event) => {
            let session = session_of(event)?;
            let what = match event.happened {
                Happened::Opened | Happened::SourceTranslated => NatEventKind::SessionBegan(session),
                Happened::Closed(_) => NatEventKind::SessionEnded(session),
            };
            Some(NatEvent { at: now.cycles_of(event.at), zone: event.original.zone.0, what })
        }
        LogEvent::Block { at, block } => {
            let BlockEvent { is_assigned, inside, zone, outside, ports } = *block;
            let block = NatBlock { inside, outside, ports };
            let what = match is_assigned {
                true => NatEventKind::BlockAssigned(block),
                false => NatEventKind::BlockReleased(block),
            };
            Some(NatEvent { at: now.cycles_of(*at), zone: zone.0, what })
        }
        LogEvent::NoPort(NoPort { at, zone, protocol, inside }) => {
            let what = NatEventKind::PortsExhausted { inside: *inside, protocol: *protocol };
            Some(NatEvent { at: now.cycles_of(*at), zone: *zone, what })
        }
    }
}

/// The session of a connection that is translated. One of NAT64 that an IPv4 host has begun is that of the IPv6 host,
/// too: RFC 8158 has no other.
fn session_of(event: &Event) -> Option<NatSession> {
    if !is_translated(event) {
        return None;
    }
    let Event { original, reply, .. } = event;
    Some(match (original.source.is_v4(), reply.source.is_v4()) {
        (true, false) => NatSession {
            protocol: reply.protocol,
            source: [source(reply), destination(original)],
            destination: [destination(reply), source(original)],
        },
        _ => NatSession {
            protocol: original.protocol,
            source: [source(original), destination(reply)],
            destination: [destination(original), source(reply)],
        },
    })
}

const fn source(of: &Tuple) -> NatEnd {
    NatEnd { address: of.source, port: of.source_port }
}

const fn destination(of: &Tuple) -> NatEnd {
    NatEnd { address: of.destination, port: of.destination_port }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use netvm_conntrack::{Config, Connections, Nat64, Origin, Packet, Pool, Zone, nat64::Prefix};
    use netvm_wire::{Address, FlowKey, FrameBuilder, MacAddr, PortRange};

    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    /// The first event of a connection of NAT64 that a datagram begins.
    fn session(table: &mut Connections, nat64: &Nat64<'_>, ends: [&str; 2], ports: [u16; 2]) -> NatEvent {
        let [source, destination] = ends.map(address);
        let builder =
            FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(source.to_ip(), destination.to_ip());
        let frame = builder.udp(ports[0], ports[1]).payload(b"x").to_vec().unwrap();
        let mut key = FlowKey::EMPTY;
        key.read_frame(&frame, frame.len()).unwrap();
        let packet = Packet { key: &key, zone: Zone(7), front: &frame, length: frame.len() };
        table.confirm_nat64(&packet, Origin::default(), 1, nat64).unwrap();
        let event = LogEvent::Connection(table.take_event().unwrap());
        nat_event(&event, TickTime { tick: 2, cycles: 1 << 60, time: SystemTime::UNIX_EPOCH }).unwrap()
    }

    #[test]
    fn sessions_of_nat64_are_those_of_the_ipv6_host_whoever_begins_them() {
        let mut table = Connections::new(&Config { mappings: 64, events: 64, ..Config::default() }).unwrap();
        let prefix = Prefix::new("64:ff9b::/96".parse().unwrap()).unwrap();
        let outside = address("203.0.113.1");
        let filtering = netvm_conntrack::Filtering::EndpointIndependent;
        let pool = Pool { filtering, ..Pool::new(outside, outside, PortRange::new(1024, 65_535).unwrap()) };
        let nat64 = Nat64 { prefix, pools: &[pool] };
        let host = NatEnd { address: address("2001:db8::1"), port: 2000 };
        let known = session(&mut table, &nat64, ["2001:db8::1", "64:ff9b::c633:6407"], [2000, 53]);
        let NatEventKind::SessionBegan(known) = known.what else { panic!("{known:?}") };
        assert_eq!((known.source[0], known.destination[1].address), (host, address("198.51.100.7")));
        // From another host in IPv4.
        let port = known.source[1].port;
        let other = session(&mut table, &nat64, ["198.51.100.8", "203.0.113.1"], [9, port]);
        let NatEventKind::SessionBegan(from_v4) = other.what else { panic!("{other:?}") };
        assert_eq!((other.zone, from_v4.source), (7, known.source));
        let remote = [address("64:ff9b::c633:6408"), address("198.51.100.8")];
        assert_eq!(from_v4.destination, remote.map(|address| NatEnd { address, port: 9 }));
    }
}
