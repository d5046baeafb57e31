// SPDX-License-Identifier: Apache-2.0
//! The engine's side of an NF's shared memory: one region, one worker, an empty next-hop table. It knows of each buffer
//! whether the NF has it, and gives the NF empty ones.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use netvm_attach::{AttachError, Fds};
use netvm_ids::{ChainId, PortId, RoleId};
use netvm_region::{
    Admission, Control, ControlError, LAYOUT_VERSION, MAX_CHAINS, MAX_PORTS, MAX_ROLES, Name, Pages, Quota,
    Region, RegionError, RegionSpec, Table, TablePublisher,
};
use netvm_ring::{Consumer, Descriptor, Message, Producer, VerdictKind};
use netvm_wire::ConnState;
use rustix::event::{EventfdFlags, eventfd};

use super::{MAX_PACKET, Outcome};
use crate::attach::Error;
use crate::endpoint::BURST;
use crate::packet::{Idle, Steer, Verdict};

pub(super) const STRIDE: u32 = 16_384;
pub(super) const HEADROOM: u16 = 256;
/// Slots of the rings: a burst, and what an NF makes of it.
const RING: u32 = 1024;
/// What each thread may keep.
pub(super) const QUOTA: Quota = Quota { allocate: 256, hold: 512 };

/// Who has a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Free,
    /// The NF, until its verdict.
    Nf,
    /// This thread of the NF keeps it.
    Kept(usize),
}

/// What a descriptor that the NF has returned means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    Packet(Outcome),
    /// The NF holds the packet.
    Held,
    Withdrawal,
    /// Another message.
    Message,
    /// An engine would refuse it.
    Corrupt,
}

/// The shared memory, and the engine's ends of each thread's rings.
#[derive(Debug)]
pub(super) struct Host {
    /// To and from each thread of the NF.
    pub(super) rings: Vec<(Producer, Consumer)>,
    pub(super) control: Control,
    pub(super) worker: OwnedFd,
    /// One eventfd for each NF thread; NF thread 0 is the engine.
    pub(super) nf_threads: Vec<OwnedFd>,
    /// Of the connections of all packets.
    pub(super) state: ConnState,
    /// To each thread of the NF: empty buffers.
    stock: Vec<Producer>,
    /// By buffer.
    holders: Vec<Holder>,
    region: Region,
    table: TablePublisher,
    names: Box<Table>,
}

impl Host {
    /// The host of an NF with this many threads. Ports and roles are numbered in the order of the lists.
    pub(super) fn new(ports: &[&str], roles: &[&str], threads: u16) -> Result<Self, Error> {
        let spec = RegionSpec {
            buffers: BURST as u32 + u32::from(threads) * QUOTA.most(),
            stride: STRIDE,
            headroom: HEADROOM,
            large: 0,
            rings: 1,
            ring_capacity: RING,
        };
        let region = Region::create("simulator", spec, Pages::Normal, None).map_err(|error| match error {
            RegionError::Map(error) => Error::Map(error),
            RegionError::Geometry(_) => Error::Control(ControlError::Unsound("simulator")),
        })?;
        let admission = Admission {
            layout: LAYOUT_VERSION,
            quota: QUOTA,
            group: 0,
            role: 0,
            ring_capacity: RING,
            nf_threads: (1..=threads).map(|nf_thread| nf_thread as u8).collect(),
            workers: 1,
            worker_regions: vec![0],
            geometries: vec![*region.geometry()],
            mailbox: false,
        };
        let control = Control::create("simulator", &admission, None)?;
        let mut table = Table::new_boxed();
        for (slot, name) in table.ports.iter_mut().zip(ports.iter().take(MAX_PORTS)) {
            *slot = Name::new(name).unwrap_or(*slot);
        }
        for (slot, name) in table.role_names.iter_mut().zip(roles.iter().take(MAX_ROLES)) {
            *slot = Name::new(name).unwrap_or(*slot);
        }
        let mut publisher = TablePublisher::create("simulator")?;
        publisher.publish(&table);
        let ends = |thread| {
            // SAFETY: the only engine ends of these rings; `control`, in the same value, keeps them mapped.
            unsafe { (control.ring_to_nf(thread, 0).producer(), control.ring_from_nf(thread, 0).consumer()) }
        };
        let rings = (0..threads).map(ends).collect();
        let of_buffers = (0..threads).filter_map(|thread| control.ring_of_buffers(thread, 0));
        // SAFETY: as above.
        let stock = of_buffers.map(|ring| unsafe { ring.producer() }).collect();
        let holders = vec![Holder::Free; region.geometry().buffers as usize];
        let nf_threads = (0..=threads).map(|_| event()).collect::<Result<_, _>>()?;
        let state = ConnState::Untracked;
        let worker = event()?;
        let mut this = Self {
            rings,
            control,
            worker,
            nf_threads,
            state,
            stock,
            holders,
            region,
            table: publisher,
            names: table,
        };
        // An NF in the test's own thread cannot wait for its first buffers.
        (0..threads).for_each(|thread| this.give(thread.into(), BURST));
        Ok(this)
    }

    /// A free buffer, now with this holder.
    fn take(&mut self, holder: Holder) -> Option<u32> {
        let buffer = self.holders.iter().position(|holder| *holder == Holder::Free)?;
        self.holders[buffer] = holder;
        Some(buffer as u32)
    }

