// SPDX-License-Identifier: Apache-2.0
//! Routing tables and addresses to look up, the same for all sides of a comparison.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use netvm_router::{NextHopId, Tables, Update};
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};
use netvm_workload::routes;
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, RoutesError};

/// The whole table: more routes than any table has.
pub const ALL: u32 = u32::MAX;
/// Number of next hops, which are assigned to routes at random.
const NEXT_HOPS: u64 = 64;
/// Number of routes in the small table.
const SMALL_TABLE_ROUTES: u16 = 16;
/// Number of addresses to look up.
const ADDRESSES: usize = 1 << 20;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// A full Internet table.
    Full,
    /// 16 routes.
    Few,
}

/// The pattern of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// A random address of a uniformly chosen route.
    Routes,
    /// Anywhere in IPv4.
    Anywhere,
}

/// Routes of a family with their next hops.
pub struct RouteTable {
    /// The routes.
    pub routes: Vec<(IpNet, NextHopId)>,
}

impl RouteTable {
    /// The routes of a family: of a file, or generated.
    ///
    /// # Errors
    /// [`BenchError::Routes`] if the file cannot be read.
    pub fn load(family: IpFamily, size: Size, path: Option<&Path>) -> Result<Self, BenchError> {
        let nets = match (size, path, family) {
            (Size::Full, Some(path), _) => {
                read(path).map_err(|source| BenchError::Routes { path: PathBuf::from(path), source })?
            }
            (Size::Full, None, IpFamily::V4) => routes::v4(routes::V4_COUNT, routes::SEED),
            (Size::Full, None, IpFamily::V6) => routes::v6(routes::V6_COUNT, routes::SEED),
            (Size::Few, ..) => few(),
        };
        let mut random = Random::new();
        let of_family = nets.into_iter().filter(|net| net.is_v4() == (family == IpFamily::V4));
        let routes = of_family.map(|net| (net, NextHopId(1 + (random.next() % NEXT_HOPS) as u16)));
        Ok(Self { routes: routes.collect() })
    }

    /// Reduces the table to `count` routes, evenly spaced.
    #[must_use]
    pub fn some(mut self, count: u32) -> Self {
        let all = self.routes.len();
        let count = (count as usize).min(all);
        if count < all {
            self.routes = (0..count).map(|n| self.routes[n * all / count]).collect();
        }
        self
    }

    /// The IPv4 routes that other routers accept.
    pub fn possible(&self) -> impl Iterator<Item = &(IpNet, NextHopId)> {
        self.routes.iter().filter(|(net, _)| match net {
            IpNet::V4(net) => !matches!(net.network().octets()[0], 0 | 127 | 224..),
            IpNet::V6(_) => false,
        })
    }

    /// The next hops of the routes, each once.
    pub fn next_hops(&self) -> BTreeSet<NextHopId> {
        self.routes.iter().map(|(_, id)| *id).collect()
    }

    /// The table as an update for netvm's router.
    pub fn update(&self) -> Update {
        let routes = self.routes.iter().map(|(net, id)| (*net, Some(*id)));
        Update { routes: routes.collect(), ..Update::default() }
    }

    /// Addresses to look up.
    pub fn addresses(&self, family: IpFamily, pattern: Pattern) -> Addresses {
        let mut random = Random::new();
        let mut address = || {
            let (net, _) = self.routes[random.next() as usize % self.routes.len()];
            let noise = u128::from(random.next()) << 64 | u128::from(random.next());
            match (net, pattern) {
                (_, Pattern::Anywhere) => noise,
                (IpNet::V4(net), _) => {
                    u128::from(net.network().to_bits() | noise as u32 & !net.mask().to_bits())
                }
                (IpNet::V6(net), _) => net.network().to_bits() | noise & !net.mask().to_bits(),
            }
        };
        match family {
            IpFamily::V4 => Addresses::V4((0..ADDRESSES).map(|_| address() as u32).collect()),
            IpFamily::V6 => Addresses::V6((0..ADDRESSES).map(|_| address().to_be_bytes()).collect()),
        }
    }
}

/// Destinations in network order, each in a uniformly chosen route, without addresses to which a router must not
/// forward.
pub fn destinations(table: &RouteTable, count: usize) -> Vec<u32> {
    let Addresses::V4(addresses) = table.addresses(IpFamily::V4, Pattern::Routes) else { return Vec::new() };
    let may_be_forwarded = |address: &u32| {
        let address = Ipv4Addr::from_bits(*address);
        let [first, ..] = address.octets();
        !matches!(first, 0 | 127 | 224..) && !address.is_link_local()
    };
    addresses.into_iter().filter(may_be_forwarded).map(u32::to_be).take(count).collect()
}

