// SPDX-License-Identifier: Apache-2.0
//! Kubernetes' network policies: imported rules pass what the API's documentation says, for random policies and
//! packets, and for files as people write them.

mod random;

use std::net::IpAddr;

use netvm_policy::{Action, Labels, PortId, Rule, RuleParts, decide};
use netvm_policy_import::kubernetes::{KubernetesError, parse};
use netvm_policy_import::{Effect, Imported, ImportedRule};
use netvm_wire::{Address, ConnState, EtherType, FlowKey, IpProto};

/// Pods by number: their namespaces and their labels. The port behind them is of no pod.
const PODS: [(&str, &[(&str, &str)]); 5] = [
    ("shop", &[("app", "web"), ("tier", "front")]),
    ("shop", &[("app", "db")]),
    ("shop", &[]),
    ("bank", &[("app", "web")]),
    ("bank", &[("tier", "front")]),
];

/// A packet of a new connection between two ports, the last of which is of no pod.
#[derive(Clone, Copy, Debug)]
struct Packet {
    from: usize,
    to: usize,
    /// Last bytes of its addresses.
    source: u8,
    destination: u8,
    is_v6: bool,
    protocol: IpProto,
    port: u16,
}

impl Packet {
    fn address(&self, last: u8) -> IpAddr {
        let text = if self.is_v6 { format!("fd00::{last:x}") } else { format!("10.0.0.{last}") };
        text.parse().unwrap()
    }

    fn key(&self) -> FlowKey {
        let has_ports = [IpProto::TCP, IpProto::UDP, IpProto::SCTP].contains(&self.protocol);
        FlowKey {
            ether_type: if self.is_v6 { EtherType::IPV6 } else { EtherType::IPV4 },
            source: Address::from(self.address(self.source)),
            destination: Address::from(self.address(self.destination)),
            protocol: self.protocol,
            destination_port: if has_ports { self.port } else { 0 },
            state: ConnState::New,
            ..FlowKey::EMPTY
        }
    }
}

/// The imported rules, for the ports of [`PODS`].
fn rules(imported: &Imported) -> Vec<Rule> {
    let labels = |(namespace, labels): &(&str, &[(&str, &str)])| {
        let mut all = Labels::default();
        for (key, value) in [&[("namespace", *namespace), ("network", "pods")], *labels].concat() {
            all.insert(key, value).unwrap();
        }
        all
    };
    let mut all: Vec<Labels> = PODS.iter().map(labels).collect();
    all.push(Labels::default());
    let ports: Vec<(PortId, &Labels)> = (0..).map(PortId).zip(&all).collect();
    let rule = |rule: &ImportedRule| {
        let (name, matches, actions) = (String::new(), rule.matches.clone(), rule.actions);
        let mut made = Rule::from(RuleParts { id: netvm_policy::RuleId(0), name, matches, actions });
        made.set_selection(rule.selection.clone().unwrap());
        made.select(&ports);
        made
    };
    imported.rules.iter().map(rule).collect()
}

fn rules_pass(rules: &[Rule], packet: &Packet) -> bool {
    let (from, to) = (PortId(packet.from as u16), PortId(packet.to as u16));
    decide(rules, from, Some(to), &packet.key()).actions.terminal != Some(Action::Drop)
}

/// As in the documentation of Kubernetes, with comments, lists in both styles and several documents.
const FILE: &str = "\
# Who may reach the database.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector:
    matchLabels:
      app: db
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - ipBlock: { cidr: 172.17.0.0/16, except: [172.17.1.0/24] }
    - namespaceSelector:
        matchLabels: { kubernetes.io/metadata.name: bank }
    - podSelector:
        matchLabels:
          app: web
    ports:
    - protocol: TCP
      port: 6379
  egress:
  - to:
    - ipBlock:
        cidr: 10.0.0.0/24
    ports:
    - port: 32000
      endPort: 32768
---
kind: Service
apiVersion: v1
metadata: {name: x}
---
";

