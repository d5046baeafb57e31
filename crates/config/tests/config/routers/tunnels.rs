// SPDX-License-Identifier: Apache-2.0
//! Ports of VXLAN networks: their keys, and what is refused.

use netvm_config::Kind;
use netvm_model::{RouterId, SendsTo};

use crate::{edited, findings, found, host, is, line_of};

const TEXT: &str = r#"
[[port]]
name = "wan"
kind = "sink"
mtu = 1500
forward = { router = "edge" }
[[port]]
name = "overlay"
kind = "vxlan"
vni = 100
router = "edge"
local = "192.0.2.1"
remote = ["192.0.2.2", "192.0.2.3"]
forward = { normal = true }
[[router]]
name = "edge"
[[router.interface]]
name = "wan"
port = "wan"
addresses = ["192.0.2.1/24", "2001:db8::1/64"]
"#;

#[test]
fn a_tunnel_has_the_mtu_that_its_router_can_carry() {
    let host = host(TEXT);
    let port = &host.ports[1];
    let tunnel = port.kind.info().tunnel.unwrap();
    assert_eq!((tunnel.vni, tunnel.router, tunnel.udp_port, tunnel.ttl), (100, RouterId(0), 4789, 64));
    assert_eq!((tunnel.dscp, tunnel.df, tunnel.remotes.len(), port.mtu), (None, true, 2, 1450));
    assert_eq!(port.kind.info().sends_to, Some(SendsTo::Tunnel(RouterId(0))));
    assert!(found(TEXT).is_empty());
    let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
    assert_eq!(again, host);
    // Over IPv6, whose header is longer.
    let six = edited(TEXT, "local = \"192.0.2.1\"", "local = \"2001:db8::1\"");
    let six = edited(
        &six,
        "[\"192.0.2.2\", \"192.0.2.3\"]",
        "\"2001:db8::2\"\ndscp = 46\nttl = 3\ndf = false\nudp_port = 8472",
    );
    let host = crate::host(&six);
    let tunnel = host.ports[1].kind.info().tunnel.unwrap();
    assert_eq!((tunnel.dscp, tunnel.df, tunnel.udp_port, host.ports[1].mtu), (Some(46), false, 8472, 1430));
    let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
    assert_eq!(again, host);
}

#[test]
fn what_cannot_be_a_tunnel_is_refused_with_a_remedy() {
    for (from, to, code, remedy) in [
        ("vni = 100", "vni = 16777216", "bad_value", "from 0 to 16777215"),
        ("vni = 100\n", "", "missing_key", "vni = 100"),
        ("router = \"edge\"\nlocal", "router = \"egde\"\nlocal", "unknown_name", "edge"),
        ("\"192.0.2.2\", ", "\"192.0.2.1\", ", "bad_value", "other servers"),
        ("\"192.0.2.2\", ", "\"192.0.2.3\", ", "bad_value", "remove"),
        ("\"192.0.2.2\", ", "\"2001:db8::2\", ", "bad_value", "one family"),
        ("\"192.0.2.2\", ", "\"224.0.0.1\", ", "bad_value", "unicast"),
        ("[\"192.0.2.2\", \"192.0.2.3\"]", "[]", "bad_value", "at least one"),
        ("remote = [\"192.0.2.2\", \"192.0.2.3\"]\n", "", "missing_key", "control = \"evpn\""),
        ("remote =", "control = \"bgp\"\nremote =", "bad_value", "evpn"),
        ("remote =", "control = \"evpn\"\nremote =", "conflict", "remove `remote`"),
        ("remote =", "dscp = 64\nremote =", "bad_value", "from 0 to 63"),
        ("remote =", "mtu = 1451\nremote =", "bad_value", "1450"),
        ("local = \"192.0.2.1\"", "local = \"192.0.2.9\"", "unused", "ip address"),
        ("name = \"wan\"\nkind", "name = \"wan\"\nvni = 1\nkind", "conflict", "remove it"),
    ] {
        let text = edited(TEXT, from, to);
        let findings = findings(&text);
        let [finding] = &findings[..] else { panic!("{to}: {findings:?}") };
        assert!(is(finding, code, remedy), "{to}: {finding:?}");
    }
    let twice = format!(
        "{TEXT}[[port]]\nname = \"again\"\nkind = \"vxlan\"\nvni = 100\nrouter = \"edge\"\nlocal = \"192.0.2.1\"\n\
         remote = \"192.0.2.4\"\nforward = {{ normal = true }}\n"
    );
    assert_eq!(found(&twice), [(Kind::Duplicate, line_of(&twice, "remote = \"192.0.2.4\"") - 3)]);
    let narrow = format!("{TEXT}[[group]]\nname = \"g\"\nheadroom = 52\n");
    assert!(findings(&narrow).iter().any(|finding| is(finding, "buffer_size", "at least 54")), "{narrow}");
}

