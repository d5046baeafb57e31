// SPDX-License-Identifier: Apache-2.0
//! NAT64 with state (RFC 6146): connections whose original tuple is of one family, and the reply tuple of the other.
//!
//! ```text
//!  original: host ▶ prefix + server     IPv6         reply: server ▶ end of a pool      IPv4
//! ```
//!
//! The mappings of sources are the binding information base, and these connections the sessions. A packet to the end of
//! a pool begins a connection in the other direction, if the pool filters independently of the other end, or if it
//! comes from an end of a pool itself (section 3.8, hairpinning): the IPv4 packet that a host's packet became is
//! tracked anew.

use netvm_wire::Address;

use super::confirm::Begins;
use super::connections::{Connections, Refusal};
use super::translate::{Choose, Wanted, target_ends};
use crate::connection::{Connection, ConnectionId, Origin, Status};
use crate::nat::{Contact, End, Inside, Mappings, Pool};
use crate::nat64::{self, Counterpart, Ends, Front, Original, Prefix, Translated, Untranslatable};
use crate::packet::tuple::Tuple;
use crate::{Packet, Tracked};

/// How a router translates between families.
#[derive(Clone, Copy, Debug)]
pub struct Nat64<'a> {
    /// The prefix of addresses that stand for IPv4 hosts.
    pub prefix: Prefix,
    /// What stands for IPv6 hosts, all of IPv4.
    pub pools: &'a [Pool],
}

/// A packet of a connection of NAT64.
#[derive(Clone, Copy, Debug)]
pub struct NextPacket<'a> {
    /// The packet.
    pub packet: &'a Packet<'a>,
    /// Its connection.
    pub connection: ConnectionId,
    /// As in [`Tracked`].
    pub is_reply: bool,
    /// The checksum of TCP or UDP is that of the pseudo header alone: a device computes the rest.
    pub is_partial: bool,
}

impl<'a> NextPacket<'a> {
    /// A packet that was tracked, with its complete checksum; `None` if it has no connection.
    #[must_use]
    pub fn new(packet: &'a Packet<'a>, tracked: &Tracked) -> Option<Self> {
        let connection = tracked.connection?;
        Some(Self { packet, connection, is_reply: tracked.is_reply, is_partial: false })
    }
}

/// How packets lead from an IPv4 end to a host.
#[derive(Clone, Copy)]
struct LeadBy<'a> {
    prefix: &'a Prefix,
    mappings: Option<&'a Mappings>,
}

impl Connections {
    /// Like [`Connections::confirm`], for a packet that leads to the other family: of IPv6 to an address with the
    /// prefix, or of IPv4 to an end of a pool that a host has.
    ///
    /// # Errors
    /// [`Refusal`]; no connection has begun then.
    pub fn confirm_nat64(
        &mut self,
        packet: &Packet<'_>,
        origin: Origin,
        now: u32,
        nat64: &Nat64<'_>,
    ) -> Result<ConnectionId, Refusal> {
        let translate = |table: &Self, new: &mut Connection, mappings: Option<&Mappings>| {
            table.lead_to_other_family(new, nat64, mappings)
        };
        self.confirm_with(Begins { packet, origin, now }, Some(translate))
    }

    /// Translates a packet of a connection of NAT64, or of an ICMP error about one, to the other family: addresses,
    /// ports and headers. `front` then has its new first bytes.
    ///
    /// # Errors
    /// [`Untranslatable`]: drop the packet.
    pub fn translate_family(
        &mut self,
        next: &NextPacket<'_>,
        prefix: &Prefix,
        front: &mut Front,
    ) -> Result<Translated, Untranslatable> {
        let connection = self.get(next.connection).filter(|it| it.is_nat64());
        let [ends, about] = connection.ok_or(Untranslatable::NoConnection)?.other_ends(next, prefix);
        let identification = self.identification(&ends);
        let Packet { front: bytes, length, .. } = *next.packet;
        let original = Original { front: bytes, length, is_partial: next.is_partial };
        nat64::translate(&original, &Counterpart { ends, about, identification }, front)
    }

