//! A simulator, to test an NF with no engine: no daemon, no privileges, no DPDK.
//!
//! The NF runs on the same rings, memory and endpoint code as in production; only the engine's end is played here.
//!
//! ```
//! use netlib::sim::Simulator;
//! use netlib::{NetworkFunction, Packet, PortId, Verdict};
//!
//! struct Hairpin;
//! impl NetworkFunction for Hairpin {
//!     fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
//!         packet.data_mut().swap(0, 6);
//!         Verdict::Port(packet.ingress())
//!     }
//! }
//!
//! let mut simulator = Simulator::new(&["lan", "wan"], &[])?;
//! let mut frame = [0u8; 60];
//! frame[6] = 2;
//! let outcome = simulator.inject(&mut Hairpin, PortId(1), &frame);
//! assert_eq!(outcome.verdict, Verdict::Port(PortId(1)));
//! assert_eq!(outcome.bytes[0], 2);
//! # Ok::<(), netlib::Error>(())
//! ```

use std::os::fd::{AsFd, OwnedFd};

use netvm_attach::{AttachError, Fds};
use netvm_region::{
    Admission, Control, MAX_PORTS, MAX_ROLES, Name, Pages, Region, RegionError, RegionSpec, Table,
    TablePublisher,
};
use netvm_ring::{Action, Consumer, Descriptor, Producer};
use rustix::event::{EventfdFlags, eventfd};

use crate::attach::{Attachment, Error};
use crate::endpoint::{BURST, Endpoint};
use crate::function::{NetworkFunction, ThreadContext};
use crate::packet::{PortId, RoleId, Verdict};
use crate::wait::Waiting;

const STATION: u8 = 1;

/// What an NF made of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its verdict.
    pub verdict: Verdict,
    /// The packet afterwards.
    pub bytes: Vec<u8>,
    /// The hash by which replicas would be chosen.
    pub hash: u8,
}

/// An engine of one port memory, one worker and one hop, in the same thread as the NF.
#[derive(Debug)]
pub struct Simulator {
    region: Region,
    endpoint: Endpoint,
    to_nf: Producer,
    from_nf: Consumer,
    // The rings' memory must outlive their ends.
    _control: Control,
}

impl Simulator {
    /// Longest packet that can be injected, in bytes.
    pub const MAX_PACKET: usize = 16_384 - 256;

