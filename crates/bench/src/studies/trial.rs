// SPDX-License-Identifier: Apache-2.0
//! Trials: sends packets at a rate for a time, and counts how many arrive.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::delays;
use crate::error::BenchError;
use crate::setup::sender::{Sender, Sent};

/// Interval between two readings of a receiver's counters.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A trial ends when the counters have not changed for this long: a guest's program reports ten times a second.
const UNCHANGED_FOR: Duration = Duration::from_millis(250);
/// Time limit for the counters to settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a receiver's first packet, and rate and duration of one attempt.
const FIRST_PACKET_TIMEOUT: Duration = Duration::from_secs(120);
const PROBE: (f64, Duration) = (1000.0, Duration::from_millis(20));

/// Options of the measurements of studies.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct TrialArgs {
    /// Seconds of a trial
    #[arg(long, value_parser = crate::measure::harness::seconds, default_value = "1")]
    pub seconds: Duration,
    /// Seconds of sending before a trial
    #[arg(long, value_parser = crate::measure::harness::seconds, default_value = "0.1")]
    pub warm_up: Duration,
    /// Packets per second of one trial [default: a rate on each line of standard input]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// The sender's core and the receivers' core [default: the first two of this process's affinity]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
}

/// Counters of a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived.
    pub received: u64,
    /// Packets of the second stream that arrived.
    pub beside: u64,
    /// Flows that the monitor saw.
    pub flows: u64,
    /// Drops by place.
    pub drops: BTreeMap<&'static str, u64>,
}

/// The receiving side of a trial.
pub trait Sink {
    /// Its counters.
    fn counts(&mut self) -> Result<Counts, BenchError>;
    /// The delays of packets since the last call, if it measures them.
    fn delays(&mut self) -> Option<delays::Summary> {
        None
    }
    /// Waits; an engine's manager runs in the meantime.
    fn pause(&mut self, time: Duration) -> Result<(), BenchError>;
}

/// The result of a trial.
#[derive(Debug, Serialize)]
pub struct Trial {
    /// Packets per second that were sent; fewer than requested if the sender is too slow.
    offered: f64,
    /// Packets per second that arrived.
    received: f64,
    /// The same in megabits of frames with FCS.
    mbps: f64,
    /// The lost share, from 0 to 1.
    loss: f64,
    sent_packets: u64,
    received_packets: u64,
    lost_packets: u64,
    flows: u64,
    /// Lost packets by place, as far as the place counts them.
    drops: BTreeMap<&'static str, u64>,
    /// The second stream, if there is one.
    #[serde(flatten)]
    beside: Option<SecondStream>,
    #[serde(flatten)]
    delays: Option<delays::Summary>,
}

/// The result of the second stream.
#[derive(Debug, Serialize)]
struct SecondStream {
    /// Packets per second that were sent.
    beside_offered: f64,
    /// Packets per second that arrived.
    beside_received: f64,
    /// The lost share, from 0 to 1.
    beside_loss: f64,
}

impl SecondStream {
    fn of(sent: &Sent, received: u64) -> Self {
        Self {
            beside_offered: sent.packets as f64 / sent.seconds,
            beside_received: received as f64 / sent.seconds,
            beside_loss: sent.packets.saturating_sub(received) as f64 / sent.packets.max(1) as f64,
        }
    }
}

/// What is sent, besides the rate of a trial.
#[derive(Clone, Copy)]
pub struct Streams {
    /// The length of a packet.
    pub size: u16,
    /// The rate of the sender's second stream.
    pub beside: Option<u64>,
}

/// Runs the trials that the options or standard input request, and prints each result.
///
/// # Errors
/// The sender or the receiver failed, or a line is not a rate.
pub fn run(
    args: &TrialArgs,
    streams: Streams,
    sender: &Sender,
    sink: &mut impl Sink,
) -> Result<(), BenchError> {
    let Streams { size, beside } = streams;
    let rates = |rate: f64| std::iter::once(rate).chain(beside.map(|rate| rate as f64)).collect::<Vec<_>>();
    wait_for_first(beside.is_some(), sender, sink)?;
    if let Some(rate) = args.rate {
        return print(&trial(args, Offer { rates: &rates(rate as f64), size }, sender, sink)?);
    }
    for line in io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("cannot read standard input"))?;
        let rate = line.trim().parse().ok().filter(|rate| (1.0..=1e9).contains(rate));
        let wrong = || io::Error::other(format!("'{line}' is not a rate from 1 to 1e9 packets per second"));
        let rate = rate.ok_or_else(wrong).map_err(BenchError::system("standard input"))?;
        print(&trial(args, Offer { rates: &rates(rate), size }, sender, sink)?)?;
    }
    Ok(())
}

