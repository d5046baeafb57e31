// SPDX-License-Identifier: Apache-2.0
//! Random messages, registers and rings, beside a card whose traffic goes on. Each runs for a second, or for as many as
//! NETVM_TEST_SECONDS says.

use std::time::{Duration, Instant};

use netvm_e1000::Model;

use super::card::*;

const MODELS: [Model; 2] = [Model::I82540, Model::I82574];
/// The kinds of random steps.
type Step = fn(&mut Card, &mut Random);

/// Random numbers that a seed repeats (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as u32
    }

    fn below(&mut self, end: u32) -> u32 {
        self.next() % end
    }
}

fn time() -> Duration {
    let seconds = std::env::var("NETVM_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// A card that sends and receives, independently of the other one.
struct Neighbour {
    card: Card,
    packets: u32,
}

impl Neighbour {
    fn exchange(&mut self) {
        let packet = frame(MAC, 60);
        self.card.put(&packet).unwrap();
        assert_eq!(self.card.received().unwrap().0[..60], packet);
        self.card.send(&[&packet], 8, 0, 0);
        assert_eq!(self.card.transmit(1).0.len(), 1);
        self.packets += 1;
    }
}

/// Takes steps on one card after the other, with the worker's turns in between, and checks that a neighbour's traffic
/// goes on and that each card serves its next client.
fn disturb(step: Step) {
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut neighbour = Neighbour { card: Card::new(), packets: 0 };
    let (end, mut steps) = (Instant::now() + time(), 0);
    while Instant::now() < end {
        let mut card = Card::of(MODELS[steps as usize % MODELS.len()]);
        for _ in 0..200 {
            step(&mut card, &mut random);
            take_turn(&mut card);
            steps += 1;
        }
        neighbour.exchange();
        card.reconnect();
        card.start();
        card.put(&frame(MAC, 60)).unwrap();
        assert!(card.received().is_some(), "the card serves its next client");
    }
    println!("{steps} steps, {} exchanges of the neighbour", neighbour.packets);
    assert!(steps > 0 && neighbour.packets > 0);
}

/// A turn of the worker, if the driver uses the card.
fn take_turn(card: &mut Card) {
    let Some(mut turn) = card.queue.turn() else { return };
    turn.transmit(32, |sent| {
        let mut bytes = vec![0; sent.length];
        // SAFETY: the vector has as many bytes.
        Some(unsafe { sent.copy(std::iter::once((bytes.as_mut_ptr(), sent.length))) })
    });
    let packet = frame([255; 6], 1514);
    // SAFETY: the bytes of the vector.
    let _ = unsafe { turn.receive().put(netvm_e1000::Pieces(&[(packet.as_ptr(), packet.len())])) };
}

/// A value that is often small, or has few bits.
fn value(random: &mut Random) -> u32 {
    match random.below(4) {
        0 => random.below(64),
        1 => 1 << random.below(32),
        2 => FIRST as u32 + random.below(BYTES as u32),
        _ => random.next(),
    }
}

#[test]
fn random_registers() {
    disturb(|card, random| {
        let register = random.below(0x1800) * 4;
        if random.below(3) == 0 {
            card.client.get(register);
        } else {
            card.client.set(register, value(random));
        }
    });
}

#[test]
fn random_rings() {
    disturb(|card, random| {
        let ring = if random.below(2) == 0 { TX } else { RX };
        match random.below(4) {
            0 => card.client.set(ring + random.below(14) * 4, value(random)),
            // Descriptors, and where buffers are.
            1 | 2 => {
                let at = u64::from(random.below(0x2000 - 64));
                let bytes: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
                card.write(at, &bytes);
            }
            _ => card.client.set(ring + TAIL, random.below(2 * COUNT)),
        }
        if random.below(16) == 0 {
            card.start_rings();
        }
    });
}

#[test]
fn random_messages() {
    disturb(|card, random| {
        let length = random.below(80);
        let body: Vec<u8> = (0..length).map(|n| if n % 4 < 2 { random.next() as u8 } else { 0 }).collect();
        let command = random.below(16) as u16;
        // An error, or the end of the connection.
        if matches!(card.client.call(command, &body, None), Err(0)) {
            card.reconnect();
        }
    });
}
