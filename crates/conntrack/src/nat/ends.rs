// SPDX-License-Identifier: Apache-2.0
//! The ends of connections that mappings are about.

use netvm_wire::{Address, IpProto};

use crate::packet::tuple::Zone;

/// An address and a port, or the identifier of ICMP queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: Address,
    pub(crate) port: u16,
}

/// An end inside, by what tells ends apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) end: End,
    pub(crate) protocol: IpProto,
    pub(crate) zone: Zone,
}

/// Both ends of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) inside: Inside,
    pub(crate) outside: End,
}
