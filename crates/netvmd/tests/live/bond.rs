// SPDX-License-Identifier: Apache-2.0
//! Bonds: docs/how-to/bonds.md. Active-backup over two of the kernel's bridges, LACP with Open vSwitch.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netvm_api::{BondMemberInfo, Event, EventKind, PortInfo, path};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::hosts::{self, Host, run, succeeds, within};
use crate::common::page::blocks;
use crate::common::peers::{peer, peer_file};
use crate::common::{Daemon, ENGINE};

/// Limit for things that take milliseconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(30);
const OVS: &str = "openvswitch";

const PAGE: &str = include_str!("../../../../docs/how-to/bonds.md");

/// Two links, whose ends here are netvm's, and a container on the switch.
struct Links {
    near: Host,
    /// By link: the interface of netvm's port, and the other end.
    ends: [[String; 2]; 2],
}

impl Links {
    fn new(name: &str) -> Self {
        let near = Host::bare(&format!("{name}n"));
        let end = |end: &str| format!("{}{end}", near.namespace());
        let ends = [[end("xa"), end("ya")], [end("xb"), end("yb")]];
        for [one, other] in &ends {
            run(&format!("ip link add {one} type veth peer name {other}"));
            for end in [one, other] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").unwrap();
                run(&format!("ip link set {end} up"));
            }
        }
        Self { near, ends }
    }

    /// netvm with the page's configuration, and this in place of its mode.
    fn start(&self, mode: &str) -> Daemon {
        let page = blocks(PAGE, "toml")[0]
            .replace("\"eth1\"", &format!("{:?}", self.ends[0][0]))
            .replace("\"eth2\"", &format!("{:?}", self.ends[1][0]))
            .replace("mode = \"lacp\"\nlacp_rate = \"fast\"", mode);
        let near = format!(
            "[[port]]\nname = \"near\"\nkind = \"container\"\nnamespace = {:?}\naddresses = [\"10.81.0.1/24\"]\n\
             forward = {{ normal = true }}\n",
            self.near.namespace()
        );
        Daemon::start(&format!("{ENGINE}{page}{near}"))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for [one, _] in &self.ends {
            let _ = succeeds(&format!("ip link delete {one}"));
        }
    }
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    daemon.get::<Vec<PortInfo>>(path::PORTS).into_iter().find(|port| port.name == name).unwrap()
}

fn members(daemon: &Daemon) -> Vec<BondMemberInfo> {
    port(daemon, "uplink").bond.unwrap().members
}

/// The members that the bond sends by.
fn senders(daemon: &Daemon) -> Vec<String> {
    members(daemon).into_iter().filter(|member| member.sends).map(|member| member.port).collect()
}

