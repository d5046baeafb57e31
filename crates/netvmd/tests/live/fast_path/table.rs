// SPDX-License-Identifier: Apache-2.0
//! The flow table: what the kernel forwards, and what ends that.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_api::{
    ApplyReply, CaptureRequest, Client, Flows, LiveTraceRequest, TraceReply, TraceRequest, TracedPacket, path,
};
use netvm_bpf::{Assembler, Attach, Link, Program, ProgramKind, Register, WordMap};
use netvm_capture_client::{Session, compile};
use netvm_netlink::{Requests, index_of};
use rustix::process::Signal;

use super::traffic::{Stream, hits};
use super::{are_connected, container, port, soon};
use crate::common::captured::{gather, read};
use crate::common::download::{download, serve};
use crate::common::hosts::{Host, are_possible, within};
use crate::common::{Daemon, ENGINE};

const UDP: u16 = 7100;

fn config(hosts: &[Host; 2], more: &str) -> String {
    ENGINE.to_owned() + &container(1, &hosts[0], "") + &container(2, &hosts[1], "") + more
}

/// Two connected containers, and a stream of datagrams from the first to the second that the kernel forwards.
fn forwarded(name: &str, more: &str) -> Option<([Host; 2], Daemon, Stream)> {
    if !are_possible() {
        return None;
    }
    let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
    let daemon = Daemon::start(&config(&hosts, more));
    assert!(are_connected(&hosts), "{}", daemon.log());
    let stream = Stream::start(&hosts, "10.54.0.2", UDP);
    until_forwarded(&daemon);
    Some((hosts, daemon, stream))
}

pub fn until_forwarded(daemon: &Daemon) {
    let before = hits(daemon, "c1");
    daemon.until("the kernel forwards", |daemon| hits(daemon, "c1") > before + 100);
}

/// Waits until the counts of what the kernel has forwarded do not grow.
pub fn until_settled(daemon: &Daemon) -> u64 {
    let mut last = hits(daemon, "c1");
    daemon.until("the kernel forwards nothing more", |daemon| {
        // netvmd reads the kernel's counts twice a second.
        std::thread::sleep(Duration::from_millis(700));
        let now = hits(daemon, "c1");
        std::mem::replace(&mut last, now) == now
    });
    last
}

#[test]
fn the_kernel_forwards_what_netvm_has_decided_and_it_is_counted() {
    let Some((hosts, daemon, stream)) = forwarded("ga", "") else { return };
    drop(stream);
    let before = [until_settled(&daemon), port(&daemon, "c1").rx_packets, port(&daemon, "c2").tx_packets];
    let stream = Stream::start(&hosts, "10.54.0.2", UDP);
    assert!(soon(|| stream.arrived() > 2000));
    let arrived = stream.arrived();
    drop(stream);
    until_settled(&daemon);
    let [by_kernel, received, sent] =
        [hits(&daemon, "c1"), port(&daemon, "c1").rx_packets, port(&daemon, "c2").tx_packets];
    println!("{arrived} arrived, {} by the kernel, {} received", by_kernel - before[0], received - before[1]);
    let steps = trace(&hosts, &daemon);
    assert!(steps.last().unwrap().contains("kernel flow table"), "{steps:?}");
    let flows: Flows = daemon.get(path::FLOWS);
    assert!(flows.flows.iter().any(|flow| flow.by_kernel && flow.port == "c1"), "{flows:?}");
    // A coarse policy: not one of the new connection's datagrams came to netvm.
    assert!(by_kernel - before[0] >= arrived, "{by_kernel}");
    assert!(received - before[1] >= arrived && sent - before[2] >= arrived, "{received}, {sent}");
}

/// What becomes of a datagram from the first container to the second.
fn trace(hosts: &[Host; 2], daemon: &Daemon) -> Vec<String> {
    let [source, destination] = hosts.each_ref().map(|host| {
        let text = host.ip_output("-o link show eth0");
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().replace(':', "")
    });
    let ip = "4500002000004000401100000a3600010a360002";
    let frame = format!("{destination}{source}0800{ip}03e81bbc000c0000{}", "00".repeat(4));
    let request = TraceRequest { port: "c1".to_owned(), frame, length: None, state: None };
    daemon.post::<TraceReply>(path::TRACE, &serde_json::to_string(&request).unwrap()).steps
}

