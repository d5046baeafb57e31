// SPDX-License-Identifier: Apache-2.0
//! Containers keep their interfaces when netvmd ends, if the next one comes in time.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::hosts::{Host, are_possible, within};
use crate::common::{Daemon, ENGINE, Folder};

/// The port of a container.
fn container(n: usize, host: &Host, more: &str) -> String {
    format!(
        "\n[[port]]\nname = \"c{n}\"\nkind = \"container\"\nnamespace = \"{}\"\n\
         addresses = [\"10.53.0.{n}/24\"]\nforward = {{ normal = true }}\n{more}\n",
        host.namespace()
    )
}

/// What tells an interface from every other one: its index, and how often its carrier has changed.
fn identity(host: &Host) -> String {
    let link = host.ip_output("-o link show eth0");
    let changes = host.output("cat /sys/class/net/eth0/carrier_changes").stdout;
    format!("{} {}", link.split(':').next().unwrap(), String::from_utf8(changes).unwrap())
}

fn is_gone(host: &Host) -> bool {
    within(Duration::from_secs(30), || host.output_of_ip("link show dev eth0").is_none())
}

fn are_connected(hosts: &[Host]) -> bool {
    hosts[0].pings("10.53.0.2") && hosts[1].pings("10.53.0.1")
}

fn end(mut daemon: Daemon, signal: Signal) -> Arc<Folder> {
    daemon.signal(signal);
    daemon.wait();
    Arc::clone(&daemon.folder)
}

#[test]
fn containers_keep_their_interfaces_when_netvmd_is_killed_or_restarted() {
    if !are_possible() {
        return;
    }
    let hosts = ["ia1", "ia2", "ia3", "ia4"].map(Host::bare);
    let config = |queues| {
        ENGINE.to_owned()
            + &container(1, &hosts[0], "")
            + &container(2, &hosts[1], &format!("queues = {queues}"))
    };
    let more = container(3, &hosts[2], "") + &container(4, &hosts[3], "");
    let daemon = Daemon::start(&(config(2) + &more));
    assert!(are_connected(&hosts) && hosts[3].pings("10.53.0.1"));
    let before = [0, 1, 3].map(|n| identity(&hosts[n]));

    // One port has gone meanwhile, and so has a container, in whose place there is another one.
    let folder = end(daemon, Signal::KILL);
    hosts[3].restart();
    let text = config(2) + &container(4, &hosts[3], "");
    let daemon = Daemon::start_in(folder, &text);
    assert!(is_gone(&hosts[2]), "{}", daemon.log());
    assert!(are_connected(&hosts) && hosts[3].pings("10.53.0.1"), "{}", daemon.log());
    assert_eq!([0, 1].map(|n| identity(&hosts[n])), before[..2], "{}", daemon.log());
    assert!(daemon.log().contains("took over 2 interfaces"), "{}", daemon.log());

    // In order, and with another number of queues.
    let folder = end(daemon, Signal::TERM);
    let daemon = Daemon::start_in(folder, &(config(1) + &container(4, &hosts[3], "")));
    assert!(are_connected(&hosts), "{}", daemon.log());
    assert_eq!(identity(&hosts[0]), before[0], "{}", daemon.log());
    assert_ne!(identity(&hosts[1]), before[1], "made anew");
    let (status, answer) = daemon.request("POST", netvm_api::path::STOP, "{\"purge\": true}");
    assert!(status == 200 && is_gone(&hosts[0]), "{answer}");
}

#[test]
fn without_the_process_that_keeps_them_containers_lose_their_interfaces() {
    if !are_possible() {
        return;
    }
    let hosts = ["ib1", "ib2"].map(Host::bare);
    let text = ENGINE.to_owned() + &container(1, &hosts[0], "") + &container(2, &hosts[1], "");
    let mut daemon = Daemon::start(&text);
    assert!(are_connected(&hosts));
    let before = identity(&hosts[0]);
    // netvmd starts it again, and gives it the files again.
    let store = daemon.store().unwrap();
    daemon.kill_store();
    daemon.await_log("is started again");
    daemon.until("it runs again", |daemon| daemon.store().is_some_and(|other| other != store));
    let mut daemon = Daemon::start_in(end(daemon, Signal::KILL), &text);
    assert!(are_connected(&hosts), "{}", daemon.log());
    assert_eq!(identity(&hosts[0]), before, "{}", daemon.log());
    // Both end.
    daemon.signal(Signal::STOP);
    daemon.kill_store();
    let folder = end(daemon, Signal::KILL);
    assert!(is_gone(&hosts[0]));
    daemon = Daemon::start_in(folder, &text);
    assert!(are_connected(&hosts), "{}", daemon.log());
    assert_ne!(identity(&hosts[0]), before);
    // Its store hangs: it comes all the same.
    rustix::process::kill_process(daemon.store().unwrap(), Signal::STOP).unwrap();
    let store = daemon.store().unwrap();
    let folder = end(daemon, Signal::KILL);
    let daemon = Daemon::launch(folder, &text);
    rustix::process::kill_process(store, Signal::KILL).unwrap();
    daemon.until("it runs", |daemon| daemon.log().contains("serves its API on"));
    assert!(are_connected(&hosts), "{}", daemon.log());
}
