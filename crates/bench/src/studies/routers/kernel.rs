// SPDX-License-Identifier: Apache-2.0
//! Routers in namespaces of the kernel.

use super::{InterfacePairs, Kind, OUT, SETTINGS, SINK, mac, run};
use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::routes::RouteTable;

/// Creates the routers with their interfaces and routes.
pub(super) fn start(
    kind: Kind,
    near: &[String],
    pairs: InterfacePairs,
    table: Option<&RouteTable>,
) -> Result<(), BenchError> {
    if kind == Kind::KernelVeth {
        for (n, (near, out)) in near.iter().zip(OUT).enumerate() {
            for (interface, side) in [(near.as_str(), "in"), (out, "out")] {
                let bridge = format!("bridge-{side}{n}");
                run(&format!("link add {bridge} type bridge mcast_snooping 0"))?;
                run(&format!("link set {bridge} arp off up"))?;
                run(&format!("link set {interface} master {bridge}"))?;
            }
            // A static entry: the sink never sends, so the bridge cannot learn its address.
            bridge(&format!("fdb replace {SINK} dev {out} master static"))?;
        }
    }
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        let name = format!("router{}", pairs.router_of(*first));
        run(&format!("netns add {name}"))?;
        ip(&["netns", "exec", &name, "sh", "-c", SETTINGS])?;
        for pair in &of_router {
            let host_pair = pairs.host_pair_of(*pair);
            add(
                kind,
                &RouterPair {
                    router: &name,
                    n: *pair,
                    near: &near[host_pair],
                    out: OUT[host_pair],
                    host_pair,
                },
            )?;
        }
        if let Some(table) = table {
            load(&name, &of_router, table)?;
        }
    }
    Ok(())
}

/// A pair of interfaces of a router.
struct RouterPair<'a> {
    router: &'a str,
    n: u8,
    /// The interfaces below its own two.
    near: &'a str,
    out: &'a str,
    host_pair: usize,
}

/// Creates a router's two interfaces of a pair.
fn add(kind: Kind, pair: &RouterPair<'_>) -> Result<(), BenchError> {
    let RouterPair { router, n, near, out, host_pair } = *pair;
    for (side, (interface, end)) in (0..).zip([(near, "in"), (out, "out")]) {
        let (mac, network, inner) = (mac(n, side), 100 + side, format!("{end}{n}"));
        match kind {
            Kind::KernelVeth => {
                let outer = format!("{inner}x");
                run(&format!("link add {outer} type veth peer name {inner} netns {router} address {mac}"))?;
                run(&format!("link set {outer} master bridge-{end}{host_pair} up"))?;
                bridge(&format!("fdb replace {mac} dev {outer} master static"))?;
            }
            _ => run(&format!(
                "link add link {interface} name {inner} netns {router} address {mac} type macvlan mode private"
            ))?,
        }
        run(&format!("-n {router} address add 10.{network}.{n}.1/24 dev {inner}"))?;
        run(&format!("-n {router} link set {inner} up"))?;
    }
    let via = format!("10.101.{n}.2");
    run(&format!("-n {router} neighbour replace {via} lladdr {SINK} dev out{n} nud permanent"))?;
    run(&format!("-n {router} route add 10.200.{n}.0/24 via {via}"))
}

/// Loads the table into a router; the routes use its pairs in turn.
fn load(router: &str, pairs: &[u8], table: &RouteTable) -> Result<(), BenchError> {
    let file = format!("/run/netns/.{router}");
    let nets = table.possible().map(|(net, _)| net);
    let lines: String = nets
        .zip(pairs.iter().cycle())
        .map(|(net, pair)| format!("route replace {net} via 10.101.{pair}.2\n"))
        .collect();
    std::fs::write(&file, lines).map_err(BenchError::system(format!("cannot write {file}")))?;
    run(&format!("-n {router} -batch {file}"))
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
