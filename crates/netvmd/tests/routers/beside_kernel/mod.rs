// SPDX-License-Identifier: Apache-2.0
//! A netvm router beside a kernel's, between hosts alike: the same commands in both namespaces have the same effect.

mod probe;
mod table;

use std::process::Command;
use std::time::{Duration, Instant};

use netvm_api::{RouterInfo, path};

use super::common::Daemon;
use super::common::hosts::{Host, are_possible, run, succeeds, within};
use super::site::ENGINE;
use probe::{Outcome, Probe, Prober};
use table::{ATTRIBUTES, Attribute};

/// The first host, which sends.
const CLIENT_V4: &str = "10.50.1.2";
const CLIENT_V6: &str = "fd50:1::2";
/// The interfaces of the routers, each with the network of one host.
const INTERFACES: [&str; 3] = ["lan", "wan", "dmz"];
/// Longer than any pause of a busy machine; a change is in force within a second.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A router with its hosts.
struct Side {
    /// The router's namespace.
    router: String,
    hosts: Vec<Host>,
    prober: Option<Prober>,
}

/// The addresses of the `n`th host.
fn addresses(n: usize) -> [String; 2] {
    [format!("10.50.{n}.2/24"), format!("fd50:{n}::2/64")]
}

impl Side {
    fn new(name: char, router: String) -> Self {
        let host = |n: usize| {
            let all = addresses(n);
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let gateways = [format!("10.50.{n}.1"), format!("fd50:{n}::1")];
            Host::new(&format!("{name}{n}"), &all, &[&gateways[0], &gateways[1]])
        };
        Self { router, hosts: (1..=3).map(host).collect(), prober: None }
    }

