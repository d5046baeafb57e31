// SPDX-License-Identifier: Apache-2.0
//! NAT in the packet path: destinations change when packets arrive, sources when they leave.

use dpdk::Mbuf;
use netvm_conntrack::{Change, Half, Incomplete, Packet, Refusal, Rewrite, Target, Tracked};
use netvm_wire::{ConnState, FlowKey, Fragment};

use super::{NoPort, ReceivedBy, WorkerConnections};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::memory::mark::{OfConnection, forget_connection, set_connection, state_of};
use crate::nat::{Nat, SourceChoice};
use crate::worker::packet::keys::{HEADER_BYTES, read_front};

impl WorkerConnections {
    /// Finds out where packets lead that may begin a connection, and notes it in their keys: the rules see it.
    pub(crate) fn ask_for_targets(&mut self, nat: &Nat, by: ReceivedBy, keys: &mut [FlowKey]) {
        let ReceivedBy { port: from, zone } = by;
        let mut new = self.new_packets(keys.len());
        let Self { table, headers, targets, keys: complete, lengths, .. } = self;
        let (mut by_mappings, from_inside) = (None, !nat.is_outside(from));
        while new != 0 {
            let n = new.trailing_zeros() as usize;
            new &= new - 1;
            let target = nat.destination(from, &keys[n], table.hash_of_source(keys[n].source));
            let target = target.or_else(|| {
                let front = &headers.fronts[n][..usize::from(headers.lengths[n])];
                let packet = Packet { key: &complete[n], zone, front, length: lengths[n] as usize };
                by_mappings.get_or_insert_with(|| table.targets()).of(&packet, from_inside)
            });
            targets[n] = target;
            if let Some(Target { address, port }) = target {
                keys[n].destination = address;
                keys[n].destination_port = port.unwrap_or(keys[n].destination_port);
            }
        }
    }

    /// Translates the destinations of packets of the burst that belong to connections, and notes the connections whose
    /// sources may have to be translated: of the packets whose bits are set in `chosen`. Returns those that cannot be
    /// translated.
    pub(crate) fn translate_destinations(
        &mut self,
        chosen: u64,
        keys: &mut [FlowKey],
        packets: &mut [Mbuf],
    ) -> u64 {
        let mut failed = 0;
        for (n, (key, mbuf)) in keys.iter_mut().zip(packets).enumerate() {
            if chosen >> n & 1 == 0 {
                continue;
            }
            let Tracked { connection, is_reply, .. } = self.tracked[n];
            let Some((id, connection)) = connection.and_then(|id| Some((id, self.table.get(id)?))) else {
                continue;
            };
            if connection.is_settled() && !connection.is_translated() || connection.is_nat64() {
                continue;
            }
            set_connection(mbuf, OfConnection { connection: id.note(), is_reply });
            let front = &mut self.headers.fronts[n][..usize::from(self.headers.lengths[n])];
            match rewrite(&connection.change(Half::Destination, is_reply), front, mbuf) {
                Ok(true) => {
                    let is_read = read_destination(front, self.lengths[n], key).is_some();
                    failed |= u64::from(!is_read) << n;
                }
                Ok(false) => {}
                Err(Incomplete) => failed |= 1 << n,
            }
        }
        failed
    }

    /// Translates the source of a packet that leaves by a port. The first packet of a connection decides what stands
    /// for its source.
    pub(crate) fn translate_source(
        &mut self,
        nat: &Nat,
        out: PortId,
        of: OfConnection,
        mbuf: &mut Mbuf,
    ) -> Result<(), DropReason> {
        let OfConnection { connection, is_reply } = of;
        let unsupported = DropReason::NatUnsupported;
        let id = self.table.noted(connection).ok_or(unsupported)?;
        let known = self.table.get(id).ok_or(unsupported)?;
        if known.is_settled() && !known.change(Half::Source, is_reply).is_any() {
            forget_connection(mbuf);
            return Ok(());
        }
        let (mut key, mut front) = (FlowKey::EMPTY, [0; HEADER_BYTES]);
        let copied = read_front(mbuf, &mut front, &mut key).map_err(|_| unsupported)?;
        // An error about its packets decides nothing.
        if !known.is_settled() && state_of(mbuf) != ConnState::Related {
            let choice = match is_reply {
                true => SourceChoice::Itself,
                false => nat.source(out, known, &key),
            };
            self.table.reserve(nat.reserved());
            let settled = match choice {
                SourceChoice::Of([]) => Err(Refusal::NoPort),
                choice => self.table.settle_source(id, choice.pools()),
            };
            if let Err(refusal) = settled {
                let is_unsupported = refusal == Refusal::NotTranslatable;
                if let Some(known) = self.table.get(id).filter(|_| !is_unsupported) {
                    self.log.note(NoPort::of(known.original(), self.now));
                }
                self.table.refuse(id);
                return Err(if is_unsupported { unsupported } else { DropReason::NatNoPort });
            }
        }
        let known = self.table.get(id).ok_or(unsupported)?;
        let source = known.change(Half::Source, is_reply);
        rewrite(&source, &mut front[..copied], mbuf).map_err(|Incomplete| unsupported)?;
        forget_connection(mbuf);
        Ok(())
    }
}

/// Rewrites one half of a packet, of which `front` is a private copy of the first bytes. Returns whether it changed.
fn rewrite(change: &Change, front: &mut [u8], mbuf: &mut Mbuf) -> Result<bool, Incomplete> {
    if !change.is_any() {
        return Ok(false);
    }
    let (length, is_partial) = (mbuf.pkt_len() as usize, mbuf.unfinished().is_some());
    change.apply(&mut Rewrite { front, length, is_partial })?;
    mbuf.overwrite(front);
    Ok(true)
}

/// Reads the destination of a packet anew.
fn read_destination(front: &[u8], length: u32, key: &mut FlowKey) -> Option<()> {
    let mut now = FlowKey::EMPTY;
    now.read_frame(front, length as usize).ok()?;
    key.destination = now.destination;
    if key.fragment != Fragment::Later {
        key.destination_port = now.destination_port;
    }
    Some(())
}
