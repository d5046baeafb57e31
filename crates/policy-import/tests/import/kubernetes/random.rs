// SPDX-License-Identifier: Apache-2.0
//! Random policies and packets, and what the API's documentation says of them.

use std::net::IpAddr;

use netvm_policy_import::Effect;
use netvm_policy_import::kubernetes::parse;
use netvm_wire::{IpNet, IpProto};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::{PODS, Packet, rules, rules_pass};

/// Namespaces and their labels, without the one that all have.
const NAMESPACES: [(&str, &[(&str, &str)]); 2] = [("shop", &[("team", "a")]), ("bank", &[("team", "b")])];
const NAME: &str = "kubernetes.io/metadata.name";

/// A label selector: pairs, and expressions of key, operator and values.
#[derive(Clone, Debug, Default)]
struct Selector {
    labels: Vec<(&'static str, &'static str)>,
    expressions: Vec<(&'static str, &'static str, Vec<&'static str>)>,
}

impl Selector {
    /// As the API's documentation defines it.
    fn fits(&self, labels: &[(&str, &str)]) -> bool {
        let of = |key: &str| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        self.labels.iter().all(|(key, value)| of(key) == Some(*value))
            && self.expressions.iter().all(|(key, operator, values)| match *operator {
                "In" => of(key).is_some_and(|value| values.contains(&value)),
                "NotIn" => of(key).is_none_or(|value| !values.contains(&value)),
                "Exists" => of(key).is_some(),
                _ => of(key).is_none(),
            })
    }

    fn json(&self) -> Value {
        let labels: serde_json::Map<String, Value> =
            self.labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let expression = |(key, operator, values): &(&str, &str, Vec<&str>)| match values.is_empty() {
            true => json!({ "key": key, "operator": operator }),
            false => json!({ "key": key, "operator": operator, "values": values }),
        };
        let expressions: Vec<Value> = self.expressions.iter().map(expression).collect();
        json!({ "matchLabels": labels, "matchExpressions": expressions })
    }
}

#[derive(Clone, Debug)]
enum Peer {
    Pods(Option<Selector>, Option<Selector>),
    Block(IpNet, Vec<IpNet>),
}

#[derive(Clone, Debug)]
struct Port {
    protocol: Option<&'static str>,
    port: Option<(u16, Option<u16>)>,
}

#[derive(Clone, Debug)]
struct Allowed {
    peers: Vec<Peer>,
    ports: Vec<Port>,
}

#[derive(Clone, Debug)]
struct Policy {
    namespace: &'static str,
    pods: Selector,
    types: Vec<&'static str>,
    ingress: Option<Vec<Allowed>>,
    egress: Option<Vec<Allowed>>,
}

impl Policy {
    fn selects(&self, pod: usize) -> bool {
        PODS.get(pod)
            .is_some_and(|(namespace, labels)| *namespace == self.namespace && self.pods.fits(labels))
    }

    fn has_type(&self, kind: &str) -> bool {
        match self.types.is_empty() {
            false => self.types.contains(&kind),
            true => kind == "Ingress" || self.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
        }
    }

    fn json(&self) -> Value {
        let mut spec = json!({ "podSelector": self.pods.json() });
        if !self.types.is_empty() {
            spec["policyTypes"] = json!(self.types);
        }
        for (key, peers, rules) in [("ingress", "from", &self.ingress), ("egress", "to", &self.egress)] {
            let Some(rules) = rules else { continue };
            let rule = |rule: &Allowed| {
                let mut value = json!({});
                if !rule.peers.is_empty() {
                    value[peers] = rule.peers.iter().map(Peer::json).collect();
                }
                if !rule.ports.is_empty() {
                    value["ports"] = rule.ports.iter().map(Port::json).collect();
                }
                value
            };
            spec[key] = rules.iter().map(rule).collect();
        }
        let metadata = json!({ "name": "p", "namespace": self.namespace });
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec })
    }
}

