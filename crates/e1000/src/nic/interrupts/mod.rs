// SPDX-License-Identifier: Apache-2.0
//! Interrupts: causes, mask, delays and moderation.
//!
//! A driver is interrupted at most once per interval: the one that it sets in ITR, or one that follows the guest's
//! progress, if that is longer. The latter is twice as long as the guest took from an interrupt to enabling interrupts
//! again, while packets come several to an interrupt, and for packets that were sent, which can wait. So handling
//! interrupts leaves the guest half of its time, however fast packets come (receive livelock: Mogul and Ramakrishnan,
//! 1997), and a received packet that comes alone is announced at once.
//!
//! INTx is one line: the client masks it when it has signalled an interrupt, and unmasks it when the guest's driver has
//! seen it. An 82574 also has MSI-X vectors: for received packets, for sent packets, and for the rest (IVAR says
//! which). A vector's cause is cleared as it is signalled (EIAC), and disabled until the driver has seen to it (IAM),
//! so that the driver need not read ICR.

mod line;

use std::os::fd::OwnedFd;

use netvm_clock as clock;

use super::Model;
use super::registers::{CTRL_EXT_EIAME, CTRL_EXT_IAME, cause};
use super::state::{Loader, Saver};
use line::Line;

/// MSI-X vectors of an 82574.
pub(crate) const VECTORS: usize = 5;
/// Causes that have a vector, and where IVAR has it.
const ROUTES: [(u32, u32); 3] = [(cause::RXQ0, RECEIVED), (cause::TXQ0, 8), (cause::OTHER, 16)];
const RECEIVED: u32 = 0;
/// Causes of sent packets, which can wait.
const SENT: u32 = cause::TXDW | cause::TXQE;
/// An entry of IVAR is valid.
const VALID: u32 = 1 << 3;
/// Causes that are not those of a queue.
const OTHER_CAUSES: u32 = cause::LSC | cause::RXO | cause::MDAC;
/// Shortest time between two announcements of lost packets. The driver of an 82574 handles each in an interrupt of its
/// own, which takes the time that it would need to empty its ring.
const OVERRUN_MICROS: u64 = 100_000;
/// Units of ITR per second (256 ns), and of the delays (1.024 µs).
const ITR_UNIT_NANOS: u64 = 256;
const DELAY_UNIT_NANOS: u64 = 1024;

/// Delays of one direction, as the driver has set them, in the registers' units.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delays {
    /// Since the last packet.
    pub(crate) since_last: u32,
    /// Since the first packet; 0: no limit.
    pub(crate) since_first: u32,
}

/// An announcement that is delayed: when it is due since the last packet, and since the first.
#[derive(Clone, Copy, Debug, Default)]
struct Delayed {
    due: Option<u64>,
    limit: Option<u64>,
}

/// The interrupt logic of a card.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    model: Model,
    causes: u32,
    mask: u32,
    /// ITR.
    pub(super) interval: u32,
    /// Those of an 82574: IVAR, EIAC, IAM, EITR, and CTRL_EXT, which says what IAM does.
    pub(super) vectors: VectorRegisters,
    /// INTx.
    line: Line,
    /// An interrupt was signalled, and the client has not unmasked the line.
    is_masked: bool,
    msix: [Line; VECTORS],
    /// Cycles of delays: of received and of sent packets.
    delayed: [Delayed; 2],
    /// Whether the driver with a communication status block polled at the last check.
    was_polling: bool,
    /// When lost packets were last announced.
    overrun: Option<u64>,
    /// Interrupts signalled.
    pub(crate) count: u64,
}

/// A direction, for delays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Received = 0,
    Sent = 1,
}

impl Direction {
    const fn cause(self) -> u32 {
        match self {
            Self::Received => cause::RXT0,
            Self::Sent => cause::TXDW,
        }
    }
}

fn cycles(nanos: u64) -> u64 {
    (u128::from(nanos) * u128::from(clock::cycles_per_second()) / 1_000_000_000) as u64
}

impl Interrupts {
    pub(super) fn new(model: Model) -> Self {
        Self { model, ..Self::default() }
    }

    /// After a reset: the client keeps the lines.
    pub(super) fn reset(&mut self) {
        (self.causes, self.mask, self.interval) = (0, 0, 0);
        self.vectors = VectorRegisters::default();
        self.line.reset();
        self.msix.iter_mut().for_each(Line::reset);
        self.delayed = [Delayed::default(); 2];
        (self.overrun, self.was_polling) = (None, false);
    }

    pub(super) fn save(&self, to: &mut Saver<'_>) {
        let VectorRegisters { routes, cleared, disabled, intervals, control } = self.vectors;
        [self.causes, self.mask, self.interval, routes, cleared, disabled, control]
            .into_iter()
            .chain(intervals)
            .for_each(|word| to.put(word));
    }

