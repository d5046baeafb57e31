// SPDX-License-Identifier: Apache-2.0
//! Names of rules, labels of ports, and the ends of connections, as users see them.

use std::collections::{BTreeMap, BTreeSet};

use netvm_conntrack::Tuple;
use netvm_model::{Host, PortConfig, Rule, RuleId};
use netvm_wire::Address;

/// The rule of a number.
pub(crate) fn rule_of(host: &Host, id: RuleId) -> Option<&Rule> {
    host.rules.iter().find(|rule| rule.id == id)
}

/// The name of a rule, or its number.
pub(crate) fn rule_name(host: &Host, id: RuleId) -> String {
    match rule_of(host, id) {
        Some(rule) if !rule.name.is_empty() => rule.name.clone(),
        _ => id.to_string(),
    }
}

/// The labels of a port.
pub(crate) fn labels_of(port: &PortConfig) -> BTreeMap<String, String> {
    port.policy.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The labels of those ports of these names that have some.
pub(crate) fn port_labels<'a>(
    host: &Host,
    names: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let names: BTreeSet<&str> = names.collect();
    let ports = host.ports.iter().filter(|port| names.contains(port.name.as_str()));
    let labelled = ports.map(|port| (port.name.clone(), labels_of(port)));
    labelled.filter(|(_, labels)| !labels.is_empty()).collect()
}

/// The ends of a connection, as `192.0.2.1:80` or `[2001:db8::1]:80`.
pub(crate) struct Ends {
    pub(crate) source: String,
    pub(crate) destination: String,
    /// What stands for the source at the other end, if it is another one.
    pub(crate) translated_source: Option<String>,
    /// Where packets to the destination go, if it is another one.
    pub(crate) translated_destination: Option<String>,
}

impl Ends {
    pub(crate) fn of(original: &Tuple, reply: &Tuple) -> Self {
        let source = end(original.source, original.source_port);
        let destination = end(original.destination, original.destination_port);
        let other_source = end(reply.destination, reply.destination_port);
        let other_destination = end(reply.source, reply.source_port);
        Self {
            translated_source: Some(other_source).filter(|other| *other != source),
            translated_destination: Some(other_destination).filter(|other| *other != destination),
            source,
            destination,
        }
    }
}

fn end(address: Address, port: u16) -> String {
    std::net::SocketAddr::new(address.to_ip(), port).to_string()
}
