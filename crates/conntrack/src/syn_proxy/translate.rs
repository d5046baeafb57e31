// SPDX-License-Identifier: Apache-2.0
//! Translates segments between the client, which knows the proxy's sequence numbers and times, and the server, which
//! has its own; in place, with incremental checksums.

use netvm_wire::{IpProto, TcpFlags};

use super::{Proxied, WINDOW_SHIFT};
use crate::nat::{Edit, Rewrite};
use crate::packet::headers::{Layers, Segment, embedded, layers, u16_at, u32_at};
use crate::packet::options::{NOTHING, SACK, TIMESTAMPS, TcpOption, options};

/// The longest TCP header.
const MAX_HEADER: usize = 60;
const TCP: usize = 20;

/// What becomes of the segments of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// To the server.
    ToServer,
    /// To the client.
    ToClient,
    /// The server's SYN and ACK, as an update of the window for the client.
    Opening,
    /// A segment to the client before the server has told its sequence number: as the next one that the client expects.
    Unanswered,
}

/// Translates the segments of one direction of a connection.
#[derive(Clone, Copy)]
pub(super) struct Translator {
    pub(super) proxied: Proxied,
    /// Shifts of the client's and the server's windows, if they have the option.
    pub(super) shifts: [Option<u8>; 2],
    pub(super) change: Change,
}

impl Translator {
    /// Makes of a client's segment what the server sees of it.
    pub(super) fn segment(&self, segment: &mut Segment) {
        segment.acknowledgment = segment.acknowledgment.wrapping_add(self.proxied.sequence);
        segment.window = self.window(segment.window);
    }

    /// Translates a packet, or an ICMP error about one. `None`: a field is not in the bytes at hand.
    pub(super) fn packet(&self, packet: &mut Rewrite<'_>) -> Option<()> {
        let layers = layers(packet.front, packet.length)?;
        match (layers.protocol, layers.transport) {
            // A later fragment.
            (_, None) => Some(()),
            (IpProto::TCP, Some(at)) => self.tcp(&layers, at, packet),
            _ => self.error(&layers, packet),
        }
    }

    fn tcp(&self, layers: &Layers, at: usize, packet: &mut Rewrite<'_>) -> Option<()> {
        let length = usize::from(packet.front.get(at + 12)? >> 4) * 4;
        let before = packet.front.get(at..at + length)?;
        let mut changed = [0; MAX_HEADER];
        let header = changed.get_mut(..length)?;
        header.copy_from_slice(before);
        self.header(before, header)?;
        Edit::new(packet.front).header(layers, header, packet.is_partial)
    }

    /// The segment that an error is about went in the other direction, so its sequence number is of this one's end.
    fn error(&self, outer: &Layers, packet: &mut Rewrite<'_>) -> Option<()> {
        if self.change != Change::ToServer {
            return Some(());
        }
        let inner = embedded(packet.front, outer)?.layers;
        let mut header = *packet.front.get(inner.transport?..)?.first_chunk::<8>()?;
        let changed = u32_at(&header, 4)?.wrapping_add(self.proxied.sequence);
        header[4..].copy_from_slice(&changed.to_be_bytes());
        Edit::of_error(packet.front, outer)?.header(&inner, &header, false)
    }

    fn header(&self, before: &[u8], header: &mut [u8]) -> Option<()> {
        let Proxied { sequence, .. } = self.proxied;
        let (fixed, rest) = header.split_first_chunk_mut::<TCP>()?;
        let [own, other] = [u32_at(fixed, 4)?, u32_at(fixed, 8)?];
        let [own, other] = match self.change {
            Change::ToServer => [own, other.wrapping_add(sequence)],
            Change::ToClient => [own.wrapping_sub(sequence), other],
            Change::Opening => [own.wrapping_sub(sequence).wrapping_add(1), other],
            Change::Unanswered => [sequence.wrapping_add(1), other],
        };
        fixed[4..8].copy_from_slice(&own.to_be_bytes());
        fixed[8..12].copy_from_slice(&other.to_be_bytes());
        let window = self.window(u16_at(fixed, 14)?);
        fixed[14..16].copy_from_slice(&window.to_be_bytes());
        if self.change == Change::Opening {
            fixed[13] = TcpFlags::ACK.bits();
        }
        options(before.get(TCP..)?).try_for_each(|option| self.option(&option, rest))
    }

    /// The window field of a segment.
    fn window(&self, window: u16) -> u16 {
        let [Some(client), server] = self.shifts else { return window };
        let shifted = match (self.change, server) {
            // The server takes windows as they are.
            (Change::ToServer, None) => u64::from(window) << client,
            (Change::ToServer, Some(_)) | (Change::Unanswered, _) => window.into(),
            // The window of a SYN is never shifted (RFC 7323 section 2.2).
            (Change::Opening, _) => u64::from(window) >> WINDOW_SHIFT,
            (Change::ToClient, server) => u64::from(window) << server.unwrap_or(0) >> WINDOW_SHIFT,
        };
        shifted.min(u16::MAX.into()) as u16
    }

    fn option(&self, option: &TcpOption, rest: &mut [u8]) -> Option<()> {
        let Proxied { sequence, times, .. } = self.proxied;
        let value = rest.get_mut(option.value.clone())?;
        match (option.kind, self.change) {
            (SACK, Change::ToServer) => {
                for edge in value.as_chunks_mut::<4>().0 {
                    *edge = u32::from_be_bytes(*edge).wrapping_add(sequence).to_be_bytes();
                }
            }
            (TIMESTAMPS, Change::ToServer) => {
                let echo = value.last_chunk_mut::<4>()?;
                *echo = u32::from_be_bytes(*echo).wrapping_add(times).to_be_bytes();
            }
            (TIMESTAMPS, Change::ToClient | Change::Opening) => {
                let own = value.first_chunk_mut::<4>()?;
                *own = u32::from_be_bytes(*own).wrapping_sub(times).to_be_bytes();
            }
            (_, Change::Opening) => rest.get_mut(option.value.start - 2..option.value.end)?.fill(NOTHING),
            _ => {}
        }
        Some(())
    }
}
