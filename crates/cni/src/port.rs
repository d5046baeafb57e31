// SPDX-License-Identifier: Apache-2.0
//! The port of an attachment, as netvmd's configuration writes it.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::config::{Bandwidth, Config, Environment, Kind, PortMapping};
use crate::error::{CniError, Code};
use crate::ipam::Addresses;

/// Longest name of a port.
const NAME_BYTES: usize = 32;
/// Smallest burst that netvmd accepts without a word: a GSO packet of 64 KB.
const MIN_BURST: u64 = 600_000;
/// Annotations of pods that become labels: `label.netvm.io/app`, as CNI knows no labels of pods.
const LABEL_ANNOTATIONS: &str = "label.netvm.io/";
/// The arguments of runtimes that become labels.
const LABELS: [(&str, &str); 2] = [("K8S_POD_NAME", "pod"), ("K8S_POD_NAMESPACE", "namespace")];

/// The `[[port]]` table.
pub fn toml(config: &Config, environment: &Environment, given: &Addresses) -> Result<String, CniError> {
    let mut port = Map::new();
    port.insert("name".to_owned(), name(config, environment).into());
    let addresses: Vec<&str> = given.ips.iter().map(|ip| ip.address.as_str()).collect();
    match (&config.kind, socket(config, environment)) {
        (Kind::Socket { word, .. }, Some(path)) => {
            port.insert("kind".to_owned(), (*word).into());
            port.insert("path".to_owned(), path.display().to_string().into());
        }
        _ => {
            port.insert("kind".to_owned(), "container".into());
            port.insert("namespace".to_owned(), environment.namespace.as_str().into());
            port.insert("interface".to_owned(), environment.interface.as_str().into());
            if let Some(mac) = config.runtime.mac.as_deref().or_else(|| environment.argument("MAC")) {
                port.insert("mac".to_owned(), mac.into());
            }
            if !addresses.is_empty() {
                port.insert("addresses".to_owned(), json!(addresses));
                port.insert("gateways".to_owned(), json!(gateways(given)?));
            }
        }
    }
    port.insert("forward".to_owned(), json!({ "normal": true }));
    if config.guard && !addresses.is_empty() {
        let bare = |address: &&str| address.split('/').next().unwrap_or_default().to_owned();
        let mut own: Vec<String> = addresses.iter().map(bare).collect();
        if own.iter().any(|address| address.contains(':')) {
            own.push("fe80::/64".to_owned());
        }
        port.insert("guard".to_owned(), json!({ "addresses": own }));
    }
    limits(&mut port, config.runtime.bandwidth);
    let publish: Vec<String> = config.runtime.port_mappings.iter().filter_map(published).collect();
    if !publish.is_empty() {
        port.insert("publish".to_owned(), json!(publish));
    }
    port.insert("labels".to_owned(), Value::Object(labels(config, environment)));
    port.extend(config.port.clone());
    let wrong = |error: toml::ser::Error| CniError::new(Code::InvalidConfig, format!("`port`: {error}"));
    toml::to_string(&json!({ "port": [port] })).map_err(wrong)
}

/// The socket of an attachment whose port has one: a guest, or a program in the container, connects to it.
pub fn socket(config: &Config, environment: &Environment) -> Option<PathBuf> {
    let Kind::Socket { folder, .. } = &config.kind else { return None };
    Some(folder.join(format!("{}.sock", name(config, environment))))
}

/// A name that people know the container by, and that no other attachment has.
fn name(config: &Config, environment: &Environment) -> String {
    let called = environment.argument("K8S_POD_NAME").unwrap_or(&config.name);
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let hash = fnv(&format!("{}/{}/{}", config.name, environment.container, environment.interface));
    let most = NAME_BYTES - 9;
    let called: String = called.chars().map(|c| if is_plain(&c) { c } else { '-' }).take(most).collect();
    format!("{called}-{:08x}", hash as u32 ^ (hash >> 32) as u32)
}

