//! Opens a port: from its configuration to device queues for workers.

use std::sync::Arc;

use dpdk::{Device as EthKind, DmaChannel, PortBuilder, VhostMode, VhostOptions, VhostPort, VhostQueue};
use netvm_capture::{CaptureReader, CaptureWriter, WriterOptions};
use netvm_config::model::{self, CardModel, Host, PortConfig, PortKind};
use netvm_switch::qos::QosError;
use netvm_vnet::container::Namespace;
use netvm_vnet::{ContainerOptions, Offloads, SocketOptions, TapOptions, Watch};
use netvm_xsk::{Attached, Interface, Mode, RingSizes, Umem, XskOptions};

use super::{OpenError, OpenProblem, PortMode, PortState, interface};
use crate::ids::WorkerId;
use crate::memory::Memory;
use crate::port::builtin::capture::{Capture, Progress};
use crate::port::builtin::patch::{Patch, PatchEnd, PatchLinks};
use crate::port::builtin::sink::Sink;
use crate::port::builtin::source::Source;
use crate::port::ethdev::EthDevice;
use crate::port::guest::e1000::E1000Device;
use crate::port::guest::vhost::VhostDevice;
use crate::port::kernel::KernelDevice;
use crate::port::missed::{LongestFrame, Missed, SocketDrops};
use crate::port::shaper::Shaper;
use crate::port::xsk::XskDevice;
use crate::port::xsk::private::PrivateXskDevice;
use crate::port::{Device, PortQueue};

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

/// Device queues of one port, each with its worker.
type Queues = Vec<(WorkerId, Box<dyn Device>)>;

/// Opens a port that receives, for each worker, into `memories[worker]`. `xsk` applies to AF_XDP, `links` to patch ports.
pub(crate) fn open(
    eal: dpdk::Eal,
    config: &PortConfig,
    memories: &[Arc<Memory>],
    (xsk, links): (XskMemory, &mut PatchLinks),
) -> Result<(PortState, Vec<(WorkerId, PortQueue)>), OpenError> {
    let opened = open_kind(eal, config, memories, (xsk, links))
        .map_err(|problem| OpenError { name: config.name.clone(), problem })?;
    let mut by_worker: Vec<(WorkerId, Vec<Box<dyn Device>>)> = Vec::new();
    for (worker, device) in opened.queues {
        match by_worker.iter_mut().find(|(other, _)| *other == worker) {
            Some((_, devices)) => devices.push(device),
            None => by_worker.push((worker, vec![device])),
        }
    }
    let waits = match &config.kind {
        PortKind::Pcap { paced, .. } => !paced,
        PortKind::Source(source) => source.lossless,
        _ => false,
    };
    let workers = by_worker.iter().map(|(worker, _)| *worker).collect();
    let state = PortState {
        config: config.clone(),
        mode: opened.mode,
        interface: interface::of(&config.kind).and_then(interface::index),
        memories: memories.iter().map(|memory| memory.id).collect(),
        workers,
        closing: Vec::new(),
        progress: opened.progress,
        queues: Arc::default(),
        eth: opened.eth,
        vhost: opened.vhost,
        card: opened.card,
        patch: opened.patch,
        tap: opened.tap,
        namespace: opened.namespace,
        reported: [0; 2],
        missed: opened.missed,
        longest: opened.longest,
        refused_before: interface::of(&config.kind).map_or(0, interface::refused),
    };
    let queue = |(worker, devices): (WorkerId, _)| {
        (worker, PortQueue::new(config.id, memories[worker.index()].id, waits, devices))
    };
    Ok((state, by_worker.into_iter().map(queue).collect()))
}

/// The shaper that a port is to have.
pub(crate) fn new_shaper(config: &PortConfig) -> Result<Option<Box<Shaper>>, OpenError> {
    let fail = |problem: QosError| OpenError { name: config.name.clone(), problem: problem.into() };
    let shaper = config.policy.qos.as_ref().map(|qos| Shaper::new(qos).map(Box::new));
    shaper.transpose().map_err(fail)
}

struct Opened {
    queues: Queues,
    mode: PortMode,
    eth: Option<dpdk::Port>,
    vhost: Option<VhostPort>,
    card: Option<netvm_e1000::Port>,
    patch: Option<PatchEnd>,
    tap: Option<Watch>,
    namespace: Option<Namespace>,
    progress: Option<Arc<Progress>>,
    missed: Vec<Missed>,
    longest: Option<LongestFrame>,
}

impl Opened {
    fn new(queues: Queues, driver: String) -> Self {
        let mode = PortMode { driver, fallback: None };
        Self {
            queues,
            mode,
            eth: None,
            vhost: None,
            card: None,
            patch: None,
            tap: None,
            namespace: None,
            progress: None,
            missed: Vec::new(),
            longest: None,
        }
    }
}

