// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping: docs/how-to/multicast.md. Groups of the kernel's hosts, beside the snooping of its bridge.

mod flood;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use netvm_api::{MulticastDomain, MulticastInfo, TraceReply, path};

use crate::common::hosts::{self, Host, run, within};
use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE};

const LIMIT: Duration = Duration::from_secs(30);
const PAGE: &str = include_str!("../../../../../docs/how-to/multicast.md");
const GROUP: &str = "239.1.2.3";
const GROUP_V6: &str = "ff15::7";
/// Datagrams that are sent at once.
const DATAGRAMS: u64 = 400;

/// A socket in a namespace that is a member of a group until this is dropped.
struct Membership(#[expect(dead_code, reason = "its end ends the membership")] mpsc::Sender<()>);

fn join(host: &Host, group: &str) -> Membership {
    let (end, ended) = mpsc::channel();
    let (joined, has_joined) = mpsc::channel();
    let group: IpAddr = group.parse().unwrap();
    host.inside(move || {
        let socket = match group {
            IpAddr::V4(group) => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
                socket.join_multicast_v4(&group, &address_inside()).map(|()| socket)
            }
            IpAddr::V6(group) => {
                let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
                socket.join_multicast_v6(&group, index_inside()).map(|()| socket)
            }
        };
        joined.send(socket.is_ok()).unwrap();
        let _ = ended.recv();
    });
    assert!(has_joined.recv().unwrap(), "cannot join {group}");
    Membership(end)
}

