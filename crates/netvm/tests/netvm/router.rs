// SPDX-License-Identifier: Apache-2.0
//! `netvm router` against a server with canned answers.

use crate::common::Server;
use axum::extract::RawQuery;
use axum::routing::get;
use axum::{Json, Router};
use netvm_api::{
    AddRoutes, Done, NeighbourInfo, PuntInfo, RouteAction, RouteHop, RouteInfo, RouterInfo,
    RouterInterfaceInfo, RouterRoutes, path,
};
use serde_json::Value;

#[allow(clippy::needless_update, reason = "a new counter is 0 here")]
fn router() -> RouterInfo {
    RouterInfo {
        name: "blue".to_owned(),
        namespace: "netvm-blue".to_owned(),
        interfaces: vec![RouterInterfaceInfo {
            name: "lan".to_owned(),
            port: "p0".to_owned(),
            vlan: Some(10),
            mac: "02:00:00:00:00:01".to_owned(),
            addresses: vec!["10.0.0.1/24".to_owned(), "2001:db8::1/64".to_owned()],
            rx_packets: 1_500_000,
            rx_bytes: 90_000_000,
            rx_dropped: 4,
            tx_packets: 500_011,
            tx_bytes: 640,
            punt_port: "blue.lan".to_owned(),
            punted: 12,
            from_kernel: 11,
            over_quota: 3,
            punts: vec![PuntInfo {
                class: "miss".to_owned(),
                reason: "unresolved-neighbour".to_owned(),
                punted: 12,
                dropped: 3,
                ..PuntInfo::default()
            }],
            ..RouterInterfaceInfo::default()
        }],
        routes_v4: 1_000_001,
        routes_v6: 2,
        neighbours: 7,
        next_hops: 5,
        forwarded: 2_000_000,
        punted: 12,
        from_kernel: 11,
        table_bytes: 3 << 20,
        has_rules: true,
        has_nat: true,
        is_full: true,
        ..RouterInfo::default()
    }
}

fn route(prefix: &str, action: RouteAction, macs: &[Option<&str>]) -> RouteInfo {
    let hop = |mac: &Option<&str>| RouteHop {
        interface: Some("lan".to_owned()),
        address: "10.0.0.2".to_owned(),
        mac: mac.map(str::to_owned),
        weight: macs.len() as u16,
    };
    RouteInfo { prefix: prefix.to_owned(), action, hops: macs.iter().map(hop).collect() }
}

fn server() -> Server {
    let routes = |RawQuery(query): RawQuery| async move {
        let known = Some("02:00:00:00:00:02");
        let page = |prefix: &str, more| {
            let routes = vec![route(prefix, RouteAction::Forward, &[known])];
            Json(RouterRoutes { router: router(), routes, more })
        };
        match query.as_deref() {
            Some("most=3") => {}
            Some("most=10000&family=6&prefix=2001:db8::/32") => return page("2001:db8:1::/48", 1),
            Some("most=10000&family=6&prefix=2001:db8::/32&after=2001:db8:1::/48") => {
                return page("2001:db8:2::/48", 0);
            }
            Some("most=50&address=10.0.0.7") => return page("10.0.0.0/24", 0),
            other => panic!("{other:?}"),
        }
        Json(RouterRoutes {
            router: router(),
            routes: vec![
                route("0.0.0.0/0", RouteAction::Forward, &[known]),
                route("10.0.0.0/24", RouteAction::Punt, &[]),
                route("20.0.0.0/8", RouteAction::Forward, &[None, None]),
            ],
            more: 1_000_000,
        })
    };
    let add = async |Json(AddRoutes { toml }): Json<AddRoutes>| Json(Done { message: toml });
    let remove = |RawQuery(query): RawQuery| async move { Json(Done { message: query.unwrap_or_default() }) };
    let neighbours = async || {
        let one = |address: &str, is_stale| NeighbourInfo {
            address: address.to_owned(),
            interface: "lan".to_owned(),
            mac: "02:00:00:00:00:02".to_owned(),
            is_stale,
        };
        Json(vec![one("10.0.0.2", false), one("2001:db8::2", true)])
    };
    Server::start(
        Router::new()
            .route(path::ROUTERS, get(async || Json(vec![router()])))
            .route(&path::ROUTES.replace("{router}", "blue"), get(routes).post(add).delete(remove))
            .route(&path::NEIGHBOURS.replace("{router}", "blue"), get(neighbours)),
    )
}

