// SPDX-License-Identifier: Apache-2.0
//! A loop of links: what it floods is limited, and reported.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use netvm_engine::{DropReason, Notice, StormClass, SwitchingEvent};
use netvm_model::{EngineConfig, Forward, Host, PortId, PortKind, StormLimits};
use netvm_wire::{FrameBuilder, MacAddr};

use crate::support::pcap::{Scratch, start};
use crate::support::{Rig, port};

const LIMIT: u32 = 10_000;
/// Each of them is flooded four times by each end: half of them exceed the limit, so that one second sees a loop even
/// if the next one begins among them.
const BROADCASTS: u16 = 8000;

/// Broadcasts enter at port 0. Ports 1 and 2 are the two ends of one patch, and both are ports of the switch: each end
/// floods again what the other one sent, until it is found out that the packet is in a loop.
#[test]
fn a_loop_of_patch_ports_is_limited_and_reported() {
    let scratch = Scratch::new();
    let addresses = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let sender = MacAddr([2, 0, 0, 0, 0, 1]);
    let broadcast = |n: u16| {
        let frame = FrameBuilder::new(sender, MacAddr::BROADCAST).ip(addresses.0, addresses.1);
        frame.udp(1, 2).payload(&n.to_be_bytes()).to_vec().unwrap()
    };
    let broadcasts: Vec<_> = (0..BROADCASTS).map(broadcast).collect();
    let patch = |id, peer| port(id, &format!("patch{id}"), PortKind::Patch { peer: PortId(peer) });
    let entry = scratch.port(0, &broadcasts);
    let mut host = Host { ports: vec![entry, patch(1, 2), patch(2, 1)], ..Host::default() };
    for port in &mut host.ports {
        port.policy.forward = Forward::Normal;
        port.policy.storm_control = StormLimits { broadcast: LIMIT, ..StormLimits::default() };
    }
    let mut rig = Rig::new(&EngineConfig::default());
    let began = Instant::now();
    start(&mut rig, &host, &[]);
    let mut wanted = BTreeSet::from(["storm", "flapping"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !wanted.is_empty() && Instant::now() < deadline {
        rig.until(Duration::from_millis(50), |_| false);
        for notice in rig.notices.drain(..) {
            let Notice::Switching { port: PortId(1 | 2), event } = notice else { continue };
            match event {
                SwitchingEvent::Storm { class: StormClass::Broadcast, dropped: 1.. } => {
                    wanted.remove("storm")
                }
                SwitchingEvent::Flapping { last, .. } if last.mac == sender => wanted.remove("flapping"),
                // The address came to the patch from port 0, before it moves to and fro.
                SwitchingEvent::Moved(last) if last.mac == sender => false,
                other => panic!("{other:?}"),
            };
        }
    }
    assert!(wanted.is_empty(), "not reported: {wanted:?}\n{}", rig.describe());
    let seconds = began.elapsed().as_secs() + 2;
    let views = rig.engine.ports();
    for reason in [DropReason::StormControl, DropReason::ForwardingLoop] {
        assert!(views[1].drops.iter().any(|(known, _)| *known == reason), "{:?}", views[1].drops);
    }
    assert_eq!(views[1].switching.storms, [StormClass::Broadcast]);
    assert!(views[1].switching.flapping.is_some() || views[2].switching.flapping.is_some());
    // Each end floods at most its limit to port 0 a second.
    assert!(views[0].tx_packets <= 2 * u64::from(LIMIT) * seconds, "{} in {seconds} s", views[0].tx_packets);
}
