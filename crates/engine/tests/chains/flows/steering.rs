// SPDX-License-Identifier: Apache-2.0
//! NFs that steer the rest of a flow: into another chain, to a role, out of a port, and back.

use netvm_engine::{DropReason, Engine, InstanceId};
use netvm_model::{ChainId, EngineConfig, Host, NfConfig, OnFailure, PortId, PortKind, RoleId, SteerTo};
use netvm_region::NfCounter;
use netvm_wire::{FrameBuilder, MacAddr};

use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, all_is_free, chain, group, nf, nothing_is_out, rule};

/// Packets of a flow after the one at which it is steered.
const LATER: u32 = 100;

/// A packet of a flow: its payload is a mark and a number.
fn frame(flow: u8, mark: u8, number: u32) -> Vec<u8> {
    let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let payload = [&[mark], &number.to_be_bytes()[..], &[0; 13]].concat();
    builder
        .ip([10, 0, 0, flow].into(), [10, 9, 9, 9].into())
        .udp(1000, 2000)
        .payload(&payload)
        .to_vec()
        .unwrap()
}

/// Flow 1 is steered at its fourth packet; flow 2 is not.
fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = (0..3).map(|n| frame(1, b'.', n)).collect();
    frames.push(frame(1, b'!', 3));
    for n in 4..4 + LATER {
        frames.push(frame(1, b'.', n));
        frames.push(frame(2, b'.', n));
    }
    frames
}

fn of_flow(frames: &[Vec<u8>], flow: u8) -> Vec<Vec<u8>> {
    let mut of: Vec<_> = frames.iter().filter(|frame| frame[29] == flow).cloned().collect();
    of.sort();
    of
}

fn may_steer(nf: &mut NfConfig, to: SteerTo) {
    nf.flow_verdicts = 60;
    nf.steer = vec![to];
}

/// Packets from port 0: chain 0 is `detector`, `after`, then port 1; chain 1 is `scrubber`, then port 2.
fn host(scratch: &Scratch, to: SteerTo) -> Host {
    let mut nfs = vec![nf(0, "detector", 0), nf(1, "after", 0), nf(2, "scrubber", 0)];
    may_steer(&mut nfs[0], to);
    Host {
        groups: vec![group(0, 4096, 2048)],
        ports: vec![scratch.port(0, &frames()), scratch.port(1, &[]), scratch.port(2, &[])],
        nfs,
        chains: vec![chain(0, &[0, 1], OnFailure::Drop, 1), chain(1, &[2], OnFailure::Drop, 2)],
        rules: vec![rule(0, 0)],
        ..Host::default()
    }
}

/// Plays the frames of port 0 through NFs, each a role and its kind.
fn play(host: &Host, nfs: &[(&str, &str)]) -> (Rig, Vec<InstanceId>) {
    let mut rig = Rig::new(&EngineConfig::default());
    let mut quiet = host.clone();
    if let PortKind::Pcap { input, .. } = &mut quiet.ports[0].kind {
        *input = None;
    }
    rig.engine.apply(&quiet).unwrap();
    let ids = nfs.iter().map(|(role, kind)| rig.attach(role, kind, false)).collect();
    rig.engine.apply(host).unwrap();
    finish(&mut rig);
    assert!(nothing_is_out(&rig.engine) && all_is_free(&rig.engine), "{}", rig.describe());
    (rig, ids)
}

fn received(engine: &Engine, id: InstanceId) -> u64 {
    let view = engine.instances().into_iter().find(|view| view.id == id).unwrap();
    view.threads[0].standard[NfCounter::Received as usize]
}

/// What the ports have sent when they are closed.
fn sent(mut rig: Rig, scratch: &Scratch) -> [Vec<Vec<u8>>; 2] {
    rig.engine.apply(&Host::default()).unwrap();
    [1, 2].map(|port| scratch.sent(port))
}

#[test]
fn of_a_flow_that_is_steered_into_a_chain_no_later_packet_takes_the_old_way() {
    let scratch = Scratch::new();
    let host = host(&scratch, SteerTo::Chain(ChainId(1)));
    let nfs = [("detector", "steer=chain:chain1"), ("after", "forward"), ("scrubber", "forward")];
    let (rig, ids) = play(&host, &nfs);
    let chains = rig.engine.chains();
    for chain in &chains {
        let dropped: u64 = chain.drops.iter().map(|(_, count)| count).sum();
        assert_eq!((chain.left, dropped), (chain.entered, 0), "{}", rig.describe());
    }
    assert_eq!(received(&rig.engine, ids[1]), u64::from(4 + LATER), "{}", rig.describe());
    assert_eq!(received(&rig.engine, ids[2]), u64::from(LATER), "{}", rig.describe());
    let all = frames();
    let [old, new] = sent(rig, &scratch);
    assert_eq!(
        of_flow(&old, 1),
        of_flow(&all[..4], 1),
        "the packets before, and the one at which it was steered"
    );
    assert_eq!(of_flow(&new, 1), of_flow(&all[4..], 1));
    assert_eq!((of_flow(&old, 2), of_flow(&new, 2)), (of_flow(&all, 2), Vec::new()));
}

