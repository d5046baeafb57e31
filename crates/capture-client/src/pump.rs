// SPDX-License-Identifier: Apache-2.0
//! From the workers' rings to the output, in the order of time as far as the rings' heads show it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_api::CaptureInfo;
use netvm_capture::blocks::{self, InterfaceCounts, LivePacket, PacketOptions};
use netvm_capture_ring::{Reader, Record};
use netvm_vnet::ListeningInterface;

use crate::CaptureError;
use crate::clock::Clock;
use crate::describe::{comment, direction, labels, line, with_labels};
use crate::output::Output;
use crate::session::Session;

/// Between two looks at empty rings.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long records that stay few are gathered.
const GATHER: u32 = 20;

/// When a capture ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits<'a> {
    /// After so many packets.
    pub packets: Option<u64>,
    /// When this is set.
    pub stop: Option<&'a AtomicBool>,
}

impl Limits<'_> {
    fn is_reached(&self, packets: u64) -> bool {
        self.packets.is_some_and(|most| packets >= most)
            || self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// What a capture has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// Packets written.
    pub packets: u64,
    /// Bytes of them, as captured.
    pub bytes: u64,
    /// Bytes of the output.
    pub written: u64,
    /// Packets that passed the capture points.
    pub seen: u64,
    /// Packets that were wanted and not read in time.
    pub lost: u64,
    /// Packets that were not filtered, because filters had used up their share of a worker's time.
    pub missed: u64,
}

