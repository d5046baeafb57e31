// SPDX-License-Identifier: Apache-2.0
//! A guest sends to the host and to the other guest.

use std::time::{Duration, Instant};

use netvm_wire::MacAddr;

use super::card::{GuestCard, Nic};
use super::{ANSWER_TIMEOUT, Bench, Traffic};
use crate::error::BenchError;
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::report::Unit;

/// Frames go to this address, which no interface has.
const UNUSED_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0xfe, 0xfe]);
/// A guest sends for this much longer than planned, because its peer needs time to start.
const SEND_LONGER_BY: Duration = Duration::from_millis(1500);

impl Bench<'_> {
    /// The first guest sends frames of `bytes` bytes, without FCS, which the engine or the kernel drops.
    pub(super) fn send_to_host(&mut self, name: &str, nic: Nic, bytes: u16, plan: &Plan) -> Measured {
        self.use_driver(nic)?;
        let sender = GuestCard { guest: 0, card: nic.card };
        let time = plan.warm_up + plan.window + Duration::from_millis(300);
        self.begin_sending(sender, UNUSED_MAC, bytes, time)?;
        self.rig.run(plan.warm_up)?;
        let (start, before) = (Instant::now(), self.counts(sender));
        self.rig.run(plan.window)?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.counts(sender));
        self.answer(0, "sent ")?;
        let mut figures =
            vec![Figure::new(name, Unit::Mpps, (after.sent - before.sent) as f64 / seconds / 1e6)];
        figures.extend(after.costs(&before, name, after.sent - before.sent));
        Ok(figures)
    }

    /// The first guest sends to the second one, which receives.
    pub(super) fn send_to_guest(&mut self, name: &str, nic: Nic, bytes: u16, plan: &Plan) -> Measured {
        self.use_driver(nic)?;
        let [sender, receiver] = [0, 1].map(|guest| GuestCard { guest, card: nic.card });
        self.direct(Traffic::Between(nic.card))?;
        let begun =
            self.begin_sending(sender, receiver.mac(), bytes, plan.warm_up + plan.window + SEND_LONGER_BY);
        let measured = begun.and_then(|()| self.measure_receiver(sender, receiver, name, plan));
        self.direct(Traffic::None)?;
        measured
    }

    fn measure_receiver(
        &mut self,
        sender: GuestCard,
        receiver: GuestCard,
        name: &str,
        plan: &Plan,
    ) -> Measured {
        self.rig.run(plan.warm_up)?;
        let command = format!("receive {} {}", receiver.mac(), plan.window.as_millis());
        self.command(1, &command)?;
        self.answer(1, "receiving")?;
        let before = [self.counts(sender), self.counts(receiver)];
        let received = self.received(1)?;
        let after = [self.counts(sender), self.counts(receiver)];
        self.answer(0, "sent ")?;
        if received.packets == 0.0 {
            return Err(BenchError::Nothing { what: name.to_owned(), seconds: plan.window.as_secs_f64() });
        }
        let mut figures = vec![Figure::new(name, Unit::Mpps, received.rate())];
        figures.extend(after[0].costs(&before[0], name, after[0].sent - before[0].sent));
        let case = format!("{name} receiver");
        figures.extend(after[1].costs(&before[1], &case, after[1].received - before[1].received));
        Ok(figures)
    }

    /// Lets a guest send, and waits for the first frame.
    fn begin_sending(
        &mut self,
        sender: GuestCard,
        to: MacAddr,
        bytes: u16,
        time: Duration,
    ) -> Result<(), BenchError> {
        let before = self.counts(sender).sent;
        let command = format!("send {} {to} {bytes} {}", sender.mac(), time.as_millis());
        self.command(sender.guest, &command)?;
        let start = Instant::now();
        while self.counts(sender).sent == before {
            if start.elapsed() > ANSWER_TIMEOUT {
                let what = format!("{} of guest {}", sender.card.name(), sender.guest);
                return Err(BenchError::Nothing { what, seconds: ANSWER_TIMEOUT.as_secs_f64() });
            }
            self.rig.run(Duration::from_millis(5))?;
        }
        Ok(())
    }
}