impl Peer {
    fn is(&self, policy: &Policy, pod: usize, address: IpAddr) -> bool {
        match self {
            Self::Block(net, except) => {
                net.contains(address) && !except.iter().any(|except| except.contains(address))
            }
            Self::Pods(pods, spaces) => PODS.get(pod).is_some_and(|(namespace, labels)| {
                let of_space = NAMESPACES.iter().find(|(name, _)| name == namespace).unwrap().1;
                let of_space = [of_space, &[(NAME, *namespace)]].concat();
                pods.as_ref().is_none_or(|pods| pods.fits(labels))
                    && match spaces {
                        None => *namespace == policy.namespace,
                        Some(spaces) => spaces.fits(&of_space),
                    }
            }),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Block(net, except) => {
                let except: Vec<String> = except.iter().map(ToString::to_string).collect();
                json!({ "ipBlock": { "cidr": net.to_string(), "except": except } })
            }
            Self::Pods(pods, spaces) => {
                let mut value = json!({});
                for (key, selector) in [("podSelector", pods), ("namespaceSelector", spaces)] {
                    if let Some(selector) = selector {
                        value[key] = selector.json();
                    }
                }
                value
            }
        }
    }
}

impl Port {
    fn fits(&self, packet: &Packet) -> bool {
        let protocol = match self.protocol.unwrap_or("TCP") {
            "TCP" => IpProto::TCP,
            "UDP" => IpProto::UDP,
            _ => IpProto::SCTP,
        };
        protocol == packet.protocol
            && self.port.is_none_or(|(port, end)| (port..=end.unwrap_or(port)).contains(&packet.port))
    }

    fn json(&self) -> Value {
        let mut value = json!({});
        if let Some(protocol) = self.protocol {
            value["protocol"] = json!(protocol);
        }
        if let Some((port, end)) = self.port {
            value["port"] = json!(port);
            if let Some(end) = end {
                value["endPort"] = json!(end);
            }
        }
        value
    }
}

/// Whether a packet may begin a connection, as the API's documentation says.
fn passes(policies: &[Policy], packet: &Packet) -> bool {
    let allows = |pod: usize, kind: &str, other: usize, address: IpAddr| {
        let mut selecting =
            policies.iter().filter(|policy| policy.selects(pod) && policy.has_type(kind)).peekable();
        selecting.peek().is_none()
            || selecting.any(|policy| {
                let rules = if kind == "Ingress" { &policy.ingress } else { &policy.egress };
                rules.iter().flatten().any(|rule| {
                    (rule.peers.is_empty() || rule.peers.iter().any(|peer| peer.is(policy, other, address)))
                        && (rule.ports.is_empty() || rule.ports.iter().any(|port| port.fits(packet)))
                })
            })
    };
    allows(packet.from, "Egress", packet.to, packet.address(packet.destination))
        && allows(packet.to, "Ingress", packet.from, packet.address(packet.source))
}

fn selector(of_namespaces: bool) -> impl Strategy<Value = Selector> {
    let pairs: Vec<(&str, &str)> = match of_namespaces {
        true => vec![("team", "a"), ("team", "b"), (NAME, "shop"), (NAME, "bank")],
        false => vec![("app", "web"), ("app", "db"), ("tier", "front")],
    };
    let operators = select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    let expression =
        (select(pairs.clone()), operators, select(pairs.clone())).prop_map(|(pair, operator, other)| {
            let values = match operator {
                "In" | "NotIn" if other.0 == pair.0 => vec![pair.1, other.1],
                "In" | "NotIn" => vec![pair.1],
                _ => vec![],
            };
            (pair.0, operator, values)
        });
    let labels = prop::collection::vec(select(pairs), 0..2);
    (labels, prop::collection::vec(expression, 0..3))
        .prop_map(|(labels, expressions)| Selector { labels, expressions })
}