#[test]
fn with_evpn_a_network_is_one_vlan_and_one_device() {
    let text = edited(TEXT, "remote = [\"192.0.2.2\", \"192.0.2.3\"]\n", "control = \"evpn\"\n");
    let host = host(&text);
    let tunnel = host.ports[1].kind.info().tunnel.unwrap();
    assert!(tunnel.is_evpn() && tunnel.remotes.is_empty() && found(&text).is_empty());
    let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
    assert_eq!(again, host);
    let trunk = edited(&text, "control", "vlan = { trunk = [\"1-9\"] }\ncontrol");
    let [finding] = &findings(&trunk)[..] else { panic!("{:?}", findings(&trunk)) };
    assert!(is(finding, "bad_value", "access"), "{finding:?}");
    let second = |keys: &str| {
        format!(
            "{text}[[port]]\nname = \"second\"\nkind = \"vxlan\"\ncontrol = \"evpn\"\nrouter = \"edge\"\n\
             forward = {{ normal = true }}\n{keys}"
        )
    };
    let apart = "vlan = { access = 7 }\n";
    let good = second(&format!("{apart}vni = 101\nlocal = \"192.0.2.1\"\n"));
    assert!(found(&good).is_empty(), "{:?}", found(&good));
    // Two addresses of the router do not help: its kernel has one device for a VNI.
    for (keys, remedy) in [
        (format!("{apart}vni = 100\nlocal = \"2001:db8::1\"\n"), "another `vni`"),
        ("vni = 101\nlocal = \"192.0.2.1\"\n".to_owned(), "a VLAN is one VNI"),
    ] {
        let findings = findings(&second(&keys));
        let [finding] = &findings[..] else { panic!("{keys}: {findings:?}") };
        assert!(is(finding, "duplicate", remedy), "{finding:?}");
    }
}

#[test]
fn the_router_of_a_network_is_its_vrf() {
    let text = edited(TEXT, "remote = [\"192.0.2.2\", \"192.0.2.3\"]\n", "control = \"evpn\"\n");
    let l3 = |name: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vxlan\"\nvni = 5000\ncontrol = \"evpn\"\nrouter = \"edge\"\n\
             local = \"192.0.2.1\"\nforward = {{ router = \"red\" }}\n"
        )
    };
    let red = "[[port]]\nname = \"gateway\"\nkind = \"bridge\"\nforward = { router = \"red\" }\n[[router]]\nname = \"red\"\n\
               [[router.interface]]\nname = \"gateway\"\nport = \"gateway\"\naddresses = [\"10.0.0.1/24\"]\n\
               [[router.interface]]\nname = \"l3\"\nport = \"l3\"\n";
    let text = format!("{text}{}{red}", l3("l3"));
    assert!(found(&text).is_empty(), "{:?}", found(&text));
    let host = host(&text);
    let red = host.routers.iter().find(|router| router.name == "red").unwrap().id;
    for port in host.ports.iter().filter(|port| port.kind.info().tunnel.is_some()) {
        assert_eq!(host.vrf_of(port), Some(red), "{}", port.name);
    }
    // Without the gateway, the network of hosts stays with the router that reaches the VTEPs.
    let alone = edited(&text, "forward = { router = \"red\" }\n[[router]]", "[[router]]");
    let alone = edited(
        &alone,
        "[[router.interface]]\nname = \"gateway\"\nport = \"gateway\"\naddresses = [\"10.0.0.1/24\"]\n",
        "",
    );
    let without = netvm_config::parse("host.toml", &alone).unwrap().host;
    let overlay = without.ports.iter().find(|port| port.kind.info().tunnel.is_some()).unwrap();
    assert_eq!(without.vrf_of(overlay), overlay.kind.info().tunnel.map(|tunnel| tunnel.router));
    // A VRF has a VNI once.
    let twice =
        edited(&text, "[[router]]\nname = \"red\"", &format!("{}[[router]]\nname = \"red\"", l3("again")));
    assert!(
        findings(&twice).iter().any(|finding| is(finding, "duplicate", "another `vni`")),
        "{:?}",
        findings(&twice)
    );
}
