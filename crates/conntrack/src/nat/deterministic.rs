// SPDX-License-Identifier: Apache-2.0
//! Deterministic NAT (RFC 7422): the address outside and its ports follow from the address inside by arithmetic, so
//! that no log is needed to tell who had a port.
//!
//! With N addresses outside and H inside, each address outside stands for C = H / N of them (rounded up), and each of
//! these has P / C of its P ports (rounded down), in the order of the addresses.

use netvm_wire::{Address, IpNet, PortRange};

use super::pool::{Allocation, Offer, Pool, count, number_of, offer};

/// The share of an address inside; `None` if it is not of the network, or there are more addresses than ports.
pub(crate) fn share_of(pools: &[Pool], inside: IpNet, address: Address) -> Option<Offer> {
    let host = host_number(inside, address)?;
    let per_address = per_address(pools, inside);
    let Offer { address, ports } = offer(pools, host / per_address)?;
    let size = size_of_share(ports, per_address)?;
    let first = ports.first() + (host % per_address) as u16 * size;
    Some(Offer { address, ports: PortRange::new(first, first + (size - 1))? })
}

/// The address inside that has a port of deterministic pools, also if it does not use it.
#[must_use]
pub fn deterministic_inside_of(pools: &[Pool], address: Address, port: u16) -> Option<Address> {
    let Allocation::Deterministic { inside } = pools.first()?.allocation else { return None };
    let (number, ports) = number_of(pools, address)?;
    let per_address = per_address(pools, inside);
    let size = size_of_share(ports, per_address)?;
    let share = u128::from(port.checked_sub(ports.first())? / size);
    let host = number.checked_mul(per_address)?.checked_add(share)?;
    let is_one = ports.contains(port) && share < per_address && host < hosts(inside);
    let first = Address::from(inside.network());
    is_one.then(|| Address::from_v6_bits(first.v6_bits() + host))
}

/// Addresses inside for each address outside.
fn per_address(pools: &[Pool], inside: IpNet) -> u128 {
    hosts(inside).div_ceil(count(pools).max(1))
}

/// Ports of each address inside.
fn size_of_share(ports: PortRange, per_address: u128) -> Option<u16> {
    let all = u128::from(ports.last() - ports.first()) + 1;
    let size = u16::try_from(all / per_address).unwrap_or(u16::MAX);
    (size > 0).then_some(size)
}

/// Addresses of a network.
fn hosts(net: IpNet) -> u128 {
    let bits = if net.is_v4() { 32 } else { 128 };
    1u128.checked_shl(bits - u32::from(net.length())).unwrap_or(u128::MAX)
}

/// Which address of a network it is.
fn host_number(net: IpNet, address: Address) -> Option<u128> {
    net.contains(address).then(|| address.v6_bits() - Address::from(net.network()).v6_bits())
}
