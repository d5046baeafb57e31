// SPDX-License-Identifier: Apache-2.0
//! Frames for tests of NFs: well-formed frames of every kind, captured ones and hostile ones.

#![allow(clippy::panic, reason = "for tests")]

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use netlib::sim::{Outcome, Simulator};
use netlib::{NetworkFunction, PortId};
use netvm_wire::{EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId};
use proptest::prelude::*;

/// MAC address of the frames' sender.
pub const ALICE: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0a]);
/// MAC address of the frames' receiver.
pub const BOB: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0b]);

/// How long a test waits for a condition, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until a condition holds, such as that a program has read its file again.
///
/// # Panics
/// It does not hold for a long time.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A frame between two endpoints `ADDRESS:PORT` (`[ADDRESS]:PORT` for IPv6): TCP with `payload`.
///
/// # Panics
/// If an endpoint is malformed or the families differ.
#[must_use]
pub fn tcp(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to) = endpoints(source, destination);
    built(&base(source, destination).tcp(from, to, TcpFlags::ACK).payload(payload))
}

/// As [`tcp`], UDP.
///
/// # Panics
/// As [`tcp`].
#[must_use]
pub fn udp(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to) = endpoints(source, destination);
    built(&base(source, destination).udp(from, to).payload(payload))
}

/// As [`tcp`], an echo request; ports are not used.
///
/// # Panics
/// As [`tcp`].
#[must_use]
pub fn echo(source: &str, destination: &str) -> Vec<u8> {
    built(&base(source, destination).echo(false, 7, 1))
}

/// The VLAN with this number.
///
/// # Panics
/// If the number is invalid.
#[must_use]
pub fn vlan(id: u16) -> VlanId {
    VlanId::new(id).unwrap_or_else(|error| panic!("{error}"))
}

/// The builder's frame.
///
/// # Panics
/// If the builder is inconsistent.
#[must_use]
pub fn built(builder: &FrameBuilder<'_>) -> Vec<u8> {
    match builder.to_vec() {
        Ok(frame) => frame,
        Err(error) => panic!("{error}"),
    }
}

/// A builder with MAC and IP addresses.
///
/// # Panics
/// As [`tcp`].
pub fn base<'a>(source: &str, destination: &str) -> FrameBuilder<'a> {
    FrameBuilder::new(ALICE, BOB).ip(endpoint(source).ip(), endpoint(destination).ip())
}

fn endpoints(source: &str, destination: &str) -> (u16, u16) {
    (endpoint(source).port(), endpoint(destination).port())
}

fn endpoint(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is not ADDRESS:PORT"))
}

/// Frames of every kind that the sample NFs distinguish.
///
/// # Panics
/// If a frame cannot be built, which is a bug of this function.
#[must_use]
pub fn every_kind() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (a, b) in [("10.0.0.1:1000", "10.0.1.2:80"), ("[fd00::1]:1000", "[fd00:1::2]:80")] {
        frames.push(tcp(a, b, b"GET / HTTP/1.1\r\n"));
        frames.push(udp(a, b, b"question"));
        frames.push(echo(a, b));
        let plain = || base(a, b).tcp(5, 6, TcpFlags::SYN);
        frames.push(built(&plain().ttl(1)));
        frames.push(built(&plain().vlan(vlan(7))));
        frames.push(built(&plain().service_vlan(vlan(9)).vlan(vlan(7))));
        frames.push(built(&base(a, b).udp(5, 6).payload(&[0; 64]).fragment(9, 0, true)));
        frames.push(built(&base(a, b).udp(5, 6).payload(&[0; 64]).fragment(9, 64, false)));
        frames.push(built(&base(a, b).protocol(IpProto(47)).payload(&[0; 20])));
        frames.push(built(&base(a, b).udp(5, 6).payload(&[1; 8_000])));
    }
    let arp = || FrameBuilder::new(ALICE, MacAddr::BROADCAST);
    let (a, b) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    frames.push(built(&arp().arp_request(a, b)));
    frames.push(built(&arp().vlan(vlan(7)).arp_request(a, b)));
    frames.push(built(&arp().arp_reply(a, b)));
    frames.push(built(&arp().ether_type(EtherType(0x88cc)).payload(&[2; 50])));
    frames
}

/// Some frames of each generated capture, as long as the simulator takes them.
#[must_use]
pub fn captured() -> &'static [Vec<u8>] {
    static FRAMES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FRAMES.get_or_init(|| {
        let mut frames = netvm_workload::captures::some_frames(40);
        frames.iter_mut().for_each(|frame| frame.truncate(netlib::sim::MAX_PACKET));
        frames
    })
}

/// Bursts of hostile frames: random bytes, and frames with bytes changed, cut or added.
pub fn hostile() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let mut frames = every_kind();
    frames.extend_from_slice(captured());
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let mutated = (
        prop::sample::select(frames),
        prop::collection::vec(change, 0..6),
        prop_oneof![2 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
        prop::collection::vec(any::<u8>(), 0..8),
    );
    let mutated = mutated.prop_map(|(mut frame, changes, cut, more)| {
        for (at, to) in changes {
            // Mutate mostly the headers, which decide.
            let headers = frame.len().min(80);
            if headers > 0 {
                frame[at.index(headers)] = to;
            }
        }
        if let Some(cut) = cut {
            frame.truncate(cut.index(frame.len() + 1));
        }
        frame.extend(more);
        frame
    });
    let random = prop::collection::vec(any::<u8>(), 0..200);
    prop::collection::vec(prop_oneof![4 => mutated, 1 => random], 1..40)
}

/// Passes the frames to the NF, from two ports in turn, and checks that each gets one verdict and stays in its buffer.
///
/// # Panics
/// If the NF panics or a check fails.
pub fn survives(
    simulator: &mut Simulator,
    nf: &mut impl NetworkFunction,
    frames: &[Vec<u8>],
) -> Vec<Outcome> {
    let list: Vec<_> = frames
        .iter()
        .zip([PortId(0), PortId(1)].into_iter().cycle())
        .map(|(f, p)| (p, f.as_slice()))
        .collect();
    let outcomes = simulator.inject_all(nf, &list);
    assert_eq!(outcomes.len(), frames.len(), "one verdict for each packet");
    for (outcome, frame) in outcomes.iter().zip(frames) {
        // No sample NF adds more than some tags or headers.
        assert!(outcome.bytes.len().abs_diff(frame.len()) <= 128, "{frame:02x?} became {outcome:02x?}");
    }
    nf.tick();
    nf.report(&mut [0; netlib::MAX_COUNTERS]);
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_kind_are_well_formed() {
        for frame in every_kind() {
            assert!(netvm_wire::parse(&frame).is_ok(), "{frame:02x?}");
        }
    }

    #[test]
    fn captured_frames_are_well_formed_and_malformed() {
        let malformed = captured().iter().filter(|frame| netvm_wire::parse(frame).is_err()).count();
        assert!((20..captured().len() / 2).contains(&malformed), "{malformed} of {}", captured().len());
    }
}