/// The address of a next hop in other routers, in 10.102.0.0/16.
pub fn gateway(NextHopId(id): NextHopId) -> Ipv4Addr {
    let [high, low] = (id + 1).to_be_bytes();
    Ipv4Addr::new(10, 102, high, low)
}

/// Addresses in the form in which netvm's parser provides them.
pub enum Addresses {
    /// In host order.
    V4(Vec<u32>),
    /// In network order.
    V6(Vec<[u8; 16]>),
}

impl Addresses {
    /// Burst size, as in netvm's engine.
    pub const BURST: usize = 64;

    /// The next hops that netvm's tables give.
    pub fn look_up(&self, tables: &Tables) -> Vec<NextHopId> {
        let mut found = vec![NextHopId::PUNT; ADDRESSES];
        let bursts = found.chunks_mut(Self::BURST);
        match self {
            Self::V4(list) => list.chunks(Self::BURST).zip(bursts).for_each(|(burst, found)| {
                tables.lookup_v4(burst, found);
            }),
            Self::V6(list) => list.chunks(Self::BURST).zip(bursts).for_each(|(burst, found)| {
                tables.lookup_v6(burst, found);
            }),
        }
        found
    }

    /// Looks up all addresses in bursts.
    #[inline(never)]
    pub fn pass(&self, tables: &Tables) {
        let mut found = [NextHopId::PUNT; Self::BURST];
        match self {
            Self::V4(list) => {
                for burst in list.as_chunks::<{ Self::BURST }>().0 {
                    tables.lookup_v4(burst, &mut found);
                    std::hint::black_box(&mut found);
                }
            }
            Self::V6(list) => {
                for burst in list.as_chunks::<{ Self::BURST }>().0 {
                    tables.lookup_v6(burst, &mut found);
                    std::hint::black_box(&mut found);
                }
            }
        }
    }

    /// Number of addresses.
    pub fn len(&self) -> usize {
        match self {
            Self::V4(list) => list.len(),
            Self::V6(list) => list.len(),
        }
    }
}

fn read(path: &Path) -> Result<Vec<IpNet>, RoutesError> {
    let text = if path.extension().is_some_and(|extension| extension == "gz") {
        fs::metadata(path)?;
        let output = Command::new("gzip").arg("-dc").arg(path).output()?;
        if !output.status.success() {
            return Err(RoutesError::Unpack);
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    } else {
        fs::read_to_string(path)?
    };
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let parsed =
        lines.map(|(n, line)| line.parse().map_err(|source| RoutesError::Prefix { line: n + 1, source }));
    parsed.collect()
}

/// 10.0.0.0/16 to 10.15.0.0/16, and as many of 2001:db8::/48.
fn few() -> Vec<IpNet> {
    let v4 = (0..SMALL_TABLE_ROUTES).filter_map(|n| Ipv4Net::new(Ipv4Addr::new(10, n as u8, 0, 0), 16).ok());
    let v6 = (0..SMALL_TABLE_ROUTES)
        .filter_map(|n| Ipv6Net::new(Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, 0), 48).ok());
    v4.map(IpNet::V4).chain(v6.map(IpNet::V6)).collect()
}

/// Pseudo-random numbers with a fixed seed: Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_in_the_routes() {
        for family in [IpFamily::V4, IpFamily::V6] {
            let table = RouteTable::load(family, Size::Few, None).unwrap();
            assert_eq!(table.routes.len(), usize::from(SMALL_TABLE_ROUTES));
            let mut tables = Tables::new();
            tables.apply(&table.update());
            let found = table.addresses(family, Pattern::Routes).look_up(&tables);
            assert_eq!(found.len(), ADDRESSES);
            assert!(found.iter().all(|id| *id != NextHopId::PUNT));
        }
    }

    #[test]
    fn lists_of_prefixes_are_parsed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "10.0.0.0/8\n\n2001:db8::/32\n").unwrap();
        let table = RouteTable::load(IpFamily::V6, Size::Full, Some(file.path())).unwrap();
        assert_eq!(table.routes.len(), 1);
        fs::write(file.path(), "10.0.0.0/8\n10.0.0.0/40\n").unwrap();
        let error = RouteTable::load(IpFamily::V4, Size::Full, Some(file.path())).err().unwrap();
        assert!(error.to_string().contains("line 2"), "{error}");
        let error = RouteTable::load(IpFamily::V4, Size::Full, Some(Path::new("nowhere.gz"))).err().unwrap();
        assert!(error.to_string().contains("--routes"), "{error}");
    }
}