    /// A simulator in which ports and roles have these names; their numbers are their places in the lists.
    ///
    /// # Errors
    /// [`Error::Map`] or [`Error::Control`] when shared memory is not to be had (a few MiB).
    pub fn new(ports: &[&str], roles: &[&str]) -> Result<Self, Error> {
        let spec =
            RegionSpec { cells: BURST as u32, stride: 16_384, headroom: 256, rings: 1, ring_capacity: 64 };
        let region = Region::create("simulator", spec, Pages::Normal, None).map_err(|error| match error {
            RegionError::Map(error) => Error::Map(error),
            RegionError::Geometry(_) => Error::Control(netvm_region::ControlError::Unsound("simulator")),
        })?;
        let admission = Admission {
            group: 0,
            role: 0,
            ring_capacity: 64,
            stations: vec![STATION],
            worker_regions: vec![0],
            geometries: vec![*region.geometry()],
        };
        let control = Control::create("simulator", &admission, None)?;
        let mut publisher = TablePublisher::create("simulator")?;
        let mut table = Table::new_boxed();
        for (slot, name) in table.ports.iter_mut().zip(ports.iter().take(MAX_PORTS)) {
            *slot = Name::new(name).unwrap_or(*slot);
        }
        for (slot, name) in table.role_names.iter_mut().zip(roles.iter().take(MAX_ROLES)) {
            *slot = Name::new(name).unwrap_or(*slot);
        }
        publisher.publish(&table);
        let socket_error = |error: std::io::Error| Error::Attach(AttachError::Socket(error));
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| socket_error(e.into()));
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(socket_error);
        let fds: Fds<OwnedFd> = Fds {
            control: copy(&control)?,
            table: copy(&publisher)?,
            regions: vec![copy(&region)?],
            workers: vec![event()?],
            stations: vec![event()?, event()?],
        };
        let mut endpoints = Attachment::from_fds(fds, None, Waiting::Poll)?.into_endpoints();
        let Some(endpoint) = endpoints.pop() else {
            return Err(Error::Control(netvm_region::ControlError::Unsound("simulator")));
        };
        // SAFETY: the engine's only ends of these rings; `_control` keeps them mapped.
        let (to_nf, from_nf) =
            unsafe { (control.ring_to_nf(0, 0).producer(), control.ring_from_nf(0, 0).consumer()) };
        Ok(Self { region, endpoint, to_nf, from_nf, _control: control })
    }

    /// What the NF's thread knows: to make an NF that looks up names.
    #[must_use]
    pub fn context(&self) -> ThreadContext<'_> {
        ThreadContext::new(&self.endpoint)
    }

    /// Lets the NF see one packet that came in by `ingress`, and returns what it made of it.
    ///
    /// # Panics
    /// When the packet is longer than [`Simulator::MAX_PACKET`].
    pub fn inject(&mut self, function: &mut impl NetworkFunction, ingress: PortId, frame: &[u8]) -> Outcome {
        let mut outcomes = self.inject_all(function, &[(ingress, frame)]);
        assert_eq!(outcomes.len(), 1, "one packet in, one verdict out");
        outcomes.remove(0)
    }

    /// Lets the NF see packets, in bursts of [`BURST`], and returns what it made of each, in their order.
    ///
    /// # Panics
    /// When a packet is longer than [`Simulator::MAX_PACKET`].
    pub fn inject_all(
        &mut self,
        function: &mut impl NetworkFunction,
        frames: &[(PortId, &[u8])],
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(frames.len());
        for burst in frames.chunks(BURST) {
            let descriptors: Vec<_> =
                burst.iter().zip(0..).map(|((port, frame), cell)| self.place(cell, *port, frame)).collect();
            assert_eq!(self.to_nf.push(&descriptors), burst.len(), "the ring is larger than a burst");
            while let Some(mut burst) = self.endpoint.try_receive() {
                function.burst(&mut burst);
            }
            let mut returned = [Descriptor::default(); BURST];
            let count = self.from_nf.pop(&mut returned);
            returned[..count].sort_by_key(|descriptor| descriptor.cell());
            outcomes.extend(returned[..count].iter().map(|descriptor| self.outcome(*descriptor)));
        }
        outcomes
    }

    fn place(&self, cell: u32, port: PortId, frame: &[u8]) -> Descriptor {
        assert!(frame.len() <= Self::MAX_PACKET, "a packet of {} bytes", frame.len());
        let headroom = self.region.geometry().headroom as u16;
        // SAFETY: `cell` is below BURST, the number of cells; the frame fits behind the headroom; the NF has no cell now.
        unsafe {
            let start = self.region.cell(cell).add(usize::from(headroom));
            start.copy_from_nonoverlapping(core::ptr::NonNull::from(frame).cast(), frame.len());
        }
        Descriptor::new(cell, headroom, frame.len() as u16).on_path(0, 0, port.0, 0)
    }

    fn outcome(&self, descriptor: Descriptor) -> Outcome {
        let verdict = match Action::from_raw(descriptor.action()) {
            Some(Action::Port) => Verdict::Port(PortId(descriptor.argument())),
            Some(Action::Role) => Verdict::Role(RoleId(descriptor.argument())),
            Some(Action::Drop) => Verdict::Drop,
            Some(Action::Next) | None => Verdict::Next,
        };
        // SAFETY: the endpoint sends on only spans that the region contains; the NF has given the cell back.
        let bytes = unsafe {
            let start = self.region.cell(descriptor.cell()).add(usize::from(descriptor.offset()));
            core::slice::from_raw_parts(start.as_ptr(), usize::from(descriptor.length())).to_vec()
        };
        Outcome { verdict, bytes, hash: descriptor.hash() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;

    struct Tagger;

    impl NetworkFunction for Tagger {
        fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
            let length = packet.len();
            match packet.data().first() {
                Some(0) => Verdict::Drop,
                Some(1) => {
                    if let Some(bytes) = packet.prepend(4) {
                        bytes[..4].copy_from_slice(b"head");
                    }
                    if let Some(bytes) = packet.append(2) {
                        bytes[length + 4..].copy_from_slice(b"ok");
                    }
                    Verdict::Port(PortId(packet.ingress().0 + 1))
                }
                Some(2) => {
                    packet.trim_front(1);
                    packet.truncate(length - 2);
                    packet.set_hash(9);
                    Verdict::Role(RoleId(1))
                }
                _ => Verdict::Next,
            }
        }
    }

    #[test]
    fn every_verdict_and_every_change_of_length_comes_out() {
        let mut simulator = Simulator::new(&["a", "b"], &["x", "y"]).unwrap();
        let out = |verdict, bytes: &[u8], hash| Outcome { verdict, bytes: bytes.to_vec(), hash };
        let frames: [(PortId, &[u8]); 4] =
            [(PortId(0), &[0, 9]), (PortId(3), &[1, 2, 3]), (PortId(0), &[2, 3, 4]), (PortId(0), &[7])];
        let got = simulator.inject_all(&mut Tagger, &frames);
        assert_eq!(got[0].verdict, Verdict::Drop);
        assert_eq!(got[1], out(Verdict::Port(PortId(4)), b"head\x01\x02\x03ok", 0));
        assert_eq!(got[2], out(Verdict::Role(RoleId(1)), &[3], 9));
        assert_eq!(got[3], out(Verdict::Next, &[7], 0));
    }

    #[test]
    fn more_packets_than_cells_pass_in_order() {
        let mut simulator = Simulator::new(&[], &[]).unwrap();
        let frames: Vec<Vec<u8>> = (0..1000u32).map(|n| [&[7][..], &n.to_be_bytes()].concat()).collect();
        let list: Vec<_> = frames.iter().map(|frame| (PortId(0), frame.as_slice())).collect();
        let got = simulator.inject_all(&mut Tagger, &list);
        assert_eq!(got.len(), 1000);
        assert!(got.iter().zip(&frames).all(|(got, frame)| got.bytes == *frame));
    }

    #[test]
    fn names_have_the_numbers_of_their_places() {
        let simulator = Simulator::new(&["a", "b"], &["x", "y"]).unwrap();
        assert_eq!(simulator.context().port("b"), Some(PortId(1)));
        assert_eq!(simulator.context().role("y"), Some(RoleId(1)));
        assert_eq!(simulator.context().role("b"), None);
    }

    #[test]
    fn room_in_the_cell_is_bounded() {
        struct Greedy;
        impl NetworkFunction for Greedy {
            fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
                assert_eq!(packet.headroom(), 256);
                assert!(packet.prepend(257).is_none() && packet.append(packet.tailroom() + 1).is_none());
                assert!(
                    packet.trim_front(packet.len() + 1).is_none()
                        && packet.truncate(packet.len() + 1).is_none()
                );
                assert!(packet.prepend(256).is_some() && packet.append(packet.tailroom()).is_some());
                Verdict::Next
            }
        }
        let mut simulator = Simulator::new(&[], &[]).unwrap();
        assert_eq!(simulator.inject(&mut Greedy, PortId(0), &[1; 60]).bytes.len(), 16_384);
    }
}
