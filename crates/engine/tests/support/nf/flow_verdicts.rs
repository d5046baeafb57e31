// SPDX-License-Identifier: Apache-2.0
//! An NF that returns verdicts for whole flows: `skip=IDLE`, `drop=IDLE`, `drop-one=FLOW`, `forge=FLOW`,
//! `withdraw=MILLISECONDS`.

use std::time::{Duration, Instant};

use netlib::{Idle, NetworkFunction, Options, Packet, Verdict};

const KINDS: [&str; 5] = ["skip", "drop", "drop-one", "forge", "withdraw"];
/// Last byte of the source address, which differs among flows of the built-in source.
const FLOW_BYTE: usize = 29;

struct FlowVerdicts {
    kind: &'static str,
    number: u16,
    started: Instant,
    withdrawn: bool,
}

/// Runs the NF if `kind` names one of its behaviours; returns otherwise.
pub fn run_if_named(kind: &str) {
    let (kind, number) = kind.split_once('=').unwrap_or((kind, "0"));
    let (Some(kind), Ok(number)) = (KINDS.into_iter().find(|known| *known == kind), number.parse()) else {
        return;
    };
    let started = Instant::now();
    let result = netlib::run(&Options::new("flow-verdicts"), |_| FlowVerdicts {
        kind,
        number,
        started,
        withdrawn: false,
    });
    std::process::exit(i32::from(result.is_err()));
}

impl NetworkFunction for FlowVerdicts {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let flow = u16::from(packet.data()[FLOW_BYTE]);
        match self.kind {
            "skip" => Verdict::SkipFlow(Idle(self.number)),
            "drop" => Verdict::DropFlow(Idle(self.number)),
            "drop-one" if flow == self.number => Verdict::DropFlow(Idle::MAX),
            // The returned packet looks as if it belonged to the next flow.
            "forge" if flow == self.number => {
                packet.data_mut()[FLOW_BYTE] += 1;
                Verdict::DropFlow(Idle::MAX)
            }
            "withdraw" if !self.withdrawn => Verdict::DropFlow(Idle::MAX),
            _ => Verdict::Next,
        }
    }

    fn withdraws(&mut self) -> bool {
        let after = Duration::from_millis(self.number.into());
        let due = self.kind == "withdraw" && !self.withdrawn && self.started.elapsed() > after;
        self.withdrawn |= due;
        due
    }
}
