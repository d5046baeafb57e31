// SPDX-License-Identifier: Apache-2.0
//! A [`Worker`] on the test's thread: real memory, rules and rings; ports whose wire is a list; NF threads whose rings
//! the test serves.

mod wire;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dpdk::{Batch, Mbuf};
use netvm_capture_ring::Filter;
use netvm_model::{FlowCacheConfig, Forward, Host, Idle, PortConfig, PortKind, PortPolicy};
use netvm_notify::{EpollWaiter, ReadySet, Signaller, new_eventfd};
use netvm_region::{Admission, Control};
use netvm_ring::{Consumer, Descriptor, Producer};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};
use rtrb::RingBuffer;

use crate::counters::WorkerCounters;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, NfThreadId, PortId, RoleId, TraceId, WorkerId};
use crate::inflight::ThreadInFlight;
use crate::interface::{Device, PortQueue, Shaper};
use crate::limits::SharedLimits;
use crate::link::{Link, LinkParts};
use crate::memory::{Memory, eal_for_tests};
use crate::nat::{Nat, TargetHealth};
use crate::policy::{Compiler, DecisionCounters, Policy};
use crate::port_bits::PortBits;
use crate::snapshot::{ChainPath, Choice, Snapshot, Target};
use crate::worker::record::{LiveTrace, TraceRecord};
use crate::worker::state::{flows::Flows, handoff::Handoff};
use crate::worker::{Command, Event, Latency, LatencySample, Setup, Span, Worker, cycles_per_tick};
use wire::{Wire, WireDevice};
pub(in crate::worker) use wire::{bytes_of, mbuf_of};

pub(super) const GROUP: GroupId = GroupId(0);
pub(super) const CHAIN: ChainId = ChainId(0);
/// Slots of an NF thread's rings.
pub(super) const RING: u32 = 64;

/// The NF's side of its rings.
pub(super) struct NfEnd {
    pub(super) rx: Consumer,
    pub(super) tx: Producer,
    // Keeps the rings mapped.
    _control: Arc<Control>,
}

impl NfEnd {
    /// Takes everything that the engine handed to the NF.
    pub(super) fn take(&mut self) -> Vec<Descriptor> {
        let mut burst = [Descriptor::default(); RING as usize];
        let count = self.rx.pop(&mut burst);
        burst[..count].to_vec()
    }
}

/// A worker with its ports; no NF yet.
pub(super) struct Rig {
    pub(super) worker: Worker,
    pub(super) memory: Arc<Memory>,
    pub(super) wires: Vec<Arc<Mutex<Wire>>>,
    pub(super) nfs: Vec<NfEnd>,
    latency: rtrb::Consumer<LatencySample>,
    commands: rtrb::Producer<Command>,
    events: rtrb::Consumer<Event>,
}

impl Rig {
    /// Ports 0, 1, ... with these `forward`s.
    pub(super) fn new(forwards: &[Forward]) -> Self {
        let ports = (0..).zip(forwards).map(|(n, to)| port(n, *to)).collect();
        Self::of(&Host { ports, ..Host::default() })
    }

    /// The ports and rules of a host.
    pub(super) fn of(host: &Host) -> Self {
        let (commands, inbox) = RingBuffer::new(16);
        let (outbox, events) = RingBuffer::new(64);
        let (samples, latency) = RingBuffer::new(64);
        let setup = Setup {
            id: WorkerId(0),
            core: 0,
            idle: Idle::Poll,
            handoff: Handoff::default(),
            wake: Arc::new(new_eventfd().unwrap()),
            waiter: EpollWaiter::new().unwrap(),
            ready: ReadySet::new().unwrap(),
            signaller: Signaller::new(),
            flows: Flows::new(&FlowCacheConfig { entries: 1024, ..FlowCacheConfig::default() }).unwrap(),
            limits: Arc::new(SharedLimits::new()),
            latency: Latency::new(WorkerId(0), samples, Arc::default()),
            monitor: None,
        };
        let mut worker = Worker::new(setup, Arc::new(WorkerCounters::new()), inbox, outbox);
        worker.dp.counters.measures_latency.store(true, Ordering::Relaxed);
        let memory = Arc::new(Memory::for_tests(512, 0, RING));
        worker.dp.memories.add(Arc::clone(&memory), Some(GROUP));
        worker.dp.nfs.add_group(GROUP);
        let mut snapshot = snapshot(host, &Policy::default());
        let mut wires = Vec::new();
        for port in &host.ports {
            let wire = Arc::<Mutex<Wire>>::default();
            wires.push(Arc::clone(&wire));
            snapshot.ports.add(port.id);
            if !port.has_queues() {
                continue;
            }
            let mut devices: Vec<Box<dyn Device>> = Vec::new();
            if port.kind.info().sends_to.is_none() {
                devices.push(Box::new(WireDevice::new(wire)));
            }
            let mut queue = PortQueue::new(port.id, MemoryId(0), false, devices);
            let shaper = port.policy.qos.as_ref().map(|qos| Box::new(Shaper::new(qos).unwrap()));
            drop(queue.set_shaper(shaper));
            worker.dp.ports.add(Box::new(queue));
            worker.inputs.add(port.id);
        }
        worker.snapshot = Arc::new(snapshot);
        worker.shares.follow(worker.inputs.ports(), &worker.snapshot.policy);
        let mut rig = Self { worker, memory, wires, nfs: Vec::new(), latency, commands, events };
        // In-order queues open with the first tick after that in which they were made.
        rig.tick(1);
        rig
    }

