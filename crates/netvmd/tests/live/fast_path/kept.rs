// SPDX-License-Identifier: Apache-2.0
//! Flows of which workers keep something: open connections, flows that every NF of a chain has released, and those of
//! the flow monitor.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netlib::{Idle, NetworkFunction, Options, Packet, Verdict};
use netvm_api::{ApplyReply, ConnectionInfo, ConnectionList, NfInfo, NfState, TopTalkers, path};
use rustix::process::{Pid, Signal, kill_process};

use super::table::{until_forwarded, until_settled};
use super::traffic::{Stream, hits};
use super::{are_connected, container, port, soon};
use crate::common::download::{download, serve};
use crate::common::hosts::{Host, are_possible};
use crate::common::{Daemon, ENGINE, program};

const UDP: u16 = 7100;
const BYTES: u64 = 50_000_000;
/// The second container only answers.
const STATEFUL: &str = "[[rule]]\nname = \"known\"\nfrom = \"c2\"\nallow = true\nmatch = { state = \"established\" }\n\
     [[rule]]\nname = \"ping\"\nfrom = \"c2\"\nallow = true\nmatch = { protocol = \"icmp\" }\n\
     [[rule]]\nname = \"ping6\"\nfrom = \"c2\"\nallow = true\nmatch = { protocol = \"icmpv6\" }\n\
     [[rule]]\nname = \"arp\"\nfrom = \"c2\"\nallow = true\nmatch = { ether_type = \"arp\" }\n\
     [[rule]]\nname = \"others\"\nfrom = \"c2\"\ndrop = true\n";

fn connections(daemon: &Daemon, query: &str) -> Vec<ConnectionInfo> {
    daemon.get::<ConnectionList>(&format!("{}?{query}", path::CONNECTIONS)).connections
}

#[test]
fn the_kernel_forwards_open_connections_as_long_as_they_are_known() {
    if !are_possible() {
        return;
    }
    let hosts = ["ka1", "ka2"].map(Host::bare);
    let config = |rules: &str| {
        let tracked = [1, 2].map(|n| container(n, &hosts[usize::from(n) - 1], "track = true")).concat();
        ENGINE.to_owned() + &tracked + rules
    };
    let daemon = Daemon::start(&config(STATEFUL));
    assert!(are_connected(&hosts), "{}", daemon.log());
    serve(&hosts[1], BYTES);
    download(&hosts[0], std::net::Ipv4Addr::new(10, 54, 0, 2), BYTES);
    until_settled(&daemon);
    assert!(hits(&daemon, "c2") > 1000, "{}", hits(&daemon, "c2"));
    // netvm has seen the end, and knows what the kernel has forwarded.
    let is_closed = |tcp: &ConnectionInfo| tcp.state.contains("wait") || tcp.state.contains("ack");
    daemon.until("the connection is closed, and counted", |daemon| {
        let tcp = connections(daemon, "protocol=tcp");
        tcp.first().is_some_and(|tcp| is_closed(tcp) && tcp.reply_bytes >= BYTES)
    });

    // The second container answers one datagram for ever.
    let socket = hosts[0].inside(|| UdpSocket::bind(("10.54.0.1", UDP)).unwrap()).join().unwrap();
    let answering = hosts[1].inside(|| UdpSocket::bind(("10.54.0.2", UDP)).unwrap()).join().unwrap();
    socket.set_nonblocking(true).unwrap();
    let arrive = |time: u64| {
        std::thread::sleep(Duration::from_millis(time));
        std::iter::from_fn(|| socket.recv(&mut [0; 8]).ok()).count()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stream = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = answering.send_to(b"answer", "10.54.0.1:7100");
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    };
    assert_eq!(arrive(200), 0, "it has not been asked");
    let ask = || {
        let before = hits(&daemon, "c2");
        soon(|| {
            let _ = socket.send_to(b"ask", "10.54.0.2:7100");
            arrive(50) > 0 && hits(&daemon, "c2") > before + 100
        })
    };
    assert!(ask(), "{}", daemon.log());
    // Its connection does not end while the kernel forwards, and what it has forwarded is counted.
    daemon.until("it is counted", |daemon| {
        let all = connections(daemon, "protocol=udp");
        all.iter().any(|udp| udp.reply_packets > 1000)
    });
    // Nobody knows it any more: nothing arrives.
    let (status, _) = daemon.request("DELETE", path::CONNECTIONS, "");
    assert_eq!(status, 200);
    assert!(soon(|| arrive(100) == 0));
    assert_eq!(arrive(300), 0);
    assert!(ask());
    // Nor by a rule.
    let stopped = STATEFUL.replace("state = \"established\"", "state = \"established\", protocol = \"tcp\"");
    let _: ApplyReply = daemon.post(path::APPLY, &config(&stopped));
    arrive(50);
    assert_eq!(arrive(300), 0);
    stop.store(true, Ordering::Relaxed);
    stream.join().unwrap();
}

