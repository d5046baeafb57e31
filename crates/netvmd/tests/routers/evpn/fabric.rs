// SPDX-License-Identifier: Apache-2.0
//! A fabric: servers between two spines. Each spine is a switch, and reflects routes to VTEPs with FRR; each server has
//! a link to both, and announces its VTEP to both by BGP. BFD watches these sessions. EVPN has a route reflector of its
//! own, which servers reach by any link: with two, zebra of FRR 8.4 loses a router's MAC address when a session flaps.
//!
//! A server has its own `/run/netns`, as zebra takes each namespace in there for a VRF (`zebra -n`).

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::super::common::guest::Reaper;
use super::super::common::hosts::{Host, run, within};
use super::super::common::{Daemon, Folder};
use super::super::frr::{Daemons, Place};

/// BFD notices a silent neighbour after so many intervals of so many milliseconds.
const BFD: (u32, u32) = (4, 200);

/// Where the namespaces of this machine are in a server.
const OUTER: &str = "/run/netvm-test-outer";

fn bfd() -> String {
    let (multiplier, interval) = BFD;
    format!(
        "bfd\n profile fast\n  detect-multiplier {multiplier}\n  receive-interval {interval}\n  \
         transmit-interval {interval}\n exit\nexit\n"
    )
}

/// A switch with a route reflector.
pub struct Spine {
    pub host: Host,
    number: u8,
    frr: Option<Daemons>,
}

impl Spine {
    /// `number`: 1 or 2.
    pub fn new(mark: &str, number: u8) -> Self {
        let host = Host::bare(&format!("{mark}{number}"));
        host.ip("link set lo up");
        host.ip("link add br0 type bridge");
        host.ip("link set br0 addrgenmode none up");
        host.ip(&format!("address add 10.0.{number}.254/24 dev br0"));
        Self { host, number, frr: None }
    }

    /// The interface to a server.
    pub fn port(server: u8) -> String {
        format!("p{server}")
    }

    /// Plugs in a server, by its `ethN`.
    pub fn plug(&self, server: u8, host: &Host) {
        let (port, number) = (Self::port(server), self.number);
        run(&format!(
            "ip link add {port} netns {} type veth peer name eth{number} netns {}",
            self.host.namespace(),
            host.namespace()
        ));
        host.ip(&format!("link set eth{number} up"));
        self.host.ip(&format!("link set {port} master br0"));
        self.host.ip(&format!("link set {port} addrgenmode none up"));
    }

    fn bgp(&self, servers: &[u8]) -> String {
        let number = self.number;
        let mut text = format!(
            "router bgp 65000\n bgp router-id 10.0.{number}.254\n bgp cluster-id 10.0.0.254\n \
             no bgp default ipv4-unicast\n timers bgp 3 9\n neighbor S peer-group\n neighbor S remote-as 65000\n \
             neighbor S timers connect 1\n neighbor S advertisement-interval 0\n neighbor S bfd profile fast\n"
        );
        for server in servers {
            text += &format!(" neighbor 10.0.{number}.{server} peer-group S\n");
        }
        text + " address-family ipv4 unicast\n  neighbor S activate\n  neighbor S route-reflector-client\n \
                exit-address-family\n"
    }

    pub fn start_frr(&mut self, servers: &[u8]) {
        let configs = [("bfdd", bfd()), ("bgpd", self.bgp(servers))];
        self.frr = Some(Daemons::frr(self.host.namespace(), &configs));
    }

    pub fn log(&self) -> String {
        let frr = self.frr.as_ref();
        frr.map_or_else(String::new, |frr| frr.vtysh("show bgp summary") + &frr.vtysh("show bfd peers brief"))
    }
}

/// The address of EVPN's route reflector.
const REFLECTOR: &str = "192.0.2.9";

/// BGP with both spines, which get an address.
fn underlay(address: &str) -> String {
    let mut text = format!(
        "router bgp 65000\n bgp router-id {address}\n no bgp default ipv4-unicast\n no bgp network import-check\n \
         timers bgp 3 9\n"
    );
    for spine in 1..=2 {
        let peer = format!("10.0.{spine}.254");
        text += &format!(
            " neighbor {peer} remote-as 65000\n neighbor {peer} timers connect 1\n neighbor {peer} bfd profile fast\n"
        );
    }
    let activate = "  neighbor 10.0.1.254 activate\n  neighbor 10.0.2.254 activate\n";
    text + &format!(
        " address-family ipv4 unicast\n  network {address}/32\n  maximum-paths ibgp 2\n{activate} exit-address-family\n"
    )
}

