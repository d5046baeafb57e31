// SPDX-License-Identifier: Apache-2.0
use netvm_ids::{ChainId, QueueId, RoleId, RouterId, RuleId};
use netvm_wire::{ConnState, IpProto, VlanId};
use proptest::prelude::*;
use std::borrow::Cow;

use super::*;
use crate::arbitrary::rules;

struct Fixed;

impl Names for Fixed {
    fn port(&self, port: PortId) -> Cow<'_, str> {
        let known = ["client", "server"].get(port.index());
        known.map_or_else(|| format!("port{port}").into(), |name| (*name).into())
    }

    fn chain(&self, _: ChainId) -> Cow<'_, str> {
        "web".into()
    }

    fn router(&self, _: RouterId) -> Cow<'_, str> {
        "blue".into()
    }

    fn queue(&self, _: QueueId) -> Cow<'_, str> {
        "voice".into()
    }

    fn role(&self, _: RoleId) -> Cow<'_, str> {
        "firewall".into()
    }
}

fn nets(text: &str) -> Vec<IpNet> {
    text.split(' ').map(|net| net.parse().unwrap()).collect()
}

#[test]
fn matches_read_as_sentences() {
    let full = Match {
        from: vec![PortId(0)],
        protocol: vec![IpProto::TCP],
        source: nets("10.0.0.0/8"),
        destination: nets("10.1.0.0/16 10.2.0.1/32"),
        destination_ports: vec![PortRange::new(80, 443).unwrap(), PortRange::single(8080)],
        tcp_flags: Some(Masked::<u8>::new(2, 0x12)),
        ..Match::default()
    };
    let layer2 = Match {
        to: vec![PortId(1), PortId(2)],
        source_mac: vec![Masked::<u64>::new(0x0200_0000_0001, u64::MAX)],
        destination_mac: vec![Masked::<u64>::new(1 << 40, 1 << 40)],
        ether_type: vec![EtherType::ARP, EtherType(0x88cc)],
        vlan: vec![Span { first: 0, last: 5 }, Span::single(7)],
        inner_vlan: vec![Span::single(0)],
        arp_operation: vec![Span::single(1)],
        ..Match::default()
    };
    let rest = Match {
        source_ports: vec![PortRange::single(53)],
        dscp: vec![Span { first: 46, last: 47 }],
        icmp_type: vec![Span::single(8)],
        fragment: vec![Fragment::First, Fragment::Later],
        state: vec![ConnState::New],
        ..Match::default()
    };
    let cases = [
        (full, "from client tcp 10.0.0.0/8 > 10.1.0.0/16,10.2.0.1 :80-443,8080 syn,!ack"),
        (
            layer2,
            "to server,port2 mac 02:00:00:00:00:01 > 01:00:00:00:00:00/01:00:00:00:00:00 ether arp,0x88cc \
             vlan none-5,7 inner vlan none arp operation 1",
        ),
        (rest, "any :53 > any dscp 46-47 icmp type 8 first fragment,later fragment new"),
        (Match::default(), "any"),
    ];
    for (matches, text) in cases {
        assert_eq!(matches.named(&Fixed).to_string(), text);
    }
}

#[test]
fn rules_say_what_they_do() {
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let actions = Actions {
        terminal: Some(Action::Chain(ChainId(0))),
        set_vlan: VlanId::new(5).ok().map(SetVlan::Tag),
        queue: Some(QueueId(0)),
        mirror: Some(PortId(2)),
        police: Some(Police { packets: rate(1000, 10), bits: rate(8000, 80) }),
        syn_proxy: false,
    };
    let mut rule = Rule::from(RuleParts {
        id: RuleId(3),
        name: "to web".to_owned(),
        matches: Match::default(),
        actions,
    });
    let text = "to web: any → police 1000 packets/s burst 10 and 8000 bit/s burst 80, set vlan 5, \
                queue voice, mirror to port2, chain web";
    assert_eq!(rule.named(&Fixed).to_string(), text);
    rule.actions = Actions { set_vlan: Some(SetVlan::Strip), ..Actions::default() };
    rule.name.clear();
    assert_eq!(rule.named(&Fixed).to_string(), "any → strip vlan, continue");
    rule.actions = Actions { terminal: Some(Action::Port(PortId(1))), syn_proxy: true, ..Actions::default() };
    assert_eq!(rule.named(&Fixed).to_string(), "any → syn proxy, out of server");
    let load = LoadLimit { role: RoleId(0), bound: Bound::Above(60), until: 30, seconds: 1 };
    let times = ["Mon-Fri 08:00-18:00", "Sat UTC"].map(|text| text.parse().unwrap());
    rule.actions = Actions { terminal: Some(Action::Drop), ..Actions::default() };
    rule.set_when(When { times: times.to_vec(), load: Some(load) });
    let text = "any (Mon-Fri 08:00-18:00,Sat UTC, load of firewall above 60 %) → drop";
    assert_eq!(rule.named(&Fixed).to_string(), text);
    rule.set_when(When { times: Vec::new(), load: Some(LoadLimit { bound: Bound::Below(5), ..load }) });
    assert_eq!(rule.named(&Fixed).to_string(), "any (load of firewall below 5 %) → drop");
}

proptest! {
    /// The text covers every field.
    #[test]
    fn different_matches_read_differently(rules in rules(2)) {
        let [a, b] = [&rules[0].matches, &rules[1].matches];
        let text = |matches: &Match| matches.named(&Fixed).to_string();
        prop_assert!(a == b || text(a) != text(b));
    }
}
