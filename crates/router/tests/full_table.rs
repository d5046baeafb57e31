// SPDX-License-Identifier: Apache-2.0
//! Loads a table of the size and shape of the Internet's and compares lookups with a second longest-prefix match.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use netvm_router::{NextHopId, Tables, Update};
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};

/// Next hops that the routes use in turn.
const NEXT_HOPS: u16 = 61;

/// A slow second implementation: a map per prefix length.
#[derive(Default)]
struct ByLength(HashMap<IpNet, NextHopId>);

impl ByLength {
    fn v4(&self, address: u32) -> NextHopId {
        let nets = (0..=32).rev().map(|n| Ipv4Net::containing(Ipv4Addr::from_bits(address), n).unwrap());
        self.first(nets.map(IpNet::V4))
    }

    fn v6(&self, address: u128) -> NextHopId {
        let nets = (0..=128).rev().map(|n| Ipv6Net::containing(Ipv6Addr::from_bits(address), n).unwrap());
        self.first(nets.map(IpNet::V6))
    }

    fn first(&self, mut nets: impl Iterator<Item = IpNet>) -> NextHopId {
        nets.find_map(|net| self.0.get(&net)).copied().unwrap_or(NextHopId::PUNT)
    }

    fn apply(&mut self, update: &Update) {
        for (net, id) in &update.routes {
            match id {
                Some(id) => self.0.insert(*net, *id),
                None => self.0.remove(net),
            };
        }
    }
}

/// A deterministic pseudo-random generator (Marsaglia's xorshift64).
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Compares random addresses, and addresses in and next to the routes.
fn compare(tables: &Tables, reference: &ByLength, nets: &[IpNet]) {
    let mut random = random();
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for n in 0..20_000 {
        let noise = u128::from(random()) << 64 | u128::from(random());
        match nets[random() as usize % nets.len()] {
            IpNet::V4(net) => {
                let host = noise as u32 & !net.mask().to_bits();
                v4.push(if n % 2 == 0 { noise as u32 } else { net.network().to_bits() | host });
                v4.push(net.last().to_bits().wrapping_add(1));
            }
            IpNet::V6(net) => {
                let host = noise & !net.mask().to_bits();
                v6.push(net.network().to_bits() | host);
                v6.push(net.last().to_bits().wrapping_add(1));
            }
        }
    }
    let mut found = vec![NextHopId(u16::MAX); v4.len().max(v6.len())];
    tables.lookup_v4(&v4, &mut found);
    for (address, found) in v4.iter().zip(&found) {
        assert_eq!(*found, reference.v4(*address), "{}", Ipv4Addr::from_bits(*address));
    }
    let wire: Vec<[u8; 16]> = v6.iter().map(|address: &u128| address.to_be_bytes()).collect();
    tables.lookup_v6(&wire, &mut found);
    for (address, found) in v6.iter().zip(&found) {
        assert_eq!(*found, reference.v6(*address), "{}", Ipv6Addr::from_bits(*address));
    }
}

#[test]
fn lookups_agree_with_a_slow_search_through_thousands_of_changes() {
    let nets = netvm_workload::routes::full_table();
    let to = |n: usize| NextHopId(1 + (n % usize::from(NEXT_HOPS)) as u16);
    let all = Update {
        routes: nets.iter().enumerate().map(|(n, net)| (*net, Some(to(n)))).collect(),
        ..Update::default()
    };
    let (mut tables, mut reference) = (Tables::new(), ByLength::default());
    let start = Instant::now();
    tables.apply(&all);
    println!("{} routes in {:?}, {} bytes", nets.len(), start.elapsed(), tables.memory());
    let (v4, v6) = tables.routes();
    assert_eq!(v4 + v6, nets.len());
    // 122 MB for 1,220,000 generated routes, which share fewer nodes than those of the public table (74 MB for
    // 1,062,046).
    assert!(tables.memory() < 130_000_000, "{}", tables.memory());
    reference.apply(&all);
    compare(&tables, &reference, &nets);

    // Routes are withdrawn, announced again and changed, as by a routing protocol.
    let mut random = random();
    for round in 0..20 {
        let changes = (0..500).map(|_| {
            let n = random() as usize;
            (nets[n % nets.len()], (n >> 32).is_multiple_of(2).then(|| to(n >> 40)))
        });
        let update = Update { routes: changes.collect(), ..Update::default() };
        tables.apply(&update);
        reference.apply(&update);
        if round % 5 == 0 {
            compare(&tables, &reference, &nets);
        }
    }
    compare(&tables, &reference, &nets);

    // A default route, which catches every address that no other route matches.
    let start = Instant::now();
    let default = Update {
        routes: vec![
            ("0.0.0.0/0".parse().unwrap(), Some(NextHopId(99))),
            ("::/0".parse().unwrap(), Some(NextHopId(98))),
        ],
        ..Update::default()
    };
    tables.apply(&default);
    println!("default routes in {:?}", start.elapsed());
    reference.apply(&default);
    compare(&tables, &reference, &nets);
}