/// EVPN's route reflector.
pub struct Reflector {
    _host: Host,
    _frr: Daemons,
}

impl Reflector {
    pub fn start(mark: &str, spines: &[Spine], servers: &[u8]) -> Self {
        let host = Host::bare(mark);
        host.ip("link set lo up");
        host.ip(&format!("address add {REFLECTOR}/32 dev lo"));
        spines.iter().for_each(|spine| spine.plug(9, &host));
        (1..=spines.len()).for_each(|n| host.ip(&format!("address add 10.0.{n}.9/24 dev eth{n}")));
        let (mut bgp, mut clients) = (underlay(REFLECTOR), String::new());
        for server in servers {
            let peer = format!("192.0.2.{server}");
            bgp += &format!(
                "router bgp 65000\n neighbor {peer} remote-as 65000\n neighbor {peer} update-source {REFLECTOR}\n \
                 neighbor {peer} timers connect 1\n"
            );
            clients += &format!("  neighbor {peer} activate\n  neighbor {peer} route-reflector-client\n");
        }
        bgp += &format!(" address-family l2vpn evpn\n{clients} exit-address-family\n");
        let frr = Daemons::frr(host.namespace(), &[("bfdd", bfd()), ("bgpd", bgp)]);
        Self { _host: host, _frr: frr }
    }
}

/// What runs on a server: netvmd, or nothing but a kernel.
enum Runs {
    Nothing,
    Netvmd(Box<Daemon>),
    Kernel(Child),
}

/// A server.
pub struct Server {
    pub number: u8,
    pub host: Host,
    folder: Arc<Folder>,
    runs: Runs,
    pub frr: Option<Daemons>,
}

/// Makes a server's own `/run/netns` of a new mount namespace, and shows that of this machine elsewhere.
const ENTER: &str = "mount --make-rprivate / && mount --rbind /run/netns OUTER && mount -t tmpfs tmpfs /run/netns && \
                     mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";

impl Server {
    pub fn new(mark: &str, number: u8, spines: &[Spine]) -> Self {
        let host = Host::bare(&format!("{mark}{number}"));
        host.ip("link set lo up");
        spines.iter().for_each(|spine| spine.plug(number, &host));
        std::fs::create_dir_all(OUTER).unwrap();
        Self { number, host, folder: Arc::new(Folder::new()), runs: Runs::Nothing, frr: None }
    }

    /// The file of a host's namespace, as the server sees it.
    pub fn outer(host: &Host) -> String {
        format!("{OUTER}/{}", host.namespace())
    }

    /// The address of its VTEP.
    pub fn vtep(&self) -> String {
        format!("192.0.2.{}", self.number)
    }

