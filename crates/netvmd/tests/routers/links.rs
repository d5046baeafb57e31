// SPDX-License-Identifier: Apache-2.0
//! Links and interfaces of ports that come and go, and their MTUs.

use std::time::Duration;

use netvm_api::{PortInfo, Status, path};

use super::common::Daemon;
use super::common::hosts::{Host, are_possible, run, within};
use super::site::{ENGINE, Site, start};

#[test]
fn links_and_interfaces_that_come_and_go_are_followed() {
    if !are_possible() {
        return;
    }
    let site = Site::new("l");
    let mut daemon = start(&[&site]);
    assert!(site.client.pings("10.2.0.2"), "{}", daemon.log());
    let carrier =
        |name: &str| !run(&format!("ip -n {} -o link show {name}", site.namespace())).contains("NO-CARRIER");
    let says = |daemon: &Daemon, words: &str| {
        daemon.get::<Status>(path::STATUS).problems.iter().any(|problem| problem.contains(words))
    };
    let has_link = |daemon: &Daemon, side: &str| {
        let ports: Vec<PortInfo> = daemon.get(path::PORTS);
        ports.iter().find(|port| port.name == format!("{}-{side}", site.router)).unwrap().link
    };
    // The other end of the client's cable goes down.
    site.client.ip("link set eth0 down");
    daemon.until("the link is down", |daemon| says(daemon, "-lan: link down") && !has_link(daemon, "lan"));
    daemon.until("the router's interface has no carrier", |_| !carrier("lan") && carrier("wan"));
    site.client.ip("link set eth0 up");
    site.client.ip("route add default via 10.1.0.1");
    site.client.ip("address replace 2001:db8:1::2/64 dev eth0 nodad");
    site.client.ip("-6 route replace default via 2001:db8:1::1");
    daemon.until("the link is up", |daemon| has_link(daemon, "lan") && carrier("lan"));
    assert!(site.client.pings("10.2.0.2"), "{}", daemon.log());
    daemon.await_log("link up");
    // The server's interface is removed and made again, twice; other changes are possible meanwhile.
    for _ in 0..2 {
        site.server.unplug();
        daemon.until("it is gone", |daemon| says(daemon, "opens the port when") && !has_link(daemon, "wan"));
        daemon.until("the router's interface has no carrier", |_| !carrier("wan"));
        let more = format!("{ENGINE}{}\n[[port]]\nname = \"spare\"\nkind = \"sink\"\n", site.config());
        let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &more);
        site.server.plug();
        site.server.ip("route add default via 10.2.0.1");
        assert!(site.client.pings("10.2.0.2"), "{}", daemon.log());
        assert!(has_link(&daemon, "wan") && carrier("wan"));
    }
    // A smaller MTU: the router says so, and its senders follow (RFC 1191, RFC 8201).
    run(&format!("ip link set {} mtu 1270", site.server.port()));
    site.server.ip("link set eth0 mtu 1270");
    daemon.until("the MTU is noticed", |daemon| says(daemon, "that of interface"));
    let mtu = |size: u32| {
        run(&format!("ip -n {} -o link show wan", site.namespace())).contains(&format!(" mtu {size} "))
    };
    daemon.until("the router's interface follows", |_| mtu(1270));
    assert!(within(Duration::from_secs(20), || {
        site.client.output("busybox ping -c 1 -W 1 -s 1472 10.2.0.2").status.success()
    }));
    let known = site.client.ip_output("route get 10.2.0.2");
    assert!(known.contains("mtu 1270"), "{known}");
    // Below what IPv6 needs (RFC 8200 section 5) the kernel takes its addresses away; they come back.
    run(&format!("ip link set {} mtu 1400", site.server.port()));
    site.server.ip("link set eth0 mtu 1400");
    site.server.ip("address replace 2001:db8:2::2/64 dev eth0 nodad");
    site.server.ip("-6 route replace default via 2001:db8:2::1");
    daemon.until("the router's interface follows", |_| mtu(1400));
    assert!(site.client.pings("2001:db8:2::2"), "{}", daemon.log());
    assert!(within(Duration::from_secs(20), || {
        site.client.output("busybox ping6 -c 1 -W 1 -s 1452 2001:db8:2::2").status.success()
    }));
    let known = site.client.ip_output("-6 route get 2001:db8:2::2");
    assert!(known.contains("mtu 1400"), "{known}");
    // What the kernel refuses is counted: here the other end of the cable takes less than the port's interface says.
    run(&format!("ip link set {} mtu 1500", site.server.port()));
    daemon.until("the router's interface follows", |_| mtu(1500));
    site.client.ip("route flush cache");
    daemon.until("it is counted", |daemon| {
        assert!(!site.client.output("busybox ping -c 1 -W 1 -s 1472 10.2.0.2").status.success());
        format!("{:?}", daemon.stats().drops).contains("tx-refused")
    });
    site.server.ip("link set eth0 mtu 1500");
    daemon.until("all is well", |daemon| daemon.get::<Status>(path::STATUS).problems.is_empty());
    daemon.purge();
}

#[test]
fn state_and_mtu_of_a_containers_interface_are_followed() {
    if !are_possible() {
        return;
    }
    let (container, router) = (Host::bare("box"), format!("box{}", std::process::id()));
    let config = format!(
        "{ENGINE}\n[[port]]\nname = \"c\"\nkind = \"container\"\nnamespace = \"{}\"\n\
         addresses = [\"10.1.0.2/24\"]\nforward = {{ router = \"{router}\" }}\n\
         [[router]]\nname = \"{router}\"\n[[router.interface]]\nname = \"lan\"\nport = \"c\"\n\
         addresses = [\"10.1.0.1/24\"]\n",
        container.namespace()
    );
    let mut daemon = Daemon::start(&config);
    assert!(container.pings("10.1.0.1"), "{}", daemon.log());
    let lan = || run(&format!("ip -n netvm-{router} -o link show lan"));
    container.ip("link set eth0 mtu 1280");
    daemon.until("the router's interface has its MTU", |_| lan().contains(" mtu 1280 "));
    container.ip("link set eth0 down");
    daemon.until("the router's interface has no carrier", |_| lan().contains("NO-CARRIER"));
    // By another name it is the same interface.
    container.ip("link set eth0 name eth9");
    container.ip("link set eth9 up");
    daemon.until("it has one", |_| !lan().contains("NO-CARRIER"));
    assert!(container.pings("10.1.0.1"), "{}", daemon.log());
    daemon.purge();
}
