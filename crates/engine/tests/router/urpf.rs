// SPDX-License-Identifier: Apache-2.0
//! Checks of sources by the way back (uRPF).

use std::collections::BTreeSet;

use super::plan::{self, *};
use crate::support::pcap::Scratch;
use netvm_model::Urpf;
use netvm_router::{NextHop, NextHopId};
use netvm_wire::{FrameBuilder, parse};

/// What a router does with a packet because of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Out,
    Kernel,
    Forged,
}

#[test]
fn sources_are_believed_by_the_way_back() {
    use Outcome::{Forged, Kernel, Out};
    let hop = |interface, mac| netvm_router::Hop { interface, mac };
    let mut update = routes();
    update.routes.retain(|(net, _)| !net.to_string().starts_with("10.0.0."));
    let ecmp = NextHop::Ecmp(Box::new([hop(1, GATEWAY), hop(0, HOST)]));
    update.next_hops.extend([
        (NextHopId(10), NextHop::Glean(0)),
        (NextHopId(11), NextHop::Glean(1)),
        (NextHopId(12), NextHop::Via(hop(0, HOST))),
        (NextHopId(13), ecmp),
    ]);
    let (local, kernel) = (NextHopId::LOCAL.0, NextHopId::KERNEL.0);
    update.routes.extend(
        [("10.0.0.0/24", 10), ("10.0.5.0/24", 11), ("10.0.0.9/32", 12), ("172.16.0.0/12", 13)]
            .into_iter()
            .chain([("10.0.0.1/32", local), ("203.0.113.0/24", kernel), ("2001:db8::/64", 10)])
            .map(|(net, id)| plan::route(net, id)),
    );
    // Source, and its outcome with strict and with loose checks.
    let cases = [
        ("10.0.0.9", Out, Out),
        ("10.0.0.77", Out, Out),
        ("10.0.5.7", Forged, Out),
        ("192.0.2.77", Forged, Out),
        ("172.16.0.1", Out, Out),
        ("198.51.100.1", Forged, Forged),
        ("10.0.0.1", Forged, Forged),
        ("203.0.113.9", Kernel, Out),
        ("100.64.0.1", Forged, Forged),
        ("2001:db8::9", Out, Out),
        ("2001:db8:1::77", Forged, Out),
        ("2001:db8:2::1", Forged, Forged),
    ];
    let frame = |source: &str, n: usize| {
        let to = if source.contains(':') { "2001:db8:1::2" } else { "192.0.2.2" };
        let frame = FrameBuilder::new(HOST, IN).ip(ip(source), ip(to)).ttl(64);
        frame.udp(n as u16, 1).payload(b"whence?").to_vec().unwrap()
    };
    let mut frames: Vec<Vec<u8>> = cases.iter().enumerate().map(|(n, case)| frame(case.0, n)).collect();
    // What is for the router itself is checked, too.
    let to_router = |source: &str| FrameBuilder::new(HOST, IN).ip(ip(source), ip("10.0.0.1")).ttl(64);
    frames.extend(["192.0.2.77", "10.0.0.9"].map(|source| to_router(source).udp(1, 1).to_vec().unwrap()));
    for (urpf, [of_forged, of_own]) in [
        (None, [Kernel, Kernel]),
        (Some(Urpf::Strict), [Forged, Kernel]),
        (Some(Urpf::Loose), [Kernel, Kernel]),
    ] {
        let expected = cases.iter().map(|(_, strict, loose)| match urpf {
            None => Out,
            Some(Urpf::Strict) => *strict,
            Some(Urpf::Loose) => *loose,
        });
        let expected: Vec<Outcome> = expected.chain([of_forged, of_own]).collect();
        let count = |outcome| expected.iter().filter(|one| **one == outcome).count();
        for inside in [0, 10] {
            let scratch = Scratch::new();
            let frames: Vec<Vec<u8>> = frames.iter().map(|frame| tagged(frame, inside)).collect();
            let mut host = host(&scratch, &frames, inside, 20);
            host.routers[0].interfaces[0].urpf = urpf;
            let seen = Played::of(&host, &update);
            let sources = |port| {
                let sent = scratch.sent(port);
                sent.iter()
                    .map(|frame| parse(frame).unwrap().key().source.to_string())
                    .collect::<BTreeSet<_>>()
            };
            let named = |outcome| {
                let all = cases.iter().zip(&expected).filter(|(_, one)| **one == outcome);
                all.map(|(case, _)| case.0.to_owned()).collect::<BTreeSet<_>>()
            };
            assert_eq!(sources(WAN), named(Out), "{urpf:?} {:?}", seen.drops);
            assert_eq!(scratch.sent(LAN_PUNT).len(), count(Kernel), "{urpf:?} {:?}", seen.drops);
            assert_eq!(seen.drops.get("urpf").copied().unwrap_or(0), count(Forged) as u64, "{urpf:?}");
        }
    }
}
