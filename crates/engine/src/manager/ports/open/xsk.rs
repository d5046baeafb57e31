//! Opens AF_XDP ports, and sizes their rings and the memory that they receive into.

use std::collections::BTreeSet;
use std::sync::Arc;

use netvm_model::{Host, PortConfig, PortKind};
use netvm_xsk::{Attached, Interface, Mode, RingSizes, Umem, XskOptions};

use super::{Opened, Queues, Site};
use crate::ids::PortId;
use crate::interface::af_xdp::PrivateXskDevice;
use crate::interface::af_xdp::XskDevice;
use crate::interface::missed::{LongestFrame, Missed, SocketDrops};
use crate::manager::ports::{OpenProblem, PortMode, interface};

/// Ring entries of a router's punt port: the kernel gets thousands of packets a second, not millions.
const PUNT_RING: u32 = 256;
/// Ring entries of all punt ports together, two buffers of 2 KB each, as far as [`LEAST_RING`] allows.
const PUNT_RINGS: u32 = 16_384;
/// The fewest entries of a ring.
const LEAST_RING: u32 = 64;

/// The memory into which an AF_XDP port receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XskMemory {
    rings: RingSizes,
    /// The port has private memory, instead of the engine's.
    is_private: bool,
}

/// The AF_XDP queues of a host, counted once for all ports that open.
#[derive(Debug)]
pub(crate) struct XskQueues {
    punts: BTreeSet<PortId>,
    /// Queues that receive into the engine's own memory.
    own: u32,
}

impl XskQueues {
    pub(crate) fn of(host: &Host) -> Self {
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let punts: BTreeSet<PortId> = interfaces.map(|interface| interface.punt).collect();
        let is_own = |port: &&PortConfig| {
            matches!(port.kind, PortKind::AfXdp { .. })
                && !punts.contains(&port.id)
                && host.landing_group(port).is_none()
        };
        let own = host.ports.iter().filter(is_own).map(|port| u32::from(port.queues.max(1))).sum();
        Self { punts, own }
    }

    /// The memory of an AF_XDP port that receives into a memory of `buffers` buffers. All ports in the engine's own memory
    /// share half of it; punt ports copy.
    pub(crate) fn memory(&self, host: &Host, config: &PortConfig, buffers: u32) -> XskMemory {
        let within = |share: u32, most: u32| (1 << share.max(LEAST_RING).ilog2()).min(most);
        let is_private = self.punts.contains(&config.id);
        let full = RingSizes::default().fill;
        let entries = if is_private {
            within(PUNT_RINGS / self.punts.len().max(1) as u32, PUNT_RING)
        } else if self.own > 0 && host.landing_group(config).is_none() {
            within(buffers / 2 / self.own, full)
        } else {
            full
        };
        XskMemory {
            rings: RingSizes { fill: entries, rx: entries, tx: entries, completion: entries },
            is_private,
        }
    }

    /// Buffers of the engine's own memory: twice what its ports' rings hold when full, within bounds.
    pub(crate) fn own_buffers(&self) -> u32 {
        (self.own * 2 * RingSizes::default().fill).next_power_of_two().clamp(8192, 65_536)
    }
}

pub(super) fn open(
    config: &PortConfig,
    (interface, generic): (&str, bool),
    xsk: XskMemory,
    site: &Site,
) -> Result<Opened, OpenProblem> {
    let mode = if generic { Mode::Generic } else { Mode::Auto };
    let options = XskOptions {
        queues: Some(config.queues.max(1).into()),
        mode,
        // A punt port is the end of a veth pair, which does not filter addresses.
        promiscuous: !xsk.is_private,
        rings: xsk.rings,
        ..XskOptions::default()
    };
    let is_virtual = !interface::has_device(interface);
    let longest = LongestFrame::new(interface::mtu(interface));
    let interface = Arc::new(Interface::open(interface, options)?);
    let (mut queues, mut missed): (Queues, _) = (Vec::new(), Vec::new());
    let mut zero_copy = true;
    for n in 0..interface.queues() {
        let (worker, memory) = site.queue(n as usize);
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
