// SPDX-License-Identifier: Apache-2.0
//! The port of an endpoint, as netvmd's configuration writes it.
//!
//! Options of a network (`docker network create -o`) and of an endpoint (`docker run --network name=N,driver-opt=…`),
//! which win:
//!
//! | option | becomes |
//! |---|---|
//! | `netvm.label.KEY=VALUE` | a label of the port |
//! | `netvm.port=LINES` | keys of the `[[port]]`, such as `track = true` |
//! | `netvm.name=NAME` | the beginning of the port's name |
//! | `netvm.guard=false` | packets from other addresses pass, too |
//! | `netvm.interface=NAME` | the interface in the container |

use std::collections::BTreeMap;
use std::net::IpAddr;

use toml::{Table, Value};

use super::messages::PortMapping;
use super::state::{Endpoint, Joined, Network};
use crate::error::DockerError;

/// What the options of this driver begin with.
const PREFIX: &str = "netvm.";
/// Longest name of a port.
const NAME_BYTES: usize = 32;
/// Characters of an endpoint's ID in the name of its port.
const ID_CHARS: usize = 8;
/// Keys of the port that `netvm.port` does not set.
const OWN: [&str; 8] = ["name", "kind", "namespace", "interface", "mac", "addresses", "gateways", "labels"];

/// Options of both, those of the endpoint before those of the network.
pub fn option<'a>(network: &'a Network, endpoint: &'a Endpoint, name: &str) -> Option<&'a str> {
    let of =
        |options: &'a BTreeMap<String, String>| options.get(&format!("{PREFIX}{name}")).map(String::as_str);
    of(&endpoint.options).or_else(|| of(&network.options))
}

/// The `[[port]]` table.
pub fn toml(
    id: &str,
    network: &Network,
    endpoint: &Endpoint,
    joined: &Joined,
) -> Result<String, DockerError> {
    let mut port = Table::new();
    let text = |text: &str| Value::String(text.to_owned());
    let list = |texts: &[String]| Value::Array(texts.iter().map(|one| text(one)).collect());
    port.insert("name".to_owned(), Value::String(name(id, network, endpoint)));
    port.insert("kind".to_owned(), text("container"));
    port.insert("namespace".to_owned(), text(&joined.namespace));
    port.insert("interface".to_owned(), text(&joined.interface));
    let addresses = &endpoint.addresses;
    if !addresses.mac.is_empty() {
        port.insert("mac".to_owned(), text(&addresses.mac));
    }
    let own: Vec<String> =
        [&addresses.v4, &addresses.v6].into_iter().filter(|one| !one.is_empty()).cloned().collect();
    if !own.is_empty() {
        port.insert("addresses".to_owned(), list(&own));
        let is_v6 = |text: &String| text.contains(':');
        let has_family = |gateway: &&String| own.iter().any(|one| is_v6(one) == is_v6(gateway));
        let gateways: Vec<String> = network.gateways.iter().filter(has_family).cloned().collect();
        port.insert("gateways".to_owned(), list(&gateways));
        if option(network, endpoint, "guard") != Some("false") {
            let mut bare: Vec<String> = own.iter().map(|one| bare(one).to_owned()).collect();
            if own.iter().any(is_v6) {
                bare.push("fe80::/64".to_owned());
            }
            port.insert(
                "guard".to_owned(),
                Value::Table(Table::from_iter([("addresses".to_owned(), list(&bare))])),
            );
        }
    }
    port.insert(
        "forward".to_owned(),
        Value::Table(Table::from_iter([("normal".to_owned(), Value::Boolean(true))])),
    );
    if !endpoint.publish.is_empty() {
        port.insert("publish".to_owned(), list(&endpoint.publish));
    }
    let mut labels: Table = endpoint.names.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    for options in [&network.options, &endpoint.options] {
        let named =
            options.iter().filter_map(|(key, value)| Some((key.strip_prefix("netvm.label.")?, value)));
        labels.extend(named.map(|(key, value)| (key.to_owned(), text(value))));
    }
    if !labels.is_empty() {
        port.insert("labels".to_owned(), Value::Table(labels));
    }
    if let Some(lines) = option(network, endpoint, "port") {
        let wrong = |why: String| DockerError::Option { option: "netvm.port".to_owned(), why };
        let more: Table =
            lines.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        if let Some(key) = more.keys().find(|key| OWN.contains(&key.as_str())) {
            return Err(wrong(format!("`{key}` comes from Docker: remove it")));
        }
        port.extend(more);
    }
    Ok(Table::from_iter([("port".to_owned(), Value::Array(vec![Value::Table(port)]))]).to_string())
}

/// A name that people know the container by, and that no other endpoint has.
fn name(id: &str, network: &Network, endpoint: &Endpoint) -> String {
    let id: String = id.chars().take(ID_CHARS).collect();
    let called = option(network, endpoint, "name").unwrap_or("docker");
    let is_plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
    let called: String = called.chars().map(is_plain).take(NAME_BYTES - ID_CHARS - 1).collect();
    format!("{called}-{id}")
}

/// An address without the length of its prefix.
pub fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or_default()
}

/// A published port, as netvmd writes it; `None` if it has no port of the host, or another protocol than TCP and UDP.
pub fn published(mapping: &PortMapping) -> Option<String> {
    let PortMapping { protocol, port, host_ip, host_port } = mapping;
    let protocol = match protocol {
        6 => "tcp",
        17 => "udp",
        _ => return None,
    };
    let address = match host_ip.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => String::new(),
        Ok(IpAddr::V6(address)) => format!("[{address}]:"),
        Ok(IpAddr::V4(address)) => format!("{address}:"),
        Err(_) => String::new(),
    };
    (*host_port > 0).then(|| format!("{address}{host_port}:{port}/{protocol}"))
}
