//! Opens AF_XDP ports, and sizes their rings and the memory that they receive into.

use std::sync::Arc;

use netvm_config::model::{Host, PortConfig, PortKind};
use netvm_xsk::{Attached, Interface, Mode, RingSizes, Umem, XskOptions};

use super::{Opened, Queues, local_workers};
use crate::manager::ports::{OpenProblem, PortMode, interface};
use crate::memory::Memory;
use crate::port::missed::{LongestFrame, Missed, SocketDrops};
use crate::port::xsk::XskDevice;
use crate::port::xsk::private::PrivateXskDevice;

/// Ring entries of a router's punt port: the kernel gets thousands of packets a second, not millions.
const PUNT_RING: u32 = 256;
/// Ring entries of all punt ports together, two buffers of 2 KB each, as far as [`LEAST_RING`] allows.
const PUNT_RINGS: u32 = 16_384;
/// The fewest entries of a ring.
const LEAST_RING: u32 = 64;

/// What an AF_XDP port receives into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XskMemory {
    rings: RingSizes,
    /// Memory of its own rather than the engine's.
    is_private: bool,
}

/// The memory of an AF_XDP port that lands in one of `buffers`. All ports in the engine's own memory share half of it; punt
/// ports copy.
pub(crate) fn xsk_memory(host: &Host, config: &PortConfig, buffers: u32) -> XskMemory {
    let within = |share: u32, most: u32| (1 << share.max(LEAST_RING).ilog2()).min(most);
    let is_private = host.punted_by(config.id).is_some();
    let full = RingSizes::default().fill;
    let entries = if is_private {
        let punts = host.routers.iter().map(|router| router.interfaces.len() as u32).sum::<u32>();
        within(PUNT_RINGS / punts.max(1), PUNT_RING)
    } else {
        match own_sockets(host) {
            sockets if sockets > 0 && host.landing_group(config).is_none() => {
                within(buffers / 2 / sockets, full)
            }
            _ => full,
        }
    };
    XskMemory {
        rings: RingSizes { fill: entries, rx: entries, tx: entries, completion: entries },
        is_private,
    }
}

/// Buffers of the engine's own memory: twice what its ports' rings hold when full, within bounds.
pub(crate) fn own_buffers(host: &Host) -> u32 {
    (own_sockets(host) * 2 * RingSizes::default().fill).next_power_of_two().clamp(8192, 65_536)
}

/// AF_XDP queues that receive into the engine's own memory.
fn own_sockets(host: &Host) -> u32 {
    let is_own = |port: &&PortConfig| {
        let is_shared = matches!(port.kind, PortKind::AfXdp { .. }) && host.punted_by(port.id).is_none();
        is_shared && host.landing_group(port).is_none()
    };
    host.ports.iter().filter(is_own).map(|port| u32::from(port.queues.max(1))).sum()
}

pub(super) fn open(
    config: &PortConfig,
    (interface, generic): (&str, bool),
    xsk: XskMemory,
    memories: &[Arc<Memory>],
) -> Result<Opened, OpenProblem> {
    let mode = if generic { Mode::Generic } else { Mode::Auto };
    let options = XskOptions {
        queues: Some(config.queues.max(1).into()),
        mode,
        // A punt port is the end of a veth pair, which does not filter.
        promiscuous: !xsk.is_private,
        rings: xsk.rings,
        ..XskOptions::default()
    };
    let is_virtual = !interface::has_device(interface);
    let longest = LongestFrame::new(interface::mtu(interface));
    let interface = Arc::new(Interface::open(interface, options)?);
    let (mut queues, mut missed): (Queues, _) = (Vec::new(), Vec::new());
    let mut zero_copy = true;
    let local = local_workers(memories);
    for n in 0..interface.queues() {
        let worker = local[n as usize % local.len()];
        let memory = &memories[0];
        if xsk.is_private {
            let socket = interface.private_queue(n)?;
            zero_copy = false;
            let drops = SocketDrops::new(socket.drop_counter().map_err(OpenProblem::Counter)?);
            missed.push(Missed::Socket(drops.clone()));
            let shared = (drops, longest.clone());
            queues.push((worker, Box::new(PrivateXskDevice::new(socket, Arc::clone(&interface), shared))));
            continue;
        }
        let geometry = memory.region().geometry();
        let buffers = netvm_xsk::Memory {
            base: memory.region().mapping().base(),
            len: memory.region().mapping().len(),
            first_buffer: geometry.buffers_at as usize,
            stride: geometry.stride,
            buffers: geometry.buffers,
            headroom: geometry.headroom as u16,
        };
        // SAFETY: the device keeps the memory, and so the mapping, for longer than its socket; packet bytes are
        // accessed only by raw address.
        let umem = unsafe { Umem::new(&buffers) }?;
        let socket = interface.queue(n, &umem)?;
        zero_copy &= socket.zero_copy();
        let drops = SocketDrops::new(socket.drop_counter().map_err(OpenProblem::Counter)?);
        missed.push(Missed::Socket(drops.clone()));
        let shared = (drops, longest.clone());
        let device = XskDevice::new(socket, Arc::clone(memory), Arc::clone(&interface), shared, is_virtual);
        queues.push((worker, Box::new(device)));
    }
    let attached = if interface.mode() == Attached::Native { "native" } else { "generic" };
    let copy = if zero_copy { "zero-copy" } else { "copy" };
    let mut fallback = interface.fallback().map(|error| format!("native mode: {error}"));
    if is_virtual && interface.mode() == Attached::Generic {
        const SEGMENTS: &str = "in generic mode, segments of senders on this machine are lost: TCP is slow or fails; \
                                use native mode, or kind = \"af_packet\"";
        fallback = Some(fallback.map_or_else(|| SEGMENTS.to_owned(), |error| format!("{error}; {SEGMENTS}")));
    }
    let mode = PortMode { driver: format!("AF_XDP {attached} {copy}"), fallback };
    Ok(Opened { missed, mode, longest: Some(longest), ..Opened::new(queues, String::new()) })
}
