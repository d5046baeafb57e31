// SPDX-License-Identifier: Apache-2.0
//! docs/how-to/any-program.md, with its commands.

use netvm_api::NfState;

use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE};
use crate::site::Site;

pub const PAGE: &str = include_str!("../../../../docs/how-to/any-program.md");

#[test]
fn the_first_hop_of_the_page_works_as_it_says() {
    let Some(site) = Site::new("pg") else { return };
    let adapt = |text: &str| {
        text.replace("\"wire\"", &format!("{:?}", site.role))
            .replace("nf-wire.0", &format!("nf-{}.0", site.role))
            .replace("namespace = \"client\"", &format!("namespace = {:?}", site.client.namespace()))
            .replace("namespace = \"server\"", &format!("namespace = {:?}", site.server.namespace()))
    };
    let daemon = Daemon::start(&format!("{ENGINE}{}", adapt(&blocks(PAGE, "toml")[0])));
    site.until(&daemon, NfState::Running);
    assert!(site.pings() && site.echoes(10_000), "{}", daemon.log());
    let sh = blocks(PAGE, "sh");
    let [show, drop_pings] = &sh[..] else { panic!("{sh:#?}") };
    assert!(show.contains("netvm nf wire"));
    let shown = site.nf(&daemon).counters;
    assert!(["left_in", "left_out", "right_in", "right_out"].iter().all(|key| shown[*key] > 0), "{shown:?}");
    let script = format!("set -e\n{}", adapt(drop_pings));
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    assert!(!site.pings_once() && site.echoes(10_000), "{}", daemon.log());
}

#[test]
fn the_other_configurations_of_the_page_are_valid() {
    let blocks = blocks(PAGE, "toml");
    for block in &blocks[1..] {
        let role = block.lines().find_map(|line| line.strip_prefix("role = ")).unwrap();
        let text = format!(
            "[[port]]\nname = \"a\"\nkind = \"source\"\nforward = {{ chain = \"c\" }}\n{block}\
             [[chain]]\nname = \"c\"\nhops = [{role}]\noutput = \"a\"\n"
        );
        netvm_config::parse("page", &text).unwrap_or_else(|error| panic!("{}", error.render(false)));
    }
    assert_eq!(blocks.len(), 6);
}
