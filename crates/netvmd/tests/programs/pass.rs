// SPDX-License-Identifier: Apache-2.0
//! Packets pass programs of each kind, both ways, and are counted.

use netvm_api::NfState;

use crate::site::{BRIDGE, Site};

/// A bridge in the namespace of a program: what goes in on one side comes out on the other, each way.
fn passes_both_ways(name: &str, keys: &str) {
    let Some(site) = Site::new(name) else { return };
    let mut daemon = site.start(&format!("{}{keys}", Site::script(name_of(keys), BRIDGE)), "");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    assert!(site.echoes(300_000), "{}", daemon.log());
    // What comes out of the bridge leaves the chain; the bridge's own packets, if any, do so, too.
    daemon.until("the counts agree", |daemon| {
        let counters = site.nf(daemon).counters;
        let (out, back) = (daemon.left("out"), daemon.left("in"));
        let count = |key: &str| counters[key];
        [out, back] == [count("right_out"), count("left_out")]
            && count("left_in") > 0
            && count("right_out") >= count("left_in")
            && count("left_out") >= count("right_in")
    });
    daemon.purge();
    let left = std::fs::read_dir("/run/netns")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let own = format!("nf-{}.", site.role);
    assert!(left.into_iter().all(|name| !name.starts_with(&own)), "its namespace is left");
}

/// The way to attach that the keys name.
fn name_of(keys: &str) -> &str {
    keys.split('#').nth(1).unwrap().trim()
}

#[test]
fn packets_pass_a_bridge_by_veth_both_ways() {
    passes_both_ways("v", "# veth");
}

#[test]
fn packets_pass_a_bridge_by_veth_with_offloads() {
    passes_both_ways("vo", "offloads = true\n# veth");
}

#[test]
fn packets_pass_a_bridge_by_tap_both_ways() {
    passes_both_ways("t", "# tap");
}

#[test]
fn packets_pass_a_bridge_by_tap_with_offloads() {
    passes_both_ways("to", "offloads = true\n# tap");
}

#[test]
fn packets_pass_a_bridge_by_af_xdp_both_ways() {
    passes_both_ways("x", "# af_xdp");
}

#[test]
fn a_firewall_of_nftables_drops_pings_and_passes_the_rest() {
    let Some(site) = Site::new("nf") else { return };
    let script = format!(
        "nft delete table netdev f 2>/dev/null; nft add table netdev f && \
         nft 'add chain netdev f l {{ type filter hook ingress device left priority 0; }}' && \
         nft add rule netdev f l ip protocol icmp drop || exit 1; {BRIDGE}"
    );
    let daemon = site.start(&Site::script("veth", &script), "");
    site.until(&daemon, NfState::Running);
    assert!(site.echoes(20_000), "{}", daemon.log());
    assert!(!site.pings_once(), "{}", daemon.log());
}

#[test]
fn a_redirect_of_tc_passes_packets() {
    let Some(site) = Site::new("tc") else { return };
    let redirect = |from: &str, to: &str| {
        format!(
            "tc qdisc replace dev {from} clsact && tc filter delete dev {from} ingress && \
             tc filter add dev {from} ingress protocol all u32 match u32 0 0 action mirred egress redirect dev {to}"
        )
    };
    let script =
        format!("{} && {} && exec sleep infinity", redirect("left", "right"), redirect("right", "left"));
    let daemon = site.start(&Site::script("veth", &script), "");
    site.until(&daemon, NfState::Running);
    assert!(site.pings() && site.echoes(50_000), "{}", daemon.log());
}
