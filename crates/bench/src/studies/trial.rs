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

/// Where packets are lost, in the order of their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In front of the receiver: the ring of the veth pair, or the backlog of the core that takes packets from it, was
    /// full. The sender's interface refuses such packets.
    Ring,
    /// In backlogs of the kernel behind that (`netdev_max_backlog`).
    Backlog,
    /// In the receiving interfaces, for other reasons than a full AF_XDP socket.
    Interface,
    /// The AF_XDP sockets of netvm's ports had no room.
    Port,
    /// In netvm's engine.
    Engine,
    /// The ring of an NF was full.
    Nf,
    /// The socket of the receiving program was full.
    Socket,
    /// The interfaces by which packets leave were full.
    Out,
    /// Not counted by any of these.
    Other,
}

/// Packets lost by place.
pub type Drops = BTreeMap<Place, u64>;

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
    pub drops: Drops,
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
    /// Lost packets by place.
    drops: Drops,
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
    /// The sender's streams that share the rate of a trial.
    pub count: usize,
    /// The rate of the sender's last stream, beside them.
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
    wait_for_first(streams, sender, sink)?;
    if let Some(rate) = args.rate {
        let offer = Offer { rate: rate as f64, time: args.seconds, streams };
        return print(&trial(args.warm_up, offer, sender, sink)?);
    }
    for line in io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("cannot read standard input"))?;
        let (rate, time) = asked(&line).map_err(BenchError::system("standard input"))?;
        let offer = Offer { rate, time: time.unwrap_or(args.seconds), streams };
        print(&trial(args.warm_up, offer, sender, sink)?)?;
    }
    Ok(())
}