/// FNV-1a.
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The default gateways. Other routes are refused, as netvmd would not restore them.
fn gateways(given: &Addresses) -> Result<Vec<String>, CniError> {
    let is_v6 = |text: &str| text.contains(':');
    let mut gateways: Vec<String> = Vec::new();
    for route in &given.routes {
        if !route.is_default() {
            let message = format!(
                "the IPAM plug-in gives a route to {}: netvm-cni supports only default routes; let the gateway route it",
                route.dst
            );
            return Err(CniError::new(Code::UnsupportedField, message));
        }
        let own = || {
            let mut own = given.ips.iter().filter(|ip| is_v6(&ip.address) == is_v6(&route.dst));
            own.find_map(|ip| ip.gateway.clone())
        };
        let Some(gateway) = route.gw.clone().or_else(own) else { continue };
        if !gateways.iter().any(|known| is_v6(known) == is_v6(&gateway)) {
            gateways.push(gateway);
        }
    }
    Ok(gateways)
}

/// What the container receives is shaped; what it sends beyond its rate is dropped.
fn limits(port: &mut Map<String, Value>, bandwidth: Bandwidth) {
    let Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst } = bandwidth;
    let rate = |bits: u64, burst: u64| {
        let mut rate = Map::new();
        rate.insert("bits".to_owned(), bits.into());
        // Runtimes that give no burst send the largest 32-bit number.
        if burst > 0 && burst < u64::from(i32::MAX.unsigned_abs()) {
            rate.insert("bit_burst".to_owned(), burst.max(MIN_BURST).into());
        }
        rate
    };
    if ingress_rate > 0 {
        let mut qos = rate(ingress_rate, ingress_burst);
        qos.insert("queues".to_owned(), json!([{ "name": "all" }]));
        port.insert("qos".to_owned(), Value::Object(qos));
    }
    if egress_rate > 0 {
        port.insert("police_in".to_owned(), Value::Object(rate(egress_rate, egress_burst)));
    }
}

/// A published port, as netvmd writes it; `None` if it publishes nothing.
fn published(mapping: &PortMapping) -> Option<String> {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let protocol = if protocol.is_empty() { "tcp".to_owned() } else { protocol.to_ascii_lowercase() };
    let address = match host_ip.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => String::new(),
        Ok(IpAddr::V6(address)) => format!("[{address}]:"),
        _ if host_ip.is_empty() => String::new(),
        _ => format!("{host_ip}:"),
    };
    (*host_port > 0).then(|| format!("{address}{host_port}:{container_port}/{protocol}"))
}

