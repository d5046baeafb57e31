// SPDX-License-Identifier: Apache-2.0
//! Two servers, one network: docs/how-to/two-servers.md, with its configurations and commands.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use netvm_api::{Client, LiveTraceRequest, TraceReply, TraceRequest, path};
use netvm_capture_client::compile;
use netvm_wire::FrameBuilder;

use super::super::Duration;
use super::super::common::hosts::{Host, are_possible, run, succeeds};
use super::super::common::page::blocks;
use super::super::common::{Daemon, Folder};
use super::super::site::ENGINE;
use super::super::within;

const PAGE: &str = include_str!("../../../../../docs/how-to/two-servers.md");

/// A server in a namespace, with netvmd in it, and its container.
struct Server {
    host: Host,
    container: Host,
    router: String,
    folder: Arc<Folder>,
}

impl Server {
    fn new(mark: &str) -> Self {
        let [host, container] = ["h", "c"].map(|part| Host::bare(&format!("{mark}{part}")));
        host.ip("link set lo up");
        Self {
            host,
            container,
            router: format!("{mark}{}", std::process::id()),
            folder: Arc::new(Folder::new()),
        }
    }

    /// A text of the page with the names of this server.
    fn named(&self, text: &str) -> String {
        let namespace = self.container.namespace();
        let text = text.replace("router = \"edge\"", &format!("router = {:?}", self.router));
        let text =
            text.replace("[[router]]\nname = \"edge\"", &format!("[[router]]\nname = {:?}", self.router));
        let text = text.replace("namespace = \"web\"", &format!("namespace = {namespace:?}"));
        text.replace("namespace = \"db\"", &format!("namespace = {namespace:?}"))
    }

    fn start(&self, config: &str) -> Daemon {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host.namespace(), env!("CARGO_BIN_EXE_netvmd")]);
        let text = format!("{}\n{}", &*ENGINE, self.named(config));
        let mut daemon = Daemon::launch_as(command, Arc::clone(&self.folder), &text);
        daemon.await_log("serves its API on");
        daemon
    }
}

impl Drop for Server {
    /// Cleans up after a failed test whose netvmd was killed.
    fn drop(&mut self) {
        let namespace = format!("netvm-{}", self.router);
        if Path::new("/run/netns").join(&namespace).exists() {
            let _ = succeeds(&format!("ip netns delete {namespace}"));
        }
    }
}

#[test]
fn containers_of_two_servers_are_in_one_network() {
    if !are_possible() {
        return;
    }
    let (a, b) = (Server::new("sa"), Server::new("sb"));
    let (left, right) = (a.host.namespace(), b.host.namespace());
    run(&format!("ip link add eth1 netns {left} type veth peer name eth1 netns {right}"));
    for server in [&a, &b] {
        server.host.ip("link set eth1 up");
    }
    let configs = blocks(PAGE, "toml");
    let (mut first, mut second) = (a.start(&configs[0]), b.start(&configs[1]));
    // The commands of the page: pings in both directions.
    let commands = blocks(PAGE, "sh")[0].clone();
    for command in commands.lines() {
        let command = command.replace("netns exec web ", &format!("netns exec {} ", a.container.namespace()));
        let command = command.replace("netns exec db ", &format!("netns exec {} ", b.container.namespace()));
        let command = command.replace("sudo ", "").replace(" ping ", " busybox ping ");
        assert!(
            within(Duration::from_secs(20), || succeeds(&command)),
            "{command}: {:?}\n{}\n{}",
            first.stats().drops,
            first.log(),
            second.log()
        );
    }
    traces_say_where_headers_come_and_go([&a, &b], [&first, &second]);
    super::serve(&a.container, super::DOWNLOAD / 5);
    let from: std::net::Ipv4Addr = "10.0.0.1".parse().unwrap();
    let took = super::download(&b.container, from, super::DOWNLOAD / 5);
    println!("{} bytes from one server to the other in {took:?}", super::DOWNLOAD / 5);
    first.purge();
    second.purge();
}

/// The steps of the next ping's packet that a server receives on a port, each without what differs from run to run.
fn follow(daemon: &Daemon, port: &str, ping: impl Fn()) -> Vec<String> {
    let request = LiveTraceRequest {
        from: Some(port.to_owned()),
        filter: compile("icmp or udp port 4789").unwrap(),
        packets: 1,
        seconds: 60,
        ..LiveTraceRequest::default()
    };
    let client = Client::new(Some(&daemon.api_socket()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let packet = runtime.block_on(async {
        let mut stream = client.live_trace(&request).await.unwrap();
        ping();
        stream.next().await.unwrap().unwrap()
    });
    packet.steps.into_iter().map(|step| step.text).collect()
}

fn traces_say_where_headers_come_and_go([a, b]: [&Server; 2], [first, second]: [&Daemon; 2]) {
    let ping = || assert!(a.container.pings("10.0.0.2"));
    let index = |steps: &[String], text: &str| {
        let at = steps.iter().position(|step| step.starts_with(text));
        at.unwrap_or_else(|| panic!("{text}: {steps:#?}"))
    };
    let are_in_order = |steps: &[String], wanted: &[&str]| {
        let places: Vec<usize> = wanted.iter().map(|text| index(steps, text)).collect();
        assert!(places.is_sorted(), "{steps:#?}");
    };
    let sent = follow(first, "web", ping);
    let encapsulated = "encapsulated for VTEP 192.0.2.2, VNI 100";
    are_in_order(
        &sent,
        &["received on port web", "sent on port overlay", encapsulated, "routed to ", "sent on port wan"],
    );
    let received = follow(second, "wan", ping);
    let enters = format!("enters router {}", b.router);
    let decapsulated = "decapsulated, from VTEP 192.0.2.1, VNI 100";
    are_in_order(
        &received,
        &["received on port wan", &enters, decapsulated, "received on port overlay", "sent on port db"],
    );
    // So does that of a packet that is not sent.
    let mac = |host: &Host| {
        let shown = host.ip_output("-o link show dev eth0");
        let mac = shown.split("link/ether ").nth(1).unwrap()[..17].to_owned();
        mac.parse().unwrap()
    };
    let frame = FrameBuilder::new(mac(&a.container), mac(&b.container));
    let frame = frame.ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2).to_vec().unwrap();
    let frame = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = TraceRequest { port: "web".to_owned(), frame, length: None, state: None };
    let reply: TraceReply = first.post(path::TRACE, &serde_json::to_string(&request).unwrap());
    are_in_order(&reply.steps, &["L2 switch", encapsulated, "routed to ", "sent on port wan"]);
}