    fn entering(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.host.namespace()));
        command.args(["unshare", "-m", "sh", "-c", &ENTER.replace("OUTER", OUTER)]);
        command
    }

    /// Starts netvmd, and waits for it.
    pub fn start(&mut self, config: &str) {
        let mut command = self.entering();
        command.arg(env!("CARGO_BIN_EXE_netvmd"));
        let mut daemon = Daemon::launch_as(command, Arc::clone(&self.folder), config);
        daemon.await_log("serves its API on");
        self.runs = Runs::Netvmd(Box::new(daemon));
    }

    /// Makes it a server without netvm: `commands` run in its namespace.
    pub fn start_kernel(&mut self, commands: &[String]) {
        let ready: PathBuf = self.folder.0.join("ready");
        let mut command = self.entering();
        command.args(["sh", "-c", &format!("touch {} && exec sleep 1000", ready.display())]);
        self.runs = Runs::Kernel(command.stdin(Stdio::null()).spawn().unwrap());
        assert!(within(Duration::from_secs(20), || ready.exists()));
        for command in commands {
            let output = self.inside().args(command.split(' ')).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Kills its guests at the end, which outlive a netvmd that is killed.
    pub fn reaper(&self) -> Reaper {
        Reaper(Arc::clone(&self.folder))
    }

    /// A command in its namespaces, whose words follow.
    pub fn inside(&self) -> Command {
        let words = self.enter_words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// The output of a command in its namespaces.
    pub fn output(&self, command: &str) -> String {
        let output = self.inside().args(command.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    }

    fn enter_words(&self) -> Vec<String> {
        let pid = match &self.runs {
            Runs::Nothing => panic!("nothing runs on server {}", self.number),
            Runs::Netvmd(daemon) => daemon.child.id(),
            Runs::Kernel(child) => child.id(),
        };
        ["nsenter".to_owned(), format!("--target={pid}"), "--mount".to_owned(), "--net".to_owned()].to_vec()
    }

    pub fn daemon(&self) -> &Daemon {
        match &self.runs {
            Runs::Netvmd(daemon) => daemon,
            _ => panic!("no netvmd runs on server {}", self.number),
        }
    }

    /// Starts FRR with these VRFs (namespace and L3VNI), `bgp` in each.
    pub fn start_frr(&mut self, vrfs: &[(&str, u32)]) {
        let (number, vtep) = (self.number, self.vtep());
        let mut zebra = String::new();
        let mut bgp = underlay(&vtep);
        bgp += &format!(
            "router bgp 65000\n neighbor {REFLECTOR} remote-as 65000\n neighbor {REFLECTOR} update-source {vtep}\n \
             neighbor {REFLECTOR} timers connect 1\n address-family l2vpn evpn\n  neighbor {REFLECTOR} activate\n  \
             advertise-all-vni\n exit-address-family\n"
        );
        for (vrf, vni) in vrfs {
            zebra += &format!("vrf {vrf}\n vni {vni}\nexit-vrf\n");
            bgp += &format!(
                "router bgp 65000 vrf {vrf}\n bgp router-id {vtep}\n address-family ipv4 unicast\n  \
                 redistribute connected\n  redistribute kernel\n  redistribute static\n exit-address-family\n \
                 address-family ipv6 unicast\n  redistribute connected\n  redistribute kernel\n \
                 exit-address-family\n address-family l2vpn evpn\n  advertise ipv4 unicast\n  \
                 advertise ipv6 unicast\n exit-address-family\n"
            );
        }
        let mut command = self.enter_words();
        if matches!(self.runs, Runs::Netvmd(_)) {
            command.extend(["ip", "netns", "exec", "netvm-edge"].map(str::to_owned));
        }
        let name = format!("{}frr{number}", self.host.namespace());
        let place = Place { name, command, has_vrfs: true };
        self.frr = Some(Daemons::frr_in(&place, &[("zebra", zebra), ("bfdd", bfd()), ("bgpd", bgp)]));
    }

    pub fn vtysh(&self, command: &str) -> String {
        self.frr.as_ref().map_or_else(String::new, |frr| frr.vtysh(command))
    }

    /// It falls silent at once, with all that runs on it.
    pub fn die(&mut self) {
        if let Some(frr) = &self.frr {
            frr.freeze(true);
        }
        if let Runs::Netvmd(daemon) = &mut self.runs {
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
    }

    pub fn log(&self) -> String {
        let mut text = format!("server {}\n", self.number);
        for command in [
            "show bgp summary",
            "show evpn vni",
            "show evpn mac vni all",
            "show evpn arp-cache vni all",
            "show ip route vrf all",
            "show ipv6 route vrf all",
            "show bgp neighbors",
        ] {
            text += &self.vtysh(command);
        }
        for command in ["ip -n netvm-red neighbour", "ip -n netvm-edge neighbour", "ip -n netvm-edge route"] {
            text += &self.output(command);
        }
        text += &self.frr.as_ref().map_or_else(String::new, Daemons::log);
        if let Runs::Netvmd(daemon) = &self.runs {
            text += &format!("{:?}\n{}", daemon.stats().drops, daemon.log());
        }
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.frr = None;
        match &mut self.runs {
            Runs::Netvmd(daemon) => {
                let has_ended = daemon.child.try_wait().unwrap().is_some();
                if !has_ended && !std::thread::panicking() {
                    daemon.purge();
                }
            }
            Runs::Kernel(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Runs::Nothing => {}
        }
    }
}
