// SPDX-License-Identifier: Apache-2.0
//! Traces of what NAT does: those of packets of traffic, and those of packets that are not sent, say the same.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::thread::JoinHandle;

use netvm_api::{Client, LiveTraceRequest, StepKind, TraceReply, TraceRequest, TracedPacket, path};
use netvm_capture_client::compile;
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

use super::super::common::Daemon;
use super::super::common::hosts::{Host, are_possible};
use super::{INTERNET, Net, ROUTER};

/// Follows the next packet that a filter accepts, in the background.
fn follow(daemon: &Daemon, filter: &str) -> JoinHandle<TracedPacket> {
    let request =
        LiveTraceRequest { filter: compile(filter).unwrap(), packets: 1, seconds: 600, ..Default::default() };
    let (client, (started, is_started)) =
        (Client::new(Some(&daemon.api_socket())), std::sync::mpsc::channel());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let thread = std::thread::spawn(move || {
        runtime.block_on(async {
            let mut stream = client.live_trace(&request).await.unwrap();
            started.send(()).unwrap();
            stream.next().await.unwrap().unwrap()
        })
    });
    is_started.recv().unwrap();
    thread
}

/// The steps of a packet that is not sent.
fn hypothetical(daemon: &Daemon, port: &str, frame: &[u8]) -> Vec<String> {
    let frame: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = TraceRequest { port: port.to_owned(), frame, length: None, state: None };
    let reply: TraceReply = daemon.post(path::TRACE, &serde_json::to_string(&request).unwrap());
    reply.steps
}

/// A packet to the MAC address by which a host knows its router.
fn to_router(host: &Host, router: &str) -> FrameBuilder<'static> {
    let neighbour = host.ip_output(&format!("neigh show {router}"));
    let mac = neighbour.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).unwrap();
    FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 9]), mac.parse().unwrap())
}

#[test]
fn traces_name_the_nat_rule_and_what_it_changes() {
    if !are_possible() {
        return;
    }
    let (net, folder) = (Net::new('t'), tempfile::tempdir().unwrap());
    let eve = folder.path().join("eve.json");
    let monitor = format!("[engine]\nflow_monitor = {{ eve = {eve:?}, idle_timeout = 1 }}\n");
    let rule = "[[rule]]\nname = \"probe\"\nfrom = \"switch\"\nmatch = { protocol = \"udp\", destination_ports = 9 }\nallow = true\n";
    let daemon = net.start(&net.config(true, rule).replacen("[engine]\n", &monitor, 1));
    let (internet, app) = (INTERNET.parse().unwrap(), "10.0.0.12".parse().unwrap());

    let published = follow(&daemon, "tcp dst port 8080 and tcp[tcpflags] = tcp-syn");
    let connect = || drop(TcpStream::connect((ROUTER, 8080)));
    net.internet.inside(connect).join().unwrap();
    let published = published.join().unwrap();
    let step = published.steps.iter().find(|step| step.step == StepKind::Translated).unwrap();
    let expected = "NAT by port web publishes 8080:80/tcp: destination 203.0.113.2:8080 becomes 10.0.0.11:80";
    assert_eq!(step.text, expected, "{published:#?}");
    assert_eq!(step.rule.as_deref(), Some("port web publishes 8080:80/tcp"));
    let syn = to_router(&net.internet, ROUTER).ip(internet, ROUTER.parse().unwrap());
    let syn = syn.tcp(40_000, 8080, TcpFlags::SYN).to_vec().unwrap();
    let steps = hypothetical(&daemon, "uplink", &syn);
    let at = steps.iter().position(|step| step == expected).unwrap_or_else(|| panic!("{steps:#?}"));
    // The rules see the container.
    assert!(steps[at + 1].contains("203.0.113.1:40000 > 10.0.0.11:80 tcp syn state new"), "{steps:#?}");

    let masqueraded = follow(&daemon, "udp src port 5555 and dst port 9");
    let send = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 5555)).unwrap().send_to(b"x", (INTERNET, 9));
    net.app.inside(send).join().unwrap().unwrap();
    let masqueraded = masqueraded.join().unwrap();
    let expected =
        format!("NAT by router {}, interface wan: source 10.0.0.12:5555 becomes {ROUTER}:5555", net.router);
    let is_it = |text: &str| text == expected;
    assert!(masqueraded.steps.iter().any(|step| is_it(&step.text)), "{expected}: {masqueraded:#?}");
    let datagram = to_router(&net.app, "10.0.0.1").ip(app, internet).udp(5555, 9).to_vec().unwrap();
    let steps = hypothetical(&daemon, "app", &datagram);
    assert!(steps.iter().any(|step| is_it(step)), "{expected}: {steps:#?}");
    assert_eq!(steps.last().unwrap(), "sent on port uplink");

    // So does the record of the flow. The exporter may learn the names of rules after the first ones: then again.
    let mut records = 0;
    daemon.until("the flow has its record, with its translation", |_| {
        let text = std::fs::read_to_string(&eve).unwrap_or_default();
        // The last line may not be whole yet.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let lines: Vec<_> = lines.filter(|line| line["src_port"] == 5555).collect();
        if lines.len() > std::mem::replace(&mut records, lines.len()) {
            net.app.inside(send).join().unwrap().unwrap();
        }
        let nat = serde_json::json!({
            "src_ip": ROUTER, "src_port": 5555, "dest_ip": INTERNET, "dest_port": 9,
        });
        lines.iter().any(|line| {
            let (verdict, rule) = (&line["flow"]["verdict"], &line["flow"]["rule"]);
            line["nat"] == nat && verdict == "forwarded" && rule == "probe"
        })
    });
}
