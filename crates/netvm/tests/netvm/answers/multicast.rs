// SPDX-License-Identifier: Apache-2.0
//! `netvm mdb` prints what docs/how-to/multicast.md promises.

use axum::routing::get;
use axum::{Json, Router};
use netvm_api::{MulticastDomain, MulticastGroup, MulticastInfo, MulticastMember, MulticastPort, path};

use crate::common::Server;

/// What `netvm mdb` is to print.
const PAGE: &str = include_str!("../../../../../docs/how-to/multicast.md");

#[test]
fn groups_queriers_and_ports_are_shown() {
    let domain = |protocol: &str, querier: &str, groups| MulticastDomain {
        vlan: 0,
        protocol: protocol.to_owned(),
        querier: Some(querier.to_owned()),
        querier_port: None,
        has_querier: true,
        pruned: true,
        routers: Vec::new(),
        groups,
    };
    let viewer = MulticastMember { port: "viewer".to_owned(), left_s: Some(252) };
    let groups = vec![MulticastGroup { group: "239.1.2.3".to_owned(), ports: vec![viewer] }];
    let port = |(name, groups, messages): (&str, u32, u64)| MulticastPort {
        port: name.to_owned(),
        groups,
        messages,
        refused: 0,
        over_limit: 0,
    };
    let info = MulticastInfo {
        domains: vec![domain("igmp", "10.0.0.254", groups), domain("mld", "fe80::…", Vec::new())],
        ports: [("camera", 0, 9), ("viewer", 1, 11), ("other", 0, 9)].map(port).to_vec(),
    };
    let routes = Router::new().route(path::MULTICAST, get(async || Json(info)));
    let printed = Server::start(routes).netvm(&["mdb"]).good();
    let promised = PAGE.split("$ netvm mdb\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(lines(&printed), lines(promised));
}
