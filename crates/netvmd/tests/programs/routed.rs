// SPDX-License-Identifier: Apache-2.0
//! Programs that route, and programs with one port.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use netvm_api::NfState;

use crate::common::hosts::{Host, run, succeeds};
use crate::common::page::blocks;
use crate::foreign::testpmd_keys;
use crate::page::PAGE;
use crate::site::Site;

/// Rejects port 81.
const RULES: &str = "
nft -f - <<RULES
table ip f {
 chain f {
  type filter hook forward priority 0
  tcp dport 81 reject with tcp reset
 }
}
RULES
";

/// The script of the page, with rules, and routes for packets of its own: the kernel routes between its interfaces.
fn router() -> String {
    let routes = "ip route replace 10.77.0.1 dev left; ip route replace 10.77.0.2 dev right";
    let script =
        blocks(PAGE, "bash")[0].replace("nft -f /etc/netvm/forward.nft", &format!("{routes}{RULES}"));
    assert!(script.contains(RULES), "{script}");
    script
}

/// The same with one interface, without rules.
const ONE_ARMED_ROUTER: &str = "set -e
ip link set port arp off; echo 0 >/proc/sys/net/ipv4/conf/port/rp_filter
for scope in all port; do echo 0 >/proc/sys/net/ipv4/conf/$scope/send_redirects; done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
echo 1 >/proc/sys/net/ipv4/ip_forward
ip route replace default dev port
exec sleep infinity";

/// What connecting to the server at port 81 says, and how fast.
fn refused(site: &Site) -> (std::io::ErrorKind, Duration) {
    let begin = Instant::now();
    let connect = || TcpStream::connect_timeout(&(Site::SERVER, 81).into(), Duration::from_secs(10));
    let error = site.client.inside(move || connect().unwrap_err().kind()).join().unwrap();
    (error, begin.elapsed())
}

fn routes(name: &str, attach: &str, script: &str, keys: &str) {
    let Some(site) = Site::new(name) else { return };
    let program = format!("{}probe = false\nrewrite_macs = true\n{keys}", Site::script(attach, script));
    let daemon = site.start(&program, "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    assert!(site.echoes(200_000), "{}", daemon.log());
    let counters = site.nf(&daemon).counters;
    assert!(counters.values().sum::<u64>() > 100, "it passes the program: {counters:?}");
    // The rejected connection is answered to the client, not to the server.
    let (error, after) = refused(&site);
    assert_eq!(error, std::io::ErrorKind::ConnectionRefused, "{after:?} {}", daemon.log());
    // The hosts know each other by their own addresses, and not the router.
    let mac = |host: &Host| {
        let link = host.ip_output("-o link show eth0");
        link.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let neighbours = site.client.ip_output("neigh show 10.77.0.2");
    assert!(neighbours.contains(&mac(&site.server)), "{neighbours}");
    // With a TTL of 1 the router's step would be the last one.
    let once = site.client.output("busybox ping -t 1 -c 1 -W 2 10.77.0.2").status.success();
    assert_eq!(once, keys.contains("restore_ttl = true"), "{}", daemon.log());
}

#[test]
fn a_namespace_that_routes_is_a_hop_by_veth() {
    routes("rv", "veth", &router(), "");
}

#[test]
fn a_router_starts_again_in_its_namespace() {
    let Some(site) = Site::new("ra") else { return };
    let keys = "probe = false\nrewrite_macs = true\n";
    let daemon = site.start(&format!("{}{keys}", Site::script("veth", &router())), "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    let path = netvm_api::path::RESTART.replace("{role}", &site.role);
    let _: serde_json::Value = daemon.post(&path, "");
    daemon.until("it runs again", |daemon| {
        let nf = site.nf(daemon);
        nf.restarts == 1 && nf.state == NfState::Running
    });
    assert!(site.pings() && site.echoes(20_000), "{}", daemon.log());
    assert_eq!(site.nf(&daemon).restarts, 1, "{}", daemon.log());
}

#[test]
fn a_namespace_that_routes_is_a_hop_by_tap_and_shows_no_hop() {
    routes("rt", "tap", &router(), "restore_ttl = true\n");
}

#[test]
fn a_router_with_one_port_is_a_hop() {
    let script = ONE_ARMED_ROUTER.replace("exec sleep", &format!("{RULES}exec sleep"));
    routes("r1", "veth", &script, "ports = 1\nrestore_ttl = true\n");
}

/// Both directions by one port of a program that returns what it gets.
fn returns(site: &Site, program: &str) {
    let daemon = site.start(program, "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "{}", daemon.log());
    assert!(site.echoes(200_000), "{}", daemon.log());
    daemon.until("the counts agree", |daemon| {
        let counters = site.nf(daemon).counters;
        // Long segments are cut before they enter.
        let both = daemon.left("out") + daemon.left("in");
        counters["port_in"] > 20
            && counters["port_out"] >= counters["port_in"]
            && both == counters["port_out"]
    });
}

#[test]
fn a_redirect_of_tc_to_its_own_interface_is_a_hop_with_one_port() {
    for attach in ["veth", "tap", "af_xdp"] {
        let Some(site) = Site::new("1t") else { return };
        let script = &blocks(PAGE, "bash")[1];
        returns(&site, &format!("{}ports = 1\n", Site::script(attach, script)));
    }
}

#[test]
fn testpmd_returns_packets_by_one_port() {
    if !succeeds("which dpdk-testpmd") {
        println!("SKIP: no dpdk-testpmd here");
        return;
    }
    for attach in ["vhost-user", "memif"] {
        let Some(site) = Site::new("1p") else { return };
        let sockets = std::env::temp_dir().join(&site.role);
        let keys = testpmd_keys(&site.role, attach, &sockets);
        // Only the first device.
        let words: Vec<&str> = keys.split(", \"--vdev\"").collect();
        let [begin, first, second] = &words[..] else { panic!("{keys}") };
        let rest = second.split_once(", \"--\"").unwrap().1;
        let program =
            format!("ports = 1\n{begin}, \"--vdev\"{first}, \"--\"{rest}").replace("{left}", "{port}");
        returns(&site, &program);
    }
}

#[test]
fn the_namespace_of_a_program_with_one_port_has_one_interface() {
    let Some(site) = Site::new("1i") else { return };
    let daemon = site.start(&format!("{}ports = 1\n", Site::script("veth", "exec sleep infinity")), "");
    site.until(&daemon, NfState::Starting);
    let links = run(&format!("ip -n nf-{}.0 -o link", site.role));
    assert!(links.contains(" port@") && links.lines().count() == 2, "{links}");
}
