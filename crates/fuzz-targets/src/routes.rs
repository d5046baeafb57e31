// SPDX-License-Identifier: Apache-2.0
//! Route updates in any order, as a routing daemon or its peers cause them, applied to both versions of a router's
//! tables while a reader may be slow.

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use netvm_router::{NextHopId, Tables, Update, Versions};
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};

use crate::input::Input;

/// Maximum number of changes, as each round compares all of them.
const MAX_CHANGES: usize = 300;

/// Applies route changes, and compares with a linear longest-prefix match at both ends of every prefix.
pub fn route_updates(data: &[u8]) {
    let mut input = Input::new(data);
    let mut versions = Versions::new();
    let mut held = Arc::clone(versions.live());
    let (mut model, mut seen) = (Routes::default(), 0);
    let mut update = Update::default();
    while !input.is_empty() && model.prefixes.len() < MAX_CHANGES {
        let step = input.u8();
        if step.is_multiple_of(8) {
            let newer = versions.publish(mem::take(&mut update));
            assert!(versions.has_pending() || newer.is_some() || model.changes == seen);
            if !versions.has_pending() {
                seen = model.changes;
                model.compare(versions.live());
            }
            // A slow reader keeps its version, so the next update stays pending.
            if let Some(newer) = newer.filter(|_| step & 8 == 0) {
                held = newer;
            }
        } else {
            let net = prefix(&mut input, step & 8 != 0);
            let to = (step & 0x30 != 0).then(|| NextHopId(u16::from(input.u8() % 4)));
            update.routes.push((net, to));
            model.set(net, to);
        }
    }
    drop(held);
    versions.publish(update);
    versions.publish(Update::default());
    assert!(!versions.has_pending(), "updates are pending without a reader");
    model.compare(versions.live());
}

/// A prefix. Most bytes of an IPv6 address are zero, so that prefixes overlap.
fn prefix(input: &mut Input<'_>, of_v6: bool) -> IpNet {
    let (length, top) = (input.u8(), input.u32());
    if of_v6 {
        let address = u128::from(top) << 96 | u128::from(input.u16()) << 64 | u128::from(input.u8());
        IpNet::V6(Ipv6Net::containing(Ipv6Addr::from_bits(address), length % 129).expect("a length of IPv6"))
    } else {
        IpNet::V4(Ipv4Net::containing(Ipv4Addr::from_bits(top), length % 33).expect("a length of IPv4"))
    }
}

/// The model: the current routes.
#[derive(Default)]
struct Routes {
    by_net: BTreeMap<IpNet, NextHopId>,
    /// All prefixes that were ever set or removed.
    prefixes: Vec<IpNet>,
    changes: usize,
}

impl Routes {
    fn set(&mut self, net: IpNet, to: Option<NextHopId>) {
        self.changes += 1;
        self.prefixes.push(net);
        match to {
            Some(to) => self.by_net.insert(net, to),
            None => self.by_net.remove(&net),
        };
    }

    fn find(&self, address: IpAddr) -> NextHopId {
        let around = self.by_net.iter().filter(|(net, _)| net.contains(address));
        around.max_by_key(|(net, _)| net.length()).map_or(NextHopId::PUNT, |(_, id)| *id)
    }

    fn compare(&self, tables: &Tables) {
        let routes_v4 = self.by_net.keys().filter(|net| net.is_v4()).count();
        assert_eq!(tables.routes(), (routes_v4, self.by_net.len() - routes_v4));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in &self.prefixes {
            match net {
                IpNet::V4(net) => {
                    let (first, last) = (net.network().to_bits(), net.last().to_bits());
                    v4.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
                }
                IpNet::V6(net) => {
                    let (first, last) = (net.network().to_bits(), net.last().to_bits());
                    v6.extend([first, last, first.wrapping_sub(1), last.wrapping_add(1)]);
                }
            }
        }
        let mut found = vec![NextHopId(u16::MAX); v4.len().max(v6.len())];
        tables.lookup_v4(&v4, &mut found);
        for (address, found) in v4.into_iter().map(Ipv4Addr::from_bits).zip(&found) {
            assert_eq!(*found, self.find(address.into()), "{address}");
        }
        let wire: Vec<[u8; 16]> = v6.iter().map(|address: &u128| address.to_be_bytes()).collect();
        tables.lookup_v6(&wire, &mut found);
        for (address, found) in v6.into_iter().map(Ipv6Addr::from_bits).zip(&found) {
            assert_eq!(*found, self.find(address.into()), "{address}");
        }
    }
}
