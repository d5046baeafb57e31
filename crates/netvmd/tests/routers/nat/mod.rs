// SPDX-License-Identifier: Apache-2.0
//! NAT of a router, with real clients: docs/how-to/nat.md, with its configurations and commands.

mod behaviour;
mod clients;
mod health;
mod log;
mod pools;
mod published;
mod six;
mod traces;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::common::hosts::{Host, run, succeeds};
use super::common::page::blocks;
use super::common::{ADAPTIVE, Daemon, engine};

const PAGE: &str = include_str!("../../../../../docs/how-to/nat.md");

/// The uplink's ends: the internet's, and the router's.
const INTERNET: &str = "203.0.113.1";
const ROUTER: &str = "203.0.113.2";
/// A host behind the internet's first one.
const FAR: &str = "198.18.0.2";

/// What the page describes, with a host farther away, and with names of its own.
struct Net {
    web: Host,
    app: Host,
    internet: Host,
    far: Host,
    router: String,
    _namespace: RouterNamespace,
}

impl Net {
    /// `mark` is a letter of its own in the names of each test.
    fn new(mark: char) -> Self {
        let [web, app, internet, far] = ["w", "a", "i", "f"].map(|part| Host::bare(&format!("{mark}{part}")));
        run(&format!(
            "ip link add far netns {} type veth peer name eth0 netns {}",
            internet.namespace(),
            far.namespace()
        ));
        let ends = [(&internet, "far", "198.18.0.1/24"), (&far, "eth0", "198.18.0.2/24")];
        for (host, interface, address) in ends {
            host.ip("link set lo up");
            host.ip(&format!("link set {interface} up"));
            host.ip(&format!("address add {address} dev {interface}"));
        }
        far.ip("route add default via 198.18.0.1");
        assert!(internet.output("sysctl -w net.ipv4.ip_forward=1").status.success());
        let router = format!("n{mark}{}", std::process::id());
        Self { web, app, internet, far, _namespace: RouterNamespace(router.clone()), router }
    }

    /// A text of the page with the names of this net.
    fn named(&self, text: &str) -> String {
        let mut text = text.replace("router = \"edge\"", &format!("router = {:?}", self.router));
        text = text.replace("[[router]]\nname = \"edge\"", &format!("[[router]]\nname = {:?}", self.router));
        for (name, host) in [("web", &self.web), ("app", &self.app), ("internet", &self.internet)] {
            let namespace = host.namespace();
            text = text.replace(&format!("namespace = {name:?}"), &format!("namespace = {namespace:?}"));
            text = text.replace(&format!("netns exec {name} "), &format!("netns exec {namespace} "));
        }
        text
    }

    /// The configuration of the page: with `is_published`, a port of the web server; and with further lines.
    fn config(&self, is_published: bool, more: &str) -> String {
        let found = blocks(PAGE, "toml");
        let mut config = found[0].clone();
        if is_published {
            let (first, rest) = config.split_once("\n\n").unwrap();
            assert!(first.contains("\"web\""), "{first}");
            config = format!("{}\n{rest}", found[1]);
        }
        self.named(&format!("{}\n{config}\n{more}", engine(ADAPTIVE)))
    }

    /// netvmd, when containers reach the internet.
    fn start(&self, config: &str) -> Daemon {
        let daemon = Daemon::start(config);
        assert!(
            self.app.pings(INTERNET) && self.web.pings(INTERNET),
            "{:?}\n{}",
            daemon.stats().drops,
            daemon.log()
        );
        daemon
    }

    /// The same with the page's pool, which the internet routes to the router.
    fn start_with_pool(&self, config: &str) -> Daemon {
        let daemon = Daemon::start(config);
        let route = format!("route add 198.51.100.16/28 via {ROUTER}");
        let is_routed =
            super::within(super::Duration::from_secs(20), || self.internet.output_of_ip(&route).is_some());
        assert!(is_routed && self.app.pings(INTERNET) && self.web.pings(INTERNET), "{}", daemon.log());
        daemon
    }

    /// The commands of the page's `n`th block that run in a namespace.
    fn commands(&self, n: usize) -> Vec<String> {
        let block = self.named(&blocks(PAGE, "sh")[n]);
        block.lines().filter(|line| line.starts_with("ip netns exec")).map(str::to_owned).collect()
    }

    /// Runs these commands in turn; servers in the background.
    fn run(&self, commands: &[String]) -> Vec<Background> {
        let mut servers = Vec::new();
        for command in commands {
            if command.contains("httpd") {
                servers.push(Background::start(&command.replace("httpd -p", "httpd -f -p")));
            } else {
                assert!(super::within(super::Duration::from_secs(20), || succeeds(command)), "{command}");
            }
        }
        servers
    }
}

/// The namespace of a router of this name, which netvmd leaves; removed on drop.
struct RouterNamespace(String);

impl Drop for RouterNamespace {
    fn drop(&mut self) {
        let _ = succeeds(&format!("ip netns delete netvm-{}", self.0));
    }
}

/// A program in the background; ends on drop.
struct Background(Child);

impl Background {
    fn start(command: &str) -> Self {
        let mut words = command.split(' ');
        let mut program = Command::new(words.next().unwrap());
        Self(program.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn inside(host: &Host, command: &str) -> Self {
        Self::start(&format!("ip netns exec {} {command}", host.namespace()))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What becomes of a new connection from a host.
fn connect(from: &Host, to: &str) -> Result<TcpStream, ErrorKind> {
    let to: SocketAddr = to.parse().unwrap();
    let connect =
        move || TcpStream::connect_timeout(&to, Duration::from_secs(5)).map_err(|error| error.kind());
    from.inside(connect).join().unwrap()
}

/// The output of a program in a host, which must succeed at some time.
fn must(host: &Host, command: &str) -> String {
    let mut last: Option<Output> = None;
    let is_done = super::within(super::Duration::from_secs(30), || {
        let output = host.output(command);
        let is_done = output.status.success();
        last = Some(output);
        is_done
    });
    let output = last.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(is_done, "{command}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Whether a program is there; if not, says that a part is skipped.
fn has(program: &str) -> bool {
    let is_there = succeeds(&format!("which {program}"));
    if !is_there {
        println!("SKIP: a part needs {program}, which is not installed");
    }
    is_there
}
