// SPDX-License-Identifier: Apache-2.0
//! `docs/reference/configuration.md`: its examples are valid, its errors print as shown, its keys are complete.

use std::collections::BTreeSet;

use netvm_config::{Kind, parse};
use netvm_model::PortKind;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");

/// Fenced blocks: what stands behind the fence, and the text.
fn blocks(document: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text: String =
                lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            blocks.push((info.to_owned(), text));
        }
    }
    blocks
}

#[test]
fn examples_are_valid_and_errors_print_as_shown() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let blocks = blocks(&document);
    let mut shown = 0;
    for (n, (info, text)) in blocks.iter().enumerate() {
        let printed = match (info.as_str(), parse("host.toml", text)) {
            ("toml", Ok(loaded)) => {
                assert!(loaded.warnings.is_empty(), "{:#?}", loaded.warnings);
                continue;
            }
            ("toml", Err(error)) => panic!("{}", error.render(false)),
            ("toml bad", result) => result.unwrap_err().render(false),
            ("toml warning", result) => {
                result.unwrap().warnings.iter().map(|warning| warning.render(false)).collect()
            }
            _ => continue,
        };
        assert_eq!(blocks[n + 1].0, "text");
        let lines =
            |text: &str| text.trim().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(
            lines(&blocks[n + 1].1),
            lines(&printed),
            "should be
{printed}"
        );
        shown += 1;
    }
    assert_eq!(shown, 5);
}

/// The first column of every table of keys: `key` or field.
fn documented(document: &str) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    let mut in_keys = false;
    for line in document.lines() {
        match line.strip_prefix("| ") {
            None if !line.starts_with('|') => in_keys = false,
            Some(row) if row.starts_with("key |") || row.starts_with("field |") => in_keys = true,
            Some(row) if in_keys => keys.extend(row.split('`').nth(1)),
            _ => {}
        }
    }
    keys
}

