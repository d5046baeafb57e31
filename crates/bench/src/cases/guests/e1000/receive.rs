// SPDX-License-Identifier: Apache-2.0
//! A guest is offered multiples of its capacity, the highest rate that it can receive (the paper's Figure 3).

use std::time::Duration;

use super::card::{GuestCard, Nic};
use super::guest::{Stream, sender};
use super::{Bench, Counts, MIN_FRAME, Traffic};
use crate::cli::Load;
use crate::error::BenchError;
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::report::{Row, Unit};

/// Packets are sent for this much longer than the guest counts them.
const SEND_LONGER_BY: Duration = Duration::from_millis(500);
/// First and last load of the search for a guest's capacity, in packets per second.
const MIN_LOAD: u64 = 4000;
const MAX_LOAD: u64 = 4_000_000;
/// A guest that receives less than this share of the load is overloaded.
const TAKEN: f64 = 0.8;

/// The report of a guest's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) packets: f64,
    micros: f64,
    /// Packets that the guest's kernel dropped because the socket was full.
    dropped: f64,
}

impl Received {
    /// Reads `PACKETS in MICROS, dropped PACKETS`.
    pub(super) fn parse(answer: &str) -> Option<Self> {
        let (packets, rest) = answer.split_once(" in ")?;
        let (micros, dropped) = rest.split_once(", dropped ")?;
        let numbers = [packets, micros, dropped].map(|number| number.parse().ok());
        let [Some(packets), Some(micros), Some(dropped)] = numbers else { return None };
        Some(Self { packets, micros, dropped })
    }

    /// Million packets per second.
    pub(super) fn rate(self) -> f64 {
        self.packets / self.micros.max(1.0)
    }
}

/// The case of a NIC's load.
fn load_case(name: &str, factor: f64) -> String {
    format!("{name}-{factor}x")
}

fn offered_case(case: &str) -> String {
    format!("{case} offered")
}

/// `NAME-best`, the highest median of all loads, and for each load from the capacity on the ratio of what was received
/// to it, or to what was offered if that is less.
pub(super) fn compare_loads(name: &str, loads: &[Load], rows: &mut Vec<Row>) {
    let summary = |case: &str| rows.iter().find(|row| row.case == case).map(|row| row.summary);
    let received: Vec<_> = loads
        .iter()
        .filter_map(|load| {
            let case = load_case(name, load.factor());
            Some((load.factor(), summary(&case)?, summary(&offered_case(&case))?.median, case))
        })
        .collect();
    let best =
        received.iter().map(|(_, received, ..)| *received).max_by(|a, b| a.median.total_cmp(&b.median));
    let Some(best) = best else { return };
    let case = format!("{name}-best");
    for (_, received, offered, load) in received.into_iter().filter(|(factor, ..)| *factor >= 1.0) {
        let most = offered.min(best.median);
        // A guest that received nothing has no ratio.
        if most > 0.0 {
            let summary = received.relative_to(most);
            rows.push(Row { case: format!("{load}/{case}"), unit: Unit::Ratio, summary });
        }
    }
    rows.push(Row { case, unit: Unit::Mpps, summary: best });
}

/// The guest's capacity with a NIC, in million packets per second; 0 until the first run finds it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity(f64);

/// What is offered to a guest.
pub(super) struct Offered<'a> {
    pub(super) nic: Nic,
    pub(super) loads: &'a [Load],
    pub(super) capacity: &'a mut Capacity,
}

impl Bench<'_> {
    /// Offers loads to the first guest, each a multiple of its capacity, which the first run finds.
    pub(super) fn loads(&mut self, name: &str, offered: Offered<'_>, plan: &Plan) -> Measured {
        let Offered { nic, loads, capacity } = offered;
        self.use_driver(nic)?;
        if capacity.0 == 0.0 {
            *capacity = self.find_capacity(nic, plan)?;
        }
        let mut figures: Vec<Figure> = Vec::new();
        for load in loads.iter().map(|load| load.factor()) {
            let case = load_case(name, load);
            let offered = (capacity.0 * 1e6 * load) as u64;
            let (received, before, after) = self.receive(nic, offered.max(1), plan)?;
            figures.push(Figure::new(offered_case(&case), Unit::Mpps, offered as f64 / 1e6));
            figures.push(Figure::new(&case, Unit::Mpps, received.rate()));
            let dropped = received.dropped / received.packets.max(1.0);
            figures.push(Figure::new(format!("{case} dropped"), Unit::PerPacket, dropped));
            figures.extend(after.costs(&before, &case, after.received - before.received));
        }
        Ok(figures)
    }

    /// Doubles the load until the guest is overloaded twice in a row.
    fn find_capacity(&mut self, nic: Nic, plan: &Plan) -> Result<Capacity, BenchError> {
        let (mut best, mut beyond, mut offered): (f64, _, _) = (0.0, 0, MIN_LOAD);
        while beyond < 2 && offered <= MAX_LOAD {
            let rate = self.receive(nic, offered, plan)?.0.rate();
            best = best.max(rate);
            beyond = if rate * 1e6 < offered as f64 * TAKEN { beyond + 1 } else { 0 };
            offered *= 2;
        }
        Ok(Capacity(best))
    }

    /// Offers packets to a card at a rate. Returns the report of the guest's program, and the card's counters before
    /// and after.
    fn receive(
        &mut self,
        nic: Nic,
        rate: u64,
        plan: &Plan,
    ) -> Result<(Received, Counts, Counts), BenchError> {
        let receiver = GuestCard { guest: 0, card: nic.card };
        let time = plan.warm_up + plan.window;
        let before = self.counts(receiver);
        self.command(0, &format!("receive {} {}", receiver.mac(), time.as_millis()))?;
        self.answer(0, "receiving")?;
        let sending = time + SEND_LONGER_BY;
        let process = match receiver.tap() {
            Some(tap) => Some(sender(&tap, Stream { receiver, bytes: MIN_FRAME, rate }, sending)?),
            None => {
                self.direct(Traffic::Load(nic.card, rate))?;
                None
            }
        };
        self.rig.run(sending)?;
        match process {
            Some(process) => drop(process),
            None => self.direct(Traffic::None)?,
        }
        let received = self.received(0)?;
        if received.packets == 0.0 && nic.card.is_netvm() {
            return Err(BenchError::Nothing { what: nic.name(), seconds: time.as_secs_f64() });
        }
        Ok((received, before, self.counts(receiver)))
    }
}