/// Those of the configuration, then those that the runtime gives.
fn labels(config: &Config, environment: &Environment) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert("network".to_owned(), config.name.as_str().into());
    for (argument, label) in LABELS {
        if let Some(value) = environment.argument(argument) {
            labels.insert(label.to_owned(), value.into());
        }
    }
    labels.extend(config.labels.iter().map(|(key, value)| (key.clone(), value.as_str().into())));
    let annotations = config.runtime.annotations.iter();
    let of_annotation = |(key, value): (&String, &Value)| {
        Some((key.strip_prefix(LABEL_ANNOTATIONS)?.to_owned(), value.clone()))
    };
    labels.extend(annotations.filter_map(of_annotation));
    labels.extend(config.runtime.labels.clone());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::{Ip, Route};

    fn config(more: &str) -> Config {
        Config::parse(format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"pods\"{more}}}").as_bytes()).unwrap()
    }

    fn environment() -> Environment {
        Environment {
            container: "0a1b2c".to_owned(),
            namespace: "/run/netns/x".to_owned(),
            interface: "eth0".to_owned(),
            arguments: vec![("K8S_POD_NAME".to_owned(), "web.front".to_owned())],
            ..Environment::default()
        }
    }

    fn given() -> Addresses {
        let ip = |address: &str, gateway: &str| Ip {
            address: address.to_owned(),
            gateway: Some(gateway.to_owned()),
        };
        let to = |dst: &str| Route { dst: dst.to_owned(), gw: None };
        Addresses {
            ips: vec![ip("10.0.0.5/24", "10.0.0.1"), ip("fd00::5/64", "fd00::1")],
            routes: vec![to("0.0.0.0/0"), to("::/0")],
            ..Addresses::default()
        }
    }

    #[test]
    fn a_port_has_what_the_runtime_and_the_ipam_plug_in_say() {
        let config = config(
            r#","port":{"vlan":{"access":7}},"labels":{"app":"web"},"runtimeConfig":{"mac":"02:00:00:00:00:09",
            "portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":0,"containerPort":1},
            {"hostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"::1"},{"hostPort":1,"containerPort":2,"hostIP":"0.0.0.0"}],
            "io.kubernetes.cri.pod-annotations":{"label.netvm.io/tier":"none","label.netvm.io/part":"a","other":"b"},
            "bandwidth":{"ingressRate":1000000,"ingressBurst":8,"egressRate":2000000,"egressBurst":2147483647},"labels":{"tier":"front"}}"#,
        );
        let text = toml(&config, &environment(), &given()).unwrap();
        let port = toml::from_str::<toml::Table>(&text).unwrap()["port"][0].clone();
        let is = |key: &str, value: &str| assert_eq!(port[key].to_string(), value, "{key}");
        is("addresses", r#"["10.0.0.5/24", "fd00::5/64"]"#);
        is("gateways", r#"["10.0.0.1", "fd00::1"]"#);
        is("guard", r#"{ addresses = ["10.0.0.5", "fd00::5", "fe80::/64"] }"#);
        is("publish", r#"["8080:80/tcp", "[::1]:53:53/udp", "1:2/tcp"]"#);
        is("police_in", "{ bits = 2000000 }");
        assert_eq!(port["qos"]["bit_burst"].as_integer(), Some(600_000));
        assert_eq!(
            (port["vlan"]["access"].as_integer(), port["mac"].as_str()),
            (Some(7), Some("02:00:00:00:00:09"))
        );
        let label = |key: &str| port["labels"][key].as_str().unwrap().to_owned();
        let keys = ["network", "pod", "app", "tier", "part"];
        assert_eq!(keys.map(label), ["pods", "web.front", "web", "front", "a"]);
        assert!(port["labels"].get("other").is_none());
        let name = port["name"].as_str().unwrap();
        assert!(name.starts_with("web-front-") && name.len() <= NAME_BYTES, "{name}");
        let other = Environment { interface: "net1".to_owned(), ..environment() };
        assert_ne!(super::name(&config, &other), name);
    }

    #[test]
    fn other_routes_are_refused_with_a_remedy() {
        let mut given = given();
        given.routes.push(Route { dst: "10.1.0.0/16".to_owned(), gw: None });
        let error = toml(&config(""), &environment(), &given).unwrap_err();
        assert!(error.code == 2 && error.message.contains("10.1.0.0/16"), "{error:?}");
    }

    #[test]
    fn what_is_wrong_with_a_configuration_has_its_code() {
        for (text, code) in [
            ("", 6),
            ("[]", 6),
            (r#"{"cniVersion":"2.0.0","name":"a"}"#, 1),
            (r#"{"name":"a"}"#, 1),
            (r#"{"cniVersion":"1.0.0"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"../a"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","port":{"name":"x"}}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","labels":{"x":1}}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","kind":"tap"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","kind":"memif","socketFolder":"x"}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","ipam":{"type":"../host-local"}}"#, 7),
            (r#"{"cniVersion":"1.0.0","name":"a","runtimeConfig":{"portMappings":1}}"#, 7),
        ] {
            assert_eq!(Config::parse(text.as_bytes()).unwrap_err().code, code, "{text}");
        }
    }
}