    /// Gives a thread empty buffers.
    fn give(&mut self, thread: usize, count: usize) {
        let kept = self.holders.iter().filter(|holder| **holder == Holder::Kept(thread)).count();
        for _ in 0..count.min(QUOTA.allocate as usize).min((QUOTA.most() as usize).saturating_sub(kept)) {
            let Some(buffer) = self.take(Holder::Kept(thread)) else { return };
            let empty = Descriptor::new(buffer, HEADROOM, 0).on_path(0, 0, 0, 0);
            if self.stock.get_mut(thread).is_none_or(|stock| stock.push(&[empty]) == 0) {
                self.holders[buffer as usize] = Holder::Free;
            }
        }
    }

    /// Does what a thread of the NF asks for.
    fn handle_message(&mut self, thread: usize, message: Message) -> Returned {
        match message {
            Message::WithdrawVerdicts => return Returned::Withdrawal,
            Message::RequestBuffers(count) => self.give(thread, count.into()),
            Message::Release(buffer) | Message::Ingress { buffer, .. } => {
                let Some(holder) = self.holders.get_mut(buffer as usize) else { return Returned::Corrupt };
                if *holder != Holder::Kept(thread) {
                    return Returned::Corrupt;
                }
                if matches!(message, Message::Release(_)) {
                    *holder = Holder::Free;
                }
            }
        }
        Returned::Message
    }

    /// Takes a descriptor that a thread of the NF has returned.
    pub(super) fn take_back(&mut self, thread: usize, descriptor: Descriptor) -> Returned {
        if descriptor.is_control() {
            return descriptor
                .message()
                .map_or(Returned::Corrupt, |message| self.handle_message(thread, message));
        }
        let Some(holder) = self.holders.get_mut(descriptor.buffer() as usize) else {
            return Returned::Corrupt;
        };
        if *holder != Holder::Nf && *holder != Holder::Kept(thread) {
            return Returned::Corrupt;
        }
        if VerdictKind::from_raw(descriptor.verdict()) == Some(VerdictKind::Hold) {
            *holder = Holder::Kept(thread);
            return Returned::Held;
        }
        *holder = Holder::Free;
        self.outcome(descriptor).map_or(Returned::Corrupt, Returned::Packet)
    }

    /// Gives chains names, numbered in the order of the list.
    pub(super) fn name_chains(&mut self, chains: &[&str]) {
        for (slot, name) in self.names.chain_names.iter_mut().zip(chains.iter().take(MAX_CHAINS)) {
            *slot = Name::new(name).unwrap_or(*slot);
        }
        self.table.publish(&self.names);
    }

    /// The descriptors to pass to the NF.
    pub(super) fn fds(&self) -> Fds<BorrowedFd<'_>> {
        Fds {
            control: self.control.as_fd(),
            table: self.table.as_fd(),
            regions: vec![self.region.as_fd()],
            workers: vec![self.worker.as_fd()],
            nf_threads: self.nf_threads.iter().map(AsFd::as_fd).collect(),
        }
    }

    /// Writes a frame into a free buffer, which is the NF's from then on; `None` if there is none.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_PACKET`].
    pub(super) fn write_frame(&mut self, port: PortId, frame: &[u8]) -> Option<Descriptor> {
        assert!(frame.len() <= MAX_PACKET, "a packet of {} bytes", frame.len());
        let buffer = self.take(Holder::Nf)?;
        // SAFETY: the buffer exists, and the frame fits behind the headroom. The NF does not own the buffer now; if it
        // writes there anyway, it spoils only its own test.
        unsafe {
            let start = self.region.buffer(buffer).add(usize::from(HEADROOM));
            start.copy_from_nonoverlapping(NonNull::from(frame).cast(), frame.len());
        }
        let arrival = Descriptor::arrival(port.0, self.state as u8);
        Some(Descriptor::new(buffer, HEADROOM, frame.len() as u16).on_path(0, 0, arrival, 0))
    }

    /// The outcome in a returned descriptor; `None` if its verdict or its span is invalid.
    fn outcome(&self, descriptor: Descriptor) -> Option<Outcome> {
        let verdict = match VerdictKind::from_raw(descriptor.verdict())? {
            VerdictKind::Port => Verdict::Port(PortId(descriptor.argument())),
            VerdictKind::Role => Verdict::Role(RoleId(descriptor.argument())),
            VerdictKind::Drop => Verdict::Drop,
            VerdictKind::Next => Verdict::Next,
            VerdictKind::DropFlow => Verdict::DropFlow(Idle(descriptor.argument())),
            VerdictKind::SkipFlow => Verdict::SkipFlow(Idle(descriptor.argument())),
            VerdictKind::Hold => return None,
            VerdictKind::SteerChain => Verdict::SteerFlow(Steer::Chain(ChainId(descriptor.argument()))),
            VerdictKind::SteerRole => Verdict::SteerFlow(Steer::Role(RoleId(descriptor.argument()))),
            VerdictKind::SteerPort => Verdict::SteerFlow(Steer::Port(PortId(descriptor.argument()))),
            VerdictKind::SteerBack => Verdict::SteerFlow(Steer::Back),
        };
        let (buffer, offset, length) = (descriptor.buffer(), descriptor.offset(), descriptor.length());
        if !self.region.geometry().contains(buffer, offset, length) {
            return None;
        }
        let mut bytes = vec![0; usize::from(length)];
        // SAFETY: the span was checked above against the region. The NF has returned the buffer; if it still writes
        // there, it spoils only its own test.
        unsafe {
            let start = self.region.buffer(buffer).add(usize::from(offset));
            start.copy_to_nonoverlapping(NonNull::from(bytes.as_mut_slice()).cast(), bytes.len());
        }
        Some(Outcome { verdict, bytes, hash: descriptor.hash() })
    }
}

pub(super) fn socket_error(error: impl Into<std::io::Error>) -> Error {
    Error::Attach(AttachError::Socket(error.into()))
}

fn event() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(socket_error)
}
