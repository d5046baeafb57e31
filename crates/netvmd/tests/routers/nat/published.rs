//! Published ports: from outside, from another container, and from the host.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyReply, path};

use super::super::common::hosts::{Host, are_possible, within};
use super::super::common::{Daemon, Folder};
use super::{Net, must};

#[test]
fn a_published_port_is_reached_from_outside_and_from_containers() {
    if !are_possible() {
        return;
    }
    let net = Net::new('p');
    let daemon = net.start(&net.config(false, ""));
    let commands = net.commands(2);
    let get = commands.iter().find(|command| command.contains("exec") && command.contains(":8080")).unwrap();
    let is_reached = || super::succeeds(get);
    assert!(!is_reached(), "nothing is published yet");
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(true, ""));
    let servers = net.run(&commands);
    assert!(servers.len() == 1 && commands.len() == 3, "{commands:?}");
    // And no longer.
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(false, ""));
    assert!(within(Duration::from_secs(10), || !is_reached()), "{}", daemon.log());
}

/// netvmd in a namespace, which is the host and has a port of kind `host`.
#[test]
fn the_host_and_containers_reach_each_other_by_a_published_port() {
    if !are_possible() {
        return;
    }
    let (net, host) = (Net::new('q'), Host::bare("qh"));
    let port = "[[port]]\nname = \"host\"\nkind = \"host\"\ninterface = \"lan0\"\naddresses = [\"10.0.0.3/24\"]\n\
                forward = { normal = true }\n";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host.namespace(), env!("CARGO_BIN_EXE_netvmd")]);
    let mut daemon = Daemon::launch_as(command, Arc::new(Folder::new()), &net.config(true, port));
    daemon.await_log("serves its API on");
    assert!(within(Duration::from_secs(20), || host.output_of_ip("address show dev lan0").is_some()));
    host.ip("route add 203.0.113.2/32 via 10.0.0.1");
    let servers = net.run(&net.commands(2)[..1]);
    assert_eq!(servers.len(), 1);
    must(&host, "busybox wget -q -O /dev/null http://203.0.113.2:8080/os-release");
    must(&net.app, "busybox wget -q -O /dev/null http://203.0.113.2:8080/os-release");
}
