// SPDX-License-Identifier: Apache-2.0
//! `netvm trace`.

use std::time::{Duration, Instant};

use netvm_api::{Client, LiveTraceRequest, TracedPacket, TracedStep};
use netvm_capture_client::compile;

use super::events::clock;
use crate::cli::LiveTraceArgs;
use crate::error::CliError;
use crate::output::Output;

/// Prints what happens to packets of traffic, as they end.
pub async fn trace(client: &Client, output: &Output, arguments: &LiveTraceArgs) -> Result<(), CliError> {
    let LiveTraceArgs { count, seconds, from, each_hop, filter } = arguments;
    let request = LiveTraceRequest {
        packets: *count,
        seconds: *seconds,
        from: from.clone(),
        each_hop: *each_hop,
        filter: compile(&filter.join(" "))?,
    };
    let begun = Instant::now();
    let mut packets = client.live_trace(&request).await?;
    if output.terminal && !output.json {
        eprintln!("waiting for packets for {seconds} s; Ctrl-C ends it");
    }
    let mut received = 0;
    while let Some(packet) = packets.next().await? {
        let text = if output.json { serde_json::to_string(&packet)? + "\n" } else { draw(&packet) };
        output.text(&text)?;
        received += 1;
    }
    let is_over = begun.elapsed() >= Duration::from_secs(*seconds);
    match received {
        _ if received >= *count => Ok(()),
        _ if !is_over => Err(CliError::TraceEnded(received)),
        0 => Err(CliError::NothingTraced(*seconds)),
        _ => {
            eprintln!("{seconds} s are over: {received} of {count} packets");
            Ok(())
        }
    }
}

fn draw(packet: &TracedPacket) -> String {
    let TracedPacket { number, time, worker, .. } = packet;
    let line = |step: &TracedStep| {
        let by = if step.worker == *worker { String::new() } else { format!("worker {}: ", step.worker) };
        // Steps contain names that NFs and users choose.
        format!("{:>10}  {by}{}\n", elapsed(step.after_ns), netvm_text::line(&step.text))
    };
    let steps: String = packet.steps.iter().map(line).collect();
    format!("packet {number}, {}, worker {worker}:\n{steps}", clock(*time))
}

/// Nanoseconds with three digits and a unit.
fn elapsed(ns: u64) -> String {
    for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")] {
        if ns >= unit {
            let value = ns as f64 / unit as f64;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            return format!("{value:.digits$} {name}");
        }
    }
    format!("{ns} ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        assert_eq!(
            [0, 999, 1_000, 12_340, 123_456, 5_000_000, 5_123_000_000].map(elapsed),
            ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "123 µs", "5.00 ms", "5.12 s"]
        );
    }
}
