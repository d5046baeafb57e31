// SPDX-License-Identifier: Apache-2.0
//! A policy: whom it isolates, and what it allows.

use netvm_policy::{Label, Match};
use netvm_wire::{EtherType, Fragment, IpNet, IpProto, PortRange};

use super::super::algebra::{Ranges, prefix_range};
use super::super::{Effect, IpVersion, Note, NoteReason};
use super::KubernetesError;
use super::object::{Object, list, text};
use super::selector::{Namespace, Selector, any_namespace, in_namespace};
use super::yaml::Node;

/// A policy.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) line: u32,
    /// Its namespace and its name.
    pub(super) name: String,
    /// The pods that it isolates: those that fit one of these.
    pub(super) pods: Vec<Label>,
    /// What they may receive; `None`: it says nothing about that.
    pub(super) ingress: Option<Vec<Allowed>>,
    /// What they may send.
    pub(super) egress: Option<Vec<Allowed>>,
}

/// Packets that a policy allows, by the other end and by protocol and ports.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) line: u32,
    /// The pods at the other end; `None`: anybody that `matches` means.
    pub(super) peers: Option<Vec<Label>>,
    /// Addresses of the other end, protocol and ports.
    pub(super) matches: Match,
}

/// The direction of a policy's rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// What a policy is read with.
struct Reader<'a> {
    namespace: String,
    namespaces: &'a [Namespace],
    notes: &'a mut Vec<Note>,
}

impl Policy {
    pub(super) fn read(
        mut object: Object,
        namespaces: &[Namespace],
        notes: &mut Vec<Note>,
    ) -> Result<Self, KubernetesError> {
        let line = object.line;
        let field = |what| KubernetesError::Field { line, what };
        let mut metadata = match object.take("metadata") {
            Some(node) => Object::of(node, "metadata")?,
            None => return Err(field("a NetworkPolicy without `metadata`: add it, with its name")),
        };
        let Some(name) = metadata.text("name")? else {
            return Err(field("a NetworkPolicy without `name` in its metadata: add it"));
        };
        let namespace = metadata.text("namespace")?.unwrap_or_else(|| "default".to_owned());
        let within = in_namespace(&namespace);
        if within.is_empty() {
            return Err(KubernetesError::Label { line, text: namespace });
        }
        let name = format!("{namespace}.{name}");
        let Some(spec) = object.take("spec") else {
            return Err(field("a NetworkPolicy without `spec`: add it"));
        };
        object.take("status");
        object.end()?;
        let mut spec = Object::of(spec, "spec")?;
        let selector =
            spec.take("podSelector").map(|node| Selector::read(node, "podSelector")).transpose()?;
        let pods = match selector {
            // The API's default: all pods of the namespace.
            None => within,
            Some(selector) => selector.pods(&within).unwrap_or_else(|| {
                let note = Note::new(selector.line, "podSelector", NoteReason::OwnLabel);
                notes.push(note.with(Effect::Wider));
                Vec::new()
            }),
        };
        let mut reader = Reader { namespace, namespaces, notes };
        let ingress = spec.list("ingress")?.unwrap_or_default();
        let egress = spec.list("egress")?.unwrap_or_default();
        let types = match spec.list("policyTypes")?.filter(|types| !types.is_empty()) {
            Some(types) => types.into_iter().map(direction).collect::<Result<_, _>>()?,
            None if egress.is_empty() => vec![Direction::Ingress],
            None => vec![Direction::Ingress, Direction::Egress],
        };
        spec.end()?;
        let mut of = |nodes: Vec<Node>, direction| -> Result<Option<Vec<Allowed>>, KubernetesError> {
            let mut allowed = Vec::new();
            for node in nodes {
                reader.rule(node, direction, &mut allowed)?;
            }
            Ok(types.contains(&direction).then_some(allowed))
        };
        let ingress = of(ingress, Direction::Ingress)?;
        let egress = of(egress, Direction::Egress)?;
        Ok(Self { line, name, pods, ingress, egress })
    }
}

fn direction(node: Node) -> Result<Direction, KubernetesError> {
    let line = node.line;
    match text(node, "policyTypes")?.as_str() {
        "Ingress" => Ok(Direction::Ingress),
        "Egress" => Ok(Direction::Egress),
        other => Err(KubernetesError::Value {
            line,
            text: other.to_owned(),
            what: "a policy type: Ingress or Egress",
        }),
    }
}

