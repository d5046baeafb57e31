//! Two servers, one network: docs/how-to/two-servers.md, with its configurations and commands.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

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
    super::serve(&a.container, super::DOWNLOAD / 5);
    let from: std::net::Ipv4Addr = "10.0.0.1".parse().unwrap();
    let took = super::download(&b.container, from, super::DOWNLOAD / 5);
    println!("{} bytes from one server to the other in {took:?}", super::DOWNLOAD / 5);
    first.purge();
    second.purge();
}
