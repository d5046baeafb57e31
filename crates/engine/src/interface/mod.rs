// SPDX-License-Identifier: Apache-2.0
//! Interfaces: what policy, FDB, routers and chains name. Each kind has a folder, or a file while it is small, with its
//! control side ([`Control`]) and its datapath side ([`Device`]); [`open`] is the table of kinds. What a kind says of
//! itself without being open is in `netvm_model`'s table ([`netvm_model::KindInfo`]). A kind without a device has no
//! datapath side: the loop of the stages passes its packets on
//! ([`sends_to`](crate::snapshot::Snapshot::sends_to)).
//!
//! A new kind is a row in each of the two tables, and its own file. Nothing else matches on kinds (`./dev lint` checks
//! it).

mod af_xdp;
mod control;
mod device;
mod e1000;
mod ethdev;
mod kernel;
mod memif;
mod pcap;
mod queue;
mod sink;
mod source;
mod vhost_user;

use netvm_model::PortKind;

pub(crate) use af_xdp::{XskMemory, XskQueues};
pub(crate) use control::{Control, OpenProblem, Opened, Opening, PortMode, closed_interface, device_node};
pub use control::{InterfaceState, InterfaceView, OpenError};
#[cfg(test)]
pub(crate) use device::TxBuffered;
pub(crate) use device::{Arrival, Device, Expects, PortContext};
pub use e1000::note_kvm;
pub(crate) use queue::{PortQueue, Shaper};

/// Opens a port. `xsk` applies to AF_XDP.
pub(crate) fn open(opening: &Opening<'_>, xsk: XskMemory) -> Result<Opened, OpenProblem> {
    match &opening.config.kind {
        PortKind::Pci { address } => ethdev::open_nic(opening, address),
        PortKind::AfXdp { interface, generic } => af_xdp::open(opening, interface, *generic, xsk),
        PortKind::AfPacket { interface } => kernel::open_packet_socket(opening, interface),
        PortKind::Tap { interface } => kernel::open_tap(opening, interface),
        PortKind::Container(container) => kernel::open_container(opening, container),
        PortKind::Host(host) => kernel::open_host(opening, host),
        PortKind::VhostUser { path, mode, dma } => vhost_user::open(opening, path, *mode, dma),
        PortKind::E1000 { path, model, doorbells, .. } => e1000::open(opening, path, *model, *doorbells),
        PortKind::Memif(config) => memif::open(opening, config),
        PortKind::Pcap { input, output, paced } => {
            pcap::open(opening, input.as_deref(), output.as_deref(), *paced)
        }
        PortKind::Null { size } => ethdev::open_null(opening, *size),
        PortKind::Source(source) => source::open(opening, source),
        PortKind::Patch { .. }
        | PortKind::Bridge
        | PortKind::Vlan { .. }
        | PortKind::Vxlan(_)
        | PortKind::Bond(_) => Ok(Opened::without_device(opening.config.kind.word())),
        PortKind::Sink => Ok(sink::open(opening)),
    }
}