/// The other end of a rule.
struct Peer {
    pods: Option<Vec<Label>>,
    /// Their addresses; none: any.
    nets: Option<(IpVersion, Vec<IpNet>)>,
}

impl Reader<'_> {
    /// Reads a rule: each of its peers with each of its protocols.
    fn rule(
        &mut self,
        node: Node,
        direction: Direction,
        allowed: &mut Vec<Allowed>,
    ) -> Result<(), KubernetesError> {
        let (what, peers) = match direction {
            Direction::Ingress => ("a rule of ingress", "from"),
            Direction::Egress => ("a rule of egress", "to"),
        };
        let mut object = Object::of(node, what)?;
        let line = object.line;
        let nodes = |node: Option<Node>, what| node.map(|node| list(node, what)).transpose();
        let mut all = Vec::new();
        // An empty list is as none: everybody, or all ports.
        match nodes(object.take(peers), peers)?.filter(|peers| !peers.is_empty()) {
            None => all.push(Peer { pods: None, nets: None }),
            Some(nodes) => {
                for node in nodes {
                    all.extend(self.peer(node)?);
                }
            }
        }
        let ports = match nodes(object.take("ports"), "ports")?.filter(|ports| !ports.is_empty()) {
            None => vec![any_ip()],
            Some(nodes) => self.ports(nodes)?,
        };
        object.end()?;
        for Peer { pods, nets } in all {
            for ports in &ports {
                let mut matches = ports.clone();
                if let Some((version, nets)) = &nets {
                    matches.ether_type = vec![version.ether_type()];
                    match direction {
                        Direction::Ingress => matches.source.clone_from(nets),
                        Direction::Egress => matches.destination.clone_from(nets),
                    }
                }
                allowed.push(Allowed { line, peers: pods.clone(), matches });
            }
        }
        Ok(())
    }

    /// `None`: there is nobody, or nobody that netvm can tell.
    fn peer(&mut self, node: Node) -> Result<Option<Peer>, KubernetesError> {
        let mut object = Object::of(node, "a peer")?;
        let line = object.line;
        let pods = object.take("podSelector").map(|node| Selector::read(node, "podSelector")).transpose()?;
        let spaces = object
            .take("namespaceSelector")
            .map(|node| Selector::read(node, "namespaceSelector"))
            .transpose()?;
        let block = object.take("ipBlock");
        object.end()?;
        match (block, &pods, &spaces) {
            (Some(block), None, None) => {
                let nets = block_nets(block)?;
                return Ok((!nets.1.is_empty()).then_some(Peer { pods: None, nets: Some(nets) }));
            }
            (Some(_), ..) => {
                let what = "`ipBlock` beside a selector: make two peers of them";
                return Err(KubernetesError::Field { line, what });
            }
            (None, None, None) => {
                let what = "a peer without `podSelector`, `namespaceSelector` and `ipBlock`: name one";
                return Err(KubernetesError::Field { line, what });
            }
            _ => {}
        }
        let mut left_out = |line, what: &str, why| {
            self.notes.push(Note::new(line, what, why).with(Effect::Stricter));
            Ok(None)
        };
        let within = match &spaces {
            None => in_namespace(&self.namespace),
            Some(selector) => match selector.namespaces(self.namespaces) {
                Some(within) => within,
                None => return left_out(selector.line, "namespaceSelector", NoteReason::NamespaceLabels),
            },
        };
        let meant = match &pods {
            None => within,
            Some(selector) => match selector.pods(&within) {
                Some(meant) => meant,
                None => return left_out(selector.line, "podSelector", NoteReason::OwnLabel),
            },
        };
        Ok((!meant.is_empty()).then_some(Peer { pods: Some(meant), nets: None }))
    }

    /// A match for each protocol.
    fn ports(&mut self, nodes: Vec<Node>) -> Result<Vec<Match>, KubernetesError> {
        let mut all: Vec<Match> = Vec::new();
        for node in nodes {
            let mut object = Object::of(node, "an element of ports")?;
            let line = object.line;
            let protocol = match object.text("protocol")?.as_deref() {
                None | Some("TCP") => IpProto::TCP,
                Some("UDP") => IpProto::UDP,
                Some("SCTP") => IpProto::SCTP,
                Some(other) => {
                    let what = "a protocol of ports: TCP, UDP or SCTP";
                    return Err(KubernetesError::Value { line, text: other.to_owned(), what });
                }
            };
            let (port, end) = (object.text("port")?, object.text("endPort")?);
            object.end()?;
            if let Some(name) = port.as_ref().filter(|port| port.bytes().any(|byte| !byte.is_ascii_digit())) {
                if end.is_some() {
                    let what = "`endPort` with a port that is no number: write the number";
                    return Err(KubernetesError::Field { line, what });
                }
                let note = Note::new(line, format!("port {name}"), NoteReason::NamedPort);
                self.notes.push(note.with(Effect::Stricter));
                continue;
            }
            let range = match (port, end) {
                (None, None) => PortRange::ANY,
                (None, Some(_)) => {
                    let what = "`endPort` without `port`: add the first port of the range";
                    return Err(KubernetesError::Field { line, what });
                }
                (Some(first), end) => range(line, &first, &end.unwrap_or_else(|| first.clone()))?,
            };
            let same = |one: &&mut Match| one.protocol == [protocol] && range != PortRange::ANY;
            match all.iter_mut().filter(|one| !one.destination_ports.is_empty()).find(same) {
                Some(one) => one.destination_ports.push(range),
                None => {
                    let destination_ports = if range == PortRange::ANY { vec![] } else { vec![range] };
                    all.push(Match { protocol: vec![protocol], destination_ports, ..any_ip() });
                }
            }
        }
        // Later fragments have no ports. Without the first one, which a rule decides about, nobody can use them.
        let has_all = |protocol: &Match| {
            all.iter().any(|one| one.protocol == protocol.protocol && one.destination_ports.is_empty())
        };
        let with_ports = all.iter().filter(|one| !has_all(one));
        let later =
            |one: &Match| Match { destination_ports: vec![], fragment: vec![Fragment::Later], ..one.clone() };
        let later: Vec<Match> = with_ports.map(later).collect();
        all.extend(later);
        Ok(all)
    }
}

