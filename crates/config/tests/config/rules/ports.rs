// SPDX-License-Identifier: Apache-2.0
//! Errors in the keys of ports about packets.

use super::AROUND;
use crate::{cases, findings, is};

/// A key of a port, code of the error, part of the remedy.
const KEYS: &str = r#"
forward = { } | missing_key | { normal = true }
forward = { normal = true, out = "server" } | conflict | keep one of them
forward = { out = "sever" } | unknown_name | did you mean `server`?
forward = "normal" | wrong_type | a table: forward
acl_in = "reject" | bad_value | possible values are `allow`, `deny`
vlan = 10 | wrong_type | a table: vlan
vlan = { native = 1 } | missing_key | { trunk = [10, "20-30"] }
vlan = { access = 1, trunk = 2 } | conflict | remove it
vlan = { trunk = "none" } | bad_value | a VLAN such as 10
vlan = { trunk = [] } | bad_value | at least one
split_horizon = "a b" | bad_name | 1 to 32
guard = { } | missing_key | MAC addresses
guard = { macs = "ff:ff:ff:ff:ff:ff" } | bad_value | the address of one network card
guard = { addresses = "10.0.0.1/8" } | bad_value | write 10.0.0.0/8
mac_limit = -1 | bad_value | from 0 to 1048576
storm_control = { broadcast = 100_000_001 } | bad_value | from 0 to 100000000
storm_control = { broadcasts = 1 } | unknown_key | did you mean `broadcast`?
mcast_router = "permanent" | bad_value | possible values are `auto`, `off`, `on`
mcast_groups = "224.0.0.5" | bad_value | always flooded
mcast_groups = "239.1.2" | bad_value | write a group
mcast_max_groups = 16_385 | bad_value | from 0 to 16384
weight = 0 | bad_value | from 1 to 1000
reserve = 91 | bad_value | from 0 to 90
qos = { queues = [{ name = "q" }] } | missing_key | bits a second
qos = { bits = 1_000_000 } | missing_key | list the queues
qos = { bits = 1_000_000, queues = [] } | bad_value | 1 to 16 queues
qos = { bits = 1_000_000, bit_burst = 1000, queues = [{ name = "q" }] } | bad_value | set `bit_burst` to at least
qos = { bits = 1_000_000, queues = [{ name = "q", priority = true, weight = 2 }] } | bad_value | remove one of the two
qos = { bits = 1_000_000, queues = [{ name = "q", dscp = 64 }] } | bad_value | from 0 to 63
"#;

#[test]
fn errors_in_ports_have_remedies() {
    for [text, code, remedy] in &cases(KEYS) {
        let found = findings(&AROUND.replacen("forward = { normal = true }", text, 1));
        let [finding] = &found[..] else { panic!("{text}: {found:#?}") };
        assert!(is(finding, code, remedy), "{text}\n{}", finding.render(false));
        assert!(
            (5..=6).contains(&finding.position().0) || code == "missing_key",
            "{}",
            finding.render(false)
        );
    }
}

/// Keys of `[switch]`, keys of a port, code, part of the remedy.
const SNOOPING: &str = r#"
mcast_querier = true | acl_in = "allow" | bad_value | set `mcast_snooping = true`
mcast_snooping = true⏎mcast_query_interval = 5 | acl_in = "allow" | bad_value | must be less than
mcast_snooping = true⏎mcast_querier_address = "239.0.0.1" | acl_in = "allow" | bad_value | an IPv4 address of this host
mcast_snooping = true | mcast_groups = "239.1.2.3 vlan 20" | bad_value | name a VLAN of the port
mcast_snooping = true | vlan = { trunk = "20-30" }⏎mcast_groups = ["239.1.2.3 vlan 20", "ff15::1"] | bad_value | name a VLAN of the port
mcast_snooping = false | mcast_fast_leave = true | unused | or remove the key
"#;

#[test]
fn keys_of_snooping_that_contradict_have_remedies() {
    for [switch, port, code, remedy] in &cases(SNOOPING) {
        let port = format!("forward = {{ normal = true }}\n{port}");
        let text =
            format!("[switch]\n{switch}\n{}", AROUND.replacen("forward = { normal = true }", &port, 1));
        let found = findings(&text);
        let [finding] = &found[..] else { panic!("{text}: {found:#?}") };
        assert!(is(finding, code, remedy), "{}", finding.render(false));
    }
}
