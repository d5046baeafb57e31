// SPDX-License-Identifier: Apache-2.0
//! Source NAT of a router, beside the same router without it and the kernel's masquerading.
//!
//! - `router-N`: netvm's router with one route; one end of each of N connections sends.
//! - `nat44-N`: the same, and the sources are translated to 64 addresses.
//! - `nft-N`: the kernel's routing with `masquerade` of nftables, the same traffic: see [`crate::peers::kernel`]. Left
//!   out if the kernel tracks fewer connections (`net.netfilter.nf_conntrack_max`).

use std::fs;
use std::net::Ipv4Addr;

use netvm_model::{
    AddressRange, Filtering, Host, Match, NatAction, NatAddresses, NatRule, PortAllocation, PortId, SourceNat,
};
use netvm_wire::{Address, PortRange};

use super::Cases;
use super::tracking::{self, room_for};
use crate::cases::forwarding::route::engine::{self, RoutedTraffic};
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::Figure;
use crate::measure::report::Unit;
use crate::peers::kernel::{self, KernelSpec};
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};

const KERNEL_LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Number of routes.
const ROUTES: u32 = 1;

/// Adds the cases with this number of connections.
///
/// # Errors
/// [`BenchError`] if there is no routing table.
pub(super) fn add(
    cases: &mut Cases<'_>,
    count: u32,
    cores: Cores,
    has_peers: bool,
) -> Result<(), BenchError> {
    let table = RouteTable::load(IpFamily::V4, Size::Full, None)?.some(ROUTES);
    // The traffic's destinations must have a static lifetime.
    let destinations: &'static [u32] = destinations(&table, count as usize).leak();
    let update = engine::with_neighbours(table.update());
    let [router, nat44, nft] = ["router", "nat44", "nft"].map(|case| format!("{case}-{count}"));
    let own = update.clone();
    cases.add(&router, move |name, plan| {
        engine::run(name, cores.engine, RoutedTraffic::new(&own, destinations), plan)
    });
    cases.add(&nat44, move |name, plan| {
        let traffic = RoutedTraffic { connections: count, ..RoutedTraffic::new(&update, destinations) };
        engine::measure_host(name, &translating(cores.engine, count), traffic, plan)
    });
    cases.compare(&nat44, &router);
    if has_peers && kernel_tracks(count) {
        cases.add(&nft, move |name, plan| {
            let spec = KernelSpec::new(cores.engine, ROUTES, count, plan).with_masquerade();
            Ok(vec![Figure::new(name, Unit::Mpps, kernel::measure(&spec)?.rate / 1e6)])
        });
        cases.compare(&nat44, &nft);
    }
    Ok(())
}

/// Whether the kernel tracks as many connections; if not, says so.
fn kernel_tracks(count: u32) -> bool {
    let text = fs::read_to_string(KERNEL_LIMIT).unwrap_or_default();
    let limit: u32 = text.trim().parse().unwrap_or(0);
    if limit < count {
        eprintln!("nft-{count} is left out: the kernel tracks {limit} connections; raise {KERNEL_LIMIT}");
    }
    limit >= count
}

/// The router of `router-N`, with a pool at the interface by which packets leave.
fn translating(core: u32, count: u32) -> Host {
    let mut host = engine::host(core, true);
    room_for(&mut host.engine, count.into());
    let out = host.routers[0].interfaces[1].port;
    host.nat.push(pool(vec![out]));
    host.routers[0].track = true;
    host
}

/// [`tracking::two_sources`], with a pool at both sinks.
pub(super) fn two_sources(cores: &[u32], connections: u64) -> Host {
    let mut host = tracking::two_sources(cores, connections);
    let sinks = host.ports[2..].iter().map(|port| port.id).collect();
    host.nat.push(pool(sinks));
    host
}

/// 64 addresses for the sources of what leaves by these ports.
fn pool(out: Vec<PortId>) -> NatRule {
    let [first, last] = [0, 63].map(|n| Address::from(Ipv4Addr::new(10, 101, 1, n)));
    let range = AddressRange { first, last };
    let action = NatAction::Source(SourceNat {
        addresses: NatAddresses::Ranges(vec![range]),
        ports: PortRange::new(1024, u16::MAX).unwrap_or(PortRange::ANY),
        allocation: PortAllocation::Any,
        filtering: Filtering::AddressAndPort,
    });
    let matches = Match { to: out, ..Match::default() };
    NatRule { name: "pool".to_owned(), matches, local_to: None, action }
}