#[test]
fn a_new_rule_holds_at_once_for_what_the_kernel_forwards() {
    let rule = format!(
        "[[rule]]\nname = \"stop\"\nfrom = \"c1\"\ndrop = true\nmatch = {{ protocol = \"udp\", destination_ports = {UDP} }}\n"
    );
    let Some((hosts, daemon, stream)) = forwarded("gb", "") else { return };
    for round in 0..2 {
        let _: ApplyReply = daemon.post(path::APPLY, &config(&hosts, &rule));
        // What is on its way still arrives.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(stream.arrive_within(Duration::from_millis(200)), 0, "round {round}");
        let _: ApplyReply = daemon.post(path::APPLY, &config(&hosts, ""));
        until_forwarded(&daemon);
        assert!(stream.arrive_within(Duration::from_millis(200)) > 0);
    }
}

#[test]
fn a_hung_netvmd_forwards_nothing_for_long() {
    let Some((_hosts, daemon, stream)) = forwarded("gc", "") else { return };
    daemon.signal(Signal::STOP);
    // As long as the kernel may go on without a word of netvmd.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(stream.arrive_within(Duration::from_millis(300)), 0);
    daemon.signal(Signal::CONT);
    until_forwarded(&daemon);
    assert!(stream.arrive_within(Duration::from_millis(300)) > 0);
}

#[test]
fn a_container_that_changes_its_interface_gets_what_is_for_it() {
    let Some((hosts, daemon, mut stream)) = forwarded("gd", "") else { return };
    // Another source.
    hosts[0].ip("link set eth0 address 02:00:00:00:54:77");
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0));
    until_forwarded(&daemon);
    // Another target: the sender asks who has the address when its entry is gone.
    hosts[1].ip("link set eth0 address 02:00:00:00:54:78");
    hosts[0].ip("neighbor flush dev eth0");
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0));
    until_forwarded(&daemon);
    // It is down: nothing arrives, and comes again when it is up.
    hosts[1].ip("link set eth0 down");
    assert!(soon(|| stream.arrive_within(Duration::from_millis(200)) == 0));
    hosts[1].ip("link set eth0 up");
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0));
    until_forwarded(&daemon);
    // It removes the interface, and gets another one. The kernel may give that the index of the first.
    hosts[1].ip("link delete eth0");
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0), "{}", daemon.log());
    until_forwarded(&daemon);
    // The container starts again.
    hosts[1].restart();
    stream.receive_in(&hosts[1], UDP);
    assert!(soon(|| stream.arrive_within(Duration::from_millis(100)) > 0), "{}", daemon.log());
    until_forwarded(&daemon);
}

