// SPDX-License-Identifier: Apache-2.0
//! SCTP beside the kernel.

use netvm_wire::ConnState;

use super::conversation::{Random, between, seal};
use super::{CONVERSATIONS, Comparison};
use crate::sctp::{
    ABORT, COOKIE_ACK, COOKIE_ECHO, Chunk, DATA, ERROR, HEARTBEAT, HEARTBEAT_ACK, INIT, INIT_ACK, REFLECTED,
    SACK, SHUTDOWN, SHUTDOWN_ACK, SHUTDOWN_COMPLETE, chunk, offer, sctp,
};

/// A packet of one end.
#[derive(Clone, Debug)]
struct Message {
    from: usize,
    tag: u32,
    chunks: Vec<Chunk>,
}

/// A packet that no end would send there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    OtherTag,
    OtherInit,
    OutOfOrder,
    WithoutTag,
    Bundle,
    Nothing,
}

/// On what this crate and the kernel do not agree, and why.
const DIFFERENCES: [(Odd, ConnState, ConnState, &str); 6] = [
    (
        Odd::OtherInit,
        ConnState::Established,
        ConnState::Invalid,
        "anybody can send INIT: here it changes the tags of an open association only with a COOKIE ECHO, in Linux at once",
    ),
    (
        Odd::OtherInit,
        ConnState::Invalid,
        ConnState::Established,
        "an INIT of the other end in the middle of a restart: the restart has to begin again",
    ),
    (
        Odd::Bundle,
        ConnState::Invalid,
        ConnState::Established,
        "the tags of a restart hold from its COOKIE ECHO on",
    ),
    (
        Odd::OutOfOrder,
        ConnState::Invalid,
        ConnState::Established,
        "the tags of a restart hold from its COOKIE ECHO on",
    ),
    (Odd::OutOfOrder, ConnState::Invalid, ConnState::New, "only INIT has tag 0 (RFC 9260 section 8.5.1)"),
    (Odd::WithoutTag, ConnState::Invalid, ConnState::New, "only INIT has tag 0 (RFC 9260 section 8.5.1)"),
];

/// The messages of associations between two ends, one after the other, and their tags in the end.
struct Conversation {
    messages: Vec<Message>,
    /// By direction.
    tags: [u32; 2],
}

impl Conversation {
    fn say(&mut self, from: usize, chunks: &[Chunk]) {
        self.messages.push(Message { from, tag: self.tags[from], chunks: chunks.to_vec() });
    }

    fn say_again(&mut self, random: &mut Random) {
        if random.below(6) == 0 {
            self.messages.extend(self.messages.last().cloned());
        }
    }

    /// The handshake, begun by an end with new tags.
    fn shake_hands(&mut self, random: &mut Random, first: usize) {
        let tags = [0; 2].map(|_: u32| 1 + random.below(u32::MAX - 1));
        let init = offer(INIT, tags[1 - first]);
        self.messages.push(Message { from: first, tag: 0, chunks: vec![init] });
        self.say_again(random);
        self.tags[1 - first] = tags[1 - first];
        self.say(1 - first, &[offer(INIT_ACK, tags[first])]);
        self.say_again(random);
        self.tags = tags;
        let rest = vec![chunk(DATA); random.below(2) as usize];
        self.say(first, &[&[chunk(COOKIE_ECHO)], &*rest].concat());
        self.say_again(random);
        self.say(1 - first, &[&[chunk(COOKIE_ACK)], &*rest].concat());
    }

    fn talk(&mut self, random: &mut Random) {
        for _ in 0..random.below(8) {
            let from = random.below(2) as usize;
            match random.below(4) {
                0 => self.say(from, &[chunk(SACK)]),
                1 => self.say(from, &[chunk(SACK), chunk(DATA)]),
                2 => self.say(from, &[chunk(DATA)]),
                _ => {
                    self.say(from, &[chunk(HEARTBEAT)]);
                    self.say(1 - from, &[chunk(HEARTBEAT_ACK)]);
                }
            }
            self.say_again(random);
        }
    }

