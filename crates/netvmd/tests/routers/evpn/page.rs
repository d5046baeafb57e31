//! docs/how-to/evpn.md: two servers with netvmd and FRR, with its configurations and commands.

use std::process::Command;
use std::sync::Arc;

use super::super::common::hosts::{Host, are_possible, run, succeeds, within};
use super::super::common::page::blocks;
use super::super::common::{Daemon, Folder};
use super::super::frr::{Daemons, are_installed};
use super::super::site::ENGINE;
use super::{Server, TIMEOUT, port};

const PAGE: &str = include_str!("../../../../../docs/how-to/evpn.md");

/// A text of the page for one of the two servers.
fn of_server(text: &str, is_second: bool) -> String {
    if !is_second {
        return text.to_owned();
    }
    let exchanged = text.replace("192.0.2.1", "192.0.2.x").replace("192.0.2.2", "192.0.2.1");
    let exchanged = exchanged.replace("192.0.2.x", "192.0.2.2");
    let exchanged = exchanged.replace("02:00:00:00:02:01", "02:00:00:00:02:02");
    exchanged.replace("10.0.0.1", "10.0.0.2").replace("\"web\"", "\"db\"")
}

#[test]
fn the_page_works_as_it_says() {
    if !are_possible() || !are_installed() {
        return;
    }
    let marks = ["ga", "gb"];
    let hosts = marks.map(|mark| Host::bare(&format!("{mark}h")));
    let containers = marks.map(|mark| Host::bare(&format!("{mark}c")));
    let servers = marks.map(|mark| Server::new(mark, "", String::new()));
    run(&format!(
        "ip link add eth1 netns {} type veth peer name eth1 netns {}",
        hosts[0].namespace(),
        hosts[1].namespace()
    ));
    let start = |n: usize| {
        hosts[n].ip("link set lo up");
        hosts[n].ip("link set eth1 up");
        let text = of_server(&blocks(PAGE, "toml")[0], n == 1);
        let text = text.replace("\"edge\"", &format!("{:?}", servers[n].router));
        let text = text.replace(
            ["namespace = \"web\"", "namespace = \"db\""][n],
            &format!("namespace = {:?}", containers[n].namespace()),
        );
        // As `ip netns exec`, but FRR, which is outside, sees the namespaces of its routers.
        let script = "mount --make-rprivate /sys && mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", hosts[n].namespace()));
        command.args(["unshare", "-m", "--propagation", "unchanged", "sh", "-c", script]);
        command.arg(env!("CARGO_BIN_EXE_netvmd"));
        let mut daemon =
            Daemon::launch_as(command, Arc::new(Folder::new()), &format!("{}\n{text}", &*ENGINE));
        daemon.await_log("serves its API on");
        daemon
    };
    let mut daemons = [start(0), start(1)];
    let frr: Vec<Daemons> = (0..2)
        .map(|n| {
            let text = of_server(&blocks(PAGE, "frr")[0], n == 1);
            Daemons::frr(&servers[n].namespace(), &[("bgpd", text)])
        })
        .collect();
    let vteps = |n: usize| port(&daemons[n], "overlay").tunnel.unwrap().remote;
    assert!(
        within(TIMEOUT, || vteps(0) == ["192.0.2.2"] && vteps(1) == ["192.0.2.1"]),
        "{}\n{}\n{}\n{}",
        daemons[0].log(),
        daemons[1].log(),
        frr[0].log(),
        frr[1].log()
    );
    for command in blocks(PAGE, "sh")[0].lines() {
        let command =
            command.replace("netns exec web ", &format!("netns exec {} ", containers[0].namespace()));
        let command =
            command.replace("netns exec db ", &format!("netns exec {} ", containers[1].namespace()));
        let command = command.replace("sudo ", "").replace(" ping ", " busybox ping ");
        assert!(
            within(TIMEOUT, || succeeds(&command)),
            "{command}: {:?}\n{}\n{}",
            daemons[0].stats().drops,
            daemons[0].log(),
            daemons[1].log()
        );
    }
    // Each knows the other's container, and has announced its own.
    for frr in &frr {
        let knows = || {
            let table = frr.vtysh("show evpn mac vni 100");
            let kinds = [" local ", " remote "];
            kinds.iter().all(|kind| table.lines().filter(|line| line.contains(kind)).count() == 1)
        };
        assert!(within(TIMEOUT, knows), "{}", frr.vtysh("show evpn mac vni 100"));
    }
    drop(frr);
    daemons.iter_mut().for_each(Daemon::purge);
}