/// The IPv4 address of eth0.
fn address_inside() -> Ipv4Addr {
    let output = Command::new("ip").args(["-4", "-br", "address", "show", "dev", "eth0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().nth(2).unwrap().split('/').next().unwrap().parse().unwrap()
}

/// The number of eth0.
fn index_inside() -> u32 {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", "eth0"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(':').next().unwrap().parse().unwrap()
}

/// Sends datagrams to a group.
fn send(host: &Host, group: &str) {
    let group: IpAddr = group.parse().unwrap();
    let sender = host.inside(move || {
        let socket = match group {
            IpAddr::V4(_) => UdpSocket::bind((address_inside(), 0)),
            IpAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = socket.unwrap();
        if let IpAddr::V6(group) = group {
            // Only to choose the interface by which packets to the group leave.
            socket.join_multicast_v6(&group, index_inside()).unwrap();
            socket.leave_multicast_v6(&group, index_inside()).unwrap();
        }
        let scope = if group.is_ipv6() { index_inside() } else { 0 };
        for n in 0..DATAGRAMS {
            let to: std::net::SocketAddr = match group {
                IpAddr::V4(group) => (group, 5004).into(),
                IpAddr::V6(group) => std::net::SocketAddrV6::new(group, 5004, 0, scope).into(),
            };
            // An IPv6 address of an interface that has just come up cannot be used at once.
            assert!(within(LIMIT, || socket.send_to(&[0; 100], to).is_ok()), "{to}");
            if n % 16 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    sender.join().unwrap();
}

/// Packets that a host has received.
fn received(host: &Host) -> u64 {
    let text = host.output("cat /sys/class/net/eth0/statistics/rx_packets").stdout;
    String::from_utf8(text).unwrap().trim().parse().unwrap()
}

/// Which of the hosts get the datagrams of one to a group.
fn reached(hosts: &[&Host], from: &Host, group: &str) -> Vec<bool> {
    let before: Vec<u64> = hosts.iter().map(|host| received(host)).collect();
    send(from, group);
    let gets = |host: &Host, before: u64| received(host) - before >= DATAGRAMS * 9 / 10;
    // All members get them in the same turns of the workers.
    within(Duration::from_secs(2), || hosts.iter().zip(&before).any(|(host, before)| gets(host, *before)));
    hosts.iter().zip(before).map(|(host, before)| gets(host, before)).collect()
}

fn mdb(daemon: &Daemon) -> MulticastInfo {
    daemon.get(path::MULTICAST)
}

fn domain(daemon: &Daemon, protocol: &str) -> Option<MulticastDomain> {
    mdb(daemon).domains.into_iter().find(|domain| domain.protocol == protocol)
}

/// The ports of a group.
fn ports_of(daemon: &Daemon, group: &str) -> Vec<String> {
    let groups = mdb(daemon).domains.into_iter().flat_map(|domain| domain.groups);
    let group = groups.into_iter().find(|known| known.group == group);
    group.map_or_else(Vec::new, |group| group.ports.into_iter().map(|member| member.port).collect())
}

/// The page's network, which asks in short intervals.
fn page(hosts: &[&Host; 3]) -> String {
    let mut page = blocks(PAGE, "toml")[0].replace(
        "mcast_querier = true\n",
        "mcast_querier = true\nmcast_query_interval = 4\nmcast_query_response_interval = 1\n",
    );
    for (name, host) in ["camera", "viewer", "other"].iter().zip(hosts) {
        let namespace = format!("namespace = \"{name}\"");
        page = page.replace(&namespace, &format!("namespace = {:?}", host.namespace()));
    }
    format!("{}{page}", *ENGINE)
}

#[test]
fn packets_of_a_group_go_to_its_members() {
    if !hosts::are_possible() {
        return;
    }
    let hosts = ["mca", "mcv", "mco"].map(Host::bare);
    let [camera, viewer, other] = &hosts;
    let mut daemon = Daemon::start(&page(&[camera, viewer, other]));
    let pruned = |daemon: &Daemon| mdb(daemon).domains.iter().filter(|domain| domain.pruned).count() == 2;
    let reached = |group: &str| reached(&[viewer, other], camera, group);
    assert!(camera.pings("10.0.0.2") && camera.pings("10.0.0.3"), "{}", daemon.log());
    daemon.until("hosts have had the time to answer", pruned);
    let igmp = domain(&daemon, "igmp").unwrap();
    assert_eq!((igmp.querier.as_deref(), igmp.querier_port), (Some("10.0.0.254"), None));
    assert_eq!(reached(GROUP), [true, true], "nobody has joined it");

    let membership = [GROUP, GROUP_V6].map(|group| (join(viewer, group), group));
    for (_, group) in &membership {
        daemon.until("the viewer has joined", |daemon| ports_of(daemon, group) == ["viewer"]);
        assert_eq!(reached(group), [true, false], "{group}\n{}", daemon.log());
    }
    // Past the time of a membership: the host has answered queries.
    let left = || domain(&daemon, "igmp").unwrap().groups[0].ports[0].left_s.unwrap();
    assert!(within(LIMIT, || left() <= 6) && within(LIMIT, || left() >= 7), "{:?}", mdb(&daemon));
    let trace = "{\"port\": \"camera\", \"frame\": \"01005e010203 020000000001 0800 4500001c 00000000 0111 a3b9 0a000001 ef010203 138c138c00080000\"}";
    let trace: TraceReply = daemon.post(path::TRACE, trace);
    assert!(trace.steps.contains(&format!("L2 switch: to members of {GROUP} and to routers")), "{trace:?}");
    assert!(trace.steps.iter().any(|step| step == "flooded to port viewer:" || step.contains("viewer")));
    assert!(!trace.steps.iter().any(|step| step.contains("port other")), "{trace:?}");

    // `mcast_fast_leave`: at once, and then the groups are unregistered.
    drop(membership);
    daemon.until("the groups have ended", |daemon| {
        ports_of(daemon, GROUP).is_empty() && ports_of(daemon, GROUP_V6).is_empty()
    });
    // Without it: after two queries that nobody answers.
    let both = [join(viewer, GROUP), join(other, GROUP)];
    daemon.until("both have joined", |daemon| ports_of(daemon, GROUP).len() == 2);
    assert_eq!(reached(GROUP), [true, true]);
    let [membership, end] = both;
    drop(end);
    daemon.until("other has left", |daemon| ports_of(daemon, GROUP) == ["viewer"]);
    assert_eq!(reached(GROUP), [true, false]);

    // Its link is down: what it has joined ends with it.
    viewer.ip("link set eth0 down");
    daemon.until("its membership has ended", |daemon| ports_of(daemon, GROUP).is_empty());
    drop(membership);
    daemon.purge();
}

#[test]
fn the_kernels_bridge_agrees() {
    if !hosts::are_possible() {
        return;
    }
    // Behind netvm's uplink, a bond of two links, is a bridge of the kernel that snoops, and asks, with a host of its
    // own.
    let [near, third, switch, far] = ["mkn", "mkt", "mks", "mkf"].map(Host::bare);
    let links = ["u", "w"].map(|link| (format!("{}{link}", switch.namespace()), format!("{link}link")));
    for (uplink, end) in &links {
        run(&format!("ip link add {uplink} type veth peer name {end} netns {}", switch.namespace()));
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{uplink}/disable_ipv6"), "1").unwrap();
    }
    run(&format!(
        "ip link add eth0 netns {} type veth peer name dlink netns {}",
        far.namespace(),
        switch.namespace()
    ));
    // Hundredths of seconds.
    switch.ip("link add name sw0 type bridge mcast_snooping 1 mcast_querier 1 mcast_query_use_ifaddr 1 \
         mcast_query_interval 300 mcast_query_response_interval 100 mcast_startup_query_interval 100");
    for interface in ["ulink", "wlink", "dlink"] {
        switch.ip(&format!("link set {interface} master sw0"));
    }
    switch.ip("address add 10.0.0.9/24 dev sw0");
    for interface in ["ulink", "wlink", "dlink", "sw0"] {
        switch.ip(&format!("link set {interface} up"));
    }
    far.ip("address add 10.0.0.4/24 dev eth0");
    far.ip("link set eth0 up");
    links.iter().for_each(|(uplink, _)| drop(run(&format!("ip link set {uplink} up"))));
    let container = |name: &str, host: &Host, n: u8| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"container\"\nnamespace = {:?}\naddresses = [\"10.0.0.{n}/24\"]\n\
             forward = {{ normal = true }}\n",
            host.namespace()
        )
    };
    let member = |name: &str, interface: &str| {
        format!("[[port]]\nname = \"{name}\"\nkind = \"af_packet\"\ninterface = {interface:?}\n")
    };
    let config = format!(
        "{}[switch]\nmcast_snooping = true\n{}{}{}{}[[port]]\nname = \"uplink\"\nkind = \"bond\"\n\
         members = [\"uplink-a\", \"uplink-b\"]\nmode = \"active-backup\"\nforward = {{ normal = true }}\n",
        *ENGINE,
        member("uplink-a", &links[0].0),
        member("uplink-b", &links[1].0),
        container("near", &near, 1),
        container("third", &third, 2),
    );
    let mut daemon = Daemon::start(&config);
    assert!(near.pings("10.0.0.4"), "{}", daemon.log());
    daemon.until("the kernel's bridge asks", |daemon| {
        domain(daemon, "igmp").is_some_and(|domain| domain.pruned)
    });
    let igmp = domain(&daemon, "igmp").unwrap();
    assert_eq!((igmp.querier.as_deref(), igmp.querier_port.as_deref()), (Some("10.0.0.9"), Some("uplink")));
    assert_eq!(igmp.routers.iter().map(|router| router.port.as_str()).collect::<Vec<_>>(), ["uplink"]);

    let of_kernel = |group: &str| -> Vec<String> {
        let text = String::from_utf8(switch.output("bridge mdb show dev sw0").stdout).unwrap();
        let of_group = text.lines().filter(|line| line.contains(&format!("grp {group} ")));
        let port = |line: &str| line.split("port ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        of_group.map(port).filter(|port| port != "sw0").collect()
    };
    let state = || {
        let kernel = String::from_utf8(switch.output("bridge -d -s mdb show dev sw0").stdout).unwrap();
        format!("{kernel}\n{:?}\n{:?}", mdb(&daemon), daemon.stats().drops)
    };
    let at_far = join(&far, GROUP);
    let at_near = join(&near, "239.9.9.9");
    daemon.until("netvm knows its host's", |daemon| ports_of(daemon, "239.9.9.9") == ["near"]);
    assert!(
        within(LIMIT, || of_kernel("239.9.9.9") == ["ulink"]),
        "the kernel got netvm's report\n{}",
        state()
    );
    assert!(within(LIMIT, || of_kernel(GROUP) == ["dlink"]), "and that of its own host");
    assert_eq!(reached(&[&far, &third], &near, GROUP), [true, false], "{}", daemon.log());
    assert_eq!(reached(&[&near, &third], &far, "239.9.9.9"), [true, false], "{}", daemon.log());
    // A member fails: the router is behind the bond, not behind its members. The kernel's bridge hears of netvm's host
    // by the other link with the next report.
    run(&format!("ip link set {} down", links[0].0));
    let by_other_link = || of_kernel("239.9.9.9") == ["wlink"];
    assert!(within(LIMIT, by_other_link), "{}", state());
    let routers = domain(&daemon, "igmp").unwrap().routers;
    assert_eq!(routers.iter().map(|router| router.port.as_str()).collect::<Vec<_>>(), ["uplink"]);
    assert_eq!(reached(&[&far, &third], &near, GROUP), [true, false], "{}", daemon.log());
    assert_eq!(reached(&[&near, &third], &far, "239.9.9.9"), [true, false], "{}", daemon.log());
    // Both forget it.
    drop((at_far, at_near));
    // The kernel's bridge asks for the group once more, which netvm hears, long before the membership would end.
    assert!(within(LIMIT, || ports_of(&daemon, "239.9.9.9").is_empty()), "{}", state());
    assert!(
        within(LIMIT, || of_kernel("239.9.9.9").is_empty() && of_kernel(GROUP).is_empty()),
        "{}",
        state()
    );
    for (uplink, _) in &links {
        let _ = hosts::succeeds(&format!("ip link delete {uplink}"));
    }
    daemon.purge();
}