/// Lines with the blanks between words collapsed.
fn squeeze(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn routers_and_their_routes_are_shown() {
    let server = server();
    for list in [&["router"][..], &["router", "list"]] {
        let lines = squeeze(&server.netvm(list).good());
        assert!(lines[1].starts_with("blue netvm-blue lan 1,000,001 2 7 2,000,000 12 11"), "{lines:?}");
        assert!(lines[2].contains("policy routing rules"), "{lines:?}");
        assert!(lines[3].contains("its table or its next hops are full"), "{lines:?}");
        assert!(lines[4].contains("chains of NAT, which do not apply"), "{lines:?}");
    }
    let lines = squeeze(&server.netvm(&["router", "show", "blue", "--limit", "3"]).good());
    for line in [
        "lan p0 10 02:00:00:00:00:01 10.0.0.1/24 2001:db8::1/64 blue.lan 12 3 11",
        "lan 1,500,000 85.8 MiB 4 500,011 640 B",
        "lan miss unresolved-neighbour 12 3",
        "0.0.0.0/0 forward 10.0.0.2 on lan (02:00:00:00:00:02)",
        "10.0.0.0/24 kernel -",
        "and 1,000,000 more (--all shows them)",
    ] {
        // Other counters may follow.
        assert!(lines.iter().any(|one| one.starts_with(line)), "{line}: {lines:#?}");
    }
    let unknown = "10.0.0.2 on lan (unresolved) weight 2";
    assert!(lines.contains(&format!("20.0.0.0/8 resolving {unknown}, {unknown}")), "{lines:#?}");

    let json: Value =
        serde_json::from_str(&server.netvm(&["router", "show", "blue", "--limit", "3", "--json"]).good())
            .unwrap();
    assert_eq!(json["routes"][0]["hops"][0]["mac"], "02:00:00:00:00:02");
    let json: Value = serde_json::from_str(&server.netvm(&["router", "--json"]).good()).unwrap();
    assert_eq!(json[0]["interfaces"][0]["vlan"], 10);
}

#[test]
fn routes_are_selected_and_shown_page_by_page() {
    let server = server();
    let all = ["router", "show", "blue", "--all", "--family", "6", "--prefix", "2001:db8::/32"];
    let text = server.netvm(&all).good();
    assert!(text.contains("2001:db8:1::/48") && text.contains("2001:db8:2::/48"), "{text}");
    assert!(!text.contains("more ("), "{text}");
    let text = server.netvm(&["router", "show", "blue", "--address", "10.0.0.7"]).good();
    assert!(text.contains("10.0.0.0/24"), "{text}");
}

#[test]
fn routes_are_added_and_removed_and_neighbours_listed() {
    let server = server();
    for (words, toml) in [
        ("192.0.2.0/24 --via 10.0.0.2", "routes = [{ to = \"192.0.2.0/24\", via = [\"10.0.0.2\"] }]"),
        (
            "2001:db8::/32 --via fe80::1 --via fe80::2 --interface lan --metric 7",
            "routes = [{ to = \"2001:db8::/32\", via = [\"fe80::1\", \"fe80::2\"], interface = \"lan\", metric = 7 }]",
        ),
        ("10.9.0.0/16 --blackhole", "routes = [{ to = \"10.9.0.0/16\", blackhole = true }]"),
    ] {
        let mut line = vec!["router", "add", "blue"];
        line.extend(words.split(' '));
        assert_eq!(server.netvm(&line).good().trim_end(), toml);
    }
    let removed = server.netvm(&["router", "del", "blue", "2001:db8::/32", "--metric", "7"]);
    assert_eq!(removed.good(), "prefix=2001:db8::/32&metric=7\n");
    let lines = squeeze(&server.netvm(&["router", "neigh", "blue"]).good());
    let expected = [
        "ADDRESS INTERFACE MAC STATE",
        "10.0.0.2 lan 02:00:00:00:00:02 heard",
        "2001:db8::2 lan 02:00:00:00:00:02 stale",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn an_unknown_router_is_refused_with_the_known_names() {
    let error = server().netvm(&["router", "show", "red"]).failed(1);
    assert_eq!(error, "netvm: no router `red`; known: blue\n");
}
