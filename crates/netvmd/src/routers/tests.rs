// SPDX-License-Identifier: Apache-2.0
//! Tests with real namespaces and without an engine.

use std::process::Command;
use std::time::{Duration, Instant};

use netvm_router::{Hop, NextHop, NextHopId, Tables};
use netvm_wire::MacAddr;

use super::follow::NetlinkSockets;
use super::kernel::{event_change, everything};
use super::links::{Interface, Links, OuterEnds, start_forwarding};
use super::namespace::Namespace;
use super::rib::Rib;
use super::static_routes;
use netvm_netlink::{ReadOutcome, Requests};

/// A namespace that is removed on drop, with its interfaces.
pub(super) struct TestNamespace(Option<Namespace>);

impl TestNamespace {
    /// `None` if this user cannot create namespaces.
    pub(super) fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can create namespaces");
            return None;
        }
        let (namespace, _) = Namespace::take(&format!("netvm-{name}{}", std::process::id())).unwrap();
        start_forwarding(&namespace).unwrap();
        Some(Self(Some(namespace)))
    }

    pub(super) fn namespace(&self) -> &Namespace {
        self.0.as_ref().unwrap()
    }

    pub(super) fn ip(&self, words: &str) -> String {
        let name = self.namespace().name();
        let output = Command::new("ip").args(["-n", name]).args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether a line of the forwarding databases begins so.
    pub(super) fn bridge_has(&self, entry: &str) -> bool {
        let name = self.namespace().name();
        let output = Command::new("bridge").args(["-n", name, "fdb", "show"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().any(|line| line.starts_with(entry))
    }

    pub(super) fn sockets(&self) -> NetlinkSockets {
        NetlinkSockets::open(self.namespace()).unwrap()
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        let Some(namespace) = self.0.take() else { return };
        let mut links = Links::new("test", &namespace).unwrap();
        for end in ends(&namespace) {
            links.remove(&end).unwrap();
        }
        drop(links);
        namespace.remove().unwrap();
    }
}

fn ends(namespace: &Namespace) -> Vec<String> {
    OuterEnds::look_up().unwrap().of(namespace).unwrap()
}

/// The `n`th interface of a test.
fn interface(test: u32, n: u32) -> Interface {
    Interface {
        name: format!("lan{n}"),
        host_end: format!("nv{test:x}{n:x}{:010x}", std::process::id()),
        mac: [2, 0, 0, 0, 1, n as u8],
        mtu: 1400,
        addresses: vec![([10, n as u8, 0, 1].into(), 24), (format!("2001:db8:{n}::1").parse().unwrap(), 64)],
    }
}

#[test]
fn an_interface_reaches_its_desired_state_and_keeps_foreign_addresses() {
    let Some(namespace) = TestNamespace::new("l") else { return };
    let mut links = Links::new("test", namespace.namespace()).unwrap();
    let mut wanted = interface(1, 1);
    assert!(links.configure(&wanted, None).unwrap(), "it is new");
    let addresses = namespace.ip("-o address show dev lan1");
    assert!(addresses.contains("10.1.0.1/24 brd 10.1.0.255"), "{addresses}");
    assert!(addresses.contains("2001:db8:1::1/64") && !addresses.contains("tentative"), "{addresses}");
    let link = namespace.ip("-o link show dev lan1");
    assert!(link.contains("mtu 1400") && link.contains("02:00:00:00:01:01") && link.contains("UP"), "{link}");
    assert_eq!(ends(namespace.namespace()), [wanted.host_end.clone()]);
    let index = || namespace.ip("-o link show dev lan1").split(':').next().unwrap().to_owned();

    // Another configuration; a foreign address stays.
    let before = index();
    namespace.ip("address add 10.9.0.1/24 dev lan1");
    wanted.addresses.remove(0);
    wanted.mac = [2, 0, 0, 0, 1, 99];
    assert!(!links.configure(&wanted, None).unwrap(), "it was there");
    let addresses = namespace.ip("-o address show dev lan1");
    assert!(!addresses.contains("10.1.0.1") && addresses.contains("10.9.0.1"), "{addresses}");
    assert!(namespace.ip("-o link show dev lan1").contains("02:00:00:00:01:63"));
    assert_eq!(index(), before, "the interface was recreated");

    // What somebody changed in the namespace stays, as long as the configuration does.
    let configured = Some(wanted.configured());
    namespace.ip("neighbour add 10.9.0.7 lladdr 02:00:00:00:02:07 dev lan1");
    links.configure(&wanted, configured).unwrap();
    assert!(namespace.ip("neighbour show").contains("10.9.0.7 dev lan1 lladdr 02:00:00:00:02:07 PERMANENT"));
    namespace.ip("link set lan1 down");
    namespace.ip("link set lan1 name other address 02:00:00:00:01:77 mtu 1300");
    assert!(!links.configure(&wanted, configured).unwrap());
    let link = namespace.ip("-o link show dev other");
    let has = |words: &str| link.contains(words);
    assert!(has("02:00:00:00:01:77") && has("mtu 1300") && has("state DOWN"), "{link}");
    assert_eq!(link.split(':').next(), Some(&before[..]), "the interface was recreated");
    // A new value of the configuration counts again; an MTU is then not raised.
    wanted.mac = [2, 0, 0, 0, 1, 88];
    wanted.mtu = 1390;
    links.configure(&wanted, configured).unwrap();
    let link = namespace.ip("-o link show dev other");
    assert!(link.contains("02:00:00:00:01:58") && link.contains("mtu 1300"), "{link}");
    // Without IPv6 it has its other addresses.
    let switch = "/proc/sys/net/ipv6/conf/other/disable_ipv6";
    namespace.namespace().inside(|| std::fs::write(switch, "1")).unwrap().unwrap();
    links.configure(&wanted, Some(wanted.configured())).unwrap();
    links.remove(&wanted.host_end).unwrap();
    links.remove(&wanted.host_end).unwrap();
    assert_eq!(ends(namespace.namespace()), [""; 0]);
}

/// Applies a RIB's updates to an engine's tables.
fn tables(rib: &mut Rib, tables: &mut Tables) {
    rib.updates().iter().for_each(|update| tables.apply(update));
}

fn next_hop(tables: &Tables, address: [u8; 4]) -> NextHop {
    let mut found = [NextHopId::PUNT];
    tables.lookup_v4(&[u32::from_be_bytes(address)], &mut found);
    tables.next_hop(found[0]).clone()
}

/// A kernel's routes, and the engine's tables that follow them.
struct Followed<'a> {
    namespace: &'a TestNamespace,
    sockets: &'a mut NetlinkSockets,
    rib: &'a mut Rib,
    engine: &'a mut Tables,
}

/// Reads events, with dumps if needed, until `is_there` holds.
fn until(followed: Followed<'_>, what: impl Fn(&Tables) -> bool) -> Duration {
    let Followed { namespace, sockets, rib, engine } = followed;
    let begin = Instant::now();
    let is_so = netvm_testing::within(netvm_testing::LIMIT, || {
        if what(engine) {
            return true;
        }
        let mut is_unclear = false;
        let outcome = sockets.events.read(100, |event| {
            if let Some(change) = event_change(event) {
                is_unclear |= rib.apply(change);
            }
        });
        if is_unclear || outcome.unwrap() == ReadOutcome::Lost {
            let all = namespace.namespace().inside(|| everything(&mut Requests::open().unwrap()).unwrap());
            rib.resync(all.unwrap());
        }
        tables(rib, engine);
        false
    });
    assert!(is_so, "timeout: {rib:?}");
    begin.elapsed()
}

#[test]
fn kernel_routes_become_engine_routes() {
    let Some(namespace) = TestNamespace::new("k") else { return };
    let mut links = Links::new("test", namespace.namespace()).unwrap();
    links.configure(&interface(2, 1), None).unwrap();
    let (mut sockets, mut engine) = (namespace.sockets(), Tables::new());
    let mut rib = Rib::new(["lan1", "lan2"].map(|name| (name.to_owned(), None)).to_vec());
    rib.resync(everything(&mut sockets.requests).unwrap());
    tables(&mut rib, &mut engine);
    assert_eq!(next_hop(&engine, [10, 1, 0, 7]), NextHop::Glean(0));

    let via = |interface, last| NextHop::Via(Hop { interface, mac: MacAddr([2, 0, 0, 0, 2, last]) });
    let mut then = |what: &dyn Fn(&Tables) -> bool| {
        let (namespace, sockets, rib, engine) = (&namespace, &mut sockets, &mut rib, &mut engine);
        until(Followed { namespace, sockets, rib, engine }, what)
    };
    namespace.ip("neighbour add 10.1.0.7 lladdr 02:00:00:00:02:07 dev lan1");
    then(&|engine| next_hop(engine, [10, 1, 0, 7]) == via(0, 7));
    namespace.ip("route add 20.0.0.0/8 via 10.1.0.7");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 7));
    namespace.ip("route add blackhole 20.1.0.0/16");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == NextHop::Blackhole);
    namespace.ip("route del blackhole 20.1.0.0/16");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 7));
    namespace.ip("neighbour change 10.1.0.7 lladdr 02:00:00:00:02:08 dev lan1");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 8));

    // IPv6.
    namespace.ip("neighbour add 2001:db8:1::7 lladdr 02:00:00:00:02:07 dev lan1");
    namespace.ip("route add 2001:db8:99::/48 via 2001:db8:1::7");
    let v6 = |engine: &Tables| {
        let mut found = [NextHopId::PUNT];
        engine.lookup_v6(&["2001:db8:99::1".parse::<std::net::Ipv6Addr>().unwrap().octets()], &mut found);
        engine.next_hop(found[0]).clone()
    };
    then(&|engine| v6(engine) == via(0, 7));
    namespace.ip("route del 2001:db8:99::/48");
    then(&|engine| v6(engine) == NextHop::Punt);

    // A second interface, and a route by two gateways.
    links.configure(&interface(2, 2), None).unwrap();
    namespace.ip("neighbour add 10.2.0.9 lladdr 02:00:00:00:02:09 dev lan2");
    then(&|engine| next_hop(engine, [10, 2, 0, 9]) == via(1, 9));
    namespace.ip("route replace 20.0.0.0/8 nexthop via 10.1.0.7 weight 1 nexthop via 10.2.0.9 weight 2");
    then(&|engine| matches!(next_hop(engine, [20, 1, 2, 3]), NextHop::Ecmp(hops) if hops.len() == 3));
    // The kernel sends no event for IPv4 routes that go with their interface.
    namespace.ip("link set lan2 down");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 8));
    // Nor of gateways that it uses again.
    namespace.ip("link set lan2 up");
    namespace.ip("neighbour replace 10.2.0.9 lladdr 02:00:00:00:02:09 dev lan2");
    then(&|engine| matches!(next_hop(engine, [20, 1, 2, 3]), NextHop::Ecmp(hops) if hops.len() == 3));
    namespace.ip("link set lan2 down");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 8));
    namespace.ip("link set lan1 down");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == NextHop::Punt);
    namespace.ip("link set lan1 up");
    namespace.ip("neighbour replace 10.1.0.7 lladdr 02:00:00:00:02:07 dev lan1");
    namespace.ip("route add 20.0.0.0/8 via 10.1.0.7");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 7));
    // Policy routing that only the kernel handles: a rule for some packets, one that does not match, tables in another
    // order, and a missing rule.
    namespace.ip("route add blackhole 2001:db8:99::/48");
    for (change, back) in [
        ("rule add fwmark 1 table 100", "rule del fwmark 1 table 100"),
        ("rule add not from all lookup main priority 7", "rule del priority 7"),
        ("rule add lookup default priority 7", "rule del priority 7"),
        ("rule del lookup main", "rule add lookup main priority 32766"),
    ] {
        namespace.ip(change);
        let punts = |engine: &Tables| next_hop(engine, [20, 1, 2, 3]) == NextHop::Punt;
        then(&|engine| punts(engine) && v6(engine) == NextHop::Blackhole);
        namespace.ip(&format!("-6 {change}"));
        then(&|engine| punts(engine) && v6(engine) == NextHop::Punt);
        namespace.ip(back);
        then(&|engine| next_hop(engine, [20, 1, 2, 3]) == via(0, 7) && v6(engine) == NextHop::Punt);
        namespace.ip(&format!("-6 {back}"));
        then(&|engine| v6(engine) == NextHop::Blackhole);
    }
    // Metrics that only the kernel handles.
    namespace.ip("route replace 20.0.0.0/8 via 10.1.0.7 mtu 1000");
    then(&|engine| next_hop(engine, [20, 1, 2, 3]) == NextHop::Punt);

    // A next hop object, as routing daemons use.
    namespace.ip("nexthop add id 5 via 10.1.0.7 dev lan1");
    namespace.ip("route add 30.0.0.0/8 nhid 5");
    then(&|engine| next_hop(engine, [30, 1, 2, 3]) == via(0, 7));
    // A group that loses a member, and an object that goes: the kernel sends no event for their IPv4 routes.
    namespace.ip("neighbour add 10.1.0.9 lladdr 02:00:00:00:02:09 dev lan1");
    namespace.ip("nexthop add id 6 via 10.1.0.9 dev lan1");
    namespace.ip("nexthop add id 7 group 5/6");
    namespace.ip("route add 31.0.0.0/8 nhid 7");
    then(&|engine| matches!(next_hop(engine, [31, 1, 2, 3]), NextHop::Ecmp(hops) if hops.len() == 2));
    namespace.ip("nexthop del id 6");
    then(&|engine| next_hop(engine, [31, 1, 2, 3]) == via(0, 7));
    namespace.ip("nexthop replace id 5 via 10.1.0.9 dev lan1");
    then(&|engine| {
        next_hop(engine, [31, 1, 2, 3]) == via(0, 9) && next_hop(engine, [30, 1, 2, 3]) == via(0, 9)
    });
    namespace.ip("nexthop del id 5");
    then(&|engine| {
        next_hop(engine, [31, 1, 2, 3]) == NextHop::Punt && next_hop(engine, [30, 1, 2, 3]) == NextHop::Punt
    });
}

