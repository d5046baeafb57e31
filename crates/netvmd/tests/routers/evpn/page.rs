// SPDX-License-Identifier: Apache-2.0
//! docs/how-to/evpn.md: two servers with netvmd and FRR, with its configurations and commands as they are. Each server
//! has namespaces, folders of FRR, a name and an `/etc/machine-id` of its own.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::{ApplyReply, RouterInfo, path};
use rustix::process::{Pid, Signal, kill_process};

use super::super::common::hosts::{Host, are_possible, run, within};
use super::super::common::page::blocks;
use super::super::common::{Daemon, Folder};
use super::super::frr::are_installed;
use super::super::site::ENGINE;
use super::{TIMEOUT, port};

const PAGE: &str = include_str!("../../../../../docs/how-to/evpn.md");

/// Without BFD, a silent neighbour is noticed after 180 s.
const MAX_SILENCE: Duration = Duration::from_secs(20);

const SETUP: &str = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /run/netns; mount -t sysfs sysfs /sys; \
    mkdir -p /run/frr; mount -t tmpfs tmpfs /run/frr; chown frr:frr /run/frr; mount -t tmpfs tmpfs /etc/frr; \
    echo NAME >/proc/sys/kernel/hostname; \
    [ ! -e /etc/machine-id ] || mount --bind FOLDER/machine-id /etc/machine-id; \
    ip netns add CONTAINER; ip netns add office; exec \"$0\" \"$@\"";

struct Server {
    is_second: bool,
    daemon: Daemon,
    _host: Arc<Host>,
}

impl Server {
    fn start(host: &Arc<Host>, is_second: bool) -> Self {
        host.ip("link set lo up");
        host.ip("link set eth1 up");
        let folder = Arc::new(Folder::new());
        let id = if is_second { "b" } else { "a" }.repeat(32);
        std::fs::write(folder.0.join("machine-id"), id).unwrap();
        let setup = SETUP.replace("NAME", host.namespace());
        let setup = setup.replace("FOLDER", &folder.0.display().to_string());
        let setup = setup.replace("CONTAINER", if is_second { "db" } else { "web" });
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", host.namespace()));
        command.args(["unshare", "--mount", "--uts", "sh", "-c", &setup, env!("CARGO_BIN_EXE_netvmd")]);
        let config = format!("{}\n{}", &*ENGINE, of_server(&blocks(PAGE, "toml")[0], is_second));
        let mut daemon = Daemon::launch_as(command, folder, &config);
        daemon.await_log("serves its API on");
        Self { is_second, daemon, _host: Arc::clone(host) }
    }

    fn sh(&self, command: &str) -> Output {
        let mut all = Command::new("nsenter");
        all.arg(format!("--target={}", self.daemon.child.id())).args(["--mount", "--net", "--uts"]);
        all.args(["sh", "-c", command]).output().unwrap()
    }

