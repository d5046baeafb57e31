// SPDX-License-Identifier: Apache-2.0
//! A port whose packets begin to land in another group's memory keeps its device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use netvm_api::{ApplyReply, NfState, PlanReply, path};

use crate::common::hosts::{self, Host};
use crate::common::{Daemon, ENGINE, program};

fn container(name: &str, host: &Host, last: u8) -> String {
    format!(
        "\n[[port]]\nname = \"{name}\"\nkind = \"container\"\nnamespace = \"{}\"\naddresses = [\"10.96.0.{last}/24\"]\n\
         forward = {{ normal = true }}\n",
        host.namespace()
    )
}

/// Index and MAC address of a container's interface, and an address that somebody added.
fn identity(host: &Host) -> String {
    let shown = host.ip_output("-o address show dev eth0");
    let link = host.ip_output("-o link show dev eth0");
    let index = link.split(':').next().unwrap().to_owned();
    format!("{index} {} {}", link.split("link/ether ").nth(1).unwrap(), shown.contains("10.95.0.1/32"))
}

#[test]
fn the_first_chain_of_a_port_leaves_its_interface_alone() {
    if !hosts::are_possible() {
        return;
    }
    let (a, b) = (Host::bare("mema"), Host::bare("memb"));
    let without = [ENGINE.to_owned(), container("a", &a, 1), container("b", &b, 2)].concat();
    // The chain goes on to the switch, as the tutorial's does.
    let chain = format!(
        "\n[[nf]]\nrole = \"nf\"\ngroup = \"edge\"\n{}\n[[chain]]\nname = \"c\"\nhops = [\"nf\"]\noutput = {{ normal = true }}\n\
         \n[[rule]]\nfrom = [\"a\", \"b\"]\nmatch = {{ protocol = \"tcp\" }}\nchain = \"c\"\n",
        program("forward")
    );
    let with = format!("{without}{chain}");
    let daemon = Daemon::start(&without);
    assert!(a.pings("10.96.0.2"), "{}", daemon.log());
    a.ip("address add 10.95.0.1/32 dev eth0");
    let before = identity(&a);

    // A connection that never stops.
    let (is_over, got) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&got);
    let listener = b.inside(|| TcpListener::bind("10.96.0.2:5001").unwrap()).join().unwrap();
    let reader = b.inside(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 1 << 16];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            count.fetch_add(read as u64, Ordering::Relaxed);
        }
    });
    let over = Arc::clone(&is_over);
    let writer = a.inside(move || {
        let mut stream = TcpStream::connect("10.96.0.2:5001").unwrap();
        let bytes = [7; 1 << 14];
        while !over.load(Ordering::Relaxed) {
            stream.write_all(&bytes).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let moves = |text: &str, expected: &str| {
        let plan: PlanReply = daemon.post(path::PLAN, text);
        let shown = plan.plan.to_string();
        assert!(
            shown.contains(expected) && shown.contains("stays open") && !shown.contains("reopened"),
            "{shown}"
        );
        let _: ApplyReply = daemon.post(path::APPLY, text);
        let now = got.load(Ordering::Relaxed);
        daemon.until("the connection goes on", |_| got.load(Ordering::Relaxed) > now + 100_000);
        assert_eq!(identity(&a), before, "the interface is the same");
    };
    for _ in 0..3 {
        moves(&with, "land in group edge");
        assert_eq!(daemon.nf("nf").state, NfState::Running);
        let left = daemon.left("c");
        daemon.until("it passes the chain", |daemon| daemon.left("c") > left);
        moves(&without, "land in the engine's own memory");
    }
    is_over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    reader.join().unwrap();
    assert!(a.pings("10.96.0.2"), "{}", daemon.log());
}

#[test]
fn packets_pass_the_shaper_of_a_patch_port_in_any_memory() {
    let patches = |group: &str| {
        format!(
            "{ENGINE}\n[[group]]\nname = \"other\"\nbuffers = 1024\n\
             \n[[port]]\nname = \"s\"\nkind = \"source\"\nrate = 2000\nforward = {{ out = \"p\" }}\n\
             \n[[port]]\nname = \"p\"\nkind = \"patch\"\npeer = \"q\"\n\
             qos = {{ bits = 100_000_000, queues = [{{ name = \"all\" }}] }}\n{group}\
             \n[[port]]\nname = \"q\"\nkind = \"patch\"\npeer = \"p\"\nforward = {{ out = \"t\" }}\n\
             \n[[port]]\nname = \"t\"\nkind = \"sink\"\n"
        )
    };
    let daemon = Daemon::start(&patches(""));
    let sent = |daemon: &Daemon| {
        let ports: Vec<netvm_api::PortInfo> = daemon.get(path::PORTS);
        ports.iter().find(|port| port.name == "t").unwrap().tx_packets
    };
    for group in ["group = \"other\"\n", "group = \"edge\"\n", ""] {
        let _: ApplyReply = daemon.post(path::APPLY, &patches(group));
        let before = sent(&daemon);
        daemon.until("packets pass", |daemon| sent(daemon) > before + 1000);
    }
}