#[test]
fn lost_events_are_made_up_by_a_dump() {
    let Some(namespace) = TestNamespace::new("m") else { return };
    let mut links = Links::new("test", namespace.namespace()).unwrap();
    links.configure(&interface(3, 1), None).unwrap();
    let (mut sockets, mut engine) = (namespace.sockets(), Tables::new());
    rustix::net::sockopt::set_socket_recv_buffer_size(&sockets.events, 4096).unwrap();
    let mut rib = Rib::new(vec![("lan1".to_owned(), None)]);
    namespace.ip("neighbour add 10.1.0.7 lladdr 02:00:00:00:02:07 dev lan1");
    let file = std::env::temp_dir().join(format!("netvm-routes-{}", std::process::id()));
    let lines: String =
        (0..2000).map(|n| format!("route add 20.{}.{}.0/24 via 10.1.0.7\n", n / 256, n % 256)).collect();
    std::fs::write(&file, lines).unwrap();
    namespace.ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    let last = |engine: &Tables| next_hop(engine, [20, 7, 207, 1]) != NextHop::Punt;
    let (namespace, sockets, engine) = (&namespace, &mut sockets, &mut engine);
    until(Followed { namespace, sockets, rib: &mut rib, engine }, last);
    assert_eq!(rib.counts().routes_v4, 2001);
    assert_eq!(rib.counts().next_hops, 1);
}

