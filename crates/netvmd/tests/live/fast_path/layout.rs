// SPDX-License-Identifier: Apache-2.0
//! The interfaces: what containers can do with theirs, and what is left of them.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_api::{Status, path};
use rustix::process::Signal;

use super::traffic::hits;
use super::{are_connected, container, has_interface, port, soon};
use crate::common::download::{download, serve};
use crate::common::hosts::{Host, are_possible, run};
use crate::common::{Daemon, ENGINE};

const BYTES: u64 = 20_000_000;

fn config(hosts: &[Host; 2]) -> String {
    ENGINE.to_owned() + &container(1, &hosts[0], "") + &container(2, &hosts[1], "")
}

/// Downloads both ways.
fn exchange(hosts: &[Host; 2]) {
    for (to, from, address) in [(0, 1, "10.54.0.2"), (1, 0, "fd54::1")] {
        serve(&hosts[from], BYTES);
        download(&hosts[to], address.parse::<IpAddr>().unwrap(), BYTES);
    }
}

#[test]
fn a_container_does_with_its_interface_what_it_likes() {
    if !are_possible() {
        return;
    }
    let hosts = ["fa1", "fa2"].map(Host::bare);
    let before = run("ip -o link show");
    let daemon = Daemon::start(&config(&hosts));
    let driver = port(&daemon, "c1").driver_mode;
    assert!(driver.ends_with("fast path"), "{driver}");
    assert!(are_connected(&hosts));
    exchange(&hosts);
    let interfaces = run("ip -o link show");
    let new = interfaces.lines().filter(|line| line.contains(": v0") || line.contains(": t0")).count();
    assert!(new == 0, "nothing of them is on the host:\n{before}\n{interfaces}");

    // Another MAC address; frames for the old one are for somebody else.
    hosts[0].ip("link set eth0 address 02:00:00:00:54:99");
    assert!(are_connected(&hosts));
    // Another MTU on both sides, and long frames by it.
    hosts.iter().for_each(|host| host.ip("link set eth0 mtu 1300"));
    exchange(&hosts);
    let problems = |daemon: &Daemon| daemon.get::<Status>(path::STATUS).problems.concat();
    daemon.until("netvm sees the MTU", |daemon| problems(daemon).contains("1300"));
    // Without offloads.
    assert!(hosts[0].output("ethtool -K eth0 tso off gso off tx off").status.success());
    exchange(&hosts);
    hosts[0].ip("link set eth0 down");
    daemon.until("netvm sees that it is down", |daemon| !port(daemon, "c1").link);
    hosts[0].ip("link set eth0 up");
    assert!(are_connected(&hosts));
    // It removes the interface, and gets it again.
    let index = hosts[0].ip_output("-o link show eth0");
    hosts[0].ip("link delete eth0");
    assert!(soon(|| has_interface(&hosts[0]) && hosts[0].ip_output("-o link show eth0") != index));
    assert!(are_connected(&hosts), "{}", daemon.log());
    exchange(&hosts);
}

#[test]
fn nothing_of_it_stays_when_nobody_keeps_it() {
    if !are_possible() {
        return;
    }
    let hosts = ["fb1", "fb2"].map(Host::bare);
    let text = config(&hosts);
    let mut daemon = Daemon::start(&text);
    assert!(are_connected(&hosts));
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    // At once, while the kernel may still be removing the first one's.
    let mut daemon = Daemon::start_in(Arc::clone(&daemon.folder), &text);
    assert!(are_connected(&hosts), "{}", daemon.log());
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    // What would keep it for the next netvmd.
    daemon.kill_store();
    assert!(soon(|| !hosts.iter().any(has_interface)));
}

#[test]
fn the_host_itself_can_have_one() {
    if !are_possible() {
        return;
    }
    let (host, interface) = (Host::bare("fd1"), format!("nt{}l", std::process::id()));
    let own = format!(
        "[[port]]\nname = \"h\"\nkind = \"host\"\ninterface = \"{interface}\"\nfast_path = true\n\
         addresses = [\"10.54.9.254/24\"]\nforward = {{ normal = true }}\n"
    );
    let text = ENGINE.to_owned() + &own + &container(1, &host, "").replace("10.54.0.", "10.54.9.");
    let mut daemon = Daemon::start(&text);
    let driver = port(&daemon, "h").driver_mode;
    assert!(driver.ends_with("fast path"), "{driver}");
    assert!(host.pings("10.54.9.254"), "{}", daemon.log());
    let socket = UdpSocket::bind(("10.54.9.254", 0)).unwrap();
    let to = socket.local_addr().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // Answers until the kernel forwards: a busy manager installs a flow after many packets.
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let asker = host.inside(move || {
        let asking = UdpSocket::bind(("10.54.9.1", 0)).unwrap();
        asking.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        while !over.load(Ordering::Relaxed) {
            asking.send_to(b"to the host", to).unwrap();
            let is_answered = asking.recv(&mut [0; 32]).is_ok_and(|length| length == 16);
            assert!(is_answered || over.load(Ordering::Relaxed));
        }
    });
    let over = Arc::clone(&is_over);
    let answers = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            if let Ok((length, from)) = socket.recv_from(&mut [0; 32]) {
                assert_eq!((length, socket.send_to(b"to the container", from).unwrap()), (11, 16));
            }
        }
    });
    daemon.until("the kernel has forwarded both ways", |daemon| {
        ["h", "c1"].iter().all(|name| hits(daemon, name) > 100)
    });
    is_over.store(true, Ordering::Relaxed);
    asker.join().unwrap();
    answers.join().unwrap();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert!(!run("ip -o link show").contains(&interface), "it ends with netvmd");
}