    pub(super) fn load(&mut self, from: &mut Loader<'_>) {
        (self.causes, self.mask, self.interval) = (from.next(), from.next(), from.next());
        let vectors = &mut self.vectors;
        (vectors.routes, vectors.cleared, vectors.disabled) = (from.next(), from.next(), from.next());
        vectors.control = from.next();
        vectors.intervals.iter_mut().for_each(|interval| *interval = from.next());
    }

    /// A driver with a communication status block leaves its interrupts enabled; the block says whether it polls.
    #[inline]
    pub(crate) fn note_polling(&mut self, is_polling: bool) {
        if self.was_polling && !is_polling {
            self.line.note_service(clock::cycles());
        }
        self.was_polling = is_polling;
    }

    /// Sets the client's eventfd for INTx. Signals causes that the driver has already enabled at once.
    pub(crate) fn set_line(&mut self, eventfd: Option<OwnedFd>) {
        self.line.connect(eventfd);
        self.is_masked = false;
        self.fire(clock::cycles());
    }

    /// Sets the client's eventfd for an MSI-X vector, as [`Self::set_line`]. `None` if there is no such vector.
    pub(crate) fn set_vector(&mut self, vector: usize, eventfd: Option<OwnedFd>) -> Option<()> {
        self.msix.get_mut(vector)?.connect(eventfd);
        self.fire(clock::cycles());
        Some(())
    }

    /// The client has gone, or uses MSI-X no more.
    pub(crate) fn clear_vectors(&mut self) {
        self.msix.iter_mut().for_each(|line| line.connect(None));
    }

    /// The client masks the line, or unmasks it.
    pub(crate) fn set_masked(&mut self, is_masked: bool) {
        self.is_masked = is_masked;
        self.fire(clock::cycles());
    }

    /// Reads ICR, which clears it.
    pub(super) fn take_causes(&mut self) -> u32 {
        let asserted = if self.causes & self.mask == 0 { 0 } else { cause::ASSERTED };
        if asserted != 0 && self.vectors.control & CTRL_EXT_IAME != 0 {
            self.mask &= !self.vectors.disabled;
        }
        std::mem::take(&mut self.causes) | asserted
    }

    /// Clears causes (a write to ICR).
    pub(super) const fn clear(&mut self, causes: u32) {
        self.causes &= !causes;
    }

    /// IMS.
    pub(super) const fn mask(&self) -> u32 {
        self.mask
    }

    /// Enables causes (IMS).
    pub(super) fn enable(&mut self, causes: u32) {
        let before = self.mask;
        self.mask |= causes;
        let now = clock::cycles();
        if before == 0 {
            self.line.note_service(now);
        }
        for (bit, shift) in ROUTES {
            if before & bit == 0
                && causes & bit != 0
                && let Some(line) = self.vectors.route(shift).and_then(|vector| self.msix.get_mut(vector))
            {
                line.note_service(now);
            }
        }
        self.fire(now);
    }

    /// Disables causes (IMC).
    pub(super) const fn disable(&mut self, causes: u32) {
        self.mask &= !causes;
    }

    /// Adds causes, and interrupts if it is time.
    pub(crate) fn raise(&mut self, causes: u32) {
        self.add(causes);
        self.fire(clock::cycles());
    }

    /// Packets were lost because no descriptor was free.
    pub(crate) fn raise_overrun(&mut self) {
        let now = clock::cycles();
        let least = clock::cycles_in_micros(OVERRUN_MICROS);
        if self.overrun.is_none_or(|last| now.wrapping_sub(last) >= least) {
            self.overrun = Some(now);
            self.add(cause::RXO);
            self.fire(now);
        }
    }

    /// Adds causes; those of an 82574 also have a bit for each queue, and one for the rest.
    fn add(&mut self, causes: u32) {
        self.causes |= causes;
        if self.model == Model::I82574 {
            for (some, bit) in [
                (cause::RXT0 | cause::RXDMT0, cause::RXQ0),
                (cause::TXDW, cause::TXQ0),
                (OTHER_CAUSES, cause::OTHER),
            ] {
                self.causes |= if causes & some == 0 { 0 } else { bit };
            }
        }
    }

    /// Packets were received, or descriptors of sent ones written back: announces them after the delays.
    pub(crate) fn announce(&mut self, direction: Direction, packets: u32, delays: Delays) {
        if let Direction::Received = direction {
            self.line.count(packets);
            if let Some(line) = self.vectors.route(RECEIVED).and_then(|vector| self.msix.get_mut(vector)) {
                line.count(packets);
            }
        }
        if delays.since_last == 0 {
            self.delayed[direction as usize] = Delayed::default();
            self.add(direction.cause());
            return;
        }
        let now = clock::cycles();
        let after = |units: u32| now.wrapping_add(cycles(u64::from(units) * DELAY_UNIT_NANOS));
        let Delayed { due, limit } = &mut self.delayed[direction as usize];
        *due = Some(after(delays.since_last));
        if limit.is_none() && delays.since_first > 0 {
            *limit = Some(after(delays.since_first));
        }
    }

