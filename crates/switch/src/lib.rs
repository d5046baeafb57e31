// SPDX-License-Identifier: Apache-2.0
//! L2 switching without DPDK or locks, shared by the engine's workers.
//!
//! - [`Fdb`]: the forwarding database, from VLAN and MAC address to port. It learns, ages, and limits how much one port
//!   can affect the others.
//! - [`Bridge`]: the VLAN of a frame ([`VlanPort`]), where the frame goes ([`Forward`]), and how its tag changes on the
//!   way ([`TagChange`]). The engine builds a new bridge when the configuration changes.
//! - [`Guard`]: anti-spoofing. A port sends only from its own addresses.
//! - [`Policer`] and [`Meter`]: token buckets for packets and bits.
//! - [`StormControl`]: limits on flooded frames.
//! - [`snoop`]: IGMP and MLD snooping.
//! - [`qos`]: queues of a port, and its shaper.
//!
//! Ports are numbers below [`MAX_PORTS`]. The clock of the forwarding database ticks [`TICKS_PER_SECOND`] times a
//! second. The clock of a policer may be any whose rate the caller gives, such as the TSC.
//!
//! ```
//! use netvm_switch::{Bridge, BridgePort, Fdb, FdbOptions, Forward, Learned, VlanPort};
//! use netvm_wire::MacAddr;
//!
//! let fdb = Fdb::new(FdbOptions::default())?;
//! let port = || BridgePort { vlan: VlanPort::Unaware, group: None, limit: Some(64), new_per_second: None };
//! let bridge = Bridge::new([(1, port()), (2, port()), (3, port())])?;
//! bridge.set_limits(&fdb);
//!
//! let (alice, bob, now) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), 0);
//! // Alice sends to Bob, whose address is still unknown, from port 1.
//! let vlan = bridge.ingress(1, None).expect("port 1 is in the bridge")?;
//! assert_eq!(fdb.learn(vlan, alice, 1, now), Learned::New);
//! let forward = bridge.forward(1, vlan, bob, fdb.lookup(vlan, bob, now));
//! assert_eq!(forward, Forward::Flood);
//! assert!(bridge.flood(1, vlan).eq([2, 3]));
//! // Bob answers from port 3.
//! assert_eq!(fdb.learn(vlan, bob, 3, now), Learned::New);
//! assert_eq!(bridge.forward(3, vlan, alice, fdb.lookup(vlan, alice, now)), Forward::Port(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod fdb;
mod flood;
mod guard;
mod police;
mod port_sets;
pub mod qos;
pub mod snoop;
mod storm;
mod vlan;
mod vlan_set;
mod window;

pub use fdb::{
    Binding, Fdb, FdbError, FdbKey, FdbOptions, LastMove, Learned, MAX_PORTS, Moves, StaticError,
    TICKS_PER_SECOND,
};
pub use flood::{Bridge, BridgeError, BridgePort, FloodOf, Forward, NotForwarded};
pub use guard::{Guard, GuardError, GuardOptions, LinkLocal, Spoofed};
pub use police::{Meter, Policer, PolicerError};
pub use storm::{StormClass, StormControl, StormLimits};
pub use vlan::{NO_VLAN, TagChange, Tagging, VlanError, VlanPort};
pub use vlan_set::VlanSet;

/// Atomics of `core`, or of loom for model checking.
mod sync {
    #[cfg(not(loom))]
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
