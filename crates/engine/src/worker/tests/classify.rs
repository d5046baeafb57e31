// SPDX-License-Identifier: Apache-2.0
//! Every path that classifies a burst finds the action that the reference, [`PerFlow`], finds.

use std::net::IpAddr;

use netvm_model::Host;
use netvm_wire::{FrameBuilder, IpProto, TcpFlags, VlanId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::rig::{Rig, bytes_of, mac, mbuf_of};
use crate::ids::PortId;
use crate::worker::classify::classifier::{Classified, Classifier, Classify};
use crate::worker::classify::scope::Scope;
use crate::worker::classify::{classify, per_flow::PerFlow};
use crate::worker::state::burst::Burst;
use crate::worker::state::lookup_results::PacketAction;

const RULES: [&str; 9] = [
    r#"match = { protocol = "tcp", destination_ports = 23 }
       drop = true"#,
    r#"match = { protocol = "udp", destination_ports = ["50-60", 1003] }
       out = "p2""#,
    r#"match = { source = "10.0.0.8/30" }
       drop = true"#,
    r#"match = { source = "2001:db8::/64" }
       out = "p1""#,
    r#"match = { vlan = 10 }
       drop = true"#,
    r#"match = { ether_type = "arp" }
       normal = true"#,
    r#"match = { source_mac = "02:00:00:00:00:01" }
       count = true"#,
    r#"match = { fragment = "later" }
       drop = true"#,
    r#"match = { dscp = "ef" }
       normal = true"#,
];

const PORTS: [&str; 4] = [
    "forward = { normal = true }",
    "forward = { out = \"p1\" }",
    "forward = { normal = true }\nguard = { addresses = [\"10.0.0.0/30\", \"2001:db8::/64\"] }",
    "forward = { normal = true }\nacl_in = \"deny\"",
];

fn host(port: &str, rules: &[&str]) -> Host {
    let normal = "forward = { normal = true }";
    super::rig::rules(&[port, normal, normal], rules)
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ports = (1000..1006u16, prop::sample::select(vec![23u16, 53, 80, 1003]));
    (0..3u8, 0..8u8, 0..10u8, 0..12u8, ports, 0..12u8).prop_map(|(source, to, host, kind, ports, damage)| {
        let ip = |text: String| text.parse::<IpAddr>().unwrap();
        let frame = FrameBuilder::new(mac(source), mac(to));
        let frame = frame.ip(ip(format!("10.0.0.{host}")), ip("10.0.1.1".into()));
        let frame = match kind {
            0 => frame.ip(ip(format!("2001:db8::{host}")), ip("2001:db8:1::1".into())).udp(ports.0, ports.1),
            1 => frame.vlan(VlanId::new(10).unwrap()).udp(ports.0, ports.1),
            2 => frame.arp_request([10, 0, 0, host].into(), [10, 0, 1, 1].into()),
            3 => frame.fragment(7, 8, true).protocol(IpProto::UDP),
            4 => frame.dscp(46).udp(ports.0, ports.1),
            5..9 => frame.tcp(ports.0, ports.1, TcpFlags::ACK),
            _ => frame.udp(ports.0, ports.1),
        };
        let mut bytes = frame.payload(b"sixteen bytes...").to_vec().unwrap();
        match damage {
            // A header longer than the packet.
            0 if kind > 4 => bytes[14] = 0x4f,
            1 if kind > 4 => bytes.truncate(30),
            _ => {}
        }
        bytes
    })
}

/// Classifies a burst. Returns the packets that were not dropped as malformed, each with its action.
fn actions(rig: &mut Rig, frames: &[Vec<u8>], reference: bool) -> Vec<(Vec<u8>, PacketAction)> {
    let mut burst = Burst::new();
    for frame in frames {
        burst.batch.add(mbuf_of(&rig.memory, frame));
    }
    let snapshot = &*rig.worker.snapshot;
    let policy = snapshot.policy.ingress(PortId(0)).unwrap();
    let scope = Scope::ingress(snapshot, PortId(0), policy);
    let mut classifier = Classifier::of(&mut rig.worker.dp);
    let classified = if reference {
        PerFlow.classify(&mut classifier, &scope, &mut burst)
    } else {
        classify(&mut classifier, &scope, &mut burst)
    };
    let action = |n| match classified {
        Classified::Uniform(group) => group.action,
        Classified::Each => burst.results.action(n),
    };
    let bytes = burst.batch.as_slice().iter().map(bytes_of);
    bytes.enumerate().map(|(n, bytes)| (bytes, action(n))).collect()
}

/// Tells the switch where addresses 0 to 5 are, so that what a burst learns first makes no difference.
fn teach(rig: &Rig) {
    let Some(switching) = &rig.worker.snapshot.policy.switching else { return };
    for (last, port) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2)] {
        for tag in [None, Some(10)] {
            if let Some(Ok(vlan)) = switching.bridge.ingress(port, tag) {
                let _ = switching.fdb.learn(vlan, mac(last), port, rig.worker.dp.clock.tick);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_path_agrees_with_the_reference(
        (port, rules) in (prop::sample::select(PORTS.to_vec()), subsequence(RULES.to_vec(), 0..=RULES.len())),
        bursts in vec(vec(frame(), 1..64), 1..6),
    ) {
        let host = host(port, &rules);
        let mut rigs = [Rig::of(&host), Rig::of(&host)];
        rigs.iter().for_each(teach);
        let reads_headers = rigs[0].worker.snapshot.policy.ingress(PortId(0)).unwrap().switched.is_none();
        for burst in &bursts {
            let expected = actions(&mut rigs[0], burst, true);
            let mut found = actions(&mut rigs[1], burst, false);
            if !reads_headers {
                // Ports that only switch do not read IP headers, so malformed ones pass there.
                found.retain(|(bytes, _)| expected.iter().any(|(other, _)| other == bytes));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