#[test]
fn packets_that_are_captured_come_to_netvm_and_others_do_not() {
    if !are_possible() {
        return;
    }
    let third = Host::bare("ge3");
    let Some((_hosts, daemon, _stream)) = forwarded("ge", &container(3, &third, "")) else { return };
    let client = Client::new(Some(&daemon.api_socket()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let capture = |at: &str| {
        let request = CaptureRequest { at: vec![at.to_owned()], ..CaptureRequest::default() };
        runtime.block_on(Session::start(&client, &request)).unwrap()
    };
    let elsewhere = capture("c3");
    until_forwarded(&daemon);
    let session = capture("c1");
    let file = daemon.folder.0.join("fast.pcapng");
    let captured = gather(session, 300, &file).join().unwrap();
    println!("{captured:?}");
    let packets = read(&file);
    assert!(packets.iter().filter(|packet| packet.data.len() == 142).count() > 100, "{}", packets.len());
    until_forwarded(&daemon);
    drop(elsewhere);
}

#[test]
fn packets_to_a_container_that_has_gone_are_drops_with_a_reason() {
    let Some((hosts, daemon, stream)) = forwarded("gh", "") else { return };
    let dropped = |daemon: &Daemon| {
        let ports = daemon.stats().drops.ports;
        ports.get("c2").and_then(|reasons| reasons.get("peer-gone")).copied().unwrap_or_default()
    };
    // netvmd notices it later than its worker sends what has come meanwhile.
    assert!(
        soon(|| {
            daemon.signal(Signal::STOP);
            hosts[1].ip("link delete eth0");
            std::thread::sleep(Duration::from_millis(60));
            daemon.signal(Signal::CONT);
            assert!(soon(|| stream.arrive_within(Duration::from_millis(50)) > 0), "{}", daemon.log());
            until_forwarded(&daemon);
            within(Duration::from_secs(1), || dropped(&daemon) > 0)
        }),
        "{:?}",
        daemon.stats().drops
    );
    assert!(port(&daemon, "c2").tx_dropped >= dropped(&daemon));
}

#[test]
fn a_trace_says_what_the_kernel_forwarded_before_it_began() {
    let Some((_hosts, daemon, _stream)) = forwarded("gi", "") else { return };
    let client = Client::new(Some(&daemon.api_socket()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = LiveTraceRequest {
        packets: 5,
        seconds: 30,
        from: Some("c1".to_owned()),
        each_hop: false,
        filter: compile(&format!("udp port {UDP}")).unwrap(),
    };
    let packets: Vec<TracedPacket> = runtime.block_on(async {
        let mut stream = client.live_trace(&request).await.unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = stream.next().await.unwrap() {
            packets.push(packet);
        }
        packets
    });
    assert_eq!(packets.len(), 5);
    for packet in packets {
        let texts: Vec<&str> = packet.steps.iter().map(|step| &*step.text).collect();
        assert!(texts[1].contains("kernel flow table had this flow until the trace began"), "{texts:?}");
        assert!(texts.last().unwrap().contains("sent on port c2"), "{texts:?}");
    }
    until_forwarded(&daemon);
}

/// Segments that TCP of a host has sent, and those of them that it has sent again.
fn segments(host: &Host) -> [u64; 2] {
    let text = String::from_utf8(host.output("cat /proc/net/snmp").stdout).unwrap();
    let [names, numbers] =
        [0, 1].map(|n| text.lines().filter(|line| line.starts_with("Tcp:")).nth(n).unwrap());
    let number = |name: &str| {
        let found = names.split(' ').zip(numbers.split(' ')).find(|(known, _)| *known == name);
        found.unwrap().1.parse::<u64>().unwrap()
    };
    [number("OutSegs"), number("RetransSegs")]
}

/// A connection during which rules change again and again that do not concern it, but its ports. Returns how many
/// segments were sent, and how many again.
fn toggled(name: &str, is_fast: bool) -> [u64; 2] {
    let (toggles, bytes) = (12, 60_000_000);
    let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
    let text = |rules: &str| match is_fast {
        true => config(&hosts, rules),
        false => config(&hosts, rules).replace("fast_path = true", "fast_path = false"),
    };
    let daemon = Daemon::start(&text(""));
    assert!(are_connected(&hosts), "{}", daemon.log());
    let before = segments(&hosts[1]);
    serve(&hosts[1], bytes);
    let address = "10.54.0.2".parse::<IpAddr>().unwrap();
    let took = std::thread::scope(|scope| {
        let loading = scope.spawn(|| download(&hosts[0], address, bytes));
        for n in 0..toggles {
            let rule = format!(
                "[[rule]]\nname = \"r\"\ndrop = true\nmatch = {{ protocol = \"udp\", destination_ports = {} }}\n",
                9 + n
            );
            let _: ApplyReply = daemon.post(path::APPLY, &text(&rule));
            std::thread::sleep(Duration::from_millis(60));
        }
        loading.join().unwrap()
    });
    let after = segments(&hosts[1]);
    if is_fast {
        until_settled(&daemon);
        let by_kernel = hits(&daemon, "c2");
        println!("{bytes} bytes in {took:?}, {by_kernel} packets by the kernel");
        assert!(by_kernel > 0);
    }
    [after[0] - before[0], after[1] - before[1]]
}

/// Every byte arrives in order, and few segments are sent again because their way changes.
#[test]
fn a_connection_goes_on_while_its_way_changes() {
    if !are_possible() {
        return;
    }
    let [[sent, again], [_, again_slow]] =
        [("gf", true), ("gs", false)].map(|(name, fast)| toggled(name, fast));
    println!("of {sent} segments {again} were sent again; without the fast path {again_slow}");
    assert!(again <= 2 * again_slow + sent / 50);
}

/// `XDP_PASS`.
const PASS: i32 = 2;

#[test]
fn an_xdp_program_of_a_container_sees_every_packet() {
    let Some((hosts, daemon, stream)) = forwarded("gg", "") else { return };
    let seen = Arc::new(WordMap::new(8).unwrap());
    let program = {
        let mut program = Assembler::default();
        program.load_map_value(Register::R1, seen.as_fd(), 0).set(Register::R2, 1);
        program.atomic_add(Register::R1.at(0), Register::R2).set(Register::R0, PASS).exit();
        Program::load(ProgramKind::Xdp, &program.finish().unwrap()).unwrap()
    };
    let attach = move || {
        let index = index_of(&mut Requests::open().unwrap(), "eth0").unwrap().unwrap();
        Link::attach(&program, index, Attach::XdpNative).unwrap()
    };
    let link = hosts[1].inside(attach).join().unwrap();
    let count = || seen.double(0).unwrap().load(Ordering::Relaxed);
    // netvm sees within a second that there is one.
    assert!(soon(|| {
        let before = count();
        stream.arrive_within(Duration::from_millis(100)) > 0 && count() > before + 50
    }));
    until_settled(&daemon);
    assert!(stream.arrive_within(Duration::from_millis(100)) > 0);
    drop(link);
    until_forwarded(&daemon);
}