    fn lead_to_other_family(
        &self,
        new: &mut Connection,
        nat64: &Nat64<'_>,
        mappings: Option<&Mappings>,
    ) -> Result<(), Refusal> {
        let original = *new.original();
        let protocol = nat64::counterpart(original.protocol, original.source.is_v4());
        let forward = Tuple { protocol: protocol.ok_or(Refusal::NotTranslatable)?, ..original };
        new.status |= Status::SETTLED;
        if original.source.is_v4() {
            self.lead_to_host(new, forward, LeadBy { prefix: &nat64.prefix, mappings })
        } else {
            let among = Choose { pools: nat64.pools, mappings };
            self.choose_for(new, &self.lead_to_server(&original, forward, &nat64.prefix)?, among)
        }
    }

    /// From a host to an IPv4 server.
    fn lead_to_server(&self, original: &Tuple, forward: Tuple, prefix: &Prefix) -> Result<Wanted, Refusal> {
        let original = *original;
        let destination = prefix.extract(original.destination).ok_or(Refusal::NotTranslatable)?;
        // Such a source would make a loop (section 3.5).
        if prefix.contains(original.source) {
            return Err(Refusal::NotTranslatable);
        }
        Ok(Wanted { original, forward: Tuple { destination, ..forward }, current: None })
    }

    /// From an IPv4 end to the host that has the end of a pool.
    fn lead_to_host(&self, new: &mut Connection, forward: Tuple, by: LeadBy<'_>) -> Result<(), Refusal> {
        let LeadBy { prefix, mappings } = by;
        let mappings = mappings.ok_or(Refusal::NotTranslatable)?;
        let Tuple { protocol, zone, .. } = *new.original();
        let host_of = |address: Address, port: u16| {
            let outside = Inside { end: End { address, port }, protocol, zone };
            mappings.inside_of(&self.hasher, &outside)
        };
        let (host, kind) =
            host_of(forward.destination, forward.destination_port).ok_or(Refusal::NotTranslatable)?;
        let end = End { address: forward.destination, port: forward.destination_port };
        let contact = Contact { outside: Inside { end, protocol, zone }, remote: forward.source };
        let is_allowed = mappings.lets_in(&self.hasher, kind, &contact)
            || host_of(forward.source, forward.source_port).is_some_and(|(end, _)| !end.address.is_v4());
        if host.address.is_v4() || !is_allowed {
            return Err(Refusal::NotTranslatable);
        }
        let source = prefix.embed(forward.source).ok_or(Refusal::NotTranslatable)?;
        let source_port = if forward.query == 0 { forward.source_port } else { host.port };
        let (destination, destination_port) = (host.address, host.port);
        let forward = Tuple { source, destination, source_port, destination_port, ..forward };
        new.set_reply(forward.reversed());
        if let Some(kind) = self.mapping_of(mappings, &target_ends(new)) {
            new.mapped = new.mapped.with_target(kind);
        }
        Ok(())
    }

    /// An identification that no packet between the same ends had for long, and that others cannot guess (RFC 7739).
    fn identification(&mut self, ends: &Ends) -> u16 {
        self.made = self.made.wrapping_add(1);
        let ([a, b], [c, d]) = (ends.source.words(), ends.destination.words());
        (self.hasher.words([a, b, c, d, 5]) as u16).wrapping_add(self.made)
    }
}

impl Connection {
    /// The ends of a packet of this connection, and of the packet that it is about if it is an error, in the other
    /// family. An error that a router on the way has sent comes from the router in IPv6; in IPv4, where the router has
    /// no address, from the host.
    fn other_ends(&self, next: &NextPacket<'_>, prefix: &Prefix) -> [Ends; 2] {
        let direction = usize::from(next.is_reply);
        let (here, there) = (self.tuple(direction), self.tuple(1 - direction));
        let ends_of = |it: &Tuple| {
            let ports = it.has_port().then_some([it.source_port, it.destination_port]);
            Ends { source: it.source, destination: it.destination, ports }
        };
        let mut ends = ends_of(&there.reversed());
        let sender = next.packet.key.source;
        if sender != here.source {
            ends.source = prefix.embed(sender).unwrap_or(ends.source);
        }
        [ends, ends_of(there)]
    }
}
