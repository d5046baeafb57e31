// SPDX-License-Identifier: Apache-2.0
//! The prefixes of NAT that routers take for their own.

use netvm_config::parse;

#[test]
fn pools_and_published_addresses_are_local() {
    let text = r#"
        [[port]]
        name = "lan"
        kind = "sink"
        forward = { router = "edge" }
        [[port]]
        name = "wan"
        kind = "sink"
        forward = { router = "edge" }
        [[port]]
        name = "dmz"
        kind = "sink"
        forward = { router = "other" }
        [[router]]
        name = "edge"
        track = true
        [[router.interface]]
        name = "lan"
        port = "lan"
        addresses = ["10.0.0.1/24"]
        [[router.interface]]
        name = "wan"
        port = "wan"
        addresses = ["203.0.113.2/24"]
        [[router]]
        name = "other"
        [[router.interface]]
        name = "dmz"
        port = "dmz"
        addresses = ["10.0.7.1/24"]
        [[nat]]
        to = "wan"
        match = { source = "10.0.0.0/25" }
        snat = "203.0.113.8-203.0.113.10"
        [[nat]]
        to = "wan"
        match = { source = "10.0.0.128/28" }
        network = "203.0.113.128/28"
        [[nat]]
        from = "wan"
        match = { destination = ["203.0.113.2", "203.0.113.7"], destination_ports = 80, protocol = "tcp" }
        dnat = "10.0.0.8"
        [[nat]]
        from = "lan"
        match = { destination = "198.51.100.53", destination_ports = 53, protocol = "udp" }
        dnat = "10.0.0.53"
    "#;
    let host = parse("nat", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host;
    let found: Vec<String> = host.local_prefixes(&host.routers[0]).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["203.0.113.7/32", "203.0.113.8/31", "203.0.113.10/32", "203.0.113.128/28"],
        "neither own addresses nor servers elsewhere"
    );
    assert!(host.local_prefixes(&host.routers[1]).is_empty());
}
