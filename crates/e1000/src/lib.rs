// SPDX-License-Identifier: Apache-2.0
//! Intel 82540EM network cards (e1000) for guests, served over vfio-user.
//!
//! QEMU is the client of the vfio-user socket (`-device vfio-user-pci`). It passes the guest's memory as file
//! descriptors and each access to a register as a message. A thread of the port (`server`) answers these; the engine's
//! worker moves packets between the rings in guest memory and its own buffers ([`Queue`]).
//!
//! ```text
//!  guest: e1000 driver ── registers ─▶ QEMU ── socket ─▶ thread of the port ─┐
//!     │  ▲                                                                   ├─ Device (one lock)
//!     │  └─ interrupts ◀─ QEMU ◀─ eventfd ─┐                                 │
//!     └─ rings, and the pages with TDT and RDT (shared memory) ─▶ worker ────┘
//! ```
//!
//! TDT and RDT, by which a driver announces descriptors, lie in two pages of BAR 0 that hold ring registers only. They
//! are shared memory (`nic::pages`), so that a write to them need not leave the guest.
//!
//! QEMU never connects again. So the card's state is in a file (`nic::state`) that a store outside of this process has,
//! with the connection and the guest's files (`files`): a process that takes the place of this one goes on, even if
//! this one was killed while it wrote a descriptor or answered a request.
//!
//! Everything that a client or guest writes is hostile. A message is bounded before it is read; guest memory is a file
//! that cannot shrink; rings and descriptors are copied, then checked. The worst that a guest can do is lose its own
//! packets.
//!
//! Register names and numbers in parentheses refer to Intel's "PCI/PCI-X Family of Gigabit Ethernet Controllers
//! Software Developer's Manual" (SDM), revision 4.0.

mod card;
mod files;
mod memory;
mod nic;
mod port;
mod ring;
mod server;
mod status;
mod vfio;
mod words;

pub use card::Card;
pub use files::keep_cards_in;
pub use nic::{Doorbells, Model, Sum};
pub use port::{Options, Port};
pub use ring::{NotTaken, Pieces, Queue, Receiving, Request, Sent, Turn, finish_headers};
pub use status::{Counts, Fault, Status};

/// Most bytes of a packet that the card sends: a TCP segment of 64 KB behind an Ethernet header with two tags.
pub const MAX_PACKET: usize = 65_535 + 22;