fn net() -> impl Strategy<Value = (IpNet, Vec<IpNet>)> {
    let parsed = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
    select(vec![
        (parsed(&["10.0.0.0/29"]), parsed(&["10.0.0.2/31", "10.0.0.5/32"])),
        (parsed(&["0.0.0.0/0"]), parsed(&["10.0.0.0/30"])),
        (parsed(&["10.0.0.4/32"]), parsed(&["10.0.0.4/32"])),
        (parsed(&["::/0"]), parsed(&["fd00::2/127"])),
        (parsed(&["fd00::4/126"]), vec![]),
    ])
    .prop_map(|(net, except)| (net[0], except))
}

fn allowed() -> impl Strategy<Value = Allowed> {
    let pods = (prop::option::of(selector(false)), prop::option::of(selector(true)));
    let peer = prop_oneof![
        pods.prop_filter("one of them", |(pods, spaces)| pods.is_some() || spaces.is_some())
            .prop_map(|(pods, spaces)| Peer::Pods(pods, spaces)),
        net().prop_map(|(net, except)| Peer::Block(net, except)),
    ];
    let protocol = prop::option::of(select(vec!["TCP", "UDP", "SCTP"]));
    let port =
        (protocol, prop::option::of((1u16..4, prop::option::of(0u16..3)))).prop_map(|(protocol, port)| {
            Port { protocol, port: port.map(|(port, more)| (port, more.map(|more| port + more))) }
        });
    (prop::collection::vec(peer, 0..3), prop::collection::vec(port, 0..3))
        .prop_map(|(peers, ports)| Allowed { peers, ports })
}

fn policy() -> impl Strategy<Value = Policy> {
    let rules = || prop::option::of(prop::collection::vec(allowed(), 0..3));
    let types = select(vec![vec![], vec!["Ingress"], vec!["Egress"], vec!["Ingress", "Egress"]]);
    (select(vec!["shop", "bank"]), selector(false), types, rules(), rules()).prop_map(
        |(namespace, pods, types, ingress, egress)| Policy { namespace, pods, types, ingress, egress },
    )
}

fn packet() -> impl Strategy<Value = Packet> {
    let protocols = select(vec![IpProto::TCP, IpProto::UDP, IpProto::SCTP, IpProto::ICMP]);
    let ends = (0..=PODS.len(), 0..=PODS.len(), 0u8..8, 0u8..8);
    (ends, any::<bool>(), protocols, 1u16..6).prop_map(
        |((from, to, source, destination), is_v6, protocol, port)| Packet {
            from,
            to,
            source,
            destination,
            is_v6,
            protocol,
            port,
        },
    )
}

#[test]
fn rules_pass_what_the_documentation_says() {
    let policies = prop::collection::vec(policy(), 1..4);
    let case = (policies, prop::collection::vec(packet(), 60));
    let (mut dropped, mut allowed) = (0u32, 0u32);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let counted = std::cell::RefCell::new((&mut dropped, &mut allowed));
    TestRunner::new(config)
        .run(&case, |(policies, packets)| {
            let namespace = |(name, labels): &(&str, &[(&str, &str)])| {
                let pairs = [*labels, &[(NAME, *name)]].concat();
                let labels: serde_json::Map<String, Value> =
                    pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
            };
            let items: Vec<Value> =
                policies.iter().map(Policy::json).chain(NAMESPACES.iter().map(namespace)).collect();
            let text = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
            let imported = parse(&text).unwrap();
            prop_assert_eq!(imported.effect(), Effect::Same, "{:?}", imported.notes);
            let rules = rules(&imported);
            for packet in &packets {
                let passes = passes(&policies, packet);
                let mut counted = counted.borrow_mut();
                *(if passes { &mut *counted.1 } else { &mut *counted.0 }) += 1;
                prop_assert_eq!(rules_pass(&rules, packet), passes, "{:?}\n{}\n{:#?}", packet, text, rules);
            }
            Ok(())
        })
        .unwrap();
    assert!(dropped > 1000 && allowed > 1000, "{dropped} {allowed}");
}
