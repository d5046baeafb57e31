// SPDX-License-Identifier: Apache-2.0
//! The host on the switch: docs/how-to/host-interface.md, with its commands.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyReply, PlanReply, Status, path};

use crate::common::hosts::{self, Host, run, succeeds, within};
use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE, Folder};

const PAGE: &str = include_str!("../../../../docs/how-to/host-interface.md");

/// A machine with an uplink `eth0` to a network that knows only this machine's address, and netvmd in it.
struct Machine {
    host: Host,
    /// The network beyond, for as long as the machine.
    _beyond: Host,
    container: Host,
    folder: Arc<Folder>,
}

impl Machine {
    fn new(name: &str) -> Self {
        let [host, beyond, container] = ["h", "i", "c"].map(|part| Host::bare(&format!("{name}{part}")));
        let (inner, outer) = (host.namespace(), beyond.namespace());
        run(&format!("ip link add eth0 netns {inner} type veth peer name eth0 netns {outer}"));
        for (host, address) in [(&host, "192.0.2.2/24"), (&beyond, "192.0.2.1/24")] {
            host.ip("link set lo up");
            host.ip("link set eth0 up");
            host.ip(&format!("address add {address} dev eth0"));
        }
        host.ip("route add default via 192.0.2.1");
        beyond.ip("address add 203.0.113.9/32 dev lo");
        Self { host, _beyond: beyond, container, folder: Arc::new(Folder::new()) }
    }

    fn start(&self, text: &str) -> Daemon {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host.namespace(), env!("CARGO_BIN_EXE_netvmd")]);
        let mut daemon = Daemon::launch_as(command, Arc::clone(&self.folder), text);
        daemon.await_log("serves its API on");
        daemon
    }

    /// Runs commands on the machine.
    fn run(&self, commands: &str) -> Output {
        let script = format!("set -e\n{commands}");
        Command::new("ip")
            .args(["netns", "exec", self.host.namespace(), "sh", "-c", &script])
            .output()
            .unwrap()
    }

    fn must_run(&self, commands: &str) {
        let output = self.run(commands);
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn mac(&self) -> String {
        let shown = self.host.ip_output("-o link show dev lan0");
        shown.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    }
}

#[test]
fn containers_reach_the_host_and_through_it_the_internet() {
    if !hosts::are_possible() {
        return;
    }
    let machine = Machine::new("hi");
    if !succeeds(&format!("ip netns exec {} nft list ruleset", machine.host.namespace())) {
        println!("SKIP: nftables does not work here");
        return;
    }
    let config = blocks(PAGE, "toml")[0]
        .replace("namespace = \"web\"", &format!("namespace = {:?}", machine.container.namespace()));
    let text = format!("{ENGINE}{config}");
    let mut daemon = machine.start(&text);
    assert!(machine.container.pings("10.0.0.1") && machine.host.pings("10.0.0.11"), "{}", daemon.log());
    assert!(machine.container.pings("fd00::1") && machine.host.pings("fd00::11"), "{}", daemon.log());
    assert_eq!(daemon.get::<Status>(path::STATUS).problems, [""; 0]);

    let sh = blocks(PAGE, "sh");
    let [forward, masquerade, firewall, bridge] = &sh[..] else { panic!("{sh:#?}") };
    machine.must_run(forward);
    let once = "busybox ping -c 1 -W 1 203.0.113.9";
    assert!(!machine.container.output(once).status.success(), "the network beyond knows the host only");
    machine.must_run(masquerade);
    assert!(machine.container.pings("203.0.113.9"), "{}", daemon.log());
    machine.must_run(
        "nft add table inet filter\nnft 'add chain inet filter forward { type filter hook forward priority 0; policy drop; }'",
    );
    assert!(!machine.container.output(once).status.success(), "the firewall drops");
    machine.must_run(firewall);
    assert!(machine.container.pings("203.0.113.9"), "{}", daemon.log());

    // What the kernel forgets with the link comes back with it.
    machine.host.ip("link set lan0 down");
    machine.host.ip("link set lan0 up");
    assert!(machine.host.pings("fd00::11"), "{}", daemon.log());
    // After a crash, everything is as before.
    let mac = machine.mac();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    drop(daemon);
    assert!(within(Duration::from_secs(5), || machine.host.output_of_ip("link show dev lan0").is_none()));
    let daemon = machine.start(&text);
    assert_eq!(machine.mac(), mac);
    assert!(machine.container.pings("203.0.113.9"), "{}", daemon.log());

    // Kernel interfaces that others use are warned of.
    machine.must_run("ip link add br0 type bridge\nip link set br0 up");
    machine.must_run(bridge);
    let port = |interface: &str| {
        format!(
            "{text}[[port]]\nname = \"x\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\nforward = {{ normal = true }}\n"
        )
    };
    let warnings = |interface: &str| {
        let plan: PlanReply = daemon.post(path::PLAN, &port(interface));
        let ours = plan.warnings.iter().filter(|warning| warning.code == "config::shared_interface");
        ours.map(|warning| warning.message.clone()).collect::<Vec<_>>().join("\n")
    };
    assert!(warnings("br0").contains("is a Linux bridge"), "{}", warnings("br0"));
    assert!(warnings("nv1").contains("arrive twice"), "{}", warnings("nv1"));
    assert!(warnings("eth0").contains("192.0.2.2"), "{}", warnings("eth0"));
    assert_eq!(warnings("nv0"), "");
    let _: ApplyReply = daemon.post(path::APPLY, &port("nv0"));
}