/// Any IP packet.
pub(super) fn any_ip() -> Match {
    Match { ether_type: vec![EtherType::IPV4, EtherType::IPV6], ..Match::default() }
}

fn range(line: u32, first: &str, last: &str) -> Result<PortRange, KubernetesError> {
    let number = |text: &str| match text.parse::<u16>() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(KubernetesError::Value { line, text: text.to_owned(), what: "a port from 1 to 65535" }),
    };
    let (first, last) = (number(first)?, number(last)?);
    PortRange::new(first, last).ok_or(KubernetesError::Field {
        line,
        what: "`endPort` is below `port`: write the higher port there",
    })
}

/// The addresses of an `ipBlock`: its network without those of `except`.
fn block_nets(node: Node) -> Result<(IpVersion, Vec<IpNet>), KubernetesError> {
    let mut object = Object::of(node, "ipBlock")?;
    let line = object.line;
    let Some(cidr) = object.take("cidr") else {
        return Err(KubernetesError::Field { line, what: "an ipBlock without `cidr`: add the network" });
    };
    let (version, range) = prefix(cidr, "cidr")?;
    let mut gone = Vec::new();
    for node in object.list("except")?.unwrap_or_default() {
        let line = node.line;
        let (other, except) = prefix(node, "except")?;
        if other != version || except.0 < range.0 || except.1 > range.1 {
            let what = "a network of `except` that is not within `cidr`: correct or remove it";
            return Err(KubernetesError::Field { line, what });
        }
        gone.push(except);
    }
    object.end()?;
    let left = Ranges::union(gone).complement(version.highest()).intersect(&Ranges::one(range.0, range.1));
    let net = |(value, length)| IpNet::new(version.address(value), length).ok();
    Ok((version, left.prefixes(version.bits()).into_iter().filter_map(net).collect()))
}

/// The first and the last address of a network; bits beyond its length count nothing, as in Kubernetes.
fn prefix(node: Node, what: &'static str) -> Result<(IpVersion, (u128, u128)), KubernetesError> {
    let line = node.line;
    let text = text(node, what)?;
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let (version, value) = IpVersion::split(address.parse().ok()?);
        let length: u8 = length.parse().ok()?;
        (length <= version.bits()).then(|| (version, prefix_range(value, length, version.bits())))
    });
    parsed.ok_or(KubernetesError::Value { line, text, what: "a network, such as 10.0.0.0/8" })
}

/// Every port, of pods or not.
pub(super) fn every_port() -> Vec<Label> {
    [any_namespace(), super::selector::no_namespace()].concat()
}