#[test]
fn a_file_becomes_rules_by_label_with_its_lines() {
    let imported = parse(FILE).unwrap();
    assert_eq!(imported.effect(), Effect::Same);
    assert_eq!(
        imported.notes[0].to_string(),
        "line 29: Service of v1: netvm does not know this kind of object; it is skipped"
    );
    assert!(imported.tracks());
    let label = |rule: &ImportedRule| {
        let selection = rule.selection.clone().unwrap();
        [selection.from, selection.to]
            .map(|ends| ends.labels.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    let db = "namespace=shop,app=db";
    let all = "namespace !namespace";
    let expected = [
        (2, "neighbours", db, all),
        (2, "replies", db, all),
        (2, "neighbours", "", db),
        (2, "replies", "", db),
        // Of a database to another one: what the egress and any of the three peers of the ingress have in common.
        (22, "shop.db.shop.db", db, db),
        (22, "shop.db.shop.db", db, db),
        (22, "shop.db.shop.db", db, db),
        (2, "isolated.both", db, db),
        (22, "shop.db", db, all),
        (22, "shop.db", db, all),
        (2, "isolated.egress", db, all),
        (11, "shop.db", "", db),
        (11, "shop.db", "", db),
        (11, "shop.db", "namespace=bank", db),
        (11, "shop.db", "namespace=bank", db),
        (11, "shop.db", "namespace=shop,app=web", db),
        (11, "shop.db", "namespace=shop,app=web", db),
        (2, "isolated.ingress", "", db),
    ];
    let found: Vec<_> =
        imported.rules.iter().map(|rule| (rule.line, rule.name.clone(), label(rule))).collect();
    let expected: Vec<_> = expected
        .map(|(line, name, from, to)| (line, name.to_owned(), [from.to_owned(), to.to_owned()]))
        .to_vec();
    assert_eq!(found, expected);
    let nets = &imported.rules[11].matches.source;
    assert!(
        nets.contains(&"172.17.0.0/24".parse().unwrap()) && !nets.contains(&"172.17.1.0/24".parse().unwrap())
    );
    // Replies pass, and neighbour discovery.
    let rules = rules(&imported);
    let reply =
        Packet { from: 1, to: 0, source: 2, destination: 1, is_v6: false, protocol: IpProto::TCP, port: 99 };
    assert!(!rules_pass(&rules, &reply));
    let key = FlowKey { state: ConnState::Established, ..reply.key() };
    assert_eq!(decide(&rules, PortId(1), Some(PortId(0)), &key).actions.terminal, Some(Action::Allow));
    let key = FlowKey { ether_type: EtherType::ARP, ..FlowKey::EMPTY };
    assert_eq!(decide(&rules, PortId(0), Some(PortId(1)), &key).actions.terminal, None);
}

/// A policy with these lines in its spec, the first as line 5.
fn spec(lines: &str) -> Result<Imported, KubernetesError> {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec:\n";
    parse(&(head.to_owned() + lines))
}

#[test]
fn what_cannot_be_expressed_has_its_line_and_its_effect() {
    for (lines, effect, words) in [
        (
            "  ingress:\n  - ports: [{port: http}]\n",
            Effect::Stricter,
            "line 6: port http: netvm does not know the names",
        ),
        (
            "  ingress:\n  - from:\n    - namespaceSelector: {matchLabels: {team: a}}\n",
            Effect::Stricter,
            "line 7: namespaceSelector: the file has no Namespace",
        ),
        (
            "  ingress:\n  - from:\n    - podSelector: {matchLabels: {pod: a}}\n",
            Effect::Stricter,
            "line 7: podSelector: `namespace`, `network` and `pod`",
        ),
        ("  podSelector: {matchLabels: {network: a}}\n", Effect::Wider, "line 5: podSelector: `namespace`"),
    ] {
        let imported = spec(lines).unwrap();
        let note = imported.notes[0].to_string();
        assert!(imported.effect() == effect && note.starts_with(words), "{note}");
    }
    let other = parse("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\n").unwrap();
    assert_eq!(other.effect(), Effect::Wider);
    // A rule whose ports are all left out allows nothing.
    let imported = spec("  podSelector: {}\n  ingress:\n  - ports: [{port: http}]\n").unwrap();
    assert_eq!(imported.rules.last().unwrap().actions.terminal, Some(Action::Drop));
    assert!(imported.rules.iter().all(|rule| rule.name != "default.p"));
}

#[test]
fn what_is_wrong_has_its_line() {
    for (lines, words) in [
        ("  podselector: {}\n", "line 5: spec has no field `podselector`"),
        ("  ingress: {}\n", "line 5: ingress must be a list"),
        ("  ingress:\n  - from: [{}]\n", "line 6: a peer without `podSelector`"),
        ("  ingress:\n  - to: []\n", "line 6: a rule of ingress has no field `to`"),
        ("  ingress:\n  - from: [{ipBlock: {cidr: 10.0.0.0}}]\n", "line 6: `10.0.0.0` is not a network"),
        (
            "  ingress:\n  - from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/8]}}]\n",
            "line 6: a network of `except` that is not within `cidr`",
        ),
        (
            "  ingress:\n  - from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]\n",
            "line 6: `ipBlock` beside a selector",
        ),
        ("  ingress:\n  - ports: [{port: 0}]\n", "line 6: `0` is not a port"),
        ("  ingress:\n  - ports: [{port: 5, endPort: 4}]\n", "line 6: `endPort` is below `port`"),
        ("  ingress:\n  - ports: [{endPort: 4}]\n", "line 6: `endPort` without `port`"),
        ("  ingress:\n  - ports: [{protocol: ICMP}]\n", "line 6: `ICMP` is not a protocol of ports"),
        ("  policyTypes: [Both]\n", "line 5: `Both` is not a policy type"),
        (
            "  podSelector: {matchExpressions: [{key: a, operator: Is}]}\n",
            "line 5: an element of matchExpressions must be",
        ),
        ("  podSelector: {matchExpressions: [{key: a, operator: In}]}\n", "which In and NotIn need"),
        ("  podSelector: {matchLabels: {a: 'b c'}}\n", "line 5: `b c` cannot be in a label"),
        ("  podSelector: {matchLabels: {a: b, a: c}}\n", "line 5: this key is there twice"),
        ("  podSelector: *x\n", "line 5: "),
        ("  podSelector: {\n", "not YAML"),
    ] {
        let error = spec(lines).unwrap_err().to_string();
        assert!(error.contains(words), "{lines}{error}");
    }
    assert_eq!(parse("# nothing\n"), Err(KubernetesError::Empty));
    assert!(parse("a: 1\n").unwrap_err().to_string().contains("an object without `kind`"));
    let deep = "[".repeat(200);
    assert!(parse(&deep).is_err());
}