fn open_kind(
    eal: dpdk::Eal,
    config: &PortConfig,
    memories: &[Arc<Memory>],
    (xsk, links): (XskMemory, &mut PatchLinks),
) -> Result<Opened, OpenProblem> {
    let device = match &config.kind {
        PortKind::Pci { address } => EthKind::Pci { address: address.parse()?, arguments: String::new() },
        PortKind::AfPacket { .. } | PortKind::Tap { .. } | PortKind::Container(_) => {
            return open_kernel(config, memories);
        }
        PortKind::Null { size } => EthKind::Null { packet_bytes: *size, copy: false, receive: true },
        PortKind::AfXdp { interface, generic } => {
            return open_xsk(config, (interface, *generic), xsk, memories);
        }
        PortKind::VhostUser { path, mode, dma } => {
            return open_vhost(eal, config, (path, *mode), dma, memories);
        }
        PortKind::E1000 { path, model, .. } => return open_e1000(config, (path, *model), memories),
        PortKind::Patch { peer } => return Ok(open_patch(links.end(config.id, *peer), memories)),
        PortKind::Pcap { .. } | PortKind::Source(_) | PortKind::Sink => {
            return open_builtin(config, memories);
        }
    };
    open_ethdev(eal, config, device, memories)
}

/// The workers that get the port's queues: those with the memory of the first worker, into which the port receives.
fn local_workers(memories: &[Arc<Memory>]) -> Vec<WorkerId> {
    let local = |(_, memory): &(u8, &Arc<Memory>)| memory.id == memories[0].id;
    (0u8..).zip(memories).filter(local).map(|(worker, _)| WorkerId(worker)).collect()
}

fn open_ethdev(
    eal: dpdk::Eal,
    config: &PortConfig,
    device: EthKind,
    memories: &[Arc<Memory>],
) -> Result<Opened, OpenProblem> {
    let driver = match &device {
        EthKind::Null { .. } => "DPDK net_null",
        _ => "DPDK",
    };
    let builder = PortBuilder::new(device)
        .queues(config.queues.max(1), config.queues.max(1))
        .mtu(config.mtu)
        .promiscuous(true);
    let started = builder.start(eal, &memories[0].pool)?;
    let mut queues: Queues = Vec::new();
    let local = local_workers(memories);
    for (n, (rx, tx)) in started.rx.into_iter().zip(started.tx).enumerate() {
        let worker = local[n % local.len()];
        queues.push((worker, Box::new(EthDevice::new(rx, tx, Arc::clone(&memories[0])))));
    }
    let missed = vec![Missed::Device(started.port.clone())];
    Ok(Opened { eth: Some(started.port), missed, ..Opened::new(queues, driver.to_owned()) })
}

fn open_kernel(config: &PortConfig, memories: &[Arc<Memory>]) -> Result<Opened, OpenProblem> {
    let queues = config.queues.max(1);
    let device = |interface: &String| {
        let mtu = Some(config.mtu);
        TapOptions { interface: interface.clone(), queues, mtu, offloads: true }
    };
    let mut namespace = None;
    let (opened, driver) = match &config.kind {
        PortKind::Tap { interface } => (netvm_vnet::tap::open(&device(interface))?, "TAP"),
        PortKind::Container(container) => {
            let options = ContainerOptions {
                tap: device(&container.interface),
                namespace: container.namespace_file(),
                mac: container.own_mac().0,
                addresses: container.addresses.iter().map(|a| (a.address, a.length)).collect(),
                gateways: container.gateways.clone(),
            };
            let (opened, within) = netvm_vnet::container::open(&options)?;
            namespace = Some(within);
            (opened, "TAP")
        }
        kind => {
            let interface = interface::of(kind).unwrap_or_default().to_owned();
            (netvm_vnet::packet_socket::open(&SocketOptions { interface, queues })?, "packet socket")
        }
    };
    let is_tap = matches!(config.kind, PortKind::Tap { .. } | PortKind::Container(_));
    let tap = opened.queues.first().filter(|_| is_tap).map(netvm_vnet::Queue::watch);
    let local = local_workers(memories);
    let mut missed = Vec::new();
    let mut device = |(n, queue): (usize, netvm_vnet::Queue)| -> (WorkerId, Box<dyn Device>) {
        missed.extend(queue.drops().map(Missed::Kernel));
        let device = KernelDevice::new(queue, opened.offloads, Arc::clone(&memories[0]));
        (local[n % local.len()], Box::new(device))
    };
    let queues = opened.queues.into_iter().enumerate().map(&mut device).collect();
    let offloads = match opened.offloads {
        Offloads { tcp: true, udp: true } => "checksums, TCP and UDP segments",
        Offloads { tcp: true, udp: false } => "checksums, TCP segments",
        Offloads { .. } => "no offloads",
    };
    Ok(Opened { missed, tap, namespace, ..Opened::new(queues, format!("{driver}, {offloads}")) })
}

