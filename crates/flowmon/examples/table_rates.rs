// SPDX-License-Identifier: Apache-2.0
//! Nanoseconds per packet of each table: `cargo run --release -p netvm-flowmon --example table_rates [FLOWS...]`.
//!
//! Frames of 60 bytes of random flows among so many, in bursts of 32, parsed and counted; medians of 15 rounds with the
//! tables in turns.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]

#[path = "../tests/flowmon/frames.rs"]
mod frames;

use std::time::Instant;

use frames::FlowFrame;
use netvm_flowmon::{AnyMeter, Settings, TableKind};

const PACKETS: usize = 1 << 19;
const ROUNDS: usize = 15;

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let sizes = if sizes.is_empty() { vec![1, 1000, 65_536, 1_000_000] } else { sizes };
    println!(
        "{:>9} {:>9} {:>9} {:>9}  ns/packet, median (spread of the middle half)",
        "flows", "null", "d-left", "tagged"
    );
    for flows in sizes {
        let settings = Settings { idle: u64::MAX, active: u64::MAX, sampling: 1, names: 0 };
        let kinds = [TableKind::Null, TableKind::DLeft, TableKind::Tagged];
        let mut meters = kinds.map(|kind| AnyMeter::new(kind, flows, settings, None));
        let mut frame = FlowFrame::new();
        let mut times = [const { Vec::new() }; 3];
        let mut random = 1u64;
        for round in 0..ROUNDS + 2 {
            for (meter, times) in meters.iter_mut().zip(&mut times) {
                let begin = Instant::now();
                for n in 0..PACKETS {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // The first rounds bring all flows in.
                    let flow = if round < 2 { round * PACKETS + n } else { (random >> 33) as usize } % flows;
                    let frame = frame.of(flow as u32);
                    meter.packet(frame, netvm_wire::parse(frame).ok().as_ref(), (1, n as u64));
                }
                meter.commit();
                if round >= 2 {
                    times.push(begin.elapsed().as_nanos() as f64 / PACKETS as f64);
                }
            }
        }
        print!("{flows:>9}");
        for times in &mut times {
            times.sort_unstable_by(f64::total_cmp);
            print!(" {:>5.1} ({:.1})", times[ROUNDS / 2], times[3 * ROUNDS / 4] - times[ROUNDS / 4]);
        }
        println!();
    }
}