#[test]
fn a_flow_is_steered_out_of_a_port() {
    let scratch = Scratch::new();
    let host = host(&scratch, SteerTo::Port(PortId(2)));
    let nfs = [("detector", "steer=port:p2"), ("after", "forward"), ("scrubber", "forward")];
    let (rig, ids) = play(&host, &nfs);
    assert_eq!(received(&rig.engine, ids[2]), 0, "{}", rig.describe());
    let all = frames();
    let [old, new] = sent(rig, &scratch);
    assert_eq!((of_flow(&old, 1), of_flow(&new, 1)), (of_flow(&all[..4], 1), of_flow(&all[4..], 1)));
    assert_eq!(of_flow(&old, 2), of_flow(&all, 2));
}

#[test]
fn a_flow_is_steered_to_a_role_beside_its_chain_and_to_a_later_hop() {
    for (to, kind, seen) in [(2, "steer=role:scrubber", LATER), (1, "steer=role:after", 0)] {
        let scratch = Scratch::new();
        let host = host(&scratch, SteerTo::Role(RoleId(to)));
        let (rig, ids) = play(&host, &[("detector", kind), ("after", "forward"), ("scrubber", "forward")]);
        let chain = &rig.engine.chains()[0];
        assert_eq!(chain.left, chain.entered, "{kind}: {}", rig.describe());
        // Behind the detector, the packets go on as before.
        assert_eq!(received(&rig.engine, ids[1]), u64::from(4 + 2 * LATER), "{kind}: {}", rig.describe());
        assert_eq!(received(&rig.engine, ids[2]), u64::from(seen), "{kind}: {}", rig.describe());
        let all = frames();
        let [old, new] = sent(rig, &scratch);
        assert_eq!((of_flow(&old, 1), new.len()), (of_flow(&all, 1), 0), "{kind}");
    }
}

#[test]
fn an_nf_that_gets_a_steered_flow_sends_it_back() {
    let scratch = Scratch::new();
    let mut host = host(&scratch, SteerTo::Chain(ChainId(1)));
    host.nfs[2].flow_verdicts = 60;
    // Of a second packet with a mark, which the scrubber gets.
    let mut all = frames();
    let place = all.len() - 60;
    all.insert(place, frame(1, b'!', 99_999));
    host.ports[0] = scratch.port(0, &all);
    // The packets come slowly, so that the rest arrives when the flow is back.
    if let PortKind::Pcap { paced, .. } = &mut host.ports[0].kind {
        *paced = true;
    }
    let nfs = [("detector", "steer=chain:chain1"), ("after", "forward"), ("scrubber", "steer=back")];
    let (rig, _) = play(&host, &nfs);
    let [old, new] = sent(rig, &scratch);
    let [first, last] = [&all[..place], &all[place + 1..]];
    let last = of_flow(last, 1);
    assert!(of_flow(&new, 1).contains(&all[place]), "the scrubber passes it on");
    let came_back: Vec<_> = of_flow(&old, 1).into_iter().filter(|frame| last.contains(frame)).collect();
    assert!(came_back.len() >= last.len() - 5, "{} of {}", came_back.len(), last.len());
    assert_eq!(of_flow(&old, 1).len() + of_flow(&new, 1).len(), of_flow(&all, 1).len());
    assert!(of_flow(first, 1).len() > 50);
}

/// What a test changes about an NF.
type Change = fn(&mut NfConfig);

#[test]
fn what_the_configuration_does_not_list_is_refused() {
    let all = frames();
    let cases: [(&str, Change); 3] = [
        ("steer=chain:chain1", |nf| nf.steer = vec![SteerTo::Port(PortId(2))]),
        ("steer=chain:chain1", |nf| nf.flow_verdicts = 0),
        ("steer=back", |nf| nf.flow_verdicts = 0),
    ];
    for (kind, change) in cases {
        let scratch = Scratch::new();
        let mut host = host(&scratch, SteerTo::Chain(ChainId(1)));
        change(&mut host.nfs[0]);
        let (rig, _) = play(&host, &[("detector", kind), ("after", "forward"), ("scrubber", "forward")]);
        let dropped = rig.engine.chains()[0].drops.clone();
        assert_eq!(dropped.to_vec(), [(DropReason::SteerDenied, 1)], "{kind}: {}", rig.describe());
        let [old, new] = sent(rig, &scratch);
        assert_eq!((of_flow(&old, 1).len(), new.len()), (of_flow(&all, 1).len() - 1, 0), "{kind}");
    }
}
