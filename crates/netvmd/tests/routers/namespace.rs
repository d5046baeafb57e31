// SPDX-License-Identifier: Apache-2.0
//! What users do to a router's namespace while netvmd forwards.

use std::path::Path;
use std::time::{Duration, Instant};

use netvm_api::{RouterInfo, path};

use super::common::Daemon;
use super::common::hosts::{are_possible, run, within};
use super::site::{Site, start};

/// Pings of a burst.
const BURST: u64 = 20;

fn router(daemon: &Daemon, site: &Site) -> RouterInfo {
    let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
    routers.into_iter().find(|router| router.name == site.router).unwrap()
}

/// How many packets the engine forwards of a burst of pings and their answers.
fn forwarded(daemon: &Daemon, site: &Site, ping: &str, address: &str) -> u64 {
    let before = router(daemon, site).forwarded;
    let burst = site.client.output(&format!("busybox {ping} -c {BURST} -i 0.02 {address}"));
    assert!(burst.status.success(), "{burst:?}\n{}", daemon.log());
    router(daemon, site).forwarded - before
}

#[test]
fn a_changed_namespace_is_followed() {
    if !are_possible() {
        return;
    }
    let site = Site::new("name");
    let mut daemon = start(&[&site]);
    let (v4, v6) = ("10.2.0.2", "2001:db8:2::2");
    assert!(site.client.pings(v4) && site.client.pings(v6), "{}", daemon.log());
    daemon.until("all neighbours are known", |daemon| router(daemon, &site).neighbours >= 4);
    assert!(!router(&daemon, &site).has_rules);

    // Without the rule of table main, the kernel has no IPv4 routes. IPv6 is not concerned.
    site.ip("rule del lookup main");
    let passes = || site.client.output(&format!("busybox ping -c 1 -W 1 {v4}")).status.success();
    assert!(within(Duration::from_secs(10), || !passes()), "{}", daemon.log());
    assert!(router(&daemon, &site).has_rules);
    daemon.await_log("forwards all IPv4 packets");
    let by_engine = forwarded(&daemon, &site, "ping6", v6);
    println!(
        "rule del lookup main: IPv4 stops; the engine forwards {by_engine} IPv6 packets of {}",
        2 * BURST
    );
    assert!(by_engine >= 2 * BURST * 3 / 4, "{by_engine}");
    site.ip("rule add lookup main priority 32766");
    daemon.until("the rules are default", |daemon| !router(daemon, &site).has_rules);
    assert!(site.client.pings(v4), "{}", daemon.log());
    let by_engine = forwarded(&daemon, &site, "ping", v4);
    println!("rule add lookup main: the engine forwards {by_engine} IPv4 packets of {}", 2 * BURST);
    assert!(by_engine >= 2 * BURST * 3 / 4, "{by_engine}");

    // netvmd holds the namespace without its name, and gives it the name back.
    let name = Path::new("/run/netns").join(site.namespace());
    run(&format!("ip netns del {}", site.namespace()));
    let removed = Instant::now();
    assert!(within(Duration::from_secs(20), || name.exists()), "{}", daemon.log());
    println!("ip netns del: the name is back after {:?}", removed.elapsed());
    daemon.await_log("netvmd bound it again");
    site.ip("link show lan");
    assert!(site.client.pings(v4) && site.client.pings(v6), "{}", daemon.log());
    let by_engine = forwarded(&daemon, &site, "ping", v4);
    println!("the engine forwards {by_engine} IPv4 packets of {}", 2 * BURST);
    assert!(by_engine >= 2 * BURST * 3 / 4, "{by_engine}");
    // It is the router's: its kernel's routes are in force in the engine.
    site.ip("route add blackhole 10.2.0.2/32");
    assert!(within(Duration::from_secs(10), || !passes()), "{}", daemon.log());
    assert_eq!(daemon.log().matches("bound it again").count(), 1, "{}", daemon.log());

    daemon.purge();
    assert!(!name.exists());
}