fn open_xsk(
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

fn open_vhost(
    eal: dpdk::Eal,
    config: &PortConfig,
    (path, mode): (&std::path::Path, model::VhostMode),
    dma: &model::VhostDma,
    memories: &[Arc<Memory>],
) -> Result<Opened, OpenProblem> {
    let mode = match mode {
        model::VhostMode::Server => VhostMode::Server,
        model::VhostMode::Client => VhostMode::Client,
    };
    let queues = config.queues.max(1);
    let options = VhostOptions { path: path.to_owned(), mode, queues, segmentation: true };
    let (dma, fallback) = match dma {
        model::VhostDma::Off => (None, None),
        model::VhostDma::Auto => match DmaChannel::any(eal) {
            Ok(Some(dma)) => (Some(dma), None),
            Ok(None) => (None, Some("no DMA device is free".to_owned())),
            Err(error) => (None, Some(error.to_string())),
        },
        model::VhostDma::Device(name) => (Some(DmaChannel::open(eal, name, None)?), None),
    };
    let driver = dma
        .as_ref()
        .map_or_else(|| "vhost-user".to_owned(), |dma| format!("vhost-user, copies by {}", dma.name()));
    let (port, queues) = VhostPort::open(eal, &options, dma)?;
    let local = local_workers(memories);
    let device = |(n, queue): (usize, VhostQueue)| -> (WorkerId, Box<dyn Device>) {
        (local[n % local.len()], Box::new(VhostDevice::new(queue, Arc::clone(&memories[0]))))
    };
    let queues = queues.into_iter().enumerate().map(device).collect();
    let mode = PortMode { driver, fallback };
    Ok(Opened { vhost: Some(port), mode, ..Opened::new(queues, String::new()) })
}

fn open_e1000(
    config: &PortConfig,
    (path, model): (&std::path::Path, CardModel),
    memories: &[Arc<Memory>],
) -> Result<Opened, OpenProblem> {
    if config.queues > 1 {
        return Err(OpenProblem::OneQueue { wanted: config.queues });
    }
    let mac = config.card_mac().unwrap_or_default().0;
    let model = match model {
        CardModel::E1000 => netvm_e1000::Model::I82540,
        CardModel::E1000e => netvm_e1000::Model::I82574,
    };
    let options = netvm_e1000::Options { path: path.to_owned(), model, mac };
    let (port, queue) = netvm_e1000::Port::open(&options)?;
    let device = E1000Device::new(queue, Arc::clone(&memories[0]));
    let queues: Queues = vec![(WorkerId(0), Box::new(device))];
    Ok(Opened { card: Some(port), ..Opened::new(queues, "e1000 over vfio-user".to_owned()) })
}

fn open_patch(end: PatchEnd, memories: &[Arc<Memory>]) -> Opened {
    let device = Patch::open(end.clone(), memories[0].id);
    let queues: Queues = vec![(WorkerId(0), Box::new(device))];
    Opened { patch: Some(end), ..Opened::new(queues, "patch".to_owned()) }
}

fn open_builtin(config: &PortConfig, memories: &[Arc<Memory>]) -> Result<Opened, OpenProblem> {
    let room = memories[0].region().geometry().room();
    if config.queues > 1 && matches!(config.kind, PortKind::Pcap { .. }) {
        return Err(OpenProblem::OneQueue { wanted: config.queues });
    }
    match &config.kind {
        PortKind::Pcap { input, output, paced } => {
            let input = input.as_deref().map(CaptureReader::open).transpose()?;
            // The output keeps the input's format, so no time stamp loses precision.
            let options = match (&input, output) {
                (Some(input), Some(output)) => WriterOptions::for_output(output, input),
                _ => WriterOptions::default(),
            };
            let output = output.as_deref().map(|path| CaptureWriter::create(path, options)).transpose()?;
            let progress = Arc::new(Progress::default());
            let device = Capture::new(config.id, input, output, *paced, Arc::clone(&progress));
            let queues: Queues = vec![(WorkerId(0), Box::new(device))];
            Ok(Opened { progress: Some(progress), ..Opened::new(queues, "capture file".to_owned()) })
        }
        PortKind::Source(source) if u32::from(source.size) > room => {
            Err(OpenProblem::TooLong { wanted: source.size.into(), room })
        }
        PortKind::Source(source) => {
            let local = local_workers(memories);
            let missed = Arc::default();
            let queue = |n: usize| -> (WorkerId, Box<dyn Device>) {
                (local[n % local.len()], Box::new(Source::new(source, &missed)))
            };
            let queues = (0..usize::from(config.queues.max(1))).map(queue).collect();
            let opened = Opened::new(queues, "built-in source".to_owned());
            Ok(Opened { missed: vec![Missed::Source(missed)], ..opened })
        }
        // A sink for each worker: they share nothing.
        _ => {
            let queue = |n: usize| -> (WorkerId, Box<dyn Device>) { (WorkerId(n as u8), Box::new(Sink)) };
            let queues = (0..memories.len()).map(queue).collect();
            Ok(Opened::new(queues, "built-in sink".to_owned()))
        }
    }
}