    /// Adds one NF thread for each hop, and the chain of all of them, which ends at port 1. They may send to `ports`.
    pub(super) fn with_chain(self, hops: u8, ports: &[PortId]) -> Self {
        self.with_chain_of(hops, ports, false)
    }

    /// As [`Rig::with_chain`]; the NFs take offload work as it comes if `offloads`.
    pub(super) fn with_chain_of(mut self, hops: u8, ports: &[PortId], offloads: bool) -> Self {
        for hop in 0..hops {
            let (link, nf_thread) = (LinkId(hop.into()), NfThreadId(hop + 1));
            let admission = Admission {
                layout: netvm_region::LAYOUT_VERSION,
                quota: netvm_region::Quota::default(),
                group: 0,
                role: hop.into(),
                ring_capacity: RING,
                nf_threads: vec![nf_thread.0],
                workers: 1,
                worker_regions: vec![0],
                geometries: vec![*self.memory.region().geometry()],
                mailbox: false,
            };
            let control = Arc::new(Control::create("test", &admission, None).unwrap());
            let (to_nf, from_nf) = (control.ring_to_nf(0, 0), control.ring_from_nf(0, 0));
            // SAFETY: each ring gets one producer and one consumer, and all four keep the control memory.
            let (to_nf, rx, tx, from_nf) =
                unsafe { (to_nf.producer(), to_nf.consumer(), from_nf.producer(), from_nf.consumer()) };
            let new = Link::new(LinkParts {
                id: link,
                group: GROUP,
                role: RoleId(hop.into()),
                memory: MemoryId(0),
                to_nf,
                from_nf,
                stock: None,
                wake: Arc::new(new_eventfd().unwrap()),
                poll_only: false,
                control: Arc::clone(&control),
            });
            let in_flight = ThreadInFlight::new(link, nf_thread, Arc::clone(&self.memory.in_flight));
            self.worker.dp.add_link(Box::new(new), in_flight);
            self.nfs.push(NfEnd { rx, tx, _control: control });
        }
        let target = |hop: u8| Target::Links {
            group: GROUP,
            hop,
            choice: Choice::LeastOccupied,
            offloads,
            links: Box::new([LinkId(hop.into())]),
        };
        let mut targets: Vec<Target> = (0..hops).map(target).collect();
        targets.push(Target::Port(PortId(1)));
        let path = ChainPath {
            entry: target(0),
            targets,
            groups: vec![GROUP; hops.into()],
            roles: (0..hops.into()).collect(),
            hashed: false,
            watched: Vec::new(),
            longest: vec![0; hops.into()],
            crossings: Vec::new(),
        };
        let mut allowed = PortBits::default();
        ports.iter().for_each(|port| allowed.add(*port));
        let mut snapshot = Snapshot::clone(&self.worker.snapshot);
        snapshot.chains = vec![Some(path)];
        snapshot.groups = vec![Some(allowed)];
        snapshot.roles = (0..hops).map(|hop| Some(target(hop))).collect();
        self.worker.snapshot = Arc::new(snapshot);
        self.tick(2);
        self
    }

    /// The bytes of an NF's packet.
    pub(super) fn bytes_of(&mut self, packet: &Descriptor) -> &mut [u8] {
        // SAFETY: the descriptor came from the engine, so that the buffer exists; nothing else uses it while the NF
        // has it.
        unsafe {
            let start = self.memory.region().buffer(packet.buffer()).add(packet.offset().into());
            std::slice::from_raw_parts_mut(start.as_ptr(), packet.length().into())
        }
    }

    /// Starts a turn at that tick of the coarse clock.
    pub(super) fn tick(&mut self, tick: u64) {
        self.worker.dp.start_turn(tick * cycles_per_tick());
    }

    /// One turn of the worker's loop.
    pub(super) fn turn(&mut self) -> usize {
        let all: Vec<PortId> = self.worker.inputs.ports().to_vec();
        self.worker.inputs.found(&all);
        self.worker.inputs.begin_turn(0);
        let moved = self.worker.turn::<false>();
        self.worker.send_traced();
        moved
    }

    /// Traces packets that a filter accepts; `None`: all.
    pub(super) fn start_trace(&mut self, id: u32, filter: Option<&Filter>) {
        let mut trace = LiveTrace::for_workers(1, None, filter).remove(0);
        trace.set_id(TraceId(id));
        self.command(Command::AddTrace(Box::new(trace)));
    }

