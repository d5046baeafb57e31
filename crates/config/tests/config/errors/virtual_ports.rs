// SPDX-License-Identifier: Apache-2.0
//! Ports without a device.

use netvm_config::Kind;

use super::{findings, found};

#[test]
fn a_tag_of_a_port_has_one_port_that_is_not_its_own_parent() {
    let port = |name: &str, parent: &str, tag: u16| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vlan\"\nparent = \"{parent}\"\ntag = {tag}\nacl_in = \"deny\"\n"
        )
    };
    let uplink = "[[port]]\nname = \"up\"\nkind = \"tap\"\ninterface = \"up\"\nacl_in = \"deny\"\n";
    let messages = |ports: &[String]| -> Vec<String> {
        findings(&(uplink.to_owned() + &ports.concat())).iter().map(ToString::to_string).collect()
    };
    // Also one tag behind another.
    assert_eq!(messages(&[port("a", "up", 5), port("b", "up", 6), port("c", "a", 5)]), [""; 0]);
    assert_eq!(messages(&[port("a", "up", 5), port("b", "up", 5)]), ["two ports have one tag of one port"]);
    assert_eq!(messages(&[port("a", "a", 5)]), ["port a is its own parent"]);
    let circle = [port("a", "b", 5), port("b", "a", 5), port("c", "a", 5)];
    assert_eq!(messages(&circle)[..2], ["port a is its own parent", "port b is its own parent"]);
    assert_eq!(found(&(uplink.to_owned() + &port("a", "up", 4095)))[0].0, Kind::BadValue);
}

#[test]
fn members_of_a_bond_are_links_of_their_own() {
    let tap = |name: &str, more: &str| {
        format!("[[port]]\nname = \"{name}\"\nkind = \"tap\"\ninterface = \"{name}\"\n{more}\n")
    };
    let bond = |name: &str, more: &str| {
        format!("[[port]]\nname = \"{name}\"\nkind = \"bond\"\nacl_in = \"deny\"\n{more}\n")
    };
    let messages = |ports: &[String]| -> Vec<String> {
        let links = tap("up", "acl_in = \"deny\"") + &tap("down", "acl_in = \"deny\"");
        findings(&(links + &ports.concat())).iter().map(ToString::to_string).collect()
    };
    let both = "members = [\"up\", \"down\"]";
    assert_eq!(messages(&[bond("b", both)]), [""; 0]);
    assert_eq!(messages(&[bond("b", "members = []")]), ["bond b has 0 members"]);
    assert_eq!(messages(&[bond("b", "members = [\"up\", \"up\"]")]), ["port up is a member twice"],);
    assert_eq!(messages(&[bond("b", both), bond("c", "members = [\"up\"]")]), ["port up is a member twice"]);
    assert_eq!(messages(&[bond("b", "members = [\"b\"]")]), ["port b has no device"]);
    let few = format!("{both}\nmin_links = 3");
    assert_eq!(messages(&[bond("b", &few)]), ["bond b never has 3 links"]);
    let fast = format!("{both}\nlacp_rate = \"fast\"\nlacp_fallback = true");
    assert_eq!(
        messages(&[bond("b", &fast)]),
        ["`lacp_rate` of bond b has no effect", "`lacp_fallback` of bond b has no effect"]
    );
    let long = format!("{both}\nmtu = 2000");
    assert_eq!(
        messages(&[bond("b", &long)]),
        ["the MTU of port up is below that of its bond", "the MTU of port down is below that of its bond"]
    );
    let forwards = tap("third", "forward = { normal = true }");
    let with = bond("b", "members = [\"third\"]");
    assert_eq!(messages(&[forwards, with]), ["port third is a member of a bond, and has a `forward`"]);
    let rule = "[[rule]]\nfrom = \"up\"\nnormal = true\n".to_owned();
    assert_eq!(
        messages(&[bond("b", both), rule]),
        ["port up is a member of a bond, and a rule matches what it receives"]
    );
}
