// SPDX-License-Identifier: Apache-2.0
//! Flows that stick to their replica: two of unequal speed get as many packets as they can handle, in order within each
//! flow.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::pcap::Scratch;
use crate::support::{Rig, line};
use netvm_engine::{Engine, InstanceId};
use netvm_model::{Balance, EngineConfig, Host, PortKind};
use netvm_wire::{FrameBuilder, MacAddr};

/// Microseconds that each replica sleeps for a packet, so that neither takes the other's core.
const FAST: u64 = 1_500;
const SLOW: u64 = 6_000;
/// Slots of a ring: it never fills up, because a full one would delay packets for the other replica, too.
const RING: u32 = 2048;
/// Flows, how many of them are under way at a time, and packets of each.
const FLOWS: u32 = 300;
const TOGETHER: u32 = 8;
const PACKETS: u32 = 24;

/// Packets of so many flows at a time in turn, each with its flow and its number in it. Flows begin one after the
/// other.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let apart = PACKETS / TOGETHER;
    for round in 0..FLOWS * apart + PACKETS {
        for flow in 0..FLOWS {
            if let Some(packet) = round.checked_sub(flow * apart).filter(|packet| *packet < PACKETS) {
                let payload = [flow.to_be_bytes(), packet.to_be_bytes()].concat();
                let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
                    .ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
                    .udp(1000 + flow as u16, 9)
                    .payload(&payload);
                frames.push(builder.to_vec().unwrap());
            }
        }
    }
    frames
}

/// The chain of these roles, of which the last has replicas that flows stick to.
fn host(scratch: &Scratch, roles: &[&str], frames: &[Vec<u8>]) -> Host {
    let mut host = line(roles, None, true);
    host.ports = vec![scratch.port(0, frames), scratch.port(1, &[])];
    host.nfs[roles.len() - 1].balance = Balance::Sticky;
    host
}

/// Whether all packets are there, and those of each flow in their order.
fn check_order(sent: &[Vec<u8>]) {
    assert_eq!(sent.len() as u32, FLOWS * PACKETS);
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for frame in sent {
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let (flow, packet) = (word(42), word(46));
        let expected = next.entry(flow).or_default();
        assert_eq!(packet, *expected, "flow {flow}");
        *expected += 1;
    }
}

fn returned(rig: &Rig, ids: [InstanceId; 2]) -> [u64; 2] {
    let instances = rig.engine.instances();
    ids.map(|id| instances.iter().find(|view| view.id == id).unwrap().threads[0].returned)
}

#[test]
fn replicas_of_unequal_speed_are_equally_full_and_no_flow_is_reordered() {
    let scratch = Scratch::new();
    let frames = frames();
    let engine = EngineConfig { ring_size: RING, ..EngineConfig::default() };
    let mut rig = Rig::new(&engine);
    let mut quiet = host(&scratch, &["a"], &frames);
    quiet.engine = engine.clone();
    quiet.ports.remove(0);
    quiet.rules.clear();
    rig.engine.apply(&quiet).unwrap();
    let ids = [FAST, SLOW].map(|sleep| rig.attach("a", &format!("sleep={sleep}"), false));
    let controls = ids.map(|id| rig.control_of(id));
    let rings = controls.each_ref().map(|control| control.ring_to_nf(0, 0));
    // A packet each millisecond, a little more than the two can do together.
    let mut playing = host(&scratch, &["a"], &frames);
    playing.engine = engine.clone();
    if let PortKind::Pcap { paced, .. } = &mut playing.ports[0].kind {
        *paced = true;
    }
    rig.engine.apply(&playing).unwrap();
    let (mut sums, mut samples) = ([0u64; 2], 0u64);
    let all = u64::from(FLOWS * PACKETS);
    let done = rig.until(Duration::from_secs(120), |engine| {
        let chain = &engine.chains()[0];
        let left = chain.left;
        // Once there is something in the rings, and while packets come in: afterwards they run empty at speeds of their
        // own.
        if left > 1000 && chain.entered < all - 64 {
            let held = rings.map(|ring| u64::from(ring.occupancy()));
            sums = [sums[0] + held[0], sums[1] + held[1]];
            samples += 1;
        }
        left == all
    });
    assert!(done, "{}", rig.describe());
    let shares = returned(&rig, ids);
    let means = sums.map(|sum| sum as f64 / samples.max(1) as f64);
    println!(
        "packets {shares:?} (fast, slow); mean occupancy {:.1} and {:.1} of {RING} in {samples} samples",
        means[0], means[1]
    );
    rig.engine.apply(&Host { engine, ..Host::default() }).unwrap();
    check_order(&scratch.sent(1));
    assert!(samples > 100 && shares[1] > 0 && shares[0] > shares[1], "{shares:?}, {samples} samples");
    assert!((means[0] - means[1]).abs() <= means[0].max(means[1]) / 10.0, "{means:?}");
}

#[test]
fn flows_stick_to_replicas_of_inner_hops_until_one_is_gone() {
    let scratch = Scratch::new();
    let frames = frames();
    let mut rig = Rig::new(&EngineConfig::default());
    let mut quiet = host(&scratch, &["a", "b"], &frames);
    quiet.ports.remove(0);
    quiet.rules.clear();
    rig.engine.apply(&quiet).unwrap();
    rig.attach("a", "sleep=0", false);
    let ids = [50, 200].map(|sleep| rig.attach("b", &format!("sleep={sleep}"), false));
    rig.engine.apply(&host(&scratch, &["a", "b"], &frames)).unwrap();
    let all = u64::from(FLOWS * PACKETS);
    assert!(
        rig.until(Duration::from_secs(120), |engine| engine.chains()[0].left == all),
        "{}",
        rig.describe()
    );
    let shares = returned(&rig, ids);
    // What stuck to one that is gone goes to the other. The captures of ports that are closed are whole.
    rig.kill(ids[0]);
    let again = Scratch::new();
    rig.engine.apply(&host(&again, &["a", "b"], &frames)).unwrap();
    check_order(&scratch.sent(1));
    assert!(shares.iter().all(|share| *share > all / 20), "{shares:?}");
    let left = |engine: &Engine| engine.chains()[0].left == 2 * all;
    assert!(rig.until(Duration::from_secs(120), left), "{}", rig.describe());
}