/// Prints a result as a JSON object on a line.
///
/// # Errors
/// Standard output is closed.
pub fn print(result: &impl Serialize) -> Result<(), BenchError> {
    let text = serde_json::to_string(result).map_err(io::Error::other);
    let mut out = io::stdout().lock();
    text.and_then(|text| writeln!(out, "{text}")).map_err(BenchError::system("printing"))
}

/// Sends a few packets until one of each stream arrives.
fn wait_for_first(has_beside: bool, sender: &Sender, sink: &mut impl Sink) -> Result<(), BenchError> {
    let start = Instant::now();
    let has_come = |counts: Counts| counts.received > 0 && (counts.beside > 0 || !has_beside);
    while !has_come(sink.counts()?) {
        if start.elapsed() > FIRST_PACKET_TIMEOUT {
            let what = "from the sender to the receiver".to_owned();
            return Err(BenchError::Nothing { what, seconds: start.elapsed().as_secs_f64() });
        }
        send(&[PROBE.0; 2], PROBE.1, sender, sink)?;
        sink.pause(UNCHANGED_FOR)?;
    }
    Ok(())
}

fn send(
    rates: &[f64],
    time: Duration,
    sender: &Sender,
    sink: &mut impl Sink,
) -> Result<Vec<Sent>, BenchError> {
    sender.send(rates, time);
    loop {
        sink.pause(POLL_INTERVAL)?;
        if let Some(sent) = sender.poll()? {
            return Ok(sent);
        }
    }
}

/// The counters, once no more packets arrive.
fn settled(sink: &mut impl Sink) -> Result<Counts, BenchError> {
    let start = Instant::now();
    let (mut counts, mut since) = (sink.counts()?, Instant::now());
    while since.elapsed() < UNCHANGED_FOR && start.elapsed() < SETTLE_TIMEOUT {
        sink.pause(POLL_INTERVAL)?;
        let now = sink.counts()?;
        if (now.received, now.beside) != (counts.received, counts.beside) {
            since = Instant::now();
        }
        counts = now;
    }
    Ok(counts)
}

/// What a trial sends.
#[derive(Clone, Copy)]
struct Offer<'a> {
    /// Packets per second of each stream.
    rates: &'a [f64],
    /// The length of a packet.
    size: u16,
}

fn trial(
    args: &TrialArgs,
    offer: Offer<'_>,
    sender: &Sender,
    sink: &mut impl Sink,
) -> Result<Trial, BenchError> {
    let Offer { rates, size } = offer;
    send(rates, args.warm_up, sender, sink)?;
    let before = settled(sink)?;
    sink.delays();
    let streams = send(rates, args.seconds, sender, sink)?;
    let sent = streams.first().copied().unwrap_or_default();
    let after = settled(sink)?;
    let delays = sink.delays();
    let received = after.received.saturating_sub(before.received);
    let mut drops: BTreeMap<_, _> = after
        .drops
        .iter()
        .map(|(place, count)| (*place, count - before.drops.get(place).unwrap_or(&0).min(count)))
        .collect();
    drops.insert("wire", sent.refused);
    drops.retain(|_, count| *count > 0);
    let lost = sent.packets.saturating_sub(received);
    let rate = |packets: u64| packets as f64 / sent.seconds;
    Ok(Trial {
        offered: rate(sent.packets),
        received: rate(received),
        mbps: rate(received) * f64::from(size) * 8.0 / 1e6,
        loss: lost as f64 / sent.packets.max(1) as f64,
        sent_packets: sent.packets,
        received_packets: received,
        lost_packets: lost,
        flows: after.flows - before.flows,
        drops,
        delays,
        beside: streams.get(1).map(|sent| SecondStream::of(sent, after.beside.saturating_sub(before.beside))),
    })
}
