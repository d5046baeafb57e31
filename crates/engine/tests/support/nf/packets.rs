// SPDX-License-Identifier: Apache-2.0
//! NFs that make, copy, hold and send packets: `make`, `copy`, `delay=PACKETS`, `keep`, `portless`, `old-layout`, and
//! one that lies about what it keeps: `grab`.

use std::collections::VecDeque;

use netlib::{Burst, NetworkFunction, Options, Outbox, OwnedPacket, Packet, Verdict};
use netvm_ring::{Descriptor, Message, VerdictKind};

use super::raw::{Attached, attach, attach_as};

const KINDS: [&str; 5] = ["make", "copy", "delay", "keep", "portless"];
/// Bytes of the packets that it makes.
pub const MADE: usize = 100;

struct Packets {
    kind: &'static str,
    /// Packets that it holds at a time.
    number: usize,
    queue: VecDeque<OwnedPacket>,
}

/// Runs the NF if `kind` names one of them; returns otherwise.
pub fn run_if_named(kind: &str) {
    match kind {
        "old-layout" => forward_with_old_layout(),
        "grab" => grab(),
        _ => {}
    }
    let (kind, number) = kind.split_once('=').unwrap_or((kind, "0"));
    let (Some(kind), Ok(number)) = (KINDS.into_iter().find(|known| *known == kind), number.parse()) else {
        return;
    };
    let result = netlib::run(&Options::new("packets"), |_| Packets { kind, number, queue: VecDeque::new() });
    std::process::exit(i32::from(result.is_err()));
}

impl Packets {
    fn handle(&mut self, packet: Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        match self.kind {
            // A longer one before each.
            "make" => {
                if let Some(mut made) = outbox.alloc_for(&packet, MADE) {
                    made.data_mut()[..packet.len()].copy_from_slice(packet.data());
                    made.data_mut()[MADE - 1] = 0xee;
                    outbox.send(made, Verdict::Next);
                }
                Verdict::Next
            }
            // A copy of each, and one that is forgotten.
            "copy" => {
                let copies = (outbox.clone_of(&packet), outbox.clone_of(&packet));
                copies.0.into_iter().for_each(|copy| outbox.send(copy, Verdict::Next));
                Verdict::Drop
            }
            "portless" => {
                if let Some(mut made) = outbox.alloc(packet.len()) {
                    made.data_mut().copy_from_slice(packet.data());
                    outbox.send(made, Verdict::Next);
                }
                Verdict::Next
            }
            // Each leaves when so many have come after it.
            _ => match outbox.hold(packet) {
                Ok(held) => {
                    self.queue.push_back(held);
                    while self.kind == "delay" && self.queue.len() > self.number {
                        self.queue.pop_front().into_iter().for_each(|held| outbox.send(held, Verdict::Next));
                    }
                    Verdict::Drop
                }
                Err(_) => Verdict::Next,
            },
        }
    }
}

impl NetworkFunction for Packets {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each_with(|packet, outbox| self.handle(packet, outbox));
    }

    fn finish(&mut self, outbox: &mut Outbox<'_>) {
        self.queue.drain(..).for_each(|held| outbox.send(held, Verdict::Next));
    }
}

/// An NF as it was built for the layout before: it has no rings of empty buffers.
fn forward_with_old_layout() -> ! {
    let Attached { mut rings, control, socket: _socket, .. } =
        attach_as(netvm_region::OLDEST_LAYOUT, "old-layout");
    assert!(control.ring_of_buffers(0, 0).is_none());
    loop {
        for (consumer, producer) in &mut rings {
            let mut burst = [Descriptor::default(); 50];
            let count = consumer.pop(&mut burst);
            let mut rest = &burst[..count];
            while !rest.is_empty() {
                rest = &rest[producer.push(rest)..];
            }
        }
    }
}

/// Holds whatever it gets, also beyond its quota, and then returns each twice and releases it twice.
fn grab() -> ! {
    let Attached { mut rings, control: _control, socket: _socket, .. } = attach("grab");
    loop {
        for (worker, (consumer, producer)) in (0u8..).zip(&mut rings) {
            let mut burst = [Descriptor::default(); 50];
            let count = consumer.pop(&mut burst);
            for descriptor in &burst[..count] {
                let release = Descriptor::control(Message::Release(descriptor.buffer()), worker);
                let all = [
                    Descriptor::control(Message::RequestBuffers(9), worker),
                    descriptor.with_verdict(VerdictKind::Hold, 0),
                    descriptor.with_verdict(VerdictKind::Hold, 0),
                    *descriptor,
                    *descriptor,
                    release,
                    release,
                ];
                let mut rest = &all[..];
                while !rest.is_empty() {
                    rest = &rest[producer.push(rest)..];
                }
            }
        }
    }
}
