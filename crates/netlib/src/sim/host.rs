//! The engine's side of an NF's shared memory: one region, one worker, an empty next-hop table.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use netvm_attach::{AttachError, Fds};
use netvm_ids::{PortId, RoleId};
use netvm_region::{
    Admission, Control, ControlError, MAX_PORTS, MAX_ROLES, Name, Pages, Region, RegionError, RegionSpec,
    Table, TablePublisher,
};
use netvm_ring::{Consumer, Descriptor, Producer, VerdictKind};
use netvm_wire::ConnState;
use rustix::event::{EventfdFlags, eventfd};

use super::{MAX_PACKET, Outcome};
use crate::attach::Error;
use crate::endpoint::BURST;
use crate::packet::{Idle, Verdict};

pub(super) const STRIDE: u32 = 16_384;
pub(super) const HEADROOM: u16 = 256;
const RING: u32 = 64;

/// The shared memory with [`BURST`] buffers, and the engine's ends of each thread's rings.
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
    region: Region,
    table: TablePublisher,
}

impl Host {
    /// The host of an NF with this many threads. Ports and roles are numbered in the order of the lists.
    pub(super) fn new(ports: &[&str], roles: &[&str], threads: u16) -> Result<Self, Error> {
        let spec = RegionSpec {
            buffers: BURST as u32,
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
            group: 0,
            role: 0,
            ring_capacity: RING,
            nf_threads: (1..=threads).map(|nf_thread| nf_thread as u8).collect(),
            workers: 1,
            worker_regions: vec![0],
            geometries: vec![*region.geometry()],
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
        let nf_threads = (0..=threads).map(|_| event()).collect::<Result<_, _>>()?;
        let state = ConnState::Untracked;
        Ok(Self { rings, control, worker: event()?, nf_threads, state, region, table: publisher })
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

    /// Writes a frame into a buffer that the NF does not own.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_PACKET`], or the buffer does not exist.
    pub(super) fn write_frame(&self, buffer: u32, port: PortId, frame: &[u8]) -> Descriptor {
        assert!(frame.len() <= MAX_PACKET, "a packet of {} bytes", frame.len());
        assert!((buffer as usize) < BURST, "buffer {buffer}");
        // SAFETY: the buffer exists, and the frame fits behind the headroom. The NF does not own the buffer now; if it
        // writes there anyway, it spoils only its own test.
        unsafe {
            let start = self.region.buffer(buffer).add(usize::from(HEADROOM));
            start.copy_from_nonoverlapping(NonNull::from(frame).cast(), frame.len());
        }
        let arrival = Descriptor::arrival(port.0, self.state as u8);
        Descriptor::new(buffer, HEADROOM, frame.len() as u16).on_path(0, 0, arrival, 0)
    }

    /// The outcome in a returned descriptor; `None` if its verdict or its span is invalid.
    pub(super) fn outcome(&self, descriptor: Descriptor) -> Option<Outcome> {
        let verdict = match VerdictKind::from_raw(descriptor.verdict())? {
            VerdictKind::Port => Verdict::Port(PortId(descriptor.argument())),
            VerdictKind::Role => Verdict::Role(RoleId(descriptor.argument())),
            VerdictKind::Drop => Verdict::Drop,
            VerdictKind::Next => Verdict::Next,
            VerdictKind::DropFlow => Verdict::DropFlow(Idle(descriptor.argument())),
            VerdictKind::SkipFlow => Verdict::SkipFlow(Idle(descriptor.argument())),
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
