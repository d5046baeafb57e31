// SPDX-License-Identifier: Apache-2.0
//! Static routes: of the configuration, and beside it.

use netvm_api::{Done, path};

use super::common::Daemon;
use super::common::hosts::{are_possible, run};
use super::site::{ENGINE, Site};

#[test]
fn static_routes_follow_the_configuration() {
    if !are_possible() {
        return;
    }
    let site = Site::new("s");
    let with = |routes: &str| {
        ENGINE.to_owned()
            + &site.config().replace("[[router]]\n", &format!("[[router]]\nroutes = [{routes}]\n"))
    };
    site.server.ip("address add 172.16.0.1/32 dev lo");
    let mut daemon = Daemon::start(&with(
        "{ to = \"172.16.0.0/24\", via = \"10.2.0.2\" }, { to = \"2001:db8:3::/48\", via = \"2001:db8:2::2\", \
         interface = \"wan\", metric = 7 }, { to = \"172.17.0.0/16\", via = [\"10.2.0.2\", \"10.2.0.3\"] }, \
         { to = \"172.18.0.0/16\", blackhole = true }, { to = \"172.19.0.0/16\", interface = \"wan\" }",
    ));
    assert!(site.client.pings("172.16.0.1"), "{}", daemon.log());
    let routes = || {
        let (v4, v6) = ("ip -n", "ip -6 -n");
        [v4, v6].map(|ip| run(&format!("{ip} {} route show", site.namespace()))).concat()
    };
    let before = routes();
    for words in [
        "172.16.0.0/24 via 10.2.0.2 dev wan proto 110",
        "2001:db8:3::/48 via 2001:db8:2::2 dev wan proto 110 metric 7",
        "nexthop via 10.2.0.3 dev wan weight 1",
        "blackhole 172.18.0.0/16 proto 110",
        "172.19.0.0/16 dev wan proto 110 scope link",
    ] {
        assert!(before.contains(words), "{words}\n{before}");
    }
    // What has not changed stays, and so do routes of others.
    site.ip("route add 172.20.0.0/16 via 10.2.0.2");
    let fewer = with(
        "{ to = \"172.16.0.0/24\", via = \"10.2.0.2\" }, { to = \"172.18.0.0/16\", via = \"10.2.0.2\" }",
    );
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &fewer);
    let after = routes();
    assert!(after.contains("172.20.0.0/16") && after.contains("172.18.0.0/16 via 10.2.0.2"), "{after}");
    assert!(!after.contains("172.17.0.0/16") && !after.contains("2001:db8:3::"), "{after}");
    // A route that the kernel refuses changes nothing.
    for (route, says) in [
        ("{ to = \"172.20.0.0/16\", via = \"10.2.0.2\" }", "already has a route to this destination"),
        ("{ to = \"172.21.0.0/16\", via = \"192.0.2.9\" }", "is in no network"),
    ] {
        let (_, error) = daemon.post_failing(path::APPLY, with(route));
        assert!(error.message.contains(says), "{error}");
        assert_eq!(routes(), after);
    }
    // Routes beside those of the configuration.
    let at = path::ROUTES.replace("{router}", &site.router);
    let add = |route: &str| {
        serde_json::to_string(&netvm_api::AddRoutes { toml: format!("routes = [{route}]") }).unwrap()
    };
    let _: Done = daemon.post(&at, &add("{ to = \"172.30.0.0/16\", via = \"10.2.0.2\", metric = 5 }"));
    assert!(routes().contains("172.30.0.0/16 via 10.2.0.2 dev wan proto static metric 5"), "{}", routes());
    for (route, says) in [
        (
            "{ to = \"172.30.0.0/16\", via = \"10.2.0.2\", metric = 5 }",
            "already has a route to this destination",
        ),
        ("{ to = \"172.31.0.0/16\", via = \"192.0.2.9\" }", "is in no network"),
        ("{ to = \"172.31.0.0/16\", interface = \"lam\" }", "no interface `lam`"),
    ] {
        let (status, error) = daemon.post_failing(&at, add(route));
        let text = format!("{error} {:?}", error.diagnostics);
        assert!(status == 422 && text.contains(says), "{status} {text}");
    }
    // It stays when a configuration is applied.
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &fewer);
    assert!(routes().contains("172.30.0.0/16"), "{}", routes());
    let delete = |prefix: &str| daemon.request("DELETE", &format!("{at}?prefix={prefix}"), "");
    for (prefix, status, says) in [
        ("172.30.0.0/16", 200, "removed"),
        ("172.30.0.0/16", 422, "no route to 172.30.0.0/16"),
        ("172.16.0.0/24", 422, "belongs to the configuration"),
        ("10.2.0.0/16", 422, "is not static"),
        ("10.2.0.1/16", 400, "write it as in"),
    ] {
        let (found, text) = delete(prefix);
        assert!(found == status && text.contains(says), "{prefix}: {found} {text}");
    }
    assert!(!routes().contains("172.30.0.0/16"), "{}", routes());
    assert!(site.client.pings("10.2.0.2"), "{}", daemon.log());
    daemon.until("the server is a neighbour", |daemon| {
        let all: Vec<netvm_api::NeighbourInfo> =
            daemon.get(&path::NEIGHBOURS.replace("{router}", &site.router));
        all.iter().any(|one| one.address == "10.2.0.2" && one.interface == "wan" && one.mac.len() == 17)
    });
    daemon.purge();
}
