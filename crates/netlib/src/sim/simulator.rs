//! The simulator for a function in the test's own thread. In: packets. Out: the function's verdicts and the changed
//! packets.

use std::os::fd::{AsFd, OwnedFd};

use netvm_attach::Fds;
use netvm_region::ControlError;
use netvm_ring::Descriptor;

use super::host::{Host, socket_error};
use super::{MAX_PACKET, Outcome};
use crate::attach::{Attachment, Error};
use crate::endpoint::{BURST, Endpoint, ThreadContext};
use crate::function::NetworkFunction;
use crate::packet::PortId;
use crate::shared::{Stop, Waiting};

/// An engine with one region, one worker and one hop, in the same thread as the NF.
#[derive(Debug)]
pub struct Simulator {
    host: Host,
    endpoint: Endpoint,
    withdrawn: u64,
}

impl Simulator {
    /// [`MAX_PACKET`].
    pub const MAX_PACKET: usize = MAX_PACKET;

    /// A simulator with these ports and roles, numbered in the order of the lists.
    ///
    /// # Errors
    /// [`Error::Map`] or [`Error::Control`] if a few MiB of shared memory cannot be created.
    pub fn new(ports: &[&str], roles: &[&str]) -> Result<Self, Error> {
        let host = Host::new(ports, roles, 1)?;
        let passed = host.fds();
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(socket_error);
        let copies = |fds: &[_]| fds.iter().map(|fd| copy(fd)).collect::<Result<Vec<_>, _>>();
        let fds: Fds<OwnedFd> = Fds {
            control: copy(&passed.control)?,
            table: copy(&passed.table)?,
            regions: copies(&passed.regions)?,
            workers: copies(&passed.workers)?,
            nf_threads: copies(&passed.nf_threads)?,
        };
        let mut endpoints = Attachment::from_fds(fds, None, Waiting::Poll, Stop::default())?.into_endpoints();
        match endpoints.pop() {
            Some(endpoint) => Ok(Self { host, endpoint, withdrawn: 0 }),
            None => Err(Error::Control(ControlError::Unsound("simulator"))),
        }
    }

    /// The context of the NF's thread, for NFs that look up names.
    #[must_use]
    pub fn context(&self) -> ThreadContext<'_> {
        ThreadContext::new(&self.endpoint)
    }

    /// How often the NF has withdrawn its per-flow verdicts.
    #[must_use]
    pub const fn withdrawn(&self) -> u64 {
        self.withdrawn
    }

    /// Sends one packet with ingress port `ingress` to the NF, and returns the outcome.
    ///
    /// # Panics
    /// If the packet is longer than [`Simulator::MAX_PACKET`].
    pub fn inject(&mut self, function: &mut impl NetworkFunction, ingress: PortId, frame: &[u8]) -> Outcome {
        let mut outcomes = self.inject_all(function, &[(ingress, frame)]);
        assert_eq!(outcomes.len(), 1, "one packet in, one verdict out");
        outcomes.remove(0)
    }

    /// Sends packets to the NF in bursts of [`BURST`], and returns the outcomes in the order of the packets.
    ///
    /// # Panics
    /// If a packet is longer than [`Simulator::MAX_PACKET`].
    pub fn inject_all(
        &mut self,
        function: &mut impl NetworkFunction,
        frames: &[(PortId, &[u8])],
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(frames.len());
        for burst in frames.chunks(BURST) {
            let write = |((port, frame), buffer): (&(PortId, &[u8]), u32)| {
                self.host.write_frame(buffer, *port, frame)
            };
            let descriptors: Vec<_> = burst.iter().zip(0..).map(write).collect();
            let pushed: usize = self.host.rings.iter_mut().map(|(to, _)| to.push(&descriptors)).sum();
            assert_eq!(pushed, burst.len(), "the ring is larger than a burst");
            while let Some(mut burst) = self.endpoint.try_receive() {
                function.burst(&mut burst);
            }
            if function.withdraws() {
                self.endpoint.withdraw();
            }
            let mut returned = self.returned();
            returned.sort_by_key(|descriptor| descriptor.buffer());
            outcomes.extend(returned.iter().filter_map(|returned| self.host.outcome(*returned)));
        }
        outcomes
    }

    /// The packets that the NF has returned. Counts messages and removes them.
    fn returned(&mut self) -> Vec<Descriptor> {
        let mut returned = Vec::new();
        let mut burst = [Descriptor::default(); BURST];
        for (_, from) in &mut self.host.rings {
            while let count @ 1.. = from.pop(&mut burst) {
                returned.extend_from_slice(&burst[..count]);
            }
        }
        let all = returned.len();
        returned.retain(|descriptor| *descriptor != Descriptor::withdrawal(descriptor.worker()));
        self.withdrawn += (all - returned.len()) as u64;
        returned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Idle, Packet, RoleId, Verdict};

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
    fn verdicts_and_changes_of_length_are_returned() {
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
    fn more_packets_than_buffers_return_in_order() {
        let mut simulator = Simulator::new(&[], &[]).unwrap();
        let frames: Vec<Vec<u8>> = (0..1000u32).map(|n| [&[7][..], &n.to_be_bytes()].concat()).collect();
        let list: Vec<_> = frames.iter().map(|frame| (PortId(0), frame.as_slice())).collect();
        let got = simulator.inject_all(&mut Tagger, &list);
        assert_eq!(got.len(), 1000);
        assert!(got.iter().zip(&frames).all(|(got, frame)| got.bytes == *frame));
    }

    #[test]
    fn per_flow_verdicts_are_returned_and_withdrawn_in_order() {
        struct Firewall(bool);
        impl NetworkFunction for Firewall {
            fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
                self.0 |= packet.len() == 3;
                let idle = Idle(packet.len() as u16);
                if packet.data()[0] == 0 { Verdict::DropFlow(idle) } else { Verdict::SkipFlow(Idle::LONGEST) }
            }
            fn withdraws(&mut self) -> bool {
                std::mem::take(&mut self.0)
            }
        }
        let mut simulator = Simulator::new(&[], &[]).unwrap();
        let mut firewall = Firewall(false);
        let got = simulator.inject_all(&mut firewall, &[(PortId(0), &[0, 1]), (PortId(0), &[1, 1])]);
        assert_eq!(got[0].verdict, Verdict::DropFlow(Idle(2)));
        assert_eq!((got[1].verdict, simulator.withdrawn()), (Verdict::SkipFlow(Idle(u16::MAX)), 0));
        let got = simulator.inject(&mut firewall, PortId(0), &[0, 1, 2]);
        assert_eq!((got.verdict, simulator.withdrawn()), (Verdict::DropFlow(Idle(3)), 1));
    }

    #[test]
    fn names_are_numbered_in_order() {
        let simulator = Simulator::new(&["a", "b"], &["x", "y"]).unwrap();
        assert_eq!(simulator.context().port("b"), Some(PortId(1)));
        assert_eq!(simulator.context().role("y"), Some(RoleId(1)));
        assert_eq!(simulator.context().role("b"), None);
    }

    #[test]
    fn headroom_and_tailroom_are_bounded() {
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
