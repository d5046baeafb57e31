// SPDX-License-Identifier: Apache-2.0
//! Kernel interfaces by AF_XDP: the kernel writes packets into the region itself.

mod device;
mod private;
mod rings;
mod shared;

use std::sync::Arc;

use netvm_xsk::{Attached, Interface, Mode, Umem, XskOptions};

use super::control::{
    Control, InterfaceState, InterfaceView, KernelInterface, OpenProblem, Opened, Opening, PortMode, Queues,
    has_device, mtu,
};
use crate::memory::Memory;
use device::{XskDevice, XskParts};
use private::PrivateXskDevice;
pub(crate) use rings::{XskMemory, XskQueues};
use shared::{LongestFrame, SocketDrops};

/// The control side.
struct AfXdp {
    interface: KernelInterface,
    /// Of each socket.
    drops: Vec<SocketDrops>,
    longest: LongestFrame,
}

impl Control for AfXdp {
    fn link(&self) -> Option<bool> {
        Some(self.interface.has_link())
    }

    fn interface(&self) -> Option<InterfaceView> {
        Some(self.interface.view())
    }

    fn follow_interface(&mut self, interface: &InterfaceView) -> Option<String> {
        match interface.state {
            InterfaceState::Gone => self.longest.end_interface(),
            _ => self.longest.set(interface.mtu),
        }
        None
    }

    fn missed(&self) -> u64 {
        self.drops.iter().map(SocketDrops::get).sum()
    }

    fn refused(&self) -> u64 {
        self.interface.refused()
    }
}

pub(super) fn open(
    opening: &Opening<'_>,
    name: &str,
    generic: bool,
    xsk: XskMemory,
) -> Result<Opened, OpenProblem> {
    let mode = if generic { Mode::Generic } else { Mode::Auto };
    let options = XskOptions {
        queues: Some(opening.queues().into()),
        mode,
        // A punt port is the end of a veth pair, which does not filter addresses.
        promiscuous: !xsk.is_private,
        rings: xsk.rings,
        ..XskOptions::default()
    };
    let is_virtual = !has_device(name);
    let longest = LongestFrame::new(mtu(name));
    let interface = Arc::new(Interface::open(name, options)?);
    let (mut queues, mut drops_of_all): (Queues, _) = (Vec::new(), Vec::new());
    let mut zero_copy = true;
    for n in 0..interface.queues() {
        let (worker, memory) = opening.queue(n as usize);
        if xsk.is_private {
            let socket = interface.private_queue(n)?;
            zero_copy = false;
            let drops = SocketDrops::new(socket.drop_counter().map_err(OpenProblem::Counter)?);
            drops_of_all.push(drops.clone());
            let device = PrivateXskDevice::new(socket, Arc::clone(&interface), drops, longest.clone());
            queues.push((worker, Box::new(device)));
            continue;
        }
        let umem = umem_over(memory)?;
        let socket = interface.queue(n, &umem)?;
        zero_copy &= socket.zero_copy();
        let drops = SocketDrops::new(socket.drop_counter().map_err(OpenProblem::Counter)?);
        drops_of_all.push(drops.clone());
        let device = XskDevice::new(XskParts {
            socket,
            memory: Arc::clone(memory),
            interface: Arc::clone(&interface),
            drops,
            longest: longest.clone(),
            finishes_checksums: is_virtual,
        });
        queues.push((worker, Box::new(device)));
    }
    let mode = mode_of(&interface, zero_copy, is_virtual);
    let interface = KernelInterface::of(name);
    Ok(Opened::new(queues, mode, AfXdp { interface, drops: drops_of_all, longest }))
}

/// The region of a memory as UMEM.
fn umem_over(memory: &Memory) -> Result<Umem, netvm_xsk::UmemError> {
    let geometry = memory.region().geometry();
    let buffers = netvm_xsk::Memory {
        base: memory.region().mapping().base(),
        len: memory.region().mapping().len(),
        first_buffer: geometry.buffers_at as usize,
        stride: geometry.stride,
        buffers: geometry.buffers,
        headroom: geometry.headroom as u16,
    };
    // SAFETY: the device keeps the memory, and so the mapping, for longer than its socket; packet bytes are accessed
    // only by raw address.
    unsafe { Umem::new(&buffers) }
}

fn mode_of(interface: &Interface, zero_copy: bool, is_virtual: bool) -> PortMode {
    let attached = if interface.mode() == Attached::Native { "native" } else { "generic" };
    let copy = if zero_copy { "zero-copy" } else { "copy" };
    let mut fallback = interface.fallback().map(|error| format!("native mode: {error}"));
    if is_virtual && interface.mode() == Attached::Generic {
        const SEGMENTS: &str = "in generic mode, segments of senders on this machine are lost: TCP is slow or fails; \
                                use native mode, or kind = \"af_packet\"";
        fallback = Some(fallback.map_or_else(|| SEGMENTS.to_owned(), |error| format!("{error}; {SEGMENTS}")));
    }
    PortMode { driver: format!("AF_XDP {attached} {copy}"), fallback }
}