    /// Gives the hosts their further addresses, and checks that all is well.
    fn begin(&mut self) {
        let [client, others @ ..] = &self.hosts[..] else { panic!() };
        // The first is behind no router; the second is that of a host behind the other interface; then the router's
        // own.
        for address in ["172.30.0.1/32", "10.50.2.77/32", "10.50.2.1/32"] {
            client.ip(&format!("address add {address} dev lo"));
        }
        for host in others {
            for address in ["192.0.2.1/32", "2001:db8:7::1/128"] {
                host.ip(&format!("address add {address} dev lo"));
            }
        }
        for host in &self.hosts {
            let quiet = "-w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0";
            assert!(host.output(&format!("busybox sysctl {quiet}")).status.success());
        }
        // ICMP errors as many as there are.
        self.run("sysctl -w net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
        self.run("ip route add 192.0.2.0/24 via 10.50.2.2 metric 10");
        self.run("ip -6 route add 2001:db8:7::/64 via fd50:2::2 metric 10");
        let names: Vec<String> = self.hosts[1..].iter().map(|host| host.namespace().to_owned()).collect();
        self.prober = Some(Prober::new(self.hosts[0].namespace(), &names));
    }

    /// Runs a command in the router's namespace.
    fn run(&self, command: &str) {
        let command = command.replace("sysctl", "busybox sysctl");
        let words: Vec<&str> = command.split(' ').collect();
        let output = Command::new("ip").args(["netns", "exec", &self.router]).args(&words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {command}: {error}", self.router);
    }

    /// Runs the commands of an attribute: for the router, or, after a number, for that host.
    fn apply(&self, commands: &[&str]) {
        for command in commands {
            match command.split_once(": ") {
                Some((host, command)) => {
                    let host: usize = host.parse().unwrap();
                    let output = self.hosts[host].output(command);
                    assert!(output.status.success(), "{command}: {output:?}");
                }
                None => self.run(command),
            }
        }
    }

    fn send(&mut self, probe: Probe) -> Outcome {
        // What the client learned of the way, by an earlier error, does not count.
        for family in ["-4", "-6"] {
            self.hosts[0].ip(&format!("{family} route flush cache"));
        }
        self.prober.as_mut().unwrap().send(probe)
    }
}

/// A router of the kernel; its hosts' outer ends are its interfaces.
fn kernel_router() -> Side {
    let router = format!("nt{}bk", std::process::id());
    run(&format!("ip netns add {router}"));
    let side = Side::new('k', router);
    let ip = |words: &str| run(&format!("ip -n {} {words}", side.router));
    ip("link set lo up");
    for (n, (host, name)) in side.hosts.iter().zip(INTERFACES).enumerate() {
        run(&format!("ip link set {} netns {} name {name}", host.port(), side.router));
        side.run(&format!("sysctl -w net.ipv6.conf.{name}.disable_ipv6=0"));
        ip(&format!("address add 10.50.{}.1/24 broadcast + dev {name}", n + 1));
        ip(&format!("address add fd50:{}::1/64 dev {name} nodad", n + 1));
        ip(&format!("link set {name} up"));
    }
    side.run("sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    side.run("sysctl -w net.ipv4.conf.all.rp_filter=0");
    for name in INTERFACES {
        side.run(&format!("sysctl -w net.ipv4.conf.{name}.rp_filter=0"));
    }
    side
}

fn netvm_router() -> (Side, String) {
    let name = format!("bn{}", std::process::id());
    let side = Side::new('n', format!("netvm-{name}"));
    let mut text = format!("{ENGINE}\n[[router]]\nname = \"{name}\"\n");
    for (n, (host, interface)) in side.hosts.iter().zip(INTERFACES).enumerate() {
        let (port, n) = (host.port(), n + 1);
        text += &format!(
            "[[router.interface]]\nname = \"{interface}\"\nport = \"{interface}\"\n\
             addresses = [\"10.50.{n}.1/24\", \"fd50:{n}::1/64\"]\n\
             [[port]]\nname = \"{interface}\"\nkind = \"af_xdp\"\ninterface = \"{port}\"\n\
             forward = {{ router = \"{name}\" }}\n"
        );
    }
    (side, text)
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = succeeds(&format!("ip netns delete {}", self.router));
    }
}

/// What becomes of a datagram in each of the two.
fn outcomes([netvm, kernel]: [&mut Side; 2], probe: Probe) -> (Outcome, Outcome) {
    std::thread::scope(|scope| {
        let netvm = scope.spawn(|| netvm.send(probe));
        let kernel = kernel.send(probe);
        (netvm.join().unwrap(), kernel)
    })
}

/// Two routers, and the daemon of the first.
struct Pair {
    netvm: Side,
    kernel: Side,
    daemon: Daemon,
}

impl Pair {
    fn apply(&self, commands: &[&str]) {
        [&self.netvm, &self.kernel].iter().for_each(|side| side.apply(commands));
    }

    /// Probes until both routers do the same, and that is right. Returns what they do.
    fn until(&mut self, probe: Probe, what: &str, is_right: impl Fn(Outcome) -> bool) -> Outcome {
        let mut seen = (Outcome::Lost, Outcome::Lost);
        let is_same = within(TIMEOUT, || {
            seen = outcomes([&mut self.netvm, &mut self.kernel], probe);
            seen.0 == seen.1 && is_right(seen.1)
        });
        assert!(is_same, "{what}: netvm {:?}, kernel {:?}\n{}", seen.0, seen.1, self.daemon.log());
        seen.1
    }

    /// Checks one attribute: it has an effect, the same on both routers, and none once it is undone.
    fn check(&mut self, attribute: &Attribute) {
        let Attribute { name, before, set, undo, probe } = attribute;
        let probe = probe();
        self.apply(before);
        let without = self.until(probe, &format!("{name}, before"), |_| true);
        self.apply(set);
        let begin = Instant::now();
        let with = self.until(probe, &format!("{name}, set"), |outcome| outcome != without);
        println!("{name}: {without:?}, then {with:?} after {:?}", begin.elapsed());
        self.apply(undo);
        for to in ["10.50.2.2", "fd50:2::2"] {
            self.until(Probe::to(to), &format!("{name}, undone"), |outcome| outcome == Outcome::Arrived(0));
        }
    }
}

#[test]
fn what_is_set_in_a_namespace_has_the_effect_that_it_has_on_a_kernel_s_router() {
    if !are_possible() {
        return;
    }
    let kernel = kernel_router();
    let (netvm, config) = netvm_router();
    let daemon = Daemon::start(&config);
    let mut pair = Pair { netvm, kernel, daemon };
    pair.netvm.begin();
    pair.kernel.begin();
    for to in ["10.50.2.2", "10.50.3.2", "fd50:2::2", "fd50:3::2", "192.0.2.1", "2001:db8:7::1"] {
        pair.until(Probe::to(to), to, |outcome| matches!(outcome, Outcome::Arrived(_)));
    }
    for to in ["10.50.2.2", "fd50:2::2"] {
        pair.until(Probe::to(to).ttl(1), to, |outcome| matches!(outcome, Outcome::Error(..)));
    }
    for attribute in ATTRIBUTES {
        if attribute.is_possible(&pair.kernel) {
            pair.check(attribute);
        }
    }
    // A name of the namespace's own is also that of the API.
    let routers: Vec<RouterInfo> = pair.daemon.get(path::ROUTERS);
    assert_eq!(routers[0].interfaces[1].name, "wan");
    assert!(routers[0].forwarded > 0, "the engine forwarded some of them");
    pair.daemon.purge();
}
