// SPDX-License-Identifier: Apache-2.0
//! The table.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_bpf::{Map, MapKind, MapShape, Position, WordMap};
use netvm_wire::MacAddr;

use crate::ends::PortEnds;
use crate::flow::{self, Flow, FlowCounts};
use crate::key::{self, Key, Mask};
use crate::state;

/// `BPF_F_NO_PREALLOC` is not among the flags: memory for all flows is set aside at once.
const FLAGS: u32 = 0;
/// Flows that a dump reads at once.
const DUMPED: usize = 1024;

/// The bounds of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Ports.
    pub ports: u32,
    /// Flows, of some 176 bytes each.
    pub flows: u32,
}

/// A table. Its flows are forwarded only as long as the lease is renewed.
#[derive(Debug)]
pub struct Table {
    flows: Map,
    state: WordMap,
    /// netvm's ends of the ports, by slot.
    ends: Map,
    size: TableSize,
}

impl Table {
    /// Makes a table without flows, whose ports have none either.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(size: TableSize) -> io::Result<Self> {
        let shape = MapShape {
            kind: MapKind::Hash,
            key_bytes: key::BYTES as u32,
            value_bytes: flow::BYTES as u32,
            entries: size.flows,
            flags: FLAGS,
        };
        let word = size_of::<u32>() as u32;
        let ends = MapShape {
            kind: MapKind::Device,
            key_bytes: word,
            value_bytes: word,
            entries: size.ports,
            flags: 0,
        };
        Ok(Self {
            flows: Map::new(shape)?,
            state: WordMap::new(state::bytes(size.ports))?,
            ends: Map::new(ends)?,
            size,
        })
    }

    /// Its bounds.
    #[must_use]
    pub const fn size(&self) -> TableSize {
        self.size
    }

    /// Forwards flows until this time, by CLOCK_MONOTONIC_COARSE.
    pub fn renew(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if let Some(lease) = self.state.double(state::LEASE as usize) {
            lease.store(nanos, Ordering::Release);
        }
    }

    /// Gives a port another epoch: no flow that it receives or sends, decided in an earlier one, is forwarded any more.
    /// With epoch 0, all its packets are misses.
    pub fn set_epoch(&self, slot: u32, epoch: u32) {
        if slot < self.size.ports
            && let Some(word) = self.state.word(state::port(slot) as usize)
        {
            word.store(epoch, Ordering::Release);
        }
    }

    /// Sets the mask of the keys of what a port receives. Flows with keys of another mask are not found any more; the
    /// port is to have epoch 0 meanwhile, so that no packet meets half of a mask.
    pub fn set_mask(&self, slot: u32, mask: &Mask) {
        if slot >= self.size.ports {
            return;
        }
        let from = state::port(slot) as usize + state::MASK;
        let (words, _) = mask.bytes().as_chunks::<8>();
        for (n, bytes) in words.iter().skip(key::MACS / 8).enumerate() {
            if let Some(word) = self.state.double(from + 8 * n) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
            }
        }
    }

    /// Sets the MAC address of a port's container. Frames for it reach the container at once; others take the way
    /// through the pair, on which its kernel sees for whom they are, and its XDP programs run. `None`: all of them do.
    pub fn set_mac(&self, slot: u32, mac: Option<MacAddr>) {
        let word =
            mac.map_or(u64::MAX, |MacAddr([a, b, c, d, e, f])| u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]));
        if slot < self.size.ports
            && let Some(double) = self.state.double(state::port(slot) as usize + state::MAC)
        {
            double.store(word, Ordering::Release);
        }
    }

    /// How many packets the port of a slot could not give to its container, whose interface had gone: of
    /// all ports that have had the slot.
    #[must_use]
    pub fn undelivered(&self, slot: u32) -> u64 {
        let at = state::undelivered(self.size.ports, slot) as usize;
        let word = self.state.double(at).filter(|_| slot < self.size.ports);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Adds a flow, or changes it: it counts from zero again. The key is masked as the port says.
    ///
    /// # Errors
    /// The kernel's error: `E2BIG` if the table is full.
    pub fn insert(&self, key: &Key, flow: Flow) -> io::Result<()> {
        self.flows.set(key.bytes(), &flow.to_bytes())
    }

    /// Removes a flow; false if it is not there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, key: &Key) -> io::Result<bool> {
        self.flows.remove(key.bytes())
    }

    /// What a flow has had; `None` if it is not there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counts(&self, key: &Key) -> io::Result<Option<FlowCounts>> {
        let mut value = [0; flow::BYTES];
        let is_there = self.flows.get(key.bytes(), &mut value)?;
        Ok(is_there.then(|| FlowCounts::from_bytes(&value)))
    }

    /// Passes each flow with what it has had to `each`. A flow that comes or goes meanwhile may be missed, or passed
    /// twice.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn dump(&self, mut each: impl FnMut(Key, FlowCounts)) -> io::Result<()> {
        let mut keys = vec![0; DUMPED * key::BYTES];
        let mut values = vec![0; DUMPED * flow::BYTES];
        let mut from = Some(Position::default());
        while let Some(position) = from {
            let (count, next) = self.flows.dump(position, &mut keys, &mut values)?;
            let (keys, _) = keys.as_chunks::<{ key::BYTES }>();
            for (key, value) in keys.iter().zip(values.chunks_exact(flow::BYTES)).take(count) {
                each(Key::from_bytes(*key), FlowCounts::from_bytes(value));
            }
            from = next;
        }
        Ok(())
    }

    /// Notes the end of a port, until the kernel removes it. The calling thread is in its namespace.
    pub(crate) fn set_end(&self, ends: &PortEnds) -> io::Result<()> {
        self.ends.set(&ends.slot.to_ne_bytes(), &ends.veth.to_ne_bytes())
    }

    pub(crate) const fn ends(&self) -> &Map {
        &self.ends
    }

    pub(crate) fn state(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }

    pub(crate) const fn flows(&self) -> &Map {
        &self.flows
    }
}
