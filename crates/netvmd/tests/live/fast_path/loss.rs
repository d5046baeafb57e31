// SPDX-License-Identifier: Apache-2.0
//! netvmd hangs, dies, ends in order and comes back: what the kernel forwards meanwhile, and after that.

use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyReply, path};
use rustix::process::Signal;

use super::table::until_forwarded;
use super::traffic::Stream;
use super::{are_connected, container, has_interface, port, soon};
use crate::common::hosts::{Host, are_possible};
use crate::common::{Daemon, ENGINE};

const UDP: u16 = 7100;
/// As long as the kernel may go on without a word of netvmd, and some more.
const LEASE: Duration = Duration::from_millis(400);
const SOME_TIME: Duration = Duration::from_millis(300);

fn end(mut daemon: Daemon, signal: Signal) -> Arc<crate::common::Folder> {
    daemon.signal(signal);
    daemon.wait();
    Arc::clone(&daemon.folder)
}

/// Whether datagrams arrive without netvmd, as `on_daemon_loss` says.
fn goes_on(stream: &Stream, continues: bool) -> bool {
    std::thread::sleep(LEASE);
    (stream.arrive_within(SOME_TIME) > 0) == continues
}

fn check(name: &str, continues: bool) {
    let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
    let setting = if continues { "on_daemon_loss = \"continue\"" } else { "" };
    let config = |rule: &str| {
        ENGINE.to_owned() + &container(1, &hosts[0], setting) + &container(2, &hosts[1], setting) + rule
    };
    let stop = format!(
        "[[rule]]\nname = \"stop\"\nfrom = \"c1\"\ndrop = true\nmatch = {{ protocol = \"udp\", destination_ports = {UDP} }}\n"
    );
    let index = || {
        hosts.each_ref().map(|host| host.ip_output("-o link show eth0").split(':').next().unwrap().to_owned())
    };
    let daemon = Daemon::start(&config(""));
    assert!(are_connected(&hosts), "{}", daemon.log());
    assert_eq!(port(&daemon, "c1").driver_mode.contains("continues without netvmd"), continues);
    let stream = Stream::start(&hosts, "10.54.0.2", UDP);
    until_forwarded(&daemon);
    let before = index();

    // It hangs.
    daemon.signal(Signal::STOP);
    assert!(goes_on(&stream, continues));
    daemon.signal(Signal::CONT);
    until_forwarded(&daemon);

    // It dies, and comes back with a rule that was written meanwhile.
    let folder = end(daemon, Signal::KILL);
    assert!(goes_on(&stream, continues));
    let daemon = Daemon::start_in(folder, &config(&stop));
    // What is on its way still arrives.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(stream.arrive_within(SOME_TIME), 0, "{}", daemon.log());
    assert_eq!(index(), before, "{}", daemon.log());
    let _: ApplyReply = daemon.post(path::APPLY, &config(""));
    until_forwarded(&daemon);
    assert!(are_connected(&hosts), "{}", daemon.log());
    if !continues {
        return;
    }

    // It ends in order: nobody goes on without it.
    let folder = end(daemon, Signal::TERM);
    assert!(goes_on(&stream, false));
    let daemon = Daemon::start_in(folder, &config(""));
    until_forwarded(&daemon);
    assert_eq!(index(), before, "{}", daemon.log());

    // What keeps its files dies, too.
    daemon.signal(Signal::STOP);
    daemon.kill_store();
    let folder = end(daemon, Signal::KILL);
    assert!(soon(|| !hosts.iter().any(has_interface)));
    assert_eq!(stream.arrive_within(SOME_TIME), 0);
    let daemon = Daemon::start_in(folder, &config(""));
    until_forwarded(&daemon);
    assert_ne!(index(), before);

    // Its port has gone meanwhile.
    let folder = end(daemon, Signal::KILL);
    let one = config("").replace(&container(2, &hosts[1], setting), "");
    let daemon = Daemon::start_in(folder, &one);
    assert!(soon(|| !has_interface(&hosts[1])) && has_interface(&hosts[0]), "{}", daemon.log());
    assert_eq!(stream.arrive_within(SOME_TIME), 0);
}

#[test]
fn flows_stop_without_netvmd() {
    if are_possible() {
        check("la", false);
    }
}

#[test]
fn flows_continue_without_netvmd_between_ports_that_say_so() {
    if are_possible() {
        check("lb", true);
    }
}