/// Lets every flow skip it after its first packets.
struct Releaser(u32);

impl NetworkFunction for Releaser {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        self.0 += 1;
        if self.0 > 20 { Verdict::SkipFlow(Idle(60)) } else { Verdict::Next }
    }
}

pub fn releaser() {
    netlib::run(&Options::new("releaser"), |_| Releaser(0)).unwrap();
}

/// Packets that the NFs of the test have received, as far as they live.
fn received(daemon: &Daemon) -> u64 {
    let nfs: Vec<NfInfo> = daemon.get(path::NFS);
    nfs.iter().flat_map(|nf| &nf.threads).map(|thread| thread.packets.received).sum()
}

#[test]
fn the_kernel_forwards_flows_that_every_nf_has_released() {
    if !are_possible() {
        return;
    }
    let hosts = ["kb1", "kb2"].map(Host::bare);
    let chain = format!(
        "[[nf]]\nrole = \"releaser\"\ngroup = \"edge\"\nflow_verdicts = 300\n{}\
         [[chain]]\nname = \"checked\"\nhops = [\"releaser\"]\noutput = {{ normal = true }}\non_failure = \"drop\"\n\
         [[rule]]\nname = \"checked\"\nfrom = \"c1\"\nchain = \"checked\"\nmatch = {{ protocol = \"udp\" }}\n",
        program("releaser")
    );
    let containers = [1, 2].map(|n| container(n, &hosts[usize::from(n) - 1], "")).concat();
    let daemon = Daemon::start(&format!("{}{containers}{chain}", *ENGINE));
    daemon.until_running("releaser");
    assert!(are_connected(&hosts), "{}", daemon.log());
    let stream = Stream::start(&hosts, "10.54.0.2", UDP);
    until_forwarded(&daemon);
    // The chain counts what would have passed it, and its NF sees nothing more.
    let (before, left) = (received(&daemon), daemon.left("checked"));
    until_forwarded(&daemon);
    daemon.until("the chain counts it", |daemon| daemon.left("checked") > left + 100);
    assert!(received(&daemon) < before + 50, "{before} {}", received(&daemon));
    // Its verdicts end with it: nothing passes until another one has seen the flow.
    let first = daemon.nf("releaser").pid.unwrap();
    kill_process(Pid::from_raw(first.cast_signed()).unwrap(), Signal::KILL).unwrap();
    daemon.until("another one runs, and sees the flow", |daemon| {
        let nf = daemon.nf("releaser");
        nf.state == NfState::Running && nf.pid.is_some_and(|pid| pid != first) && received(daemon) > 20
    });
    until_forwarded(&daemon);
    assert!(stream.arrive_within(Duration::from_millis(200)) > 0);
}

#[test]
fn the_flow_monitor_counts_what_the_kernel_forwards() {
    if !are_possible() {
        return;
    }
    let hosts = ["kc1", "kc2"].map(Host::bare);
    let engine = ENGINE.replace("huge_pages = false\n", "huge_pages = false\nflow_monitor = {}\n");
    let containers = [1, 2].map(|n| container(n, &hosts[usize::from(n) - 1], "")).concat();
    let daemon = Daemon::start(&(engine + &containers));
    assert!(are_connected(&hosts), "{}", daemon.log());
    serve(&hosts[1], BYTES);
    download(&hosts[0], std::net::Ipv4Addr::new(10, 54, 0, 2), BYTES);
    let stream = Stream::start(&hosts, "10.54.0.2", UDP);
    until_forwarded(&daemon);
    drop(stream);
    until_settled(&daemon);
    assert!(hits(&daemon, "c2") > 1000, "{}", hits(&daemon, "c2"));
    let counted = |daemon: &Daemon| daemon.stats().flow_monitor.unwrap().packets;
    let received =
        |daemon: &Daemon| ["c1", "c2"].map(|name| port(daemon, name).rx_packets).iter().sum::<u64>();
    daemon.until("all packets are counted", |daemon| {
        let now = counted(daemon);
        now == received(daemon) && now == counted(daemon)
    });
    let top: TopTalkers = daemon.get(path::TOP_TALKERS);
    let server = top.addresses.iter().find(|talker| talker.address == "10.54.0.2").unwrap();
    assert!(server.bytes >= BYTES, "{top:?}");
}