#[test]
fn a_backup_takes_over_and_switches_learn_it() {
    if !hosts::are_possible() {
        return;
    }
    let links = Links::new("ba");
    // Each link leads to a bridge of its own, and both to one: the inner one does not see that a link has failed.
    let switches = Host::bare("bas");
    let far = Host::bare("baf");
    for (n, [_, end]) in links.ends.iter().enumerate() {
        run(&format!("ip link set {end} netns {}", switches.namespace()));
        switches.ip(&format!("link add outer{n} type bridge"));
        switches.ip(&format!("link add in{n} type veth peer name out{n}"));
        for (interface, bridge) in
            [(end.as_str(), format!("outer{n}")), (&format!("out{n}"), format!("outer{n}"))]
        {
            switches.ip(&format!("link set {interface} master {bridge}"));
        }
    }
    switches.ip("link add inner type bridge");
    run(&format!(
        "ip link add eth0 netns {} type veth peer name far netns {}",
        far.namespace(),
        switches.namespace()
    ));
    for interface in ["in0", "in1", "far"] {
        switches.ip(&format!("link set {interface} master inner"));
    }
    let [a, b] = [&links.ends[0][1], &links.ends[1][1]];
    for interface in ["outer0", "outer1", "inner", "in0", "in1", "out0", "out1", "far", a, b] {
        switches.ip(&format!("link set {interface} up"));
    }
    far.ip("link set eth0 up");
    far.ip("address add 10.81.0.2/24 dev eth0");

    let daemon = links.start("mode = \"active-backup\"");
    assert!(links.near.pings("10.81.0.2"), "{}", daemon.log());
    assert_eq!(senders(&daemon), ["uplink-a"]);
    // A broadcast comes by both links, and the backup's copy counts as dropped.
    daemon.until("the backup drops copies", |daemon| {
        let _ = far.output("busybox arping -c 1 -w 1 -I eth0 10.81.0.99");
        let drops: serde_json::Value = daemon.get(path::STATS);
        drops.to_string().contains("inactive-member")
    });
    // From now on only the far host begins: the inner bridge has to learn from the announcement.
    let mac = links.near.ip_output("-br link show dev eth0");
    let mac = mac.split_whitespace().nth(2).unwrap().to_owned();
    far.ip(&format!("neighbour replace 10.81.0.1 lladdr {mac} dev eth0 nud permanent"));
    run(&format!("ip link set {} down", links.ends[0][0]));
    daemon.until("the backup sends", |daemon| senders(daemon) == ["uplink-b"]);
    let once = "busybox ping -c 1 -W 1 10.81.0.1";
    assert!(within(Duration::from_secs(5), || far.output(once).status.success()), "{}", daemon.log());
    // The preferred link is back.
    run(&format!("ip link set {} up", links.ends[0][0]));
    daemon.until("the first sends", |daemon| senders(daemon) == ["uplink-a"]);
    assert!(within(Duration::from_secs(5), || far.output(once).status.success()), "{}", daemon.log());
    // Without any link.
    for [end, _] in &links.ends {
        run(&format!("ip link set {end} down"));
    }
    daemon.until("the bond has no link", |daemon| !port(daemon, "uplink").link);
    let _ = links.near.output("busybox ping -c 1 -W 1 10.81.0.2");
    let stats: serde_json::Value = daemon.get(path::STATS);
    assert!(stats.to_string().contains("no-member"), "{stats}");
    let changes: Vec<String> = daemon
        .get::<Vec<Event>>(path::EVENTS)
        .into_iter()
        .filter(|event| event.kind == EventKind::BondChanged)
        .map(|event| event.message)
        .collect();
    assert!(changes.iter().any(|message| message.ends_with("packets go by uplink-b")), "{changes:?}");
    assert!(changes.iter().any(|message| message.ends_with("no member carries packets")), "{changes:?}");
}

