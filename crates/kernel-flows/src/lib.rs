// SPDX-License-Identifier: Apache-2.0
//! A flow table in the kernel, below netvm's switch: packets of flows that netvm has decided go from container to
//! container without it.
//!
//! A container has one end of a veth pair. The other end, and a TAP device of netvm beside it, are in a network
//! namespace of netvm's own, so nothing of a container reaches the host if netvm is not there:
//!
//! ```text
//!   container a                 netvm's namespace                  container b
//!   ┌──────┐        ┌─────┐ hit: bpf_redirect_peer              ┌──────┐
//!   │ eth0 │──veth──│ end │────────────────────────────────────▶│ eth0 │
//!   └──────┘        └──┬──┘                                     └──────┘
//!                miss: │ bpf_redirect                               ▲ bpf_redirect_peer
//!                      ▼                                            │
//!                   ┌─────┐             ┌───────┐                ┌──┴──┐
//!                   │ TAP │────────────▶│ netvm │───────────────▶│ TAP │
//!                   └─────┘             └───────┘                └─────┘
//! ```
//!
//! A packet is a hit if the table has a flow for its [`Key`] as far as the mask of its port goes, if neither of the two
//! ports has got another epoch since, and if the lease has not run out, which netvm renews all the time: when netvm
//! hangs, all packets are misses, but for those of flows that continue without it. A packet to a container whose
//! interface has gone is a miss, too: netvm sends it as it knows best, and if it does not know yet that the container
//! has gone, the packet is counted ([`Table::undelivered`]). Fragments, IPv4 options, IPv6 extension headers, VLAN tags
//! and whatever is neither TCP nor UDP are always misses.
//!
//! Maps and programs have no names in a file system: they end with the process, unless another one has the descriptors
//! of the programs' links.

mod ends;
mod flow;
mod key;
mod ports;
mod probe;
mod program;
mod state;
mod table;

pub use ends::PortEnds;
pub use flow::{Ends, Flow, FlowCounts};
pub use key::{Field, Key, Mask, Transport};
pub use ports::{Hook, PortPrograms, ProgramError};
pub use probe::probe;
pub use table::{Table, TableSize};