    /// A file as the server sees it.
    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{name}", self.daemon.child.id()))
    }

    fn must(&self, command: &str) {
        let output = self.sh(command);
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Writes the configuration of a daemon of FRR. The page's text is that of the first server.
    fn write(&self, name: &str, config: &str) {
        let file = self.file(&format!("/etc/frr/edge/{name}.conf"));
        std::fs::write(file, of_server(config, self.is_second)).unwrap();
    }

    /// Ends what runs of FRR.
    fn stop_frr(&self) {
        let Ok(files) = std::fs::read_dir(self.file("/run/frr/edge")) else { return };
        for file in
            files.map_while(Result::ok).filter(|file| file.path().extension().is_some_and(|it| it == "pid"))
        {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let Ok(pid) = text.trim().parse() else { continue };
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            assert!(within(TIMEOUT, || !std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists()));
        }
    }

    fn vteps(&self) -> Vec<String> {
        port(&self.daemon, "overlay").tunnel.unwrap().remote
    }

    fn vtysh(&self, command: &str) -> String {
        String::from_utf8(self.sh(&format!("vtysh -N edge -c '{command}'")).stdout).unwrap()
    }

    fn macs(&self, router: &str) -> Vec<String> {
        let routers: Vec<RouterInfo> = self.daemon.get(path::ROUTERS);
        let router = routers.into_iter().find(|one| one.name == router).unwrap();
        router.interfaces.into_iter().map(|interface| interface.mac).collect()
    }

    fn log(&self) -> String {
        let shown = ["show bgp summary", "show evpn vni", "show evpn mac vni all", "show ip route vrf all"];
        let shown: String = shown.iter().map(|command| self.vtysh(command)).collect();
        format!("{shown}\n{:?}\n{}", self.daemon.stats().drops, self.daemon.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.daemon.signal(Signal::CONT);
        self.stop_frr();
        if !std::thread::panicking() {
            self.daemon.purge();
        }
    }
}

/// A text of the page for one of the two servers.
fn of_server(text: &str, is_second: bool) -> String {
    if !is_second {
        return text.to_owned();
    }
    let exchanged = text.replace("192.0.2.1", "192.0.2.x").replace("192.0.2.2", "192.0.2.1");
    let exchanged = exchanged.replace("192.0.2.x", "192.0.2.2");
    let exchanged = exchanged.replace("10.1.0.", "10.2.0.").replace("fd00:1::", "fd00:2::");
    exchanged.replace("10.0.0.1/", "10.0.0.2/").replace("\"web\"", "\"db\"")
}

/// The commands of the page's consoles by root: a folder, zebra, bgpd, zebra with VRFs, and bfdd.
fn root_commands() -> [String; 5] {
    let all = blocks(PAGE, "console").concat();
    let all: Vec<String> =
        all.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect();
    all.try_into().unwrap()
}

/// The page's commands for the shell of a server; the first block has one for each server.
fn pings(servers: &[Server; 2], block: usize) {
    for (n, command) in blocks(PAGE, "sh")[block].lines().enumerate() {
        let server = &servers[if block == 0 { n } else { 0 }];
        // One is enough, and it is repeated soon.
        let command = command.replace("sudo ", "").replace(" ping ", " busybox ping -W 1 ");
        let command = command.replace("-c 3", "-c 1");
        let all = || format!("{}\n{}", servers[0].log(), servers[1].log());
        assert!(within(TIMEOUT, || server.sh(&command).status.success()), "{command}: {}", all());
    }
}

#[test]
fn the_page_works_as_it_says() {
    if !are_possible() || !are_installed() {
        return;
    }
    let begin = Instant::now();
    let hosts = ["pga", "pgb"].map(|mark| Arc::new(Host::bare(mark)));
    let [a, b] = [&hosts[0], &hosts[1]].map(|host| host.namespace().to_owned());
    run(&format!("ip link add eth1 netns {a} type veth peer name eth1 netns {b}"));
    let servers = [Server::start(&hosts[0], false), Server::start(&hosts[1], true)];
    let frr = blocks(PAGE, "frr");
    let [bgp, vrf, vrf_bgp, bfd, bgp_bfd] = &frr[..] else { panic!("{frr:?}") };
    let [folder, zebra, bgpd, zebra_with_vrfs, bfdd] = root_commands();
    for server in &servers {
        server.must(&folder);
        server.write("bgpd", bgp);
        [&zebra, &bgpd].iter().for_each(|command| server.must(command));
    }
    let know_each_other = || servers[0].vteps() == ["192.0.2.2"] && servers[1].vteps() == ["192.0.2.1"];
    assert!(within(TIMEOUT, know_each_other), "{}\n{}", servers[0].log(), servers[1].log());
    pings(&servers, 0);
    // Each knows the other's container, and has announced its own.
    for server in &servers {
        let knows = || {
            let table = server.vtysh("show evpn mac vni 100");
            let kinds = [" local ", " remote "];
            kinds.iter().all(|kind| table.lines().filter(|line| line.contains(kind)).count() == 1)
        };
        assert!(within(TIMEOUT, knows), "{}", server.log());
    }

    println!("one network after {:?}", begin.elapsed());
    // Routing between networks, and BFD.
    for server in &servers {
        server.stop_frr();
        let texts = &blocks(PAGE, "toml")[..2];
        let own = "addresses = [\"10.0.0.1/24\"]\n";
        let with_gateway = texts[0].replace(own, &format!("{own}gateways = [\"10.0.0.254\"]\n"));
        let config = of_server(&format!("{with_gateway}\n{}", texts[1]), server.is_second);
        let _: ApplyReply = server.daemon.post(path::APPLY, &format!("{}\n{config}", &*ENGINE));
    }
    for server in &servers {
        server.write("zebra", vrf);
        server.write("bfdd", bfd);
        server.write("bgpd", &[&**bgp, vrf_bgp, bgp_bfd].concat());
        [&zebra_with_vrfs, &bfdd, &bgpd].iter().for_each(|command| server.must(command));
    }
    pings(&servers, 1);
    println!("all of it after {:?}", begin.elapsed());
    // The names are the same, the MAC addresses are not, but for the gateway's.
    assert_ne!(servers[0].macs("edge"), servers[1].macs("edge"));
    let [first, second] = [0, 1].map(|n| servers[n].macs("red"));
    let equal: Vec<bool> = first.iter().zip(&second).map(|(one, other)| one == other).collect();
    assert_eq!(equal, [true, false, false], "{first:?} {second:?}");

    let is_watched = |server: &Server| server.vtysh("show bfd peers brief").contains(" up");
    assert!(within(TIMEOUT, || servers.iter().all(is_watched)), "{}", servers[0].log());
    servers[1].daemon.signal(Signal::STOP);
    assert!(within(MAX_SILENCE, || servers[0].vteps().is_empty()), "{}", servers[0].log());
}