/// The rate that a line asks for, and the seconds of the trial if it says any.
fn asked(line: &str) -> io::Result<(f64, Option<Duration>)> {
    let wrong = || {
        let problem = format!(
            "'{line}' is not a rate from 1 to 1e9 packets per second, and perhaps the seconds after a space"
        );
        io::Error::other(problem)
    };
    let mut words = line.split_whitespace();
    let rate = words.next().and_then(|word| word.parse().ok()).filter(|rate| (1.0..=1e9).contains(rate));
    let seconds = words.next().map(|word| crate::measure::harness::seconds(word).map_err(|_| wrong()));
    match (rate, words.next()) {
        (Some(rate), None) => Ok((rate, seconds.transpose()?)),
        _ => Err(wrong()),
    }
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
fn wait_for_first(streams: Streams, sender: &Sender, sink: &mut impl Sink) -> Result<(), BenchError> {
    let start = Instant::now();
    let has_come = |counts: Counts| counts.received > 0 && (counts.beside > 0 || streams.beside.is_none());
    let rates = vec![PROBE.0; streams.count + usize::from(streams.beside.is_some())];
    while !has_come(sink.counts()?) {
        if start.elapsed() > FIRST_PACKET_TIMEOUT {
            let what = "from the sender to the receiver".to_owned();
            return Err(BenchError::Nothing { what, seconds: start.elapsed().as_secs_f64() });
        }
        send(&rates, PROBE.1, sender, sink)?;
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
struct Offer {
    /// Packets per second of the streams that share the rate.
    rate: f64,
    time: Duration,
    streams: Streams,
}

impl Offer {
    /// Packets per second of each stream.
    fn rates(self) -> Vec<f64> {
        let Streams { count, beside, .. } = self.streams;
        let of_each = std::iter::repeat_n(self.rate / count as f64, count);
        of_each.chain(beside.map(|rate| rate as f64)).collect()
    }
}

/// What streams sent together, in the same time.
fn sum(streams: &[Sent]) -> Sent {
    Sent {
        packets: streams.iter().map(|sent| sent.packets).sum(),
        refused: streams.iter().map(|sent| sent.refused).sum(),
        seconds: streams.first().map_or(0.0, |sent| sent.seconds),
    }
}

fn trial(
    warm_up: Duration,
    offer: Offer,
    sender: &Sender,
    sink: &mut impl Sink,
) -> Result<Trial, BenchError> {
    let rates = offer.rates();
    send(&rates, warm_up, sender, sink)?;
    let before = settled(sink)?;
    sink.delays();
    let streams = send(&rates, offer.time, sender, sink)?;
    let (shared, beside) = streams.split_at(offer.streams.count.min(streams.len()));
    let sent = sum(shared);
    let after = settled(sink)?;
    let delays = sink.delays();
    let received = after.received.saturating_sub(before.received);
    let second =
        beside.first().map(|sent| SecondStream::of(sent, after.beside.saturating_sub(before.beside)));
    let all = sum(&streams);
    let lost_of_all = all.packets.saturating_sub(received + after.beside.saturating_sub(before.beside));
    let drops = drops_between(&before.drops, &after.drops, all.refused, lost_of_all);
    let lost = sent.packets.saturating_sub(received);
    let rate = |packets: u64| packets as f64 / sent.seconds;
    Ok(Trial {
        offered: rate(sent.packets),
        received: rate(received),
        mbps: rate(received) * f64::from(offer.streams.size) * 8.0 / 1e6,
        loss: lost as f64 / sent.packets.max(1) as f64,
        sent_packets: sent.packets,
        received_packets: received,
        lost_packets: lost,
        flows: after.flows - before.flows,
        drops,
        delays,
        beside: second,
    })
}

/// The packets that were lost between two readings, by place, each once: a backlog also counts what the sender was
/// refused and what did not leave, and an interface what the backlog or its AF_XDP socket had no room for.
fn drops_between(before: &Drops, after: &Drops, refused: u64, lost: u64) -> Drops {
    let mut drops: Drops = after
        .iter()
        .map(|(place, count)| (*place, count.saturating_sub(before.get(place).copied().unwrap_or(0))))
        .collect();
    let of = |drops: &Drops, place| drops.get(&place).copied().unwrap_or(0);
    drops.insert(Place::Ring, refused);
    let counted_twice = [
        (Place::Backlog, refused + of(&drops, Place::Out)),
        (Place::Interface, refused + of(&drops, Place::Port)),
    ];
    for (place, count) in counted_twice {
        let once = of(&drops, place).saturating_sub(count);
        drops.insert(place, once);
    }
    let counted: u64 = drops.values().sum();
    drops.insert(Place::Other, lost.saturating_sub(counted));
    drops.retain(|_, count| *count > 0);
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_asks_for_a_rate_and_perhaps_for_seconds() {
        assert_eq!(asked("2000").unwrap(), (2000.0, None));
        assert_eq!(asked(" 2e3 0.5\n").unwrap(), (2000.0, Some(Duration::from_millis(500))));
        for wrong in ["", "0", "2000 0", "2000 soon", "2000 1 1", "many"] {
            assert!(asked(wrong).unwrap_err().to_string().contains("is not a rate"), "{wrong}");
        }
    }

    #[test]
    fn a_lost_packet_is_counted_at_one_place() {
        let before = Drops::from([(Place::Backlog, 100), (Place::Port, 5), (Place::Interface, 5)]);
        let after = Drops::from([
            (Place::Backlog, 180),
            (Place::Port, 25),
            (Place::Interface, 66),
            (Place::Out, 30),
            (Place::Engine, 0),
        ]);
        let drops = drops_between(&before, &after, 40, 107);
        let expected = [
            (Place::Ring, 40),
            (Place::Backlog, 10),
            (Place::Interface, 1),
            (Place::Port, 20),
            (Place::Out, 30),
            (Place::Other, 6),
        ];
        assert_eq!(drops, Drops::from(expected));
        // Losses of the machine's other packets are in the same counters.
        assert!(!drops_between(&before, &after, 40, 50).contains_key(&Place::Other));
    }
}
