// SPDX-License-Identifier: Apache-2.0
//! Routers in namespaces of the kernel, and the kernel's forwarding between the host's own interfaces.

use super::pairs::{End, InterfacePairs, Side};
use super::traffic::Halves;
use super::{HostInterfaces, Kind, SETTINGS, SINK, run};
use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::routes::RouteTable;

/// Creates the routers with their interfaces and routes.
pub(super) fn start(
    kind: Kind,
    host: &HostInterfaces,
    pairs: InterfacePairs,
    table: Option<&Halves>,
) -> Result<(), BenchError> {
    if kind == Kind::KernelForward {
        return forward(host, pairs, table);
    }
    if kind == Kind::KernelVeth {
        for side in [Side::In, Side::Out] {
            for (n, interface) in host.of(side).iter().enumerate() {
                let name = format!("bridge-{}{n}", side.name());
                run(&format!("link add {name} type bridge mcast_snooping 0"))?;
                run(&format!("link set {name} arp off up"))?;
                run(&format!("link set {interface} master {name}"))?;
                // A static entry: the sink never sends, so the bridge cannot learn its address.
                bridge(&format!("fdb replace {SINK} dev {interface} master static"))?;
            }
        }
    }
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        let name = format!("router{}", pairs.router_of(*first));
        run(&format!("netns add {name}"))?;
        ip(&["netns", "exec", &name, "sh", "-c", SETTINGS])?;
        let router = Router { namespace: name, ends: pairs.ends(&of_router) };
        for end in &router.ends {
            let below = pairs.below(*end);
            router.add(kind, *end, &Below { number: below, interface: &host.of(end.side)[below] })?;
            router.address(*end, &end.name())?;
            router.run(&format!("route add {}", route_to(*end, *end)))?;
        }
        router.load(table)?;
    }
    Ok(())
}

/// The host routes between its own interfaces.
fn forward(host: &HostInterfaces, pairs: InterfacePairs, table: Option<&Halves>) -> Result<(), BenchError> {
    let mut ends = Vec::new();
    for side in [Side::In, Side::Out] {
        ends.extend((0..).zip(host.of(side)).map(|(pair, _)| End { pair, side }));
    }
    let router = Router { namespace: String::new(), ends };
    for end in &router.ends {
        let interface = &host.of(end.side)[usize::from(end.pair)];
        run(&format!("link set {interface} address {}", end.mac()))?;
        router.address(*end, interface)?;
    }
    for end in pairs.by_router().iter().flat_map(|of_router| pairs.ends(of_router)) {
        let own = End { pair: pairs.below(end) as u8, ..end };
        router.run(&format!("route add {}", route_to(end, own)))?;
    }
    router.load(table)
}

/// An interface of the host below one of a router.
struct Below<'a> {
    number: usize,
    interface: &'a str,
}

/// A router.
struct Router {
    /// Its namespace; the host's own if empty.
    namespace: String,
    ends: Vec<End>,
}

impl Router {
    /// Runs `ip` in its namespace.
    fn run(&self, words: &str) -> Result<(), BenchError> {
        match self.namespace.as_str() {
            "" => run(words),
            name => run(&format!("-n {name} {words}")),
        }
    }

    /// Creates an interface.
    fn add(&self, kind: Kind, end: End, below: &Below<'_>) -> Result<(), BenchError> {
        let (mac, inner, router) = (end.mac(), end.name(), &self.namespace);
        if kind != Kind::KernelVeth {
            let interface = below.interface;
            return run(&format!(
                "link add link {interface} name {inner} netns {router} address {mac} type macvlan mode private"
            ));
        }
        let outer = format!("{inner}x");
        run(&format!("link add {outer} type veth peer name {inner} netns {router} address {mac}"))?;
        run(&format!("link set {outer} master bridge-{}{} up", end.side.name(), below.number))?;
        bridge(&format!("fdb replace {mac} dev {outer} master static"))
    }

    /// Gives an interface its address, and the next hop behind it.
    fn address(&self, end: End, interface: &str) -> Result<(), BenchError> {
        let network = network(end);
        self.run(&format!("address add {network}.1/24 dev {interface}"))?;
        self.run(&format!("link set {interface} up"))?;
        self.run(&format!("neighbour replace {network}.2 lladdr {SINK} dev {interface} nud permanent"))
    }

    /// Loads the table; the routes use the interfaces of their side in turn.
    fn load(&self, table: Option<&Halves>) -> Result<(), BenchError> {
        let Some(Halves { out, back }) = table else { return Ok(()) };
        let lines = [(Side::Out, out), (Side::In, back)].map(|(side, half)| self.lines(side, half)).concat();
        let file = format!("/run/netns/.routes{}", self.namespace);
        std::fs::write(&file, lines).map_err(BenchError::system(format!("cannot write {file}")))?;
        self.run(&format!("-batch {file}"))
    }

    fn lines(&self, side: Side, half: &RouteTable) -> String {
        let ends: Vec<_> = self.ends.iter().filter(|end| end.side == side).collect();
        let nets = half.possible().zip(ends.iter().cycle());
        nets.map(|((net, _), end)| format!("route replace {net} via {}.2\n", network(**end))).collect()
    }
}

/// The network of an interface, without the host's number.
fn network(End { pair, side }: End) -> String {
    format!("10.{}.{pair}", 100 + side as u8)
}

/// The route to the destination behind `end`, by interface `by`.
fn route_to(end: End, by: End) -> String {
    let [a, b, c, _] = end.destination();
    format!("{a}.{b}.{c}.0/24 via {}.2", network(by))
}

/// Runs `bridge`, which comes with `ip`.
fn bridge(words: &str) -> Result<(), BenchError> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let status =
        std::process::Command::new("bridge").env("PATH", path).args(words.split_whitespace()).status();
    let status = status.map_err(BenchError::system("cannot run bridge (package iproute2)"))?;
    if status.success() {
        return Ok(());
    }
    Err(BenchError::system(format!("bridge {words}"))(std::io::Error::other(status.to_string())))
}
