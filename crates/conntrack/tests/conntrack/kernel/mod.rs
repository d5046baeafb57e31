// SPDX-License-Identifier: Apache-2.0
//! The kernel as the oracle: packets go through a router of the kernel and through the table. Both have to say the
//! same.

pub mod conversation;
mod imported;
mod nat;
mod router;
mod sctp;

use std::collections::BTreeMap;
use std::time::Instant;

use netvm_conntrack::{Config, Connections, Origin, Packet, Tracked, Zone};
use netvm_wire::{ConnState, FlowKey, parse};

use conversation::{Conversation, Odd, Random, Segment, between, error_about, frame_of, odd, seal};
pub use router::run;
use router::{Router, STATES};

/// TCP connections of a test.
const CONVERSATIONS: u32 = 4000;

/// On what this crate and the kernel do not agree, and why.
const DIFFERENCES: [(Odd, ConnState, ConnState, &str); 5] = [
    (
        Odd::FarBehind,
        ConnState::Invalid,
        ConnState::Established,
        "what is older than a window is invalid here, as in Linux before 6.2; now Linux lets it pass without effect",
    ),
    (
        Odd::ResetFarAhead,
        ConnState::Invalid,
        ConnState::Established,
        "a reset outside of the window is invalid here in every state, not only in some",
    ),
    (
        Odd::AcknowledgesTooMuch,
        ConnState::Invalid,
        ConnState::Established,
        "after a reset, the window still holds",
    ),
    (
        Odd::OtherSyn,
        ConnState::Invalid,
        ConnState::Established,
        "after two SYNs with different numbers, an answer must acknowledge the last one",
    ),
    (
        Odd::OtherSyn,
        ConnState::Established,
        ConnState::Invalid,
        "after two SYNs with different numbers, the first may still be acknowledged once the last was",
    ),
];

fn state_of(table: &mut Connections, frame: &[u8], now: u32) -> ConnState {
    let key: FlowKey = *parse(frame).unwrap().key();
    let packet = Packet { key: &key, zone: Zone(0), front: frame, length: frame.len() };
    let mut tracked = [Tracked::default()];
    table.track(&[packet], now, &mut tracked);
    if tracked[0].state == ConnState::New && tracked[0].connection.is_none() {
        table.confirm(&packet, Origin::default(), now).unwrap();
    }
    tracked[0].state
}

/// Whether this machine can have a router of the kernel.
fn has_router() -> bool {
    let can = rustix::process::geteuid().is_root() && std::path::Path::new("/dev/net/tun").exists();
    if !can {
        println!("SKIP: a router of the kernel needs root and TAP devices");
    }
    can
}

/// Both oracles, and what they did not agree on.
struct Comparison {
    router: Router,
    table: Connections,
    begin: Instant,
    identification: u16,
    different: BTreeMap<String, Vec<String>>,
}

impl Comparison {
    /// `None`: this machine has no router.
    fn new() -> Option<Self> {
        if !has_router() {
            return None;
        }
        let table = Connections::new(&Config::default()).unwrap();
        let (router, different) = (Router::new(STATES), BTreeMap::new());
        Some(Self { router, table, begin: Instant::now(), identification: 0, different })
    }

    /// The states that this crate and the kernel give a frame, which `make` makes with an identification.
    fn states(&mut self, from: usize, make: impl FnOnce(u16) -> Vec<u8>) -> (ConnState, Option<ConnState>) {
        self.identification = self.identification % 60_000 + 1;
        let frame = make(self.identification);
        let now = (self.begin.elapsed().as_millis() / 100) as u32;
        let ours = state_of(&mut self.table, &frame, now);
        (ours, self.router.state(from, &frame, self.identification))
    }

    /// Plays a conversation, with an odd segment after number `odd.0`. Stops where the states differ.
    fn play(&mut self, port: u16, of: &Conversation, odd: Option<(usize, Segment, Odd)>) {
        let (mut said, mut after) = (Vec::new(), None);
        for (n, segment) in of.segments.iter().enumerate() {
            let inserted = odd.filter(|(at, ..)| *at == n);
            let inserted = inserted.iter().map(|(_, segment, odd)| (segment, Some(*odd)));
            for (segment, odd) in std::iter::once((segment, None)).chain(inserted) {
                after = odd.or(after);
                let (ours, kernel) = self.states(segment.from, |it| frame_of(segment, port, it));
                said.push(format!("{segment:?} {odd:?}: {ours:?}, kernel {kernel:?}"));
                if kernel == Some(ours) {
                    continue;
                }
                let is_known = DIFFERENCES.iter().any(|(odd, own, of_kernel, _)| {
                    (Some(*odd), *own, Some(*of_kernel)) == (after, ours, kernel)
                });
                if !is_known {
                    let case = format!("{ours:?}, kernel {kernel:?}, {after:?}");
                    self.different.entry(case).or_default().push(said.join("\n  "));
                }
                return;
            }
        }
    }

    /// Prints the differences, and returns how many there are.
    fn count(&self) -> usize {
        for (case, all) in &self.different {
            println!("{case}: {} times, first\n  {}", all.len(), all[0]);
        }
        self.different.values().map(Vec::len).sum()
    }
}

#[test]
fn the_kernel_says_the_same_of_tcp_connections() {
    let Some(mut both) = Comparison::new() else { return };
    let mut random = Random(1);
    for n in 0..CONVERSATIONS {
        let of = Conversation::random(&mut random);
        let odd = (n % 2 == 1).then(|| {
            let at = random.below(of.segments.len() as u32) as usize;
            let (segment, odd) = odd(&mut random, &of, at);
            (at, segment, odd)
        });
        both.play((1024 + n) as u16, &of, odd);
    }
    assert_eq!(both.count(), 0, "of {CONVERSATIONS}");
}

#[test]
fn the_kernel_says_the_same_of_datagrams_queries_and_errors() {
    let Some(mut both) = Comparison::new() else { return };
    let mut random = Random(2);
    let mut last = [udp_frame(0, 1024, 1), udp_frame(1, 1024, 1)];
    for _ in 0..4 * CONVERSATIONS {
        let (from, port) =
            (random.below(2) as usize, 1024 + random.below(30_000) as u16 % (1 + random.below(300) as u16));
        let kind = random.below(4);
        let about = last[1 - from].clone();
        let mut frame = Vec::new();
        let (ours, kernel) = both.states(from, |identification| {
            frame = match kind {
                0 | 1 => udp_frame(from, port, identification),
                2 => {
                    let mut frame = between(from).echo(random.below(2) == 1, port, 1).to_vec().unwrap();
                    seal(&mut frame, identification);
                    frame
                }
                _ => error_about(&about, from, identification),
            };
            frame.clone()
        });
        if kernel != Some(ours) {
            let case = format!("{ours:?}, kernel {kernel:?} (kind {kind})");
            both.different.entry(case).or_default().push(format!("{frame:02x?}"));
        }
        if kind < 3 {
            last[from] = frame;
        }
    }
    assert_eq!(both.count(), 0);
}

fn udp_frame(from: usize, port: u16, identification: u16) -> Vec<u8> {
    let ports = if from == 0 { [port, 53] } else { [53, port] };
    let mut frame = between(from).udp(ports[0], ports[1]).payload(b"datagram").to_vec().unwrap();
    seal(&mut frame, identification);
    frame
}
