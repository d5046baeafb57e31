// SPDX-License-Identifier: Apache-2.0
//! The table's part of the [SYN proxy](crate::syn_proxy).

use super::connections::{Connections, Found};
use super::track::NEW;
use crate::connection::ConnectionId;
use crate::nat::Incomplete;
use crate::packet::headers::Segment;
use crate::protocol::{Handled, Kind, ProxyPhase, kind_of};
use crate::syn_proxy::{self, ByProxy, Proved, Proxied, ProxiedPacket, ProxyTable};
use crate::{Packet, Tracked};

const PROVED: Tracked = Tracked { proxy: ByProxy::Proved, ..NEW };

impl Connections {
    /// Lets connections be proxied from now on. Without it, cookies prove nothing.
    pub fn allow_syn_proxy(&mut self, table: ProxyTable) {
        self.proxied = Some(table);
    }

    /// Writes the answer to a SYN that begins no connection before its client has proved its address; returns the
    /// length. `None`: the packet is not a SYN, or `answer` is shorter than
    /// [`MAX_PROXY_FRAME`](crate::MAX_PROXY_FRAME).
    #[must_use]
    pub fn cookie_for(&self, packet: &Packet<'_>, now: u32, answer: &mut [u8]) -> Option<usize> {
        syn_proxy::answer(packet, now, answer)
    }

    /// Makes the SYN to the server of a packet that is [`ByProxy::Proved`]; returns its length. All options must be in
    /// [`Packet::front`]. Next come [`Connections::confirm`] of the SYN, unless the packet has a connection, and
    /// [`Connections::proxy`].
    #[must_use]
    pub fn syn_of(&self, packet: &Packet<'_>, now: u32, syn: &mut [u8]) -> Option<(usize, Proved)> {
        syn_proxy::syn(packet, now, syn)
    }

    /// Begins to proxy a connection, whose SYN goes to the server.
    pub fn proxy(&mut self, id: ConnectionId, proved: &Proved) {
        if self.get(id).is_some()
            && let Some(table) = &mut self.proxied
            && let Some(tcp) = self.slots.get_mut(id.slot).transport.tcp_mut()
        {
            *table.0.at_mut(id.slot as usize) = proved.begin(tcp);
        }
    }

    /// Translates a packet that is [`ByProxy::Translates`], or an error about one; call it once for each. Returns the
    /// length of the answer to its sender; 0: none.
    ///
    /// # Errors
    /// [`Incomplete`].
    pub fn translate_proxied(
        &mut self,
        tracked: &Tracked,
        packet: &mut ProxiedPacket<'_>,
        now: u32,
    ) -> Result<usize, Incomplete> {
        let id = tracked.connection.filter(|id| self.get(*id).is_some());
        let (Some(id), Some(table)) = (id, &mut self.proxied) else { return Ok(0) };
        let Some(tcp) = self.slots.get_mut(id.slot).transport.tcp_mut() else { return Ok(0) };
        let proxied = table.0.at_mut(id.slot as usize);
        let answer = proxied.translate(tcp, tracked.is_reply, packet).ok_or(Incomplete)?;
        if answer > 0 {
            // The handshake is complete.
            self.follow_stage(id.slot);
            self.follow(id.slot, now);
        }
        Ok(answer)
    }

    /// What a segment of a known connection is, if the proxy says so and not its TCP state. Otherwise makes of a
    /// client's segment what the server sees of it.
    pub(super) fn by_proxy(
        &self,
        packet: &Packet<'_>,
        now: u32,
        found: Found,
        segment: &mut Segment,
    ) -> Option<Tracked> {
        let (table, tcp) = (self.proxied.as_ref()?, self.slots.get(found.slot).transport.tcp()?);
        if found.direction != 0 {
            return None;
        }
        let is_connecting = tcp.proxy == ProxyPhase::Connecting && !tcp.is_over();
        if is_connecting || tcp.is_over() {
            match kind_of(segment.flags) {
                Some(Kind::Ack) if syn_proxy::is_proved(packet, now) => {
                    let of = if is_connecting { self.seen(found) } else { PROVED };
                    return Some(Tracked { proxy: ByProxy::Proved, ..of });
                }
                // The client begins anew. The proxy's own SYN may pass several ports that track.
                Some(Kind::Syn) if is_connecting && !tcp.began_with(0, segment.sequence) => return Some(NEW),
                _ => {}
            }
        }
        if tcp.proxy == ProxyPhase::Connected {
            table.0.at(found.slot as usize).segment(tcp, segment);
        }
        None
    }

    /// What a segment is that does not fit, if it was translated before: another port that tracks has received it, or
    /// the kernel of a router has forwarded it.
    pub(super) fn translated_before(&mut self, found: Found, received: Segment) -> Option<Tracked> {
        let (table, tcp) = (self.proxied.as_ref()?, self.slots.get_mut(found.slot).transport.tcp_mut()?);
        if tcp.proxy != ProxyPhase::Connected {
            return None;
        }
        let proxied = *table.0.at(found.slot as usize);
        let sequence = match found.direction {
            0 => received.sequence,
            _ => proxied.of_server(received.sequence),
        };
        let fits = tcp.handle(found.direction, &Segment { sequence, ..received }) != Handled::Invalid;
        fits.then(|| Tracked { proxy: ByProxy::Nothing, ..self.seen(found) })
    }

    /// [`PROVED`], if a packet without a connection acknowledges a cookie.
    pub(super) fn proved(&self, packet: &Packet<'_>, now: u32) -> Option<Tracked> {
        let is_proved = self.proxied.is_some() && syn_proxy::is_proved(packet, now);
        is_proved.then_some(PROVED)
    }

    /// The server's sequence number for one in an error about its segment, as the client knows it.
    pub(super) fn sequence_of_error(&self, found: Found, sequence: u32) -> u32 {
        let is_translated =
            self.slots.get(found.slot).transport.proxy() == ProxyPhase::Connected && found.direction == 0;
        match &self.proxied {
            Some(table) if is_translated => table.0.at(found.slot as usize).of_server(sequence),
            _ => sequence,
        }
    }

    /// What a connection that leaves the table takes along.
    pub(super) fn proxied(&self, slot: u32) -> Proxied {
        self.proxied.as_ref().map_or_else(Proxied::default, |table| *table.0.at(slot as usize))
    }

    /// Notes what a connection has brought along.
    pub(super) fn set_proxied(&mut self, slot: u32, proxied: Proxied) {
        if let Some(table) = &mut self.proxied {
            *table.0.at_mut(slot as usize) = proxied;
        }
    }
}