#[test]
fn prefixes_of_nat_are_local_and_follow_the_configuration() {
    let Some(namespace) = TestNamespace::new("p") else { return };
    let mut links = Links::new("test", namespace.namespace()).unwrap();
    links.configure(&interface(4, 1), None).unwrap();
    let set = |nets: &[&str]| {
        let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        namespace.namespace().inside(|| static_routes::set_local(&nets)).unwrap().unwrap();
    };
    let show = || {
        let all = ["route show table local", "-6 route show table local"].map(|words| namespace.ip(words));
        let text = all.concat();
        let ours = text.lines().filter(|line| line.contains("proto 110"));
        let prefixes: Vec<&str> = ours.filter_map(|line| line.split(' ').nth(1)).collect();
        prefixes.join(" ")
    };
    // The interface's own address has its route already.
    set(&["10.1.0.1/32", "10.1.0.7/32", "10.1.0.8/31", "2001:db8:9::/64"]);
    assert_eq!(show(), "10.1.0.7 10.1.0.8/31 2001:db8:9::/64");
    let answers = |to: &str| namespace.ip(&format!("route get {to} from 10.1.0.99 iif lan1"));
    assert!(answers("10.1.0.9").starts_with("local "), "{}", answers("10.1.0.9"));
    // Static routes come and go without them.
    namespace.namespace().inside(|| static_routes::set(&[])).unwrap().unwrap();
    set(&["10.1.0.8/31", "10.1.0.128/28"]);
    assert_eq!(show(), "10.1.0.8/31 10.1.0.128/28");
    set(&[]);
    assert_eq!(show(), "");
}