#[test]
fn all_keys_are_documented_and_no_others() {
    // A host that uses every key there is.
    let text = r#"
        engine = { nodes = [[0]], connections = { limit = 100, mappings = 64, log = { file = "/tmp/l", collector = "192.0.2.1:4739" } }, flow_monitor = { export = "ipfix:udp:192.0.2.1:4739", eve = "/tmp/eve" } }
        api = { web = "127.0.0.1:9180", view_group = "v", capture_group = "capture", operate_group = "o", audit = "/a", remote = { listen = "[::]:9480", certificate = "/c", key = "/k", client_ca = "/ca", client = [{ name = "n", role = "view", fingerprints = "0000000000000000000000000000000000000000000000000000000000000000" }], passwords = "/p", user = [{ name = "n", role = "view" }] } }
        health = { within = 1, steady = 0, chains = false, ports = ["a"], ping = ["::1"], router = "z" }
        group = [{ name = "g", may_send_to = [] }]
        port = [
            { name = "a", kind = "pci", address = "3b:00.0", group = "g", worker = 0, forward = { normal = true } },
            { name = "b", kind = "af_xdp", interface = "b", gro = true, node = 0, forward = { out = "a" }, vlan = { trunk = 1, native = 2 } },
            { name = "w", kind = "container", fast_path = true, on_daemon_loss = "continue", namespace = "w", mac = "02:00:00:00:00:02", addresses = ["10.0.0.5/24"], gateways = ["10.0.0.1"], publish = "80:80", forward = { out = "a" } },
            { name = "lan", kind = "host", interface = "lan0" },
            { name = "c", kind = "pcap", input = "in", output = "out", forward = { chain = "c" }, split_horizon = "x", storm_control = { broadcast = 1 }, mcast_groups = "239.1.2.3" },
            { name = "d", kind = "source", rate = 1, count = 1, vlan = { access = 1 }, police_in = { packets = 1 }, police_out = { bits = 1 }, qos = { bits = 1_000_000, queues = [{ name = "q", dscp = "ef", priority = true }, { name = "r", weight = 1 }] }, guard = { macs = "02:00:00:00:00:01", addresses = "::1" }, track = true, zone = 1 },
            { name = "e", kind = "vhost-user", path = "/e", mode = "client", dma = "auto" },
            { name = "f", kind = "e1000", path = "/f", mac = "02:00:00:00:00:03", model = "e1000e", doorbells = "posted", socket_owner = "qemu:kvm", socket_mode = "0660" },
            { name = "k", kind = "memif", path = "/k", role = "client", id = 7, secret = "s", ring_size = 256, buffer_size = 4096 },
            { name = "g", kind = "patch", peer = "h" },
            { name = "h", kind = "patch", peer = "g" },
            { name = "i", kind = "bridge", forward = { router = "z" } },
            { name = "j", kind = "vlan", parent = "b", tag = 5, forward = { normal = true } },
            { name = "l", kind = "vxlan", vni = 5, router = "z", local = "10.0.0.1", remote = "10.0.0.2", udp_port = 4789, ttl = 9, dscp = 8, df = false, forward = { normal = true } },
            { name = "n", kind = "sink", labels = { name = "n" } },
            { name = "le", kind = "vxlan", vni = 6, router = "z", local = "10.0.0.1", control = "evpn", neigh_suppress = false },
            { name = "m", kind = "bond", members = ["n"], mode = "lacp", lacp_rate = "fast", lacp_fallback = true, up_delay = 1, mac = "02:00:00:00:00:04", forward = { normal = true } },
        ]
        nf = [{ role = "x", command = ["x"] }, { role = "s", command = ["s"], replicas = { max = 2 }, balance = "sticky" }, { role = "y", flow_verdicts = 1, steer = [{ chain = "c" }], allocate = 1, hold = 1 }, { role = "p", attach = "tap", while_starting = "drop" }, { role = "q", attach = "vhost-user" }]
        vm = [
            { name = "v", ports = ["e"], kernel = "/k", initrd = "/i" },
            { name = "w", role = "y", image = "/i", node = 0 },
        ]
        router = [{ name = "z", weight = 2, reserve = 1, routes = [{ to = "::/0", via = "::1", interface = "i", metric = 1 }, { to = "10.0.0.0/8", blackhole = true }], interface = [{ name = "i", port = "a", vlan = 1, addresses = ["10.0.0.1/8"], urpf = "strict", snat = { addresses = "masquerade", blocks = {} } }], nat64 = { addresses = "192.0.2.1" } }]
        chain = [{ name = "c", hops = ["x", "p"], output = "a" }, { name = "d", hops = ["p"], output = "b", reverse = "c" }]
        rule = [
            { name = "r", from = "a", chain = "c", match = { protocol = "tcp", source = "::1", source_ports = 1, destination = "::2", destination_ports = 2, tcp_flags = "syn", dscp = 1, fragment = "no", state = "untracked" } },
            { to = "b", drop = true, set_vlan = 1, queue = "q", mirror = "a", police = { bits = 1 }, match = { protocol = "icmp", icmp_type = 1, icmp_code = 1 } },
            { reject = true, match = { vlan = 1, inner_vlan = 2, source_mac = "02:00:00:00:00:01", destination_mac = "02:00:00:00:00:01", ether_type = "arp", arp_operation = "reply" } },
            { from = "a", out = "a" },
            { from = "d", router = "z" },
            { from = "d", allow = true, syn_proxy = true },
            { from = "c", normal = true, time = "Mon", load = { role = "x", above = 5, until = 1 } },
            { from = "i", drop = true, load = { role = "x", below = 5 } },
            { count = true },
        ]
        nat = [
            { name = "n", to = "a", snat = "192.0.2.3", inside = "192.0.2.4" },
            { from = "a", dnat = [{ to = "192.0.2.5:80", weight = 2 }], health = {}, match = { protocol = "tcp" } },
            { local_to = "z", redirect = true },
            { network = "192.0.2.6", match = { destination = "192.0.2.7" } },
            { keep = true },
        ]
    "#;
    let host = parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host;
    let json: serde_json::Value = toml::from_str(&netvm_config::to_toml(&host)).unwrap();
    let mut keys = BTreeSet::new();
    for section in json.as_object().unwrap().values() {
        let items = section.as_array().cloned().unwrap_or_else(|| vec![section.clone()]);
        items.iter().for_each(|item| collect(item, &mut keys));
    }
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    assert_eq!(documented(&document), keys.iter().map(String::as_str).collect());
}

/// The keys of a table and of those in it.
fn collect(item: &serde_json::Value, keys: &mut BTreeSet<String>) {
    for (key, value) in item.as_object().into_iter().flatten() {
        keys.insert(key.clone());
        collect(value, keys);
        value.as_array().into_iter().flatten().for_each(|item| collect(item, keys));
    }
}

#[test]
fn every_kind_of_port_is_documented_with_its_keys() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    for mut kind in PortKind::all() {
        let start = format!("| `{}` |", kind.word());
        let keys: Vec<String> = kind.own_keys().iter().map(|key| format!("`{}`", key.name)).collect();
        let is_it = |line: &str| line.starts_with(&start) && keys.iter().all(|key| line.contains(key));
        assert!(document.lines().any(is_it), "{start} with {keys:?}");
    }
}

#[test]
fn every_code_is_documented() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    for kind in Kind::ALL {
        assert!(document.contains(&format!("| `{}`", kind.code())), "{}", kind.code());
    }
}