/// Open vSwitch's user-space switch, a bond of whose leads to both links; it has an address. Killed on drop.
struct Switch {
    host: Host,
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Switch {
    fn start(links: &Links) -> Option<Self> {
        let schema = peer_file(OVS, "usr/share/openvswitch/vswitch.ovsschema")?;
        let host = Host::bare("bls");
        // The kernel sees what the links receive, too, and would answer for the switch's address.
        let answers = host.output("busybox sysctl -w net.ipv4.conf.all.arp_ignore=1");
        assert!(answers.status.success());
        for [_, end] in &links.ends {
            run(&format!("ip link set {end} netns {}", host.namespace()));
            host.ip(&format!("link set {end} up"));
        }
        let mut switch = Self { host, folder: TempDir::new().unwrap(), daemons: Vec::new() };
        let at = |name: &str| switch.folder.path().join(name).display().to_string();
        let (data, socket, control) = (at("conf.db"), at("db.sock"), at("switch.ctl"));
        switch.run("usr/bin/ovsdb-tool", &["create", &data, &schema.display().to_string()]);
        let listen = format!("--remote=punix:{socket}");
        switch.spawn("usr/sbin/ovsdb-server", &[&data, &listen, &format!("--unixctl={}", at("db.ctl"))]);
        assert!(within(LIMIT, || std::path::Path::new(&socket).exists()));
        let connect = format!("unix:{socket}");
        switch.spawn("usr/lib/openvswitch-switch/ovs-vswitchd", &[&connect, &format!("--unixctl={control}")]);
        let [[_, a], [_, b]] = &links.ends;
        // Its own address would change with its ports.
        let words = format!(
            "--db={connect} -t 20 add-br br0 -- \
             set bridge br0 datapath_type=netdev other_config:hwaddr=02:00:00:00:81:09 -- \
             add-bond br0 bond0 {a} {b} lacp=active bond_mode=balance-tcp other_config:lacp-time=fast"
        );
        switch.run("usr/bin/ovs-vsctl", &words.split(' ').collect::<Vec<_>>());
        switch.host.ip("link set br0 up");
        switch.host.ip("address add 10.81.0.9/24 dev br0");
        Some(switch)
    }

    /// A program of Open vSwitch in the switch's namespace.
    fn command(&self, path: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host.namespace()]).args(peer(OVS, path).unwrap()).args(arguments);
        for folder in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "OVS_LOGDIR"] {
            command.env(folder, self.folder.path());
        }
        command
    }

    fn run(&self, path: &str, arguments: &[&str]) -> String {
        let output = self.command(path, arguments).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn(&mut self, path: &str, arguments: &[&str]) {
        let mut command = self.command(path, arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().unwrap());
    }

    /// The state of LACP, as `ovs-appctl lacp/show` prints it.
    fn lacp(&self) -> String {
        let control = self.folder.path().join("switch.ctl").display().to_string();
        self.run("usr/bin/ovs-appctl", &["-t", &control, "lacp/show"])
    }

    /// Signals the switch itself.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemons[1]), signal).unwrap();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn lacp_agrees_with_open_vswitch() {
    if !hosts::are_possible() {
        return;
    }
    let links = Links::new("bl");
    let daemon = links.start("mode = \"lacp\"\nlacp_rate = \"fast\"");
    assert!(senders(&daemon).is_empty() && !port(&daemon, "uplink").link, "{}", daemon.log());
    let Some(switch) = Switch::start(&links) else { return };
    let both = |daemon: &Daemon| senders(daemon) == ["uplink-a", "uplink-b"];
    daemon.until("both members carry packets", both);
    let partners: Vec<Option<String>> = members(&daemon).into_iter().map(|member| member.partner).collect();
    assert!(partners[0].is_some() && partners[0] == partners[1], "{partners:?}");
    assert!(within(LIMIT, || switch.lacp().matches("current attached").count() == 2), "{}", switch.lacp());
    assert!(links.near.pings("10.81.0.9"), "{}\n{}", daemon.log(), switch.lacp());
    // Each flow has one link: many flows have both.
    daemon.until("both links carry flows", |daemon| {
        for n in 1..60 {
            let _ = links.near.output(&format!("busybox nc -u -w 0 10.81.0.9 {n}"));
        }
        let sent = |name| port(daemon, name).tx_packets;
        ["uplink-a", "uplink-b"].iter().all(|name| sent(name) > 20)
    });
    // A partner that is silent although the links are up.
    switch.signal(Signal::STOP);
    daemon.until("members leave", |daemon| senders(daemon).is_empty());
    assert!(members(&daemon).iter().all(|member| member.link));
    switch.signal(Signal::CONT);
    daemon.until("members join again", both);
    assert!(links.near.pings("10.81.0.9"), "{}", daemon.log());
    // A link that is down at once, and flows that go by the other one.
    run(&format!("ip link set {} down", links.ends[0][0]));
    daemon.until("one member is left", |daemon| senders(daemon) == ["uplink-b"]);
    assert!(links.near.pings("10.81.0.9"), "{}", daemon.log());
    run(&format!("ip link set {} up", links.ends[0][0]));
    daemon.until("it joins again", both);
    switch.signal(Signal::KILL);
    daemon.until("both leave", |daemon| senders(daemon).is_empty());
}