    /// The records of traced packets that have ended since the last call.
    pub(super) fn traced(&mut self) -> Vec<TraceRecord> {
        let events = std::iter::from_fn(|| self.events.pop().ok());
        let traced = |event| if let Event::Traced(record) = event { Some(record) } else { None };
        events.filter_map(traced).collect()
    }

    /// Has the worker handle a command of the manager.
    pub(super) fn command(&mut self, command: Command) {
        assert!(self.commands.push(command).is_ok());
        self.worker.handle_commands();
    }

    /// As [`Rig::command`]; returns the next event.
    pub(super) fn answer_to(&mut self, command: Command) -> Option<Event> {
        self.command(command);
        self.events.pop().ok()
    }

    /// Puts the rules of another host with the same ports in force.
    pub(super) fn apply(&mut self, host: &Host) {
        let before = &self.worker.snapshot;
        let new = snapshot(host, &before.policy);
        self.worker.snapshot = Arc::new(Snapshot { ports: before.ports.clone(), ..new });
    }

    /// Closes a port.
    pub(super) fn close(&mut self, port: u16) {
        let retired = |event| matches!(event, Event::PortRetired(PortId(closed), Some(_)) if closed == port);
        assert!(self.answer_to(Command::RemovePort(PortId(port))).is_some_and(retired));
    }

    /// The latencies measured since the last call.
    pub(super) fn measured(&mut self) -> Vec<Span> {
        std::iter::from_fn(|| self.latency.pop().ok()).map(|sample| sample.span).collect()
    }

    pub(super) fn receive(&self, port: usize, frame: &[u8]) {
        self.wires[port].lock().unwrap().to_engine.push_back(frame.to_vec());
    }

    /// Takes the frames that left by a port.
    pub(super) fn sent(&self, port: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wires[port].lock().unwrap().from_engine)
    }

    pub(super) fn counters(&self) -> &WorkerCounters {
        &self.worker.dp.counters
    }

    pub(super) fn dropped_at(&self, port: usize, reason: DropReason) -> u64 {
        self.counters().ports[port].drops.get(reason)
    }

    pub(super) fn dropped_in_chain(&self, reason: DropReason) -> u64 {
        self.counters().chains[CHAIN.index()].drops.get(reason)
    }

    /// Takes buffers out of the pool until that many are left.
    pub(super) fn hold_all_buffers_but(&self, left: u32) -> Vec<Mbuf> {
        let mut held = Vec::new();
        while self.memory.pool.available() > left {
            let mut one = Batch::new();
            self.memory.pool.alloc_into(&mut one, 1);
            held.extend(one.pop());
        }
        held
    }

    /// Every buffer is back in the pool.
    pub(super) fn assert_nothing_leaked(&self) {
        assert_eq!(self.memory.pool.in_use(), 0, "buffers in use");
        assert_eq!(self.memory.large.as_ref().unwrap().in_use(), 0, "large buffers in use");
    }
}

/// The host of a configuration with sinks `p0`, `p1`, ..., each with its own lines, and rules for `p0`.
pub(super) fn rules(ports: &[&str], rules: &[&str]) -> Host {
    let mut text = String::new();
    for (n, port) in ports.iter().enumerate() {
        text += &format!("[[port]]\nname = \"p{n}\"\nkind = \"sink\"\n{port}\n");
    }
    for rule in rules {
        text += &format!("[[rule]]\nfrom = \"p0\"\n{rule}\n");
    }
    netvm_config::parse("rules", &text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

pub(super) fn port(n: u16, forward: Forward) -> PortConfig {
    let policy = PortPolicy { forward, ..PortPolicy::default() };
    PortConfig { policy, ..PortConfig::new(PortId(n), format!("p{n}"), PortKind::Sink) }
}

/// A snapshot with the compiled rules of a host, after others.
fn snapshot(host: &Host, before: &Policy) -> Snapshot {
    let mut policy = Compiler::new(eal_for_tests()).compile(host, before).unwrap();
    policy.generation = before.generation + 1;
    let hits = policy.decisions.iter().map(|_| DecisionCounters::default()).collect();
    let nat = Nat::of(host, &[], &TargetHealth::default()).map(Arc::new);
    let snapshot = Snapshot { policy: Arc::new(policy), hits, nat, ..Snapshot::default() };
    snapshot.with_virtual_ports(host)
}

pub(super) const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// A UDP frame from `mac(source)` to `mac(destination)`.
pub(super) fn udp(source: u8, destination: u8, port: u16) -> Vec<u8> {
    ip(source, destination).udp(1000, port).payload(b"payload").to_vec().unwrap()
}

/// A TCP frame, likewise.
pub(super) fn tcp(source: u8, destination: u8, flags: TcpFlags) -> Vec<u8> {
    ip(source, destination).tcp(1000, 80, flags).to_vec().unwrap()
}

/// A frame to which only the transport's header and the payload are missing.
pub(super) fn ip(source: u8, destination: u8) -> FrameBuilder<'static> {
    let frame = FrameBuilder::new(mac(source), mac(destination));
    frame.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
}