    /// Whether a delayed interrupt is pending.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.delayed.iter().any(|delayed| delayed.due.is_some())
            || self.causes & self.mask != 0 && self.has_line_to_signal()
    }

    /// Whether a line is to be signalled, now or in time, for a cause that is enabled.
    fn has_line_to_signal(&self) -> bool {
        if !self.msix.iter().any(Line::is_connected) {
            return !self.is_masked && self.line.is_connected();
        }
        let is_connected = |vector| self.msix.get(vector).is_some_and(Line::is_connected);
        ROUTES.into_iter().any(|(bit, shift)| {
            self.causes & self.mask & bit != 0 && self.vectors.route(shift).is_some_and(is_connected)
        })
    }

    /// When the next pending interrupt is due, in cycles; `None`: none is pending.
    #[inline]
    pub(crate) fn due(&self) -> Option<u64> {
        if !self.is_pending() {
            return None;
        }
        let delayed = self.delayed.iter().flat_map(|delayed| [delayed.due, delayed.limit]);
        delayed.chain([self.line_due()]).flatten().min()
    }

    /// When a line may be signalled for a cause that is enabled.
    fn line_due(&self) -> Option<u64> {
        let causes = self.causes & self.mask;
        if !self.msix.iter().any(Line::is_connected) {
            let is_ready = causes != 0 && !self.is_masked && self.line.is_connected();
            return is_ready.then(|| self.line.due(interval_cycles(self.interval), causes & !SENT != 0));
        }
        let of_vector = |(bit, shift)| {
            let vector = self.vectors.route(shift).filter(|_| causes & bit != 0)?;
            let line = self.msix.get(vector).filter(|line| line.is_connected())?;
            Some(line.due(self.vector_interval(vector), bit != cause::TXQ0))
        };
        ROUTES.into_iter().filter_map(of_vector).min()
    }

    /// Cycles between interrupts of a vector, as the driver has set them.
    fn vector_interval(&self, vector: usize) -> u64 {
        interval_cycles(self.vectors.intervals.get(vector).copied().unwrap_or(0).max(self.interval))
    }

    /// Signals what is due; the worker calls it in each turn.
    #[inline]
    pub(crate) fn tick(&mut self) {
        if !self.is_pending() {
            return;
        }
        let now = clock::cycles();
        let is_past = |time: Option<u64>| time.is_some_and(|time| now.wrapping_sub(time) as i64 >= 0);
        for direction in [Direction::Received, Direction::Sent] {
            let Delayed { due, limit } = self.delayed[direction as usize];
            if is_past(due) || is_past(limit) {
                self.delayed[direction as usize] = Delayed::default();
                self.add(direction.cause());
            }
        }
        self.fire(now);
    }

    fn fire(&mut self, now: u64) {
        if self.causes & self.mask == 0 {
            return;
        }
        let is_urgent = self.causes & self.mask & !SENT != 0;
        if self.msix.iter().any(Line::is_connected) {
            self.fire_vectors(now);
        } else if !self.is_masked && self.line.signal(interval_cycles(self.interval), is_urgent, now) {
            self.is_masked = true;
            self.count += 1;
        }
    }

    fn fire_vectors(&mut self, now: u64) {
        for (bit, shift) in ROUTES {
            if self.causes & self.mask & bit == 0 {
                continue;
            }
            let Some(vector) = self.vectors.route(shift) else { continue };
            let interval = self.vector_interval(vector);
            let Some(line) = self.msix.get_mut(vector) else { continue };
            if line.signal(interval, bit != cause::TXQ0, now) {
                // A message is sent once for each cause, whether or not EIAC has it.
                self.causes &= !bit;
                if self.vectors.control & CTRL_EXT_EIAME != 0 {
                    self.mask &= !(self.vectors.disabled & bit);
                }
                self.count += 1;
            }
        }
    }
}

/// Cycles of an interval in ITR or EITR.
fn interval_cycles(interval: u32) -> u64 {
    cycles(u64::from(interval & 0xffff) * ITR_UNIT_NANOS)
}

/// Registers of MSI-X.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VectorRegisters {
    /// IVAR.
    pub(super) routes: u32,
    /// EIAC.
    pub(super) cleared: u32,
    /// IAM.
    pub(super) disabled: u32,
    /// EITR of each vector.
    pub(super) intervals: [u32; VECTORS],
    /// CTRL_EXT.
    pub(super) control: u32,
}

impl VectorRegisters {
    /// The vector that IVAR has there, if it is valid.
    const fn route(&self, shift: u32) -> Option<usize> {
        let entry = self.routes >> shift & 0xf;
        if entry & VALID == 0 { None } else { Some((entry & 7) as usize) }
    }
}