/// Reads a capture until a limit is reached, and writes it out. Blocks; a slow output loses packets of the capture
/// only.
///
/// # Errors
/// [`CaptureError`]; what could be written is in the output.
pub fn run(mut session: Session, output: &mut Output, limits: Limits<'_>) -> Result<Summary, CaptureError> {
    let interfaces = session.info.interfaces.iter();
    let interfaces: Vec<_> = interfaces.map(|i| (i.name.clone(), with_labels(i))).collect();
    output.begin(interfaces.iter().map(|(name, text)| (name.as_str(), text.as_str())), 0);
    let mut pump = Pump::new(session.info.clone());
    let mut outcome = pump.write(output);
    let mut idle = 0;
    while outcome.is_ok() {
        pump.clock.follow();
        pump.count_lost(&session.rings);
        let before = pump.summary.packets;
        outcome = pump.round(&mut session.rings, output, limits);
        if limits.is_reached(pump.summary.packets) {
            break;
        }
        if pump.summary.packets > before {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle == 1 || idle % GATHER == 0 {
            outcome = outcome.and_then(|()| pump.write(output));
            if outcome.is_ok() && session.has_ended() {
                outcome = Err(CaptureError::Ended(pump.summary.packets));
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    pump.finish(&session.rings, output);
    let written = pump.write(output);
    pump.summary.written = output.total();
    outcome.and(written).map(|()| pump.summary)
}

struct Pump {
    info: CaptureInfo,
    clock: Clock,
    /// Options of packets that share them, and those used last.
    options: HashMap<Record, PacketOptions>,
    last: Option<(Record, PacketOptions)>,
    /// For each interface, packets lost until the last look, and those that no packet has told of.
    lost: Vec<(u64, u64)>,
    /// For each interface, the line with its labels, which stands before its first packet.
    untold: Vec<String>,
    summary: Summary,
    /// Packets in the output, after the last write that succeeded.
    in_output: u64,
}

impl Pump {
    fn new(info: CaptureInfo) -> Self {
        let lost = vec![(0, 0); info.interfaces.len()];
        let untold = info.interfaces.iter().map(labels).collect();
        Self {
            info,
            clock: Clock::new(),
            options: HashMap::new(),
            last: None,
            lost,
            untold,
            summary: Summary::default(),
            in_output: 0,
        }
    }

    /// Writes what was gathered. After an error, what was gathered is not in the output.
    fn write(&mut self, output: &mut Output) -> Result<(), CaptureError> {
        let (to, packets) = (output.name(), self.in_output);
        output.flush().map_err(|source| CaptureError::Write { to, packets, source })?;
        self.in_output = self.summary.packets;
        Ok(())
    }

    fn counts(rings: &[Reader], interface: u16) -> InterfaceCounts {
        let add = |sum: InterfaceCounts, ring: &Reader| {
            let counts = ring.counts(interface);
            InterfaceCounts {
                received: sum.received + counts.seen,
                accepted: sum.accepted + counts.accepted,
                lost: sum.lost + counts.lost,
            }
        };
        rings.iter().fold(InterfaceCounts::default(), add)
    }

    fn count_lost(&mut self, rings: &[Reader]) {
        for (interface, (until, untold)) in (0u16..).zip(&mut self.lost) {
            let lost: u64 = rings.iter().map(|ring| ring.counts(interface).lost).sum();
            *untold += lost.saturating_sub(*until);
            *until = lost;
        }
    }

    /// Writes what is in the rings, at most about what they hold.
    fn round(
        &mut self,
        rings: &mut [Reader],
        output: &mut Output,
        limits: Limits<'_>,
    ) -> Result<(), CaptureError> {
        // Those of workers that may be added later are empty, and come last.
        let mut used = 0;
        for n in 0..rings.len() {
            if rings[n].is_used() {
                rings.swap(used, n);
                used += 1;
            }
        }
        let rings = &mut rings[..used];
        let mut left: u64 = rings.iter().map(Reader::capacity).sum();
        while let Some(n) = earliest(rings) {
            let ring = &mut rings[n];
            let Some((record, packet)) = ring.peek() else { break };
            let bytes = packet.len() as u64 + 32;
            match output.interface() {
                Some(interface) => self.show(packet, interface)?,
                None => self.add(&record, packet, output),
            }
            ring.advance();
            if ring.unreleased() >= 1 << 16 {
                ring.release();
            }
            if output.buffer.len() >= output.gathers() {
                self.write(output)?;
                self.clock.follow();
            }
            left = left.saturating_sub(bytes);
            if left == 0 || limits.packets.is_some_and(|most| self.summary.packets >= most) {
                break;
            }
        }
        rings.iter().for_each(Reader::release);
        Ok(())
    }

    /// Shows a packet to those who listen at an interface.
    fn show(&mut self, packet: &[u8], interface: &ListeningInterface) -> Result<(), CaptureError> {
        interface.show(packet).map_err(|source| CaptureError::Show {
            interface: interface.name().to_owned(),
            packets: self.summary.packets,
            source,
        })?;
        self.summary.packets += 1;
        self.summary.bytes += packet.len() as u64;
        Ok(())
    }

    #[inline]
    fn add(&mut self, record: &Record, packet: &[u8], output: &mut Output) {
        let time = self.clock.time(record.cycles);
        self.summary.packets += 1;
        self.summary.bytes += packet.len() as u64;
        if output.is_text() {
            if let Some(untold) = self.untold.get_mut(usize::from(record.interface)) {
                output.buffer.extend_from_slice(std::mem::take(untold).as_bytes());
            }
            output.buffer.extend_from_slice(line(&self.info, record, time, packet).as_bytes());
            return;
        }
        let kind = record.kind();
        if self.last.as_ref().is_none_or(|(last, _)| *last != kind) {
            let info = &self.info;
            let encode = || PacketOptions::new(direction(&kind), &comment(info, &kind));
            let options = self.options.entry(kind).or_insert_with(encode).clone();
            self.last = Some((kind, options));
        }
        let lost =
            self.lost.get_mut(usize::from(record.interface)).map_or(0, |(_, lost)| std::mem::take(lost));
        if let Some((_, options)) = &self.last {
            let (interface, original) = (record.interface.into(), record.original);
            let next = LivePacket { interface, time, original, data: packet, lost };
            blocks::packet(&mut output.buffer, &next, options);
        }
    }

    /// Writes what each interface has counted.
    fn finish(&mut self, rings: &[Reader], output: &mut Output) {
        let now = self.clock.now();
        for number in 0..self.info.interfaces.len() as u16 {
            let counts = Self::counts(rings, number);
            self.summary.seen += counts.received;
            self.summary.lost += counts.lost;
            self.summary.missed += rings.iter().map(|ring| ring.counts(number).missed).sum::<u64>();
            if output.is_pcapng() {
                blocks::statistics(&mut output.buffer, number.into(), now, counts);
            }
        }
    }
}

/// The ring whose next record is the oldest.
#[inline]
fn earliest(rings: &mut [Reader]) -> Option<usize> {
    if let [only] = rings {
        return only.peek().map(|_| 0);
    }
    let heads = rings.iter_mut().enumerate().filter_map(|(n, ring)| Some((ring.peek()?.0.cycles, n)));
    heads.min().map(|(_, n)| n)
}
