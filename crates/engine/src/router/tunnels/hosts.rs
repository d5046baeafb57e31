// SPDX-License-Identifier: Apache-2.0
//! Which IP addresses hosts of a network with EVPN have: those behind other servers, as EVPN says (type 2 with an IP
//! address), for workers that answer ARP and neighbour solicitations in their place; and what hosts of this server say
//! of themselves, for the control plane.
//!
//! A worker never waits for a lock: a request that it cannot look up is flooded as ever, and a claim that it cannot
//! note is repeated by its host.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};

use netvm_wire::{Address, MacAddr};

/// Parts of the table. The manager writes one at a time.
const PARTS: usize = 64;
/// Claims that wait for the control plane, which takes them every few milliseconds.
const WAITING: usize = 256;

/// The hosts of a network.
#[derive(Debug)]
pub(crate) struct Hosts {
    remote: Box<[RwLock<HashMap<Address, MacAddr>>]>,
    hasher: RandomState,
    claims: Mutex<Vec<Claim>>,
    /// Whether there are any.
    has_claims: AtomicBool,
}

/// An address that a host of this server says it has.
pub(crate) type Claim = (Address, MacAddr);

impl Default for Hosts {
    fn default() -> Self {
        Self {
            remote: (0..PARTS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::new(),
            claims: Mutex::new(Vec::with_capacity(WAITING)),
            has_claims: AtomicBool::new(false),
        }
    }
}

impl Hosts {
    fn part(&self, address: Address) -> &RwLock<HashMap<Address, MacAddr>> {
        let hash = self.hasher.hash_one(address) as usize;
        &self.remote[hash % PARTS]
    }

    /// The MAC address of a host behind another server.
    pub(crate) fn find(&self, address: Address) -> Option<MacAddr> {
        self.part(address).try_read().ok()?.get(&address).copied()
    }

    /// Notes what EVPN says of an address.
    pub(crate) fn set(&self, address: Address, mac: Option<MacAddr>) {
        // Only a panic of the manager poisons it.
        let Ok(mut part) = self.part(address).write() else { return };
        match mac {
            Some(mac) => drop(part.insert(address, mac)),
            None => drop(part.remove(&address)),
        }
    }

    /// Notes what a host of this server says, if there is room.
    pub(crate) fn claim(&self, claim: Claim) {
        if let Ok(mut claims) = self.claims.try_lock()
            && claims.len() < WAITING
        {
            claims.push(claim);
            self.has_claims.store(true, Ordering::Release);
        }
    }

    /// Takes what hosts of this server have said.
    pub(crate) fn take_claims(&self) -> Vec<Claim> {
        if !self.has_claims.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let empty = Vec::with_capacity(WAITING);
        self.claims.lock().map_or_else(|_| Vec::new(), |mut claims| std::mem::replace(&mut *claims, empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_wait_in_bounded_room_and_are_taken_once() {
        let hosts = Hosts::default();
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for n in 0..300 {
            hosts.claim((Address::from_v4_bits(n), mac));
        }
        let taken = hosts.take_claims();
        assert_eq!((taken.len(), taken[255]), (WAITING, (Address::from_v4_bits(255), mac)));
        assert!(hosts.take_claims().is_empty());
        hosts.set(Address::from_v4_bits(7), Some(mac));
        assert_eq!(hosts.find(Address::from_v4_bits(7)), Some(mac));
        hosts.set(Address::from_v4_bits(7), None);
        assert_eq!(hosts.find(Address::from_v4_bits(7)), None);
    }
}
