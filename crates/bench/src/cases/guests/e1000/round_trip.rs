// SPDX-License-Identifier: Apache-2.0
//! A guest sends back what its host sends, one frame at a time (the paper's Figure 7).
//!
//! ```text
//!  probe ── TAP of netvm ── netvm's card ── guest
//!  probe ── TAP of QEMU ─── QEMU's card ─── guest
//! ```

use std::time::{Duration, Instant};

use super::card::{GuestCard, Nic};
use super::{Bench, Traffic};
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::probe::{Probe, ip};
use crate::measure::report::Unit;
use crate::measure::stats::quantile;
use crate::setup::network;

/// The guest sends back for this much longer than planned, because the ports change meanwhile.
const ECHO_LONGER_BY: Duration = Duration::from_secs(3);
/// Round trips between two runs of the engine's manager.
const TRIPS: usize = 16;

/// The TAP interface of netvm's end.
pub(super) fn tap() -> String {
    network::interface(98)
}

impl Bench<'_> {
    /// Frames to the first guest and back. Only while the guest sends nothing else.
    pub(super) fn round_trips(&mut self, name: &str, nic: Nic, plan: &Plan) -> Measured {
        self.use_driver(nic)?;
        let echo = GuestCard { guest: 0, card: nic.card };
        let time = plan.warm_up + plan.window + ECHO_LONGER_BY;
        self.command(0, &format!("echo {} {}", echo.mac(), time.as_millis()))?;
        self.answer(0, "echoing")?;
        let interface = match echo.tap() {
            Some(tap) => tap,
            None => {
                self.direct(Traffic::RoundTrips(nic.card))?;
                ip(&["link", "set", &tap(), "up"])?;
                tap()
            }
        };
        let mut probe = Probe::open(&interface)?;
        let begun = Instant::now();
        while begun.elapsed() < plan.warm_up {
            probe.round_trip()?;
        }
        let (start, before, mut micros) = (Instant::now(), self.counts(echo), Vec::new());
        while start.elapsed() < plan.window {
            self.rig.run(Duration::ZERO)?;
            for _ in 0..TRIPS {
                micros.push(probe.round_trip()?);
            }
        }
        let after = self.counts(echo);
        if nic.card.is_netvm() {
            self.direct(Traffic::None)?;
        }
        self.answer(0, "echoed ")?;
        let mut figures = [("p50", 0.5), ("p99", 0.99)]
            .map(|(what, share)| {
                Figure::new(format!("{name} {what}"), Unit::Micros, quantile(&micros, share))
            })
            .to_vec();
        figures.extend(after.costs(&before, name, micros.len() as u64));
        Ok(figures)
    }
}