    fn end(&mut self, random: &mut Random) {
        let from = random.below(2) as usize;
        match random.below(4) {
            0 => self.say(from, &[chunk(ABORT)]),
            1 => {
                let reflected = Chunk { flags: REFLECTED, ..chunk(ABORT) };
                self.messages.push(Message { from, tag: self.tags[1 - from], chunks: vec![reflected] });
            }
            _ => {
                self.say(from, &[chunk(SHUTDOWN)]);
                self.say_again(random);
                self.say(1 - from, &[chunk(SHUTDOWN_ACK)]);
                self.say(from, &[chunk(SHUTDOWN_COMPLETE)]);
                self.say_again(random);
            }
        }
    }

    fn random(random: &mut Random) -> Self {
        let mut it = Self { messages: Vec::new(), tags: [0; 2] };
        it.shake_hands(random, 0);
        it.talk(random);
        // An end restarts.
        if random.below(5) == 0 {
            it.shake_hands(random, 0);
            it.talk(random);
        }
        it.end(random);
        if random.below(3) == 0 {
            it.shake_hands(random, 0);
            it.talk(random);
        }
        it
    }

    /// Something odd before message number `at`.
    fn odd(&self, random: &mut Random, at: usize) -> (Message, Odd) {
        const KINDS: [u8; 13] = [
            DATA,
            INIT_ACK,
            SACK,
            HEARTBEAT,
            HEARTBEAT_ACK,
            ABORT,
            SHUTDOWN,
            SHUTDOWN_ACK,
            ERROR,
            COOKIE_ECHO,
            COOKIE_ACK,
            SHUTDOWN_COMPLETE,
            63,
        ];
        let from = random.below(2) as usize;
        let any = offer(KINDS[random.below(13) as usize], 1 + random.below(1000));
        let tag = self.messages[..at].iter().rev().find(|it| it.from == from).map_or(0, |it| it.tag);
        let with = |tag, chunks: &[Chunk]| Message { from, tag, chunks: chunks.to_vec() };
        match random.below(6) {
            0 => (with(1 + random.below(1000), &[any]), Odd::OtherTag),
            1 => (with(0, &[offer(INIT, 1 + random.below(1000))]), Odd::OtherInit),
            2 => (with(tag, &[any]), Odd::OutOfOrder),
            3 => (with(0, &[any]), Odd::WithoutTag),
            4 => (with(tag, &[chunk(DATA), any]), Odd::Bundle),
            _ => (with(tag, &[]), Odd::Nothing),
        }
    }
}

impl Comparison {
    /// Plays a conversation, with an odd message before number `odd.0`. Stops where the states differ.
    fn play_sctp(&mut self, port: u16, of: &Conversation, odd: Option<&(usize, Message, Odd)>) {
        let (mut said, mut after) = (Vec::new(), None);
        for (n, message) in of.messages.iter().enumerate() {
            let inserted = odd.iter().filter(|(at, ..)| *at == n);
            let inserted = inserted.map(|(_, message, odd)| (message, Some(*odd)));
            for (message, odd) in inserted.chain([(message, None)]) {
                after = odd.or(after);
                let Message { from, tag, chunks } = message;
                let ports = if *from == 0 { [port, 36412] } else { [36412, port] };
                let (ours, kernel) = self.states(*from, |identification| {
                    let mut frame = sctp(between(*from), ports, *tag, chunks);
                    seal(&mut frame, identification);
                    frame
                });
                said.push(format!("{message:x?} {odd:?}: {ours:?}, kernel {kernel:?}"));
                if kernel == Some(ours) {
                    continue;
                }
                let is_known = DIFFERENCES.iter().any(|(odd, own, of_kernel, _)| {
                    (Some(*odd), *own, Some(*of_kernel)) == (after, ours, kernel)
                });
                if !is_known {
                    let kind = message.chunks.first().map(|chunk| chunk.kind);
                    let case = format!("{ours:?}, kernel {kernel:?}, after {after:?}: kind {kind:?}");
                    self.different.entry(case).or_default().push(said.join("\n  "));
                }
                return;
            }
        }
    }
}

#[test]
fn the_kernel_says_the_same_of_sctp_associations() {
    let Some(mut both) = Comparison::new() else { return };
    let mut random = Random(3);
    for n in 0..CONVERSATIONS {
        let of = Conversation::random(&mut random);
        let odd = (n % 2 == 1).then(|| {
            let at = random.below(of.messages.len() as u32) as usize;
            let (message, odd) = of.odd(&mut random, at);
            (at, message, odd)
        });
        both.play_sctp((1024 + n) as u16, &of, odd.as_ref());
    }
    assert_eq!(both.count(), 0, "of {CONVERSATIONS}");
}
