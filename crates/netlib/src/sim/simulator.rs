//! The simulator for a function in the test's own thread. In: packets. Out: the function's verdicts and the changed
//! packets.

use std::os::fd::{AsFd, OwnedFd};

use netvm_attach::Fds;
use netvm_ids::PortId;
use netvm_region::ControlError;
use netvm_ring::Descriptor;
use netvm_wire::ConnState;

use super::host::{Host, socket_error};
use super::{MAX_PACKET, Outcome};
use crate::attach::{Attachment, Error};
use crate::endpoint::{BURST, Endpoint, ThreadContext};
use crate::function::NetworkFunction;
use crate::shared::{Stop, Waiting};

/// The engine's side of a simulator: what it puts into the NF's ring, the NF's endpoint receives.
#[derive(Debug)]
pub struct Engine {
    host: Host,
    /// Packets that the NF has, or had and [`Engine::take`] did not return yet.
    out: u32,
    withdrawn: u64,
}

impl Engine {
    /// An engine with one region, one worker and one hop, and the endpoint of the NF's only thread. Ports and roles are
    /// numbered in the order of the lists.
    ///
    /// # Errors
    /// [`Error::Map`] or [`Error::Control`] if a few MiB of shared memory cannot be created.
    pub fn new(ports: &[&str], roles: &[&str]) -> Result<(Self, Endpoint), Error> {
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
            Some(endpoint) => Ok((Self { host, out: 0, withdrawn: 0 }, endpoint)),
            None => Err(Error::Control(ControlError::Unsound("simulator"))),
        }
    }

    /// Sends a packet with ingress port `ingress` to the NF. Returns whether there was room for it: it is at most
    /// [`MAX_PACKET`] bytes long, and the NF has less than [`BURST`] packets since [`Engine::take`] returned nothing
    /// more.
    pub fn put(&mut self, ingress: PortId, frame: &[u8]) -> bool {
        if frame.len() > MAX_PACKET || self.out as usize >= BURST {
            return false;
        }
        let descriptor = self.host.write_frame(self.out, ingress, frame);
        let pushed: usize = self.host.rings.iter_mut().map(|(to, _)| to.push(&[descriptor])).sum();
        self.out += pushed as u32;
        pushed == 1
    }

    /// What the NF has returned since the last call, in the order in which it was put. Returns are complete when the NF
    /// has sent its burst.
    pub fn take(&mut self) -> Vec<Outcome> {
        let mut returned = self.returned();
        returned.sort_by_key(|descriptor| descriptor.buffer());
        if !returned.is_empty() {
            self.out = 0;
        }
        returned.iter().filter_map(|returned| self.host.outcome(*returned)).collect()
    }

    /// How often the NF has withdrawn its per-flow verdicts.
    #[must_use]
    pub const fn withdrawn(&self) -> u64 {
        self.withdrawn
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

/// An engine with one region, one worker and one hop, in the same thread as the NF.
#[derive(Debug)]
pub struct Simulator {
    engine: Engine,
    endpoint: Endpoint,
}

impl Simulator {
    /// [`MAX_PACKET`].
    pub const MAX_PACKET: usize = MAX_PACKET;

    /// A simulator with these ports and roles, numbered in the order of the lists.
    ///
    /// # Errors
    /// [`Error::Map`] or [`Error::Control`] if a few MiB of shared memory cannot be created.
    pub fn new(ports: &[&str], roles: &[&str]) -> Result<Self, Error> {
        let (engine, endpoint) = Engine::new(ports, roles)?;
        Ok(Self { engine, endpoint })
    }

    /// Sends packets from now on as if their connections were in this state ([`Packet::state`](crate::Packet::state)).
    pub const fn set_state(&mut self, state: ConnState) {
        self.engine.host.state = state;
    }

    /// The context of the NF's thread, for NFs that look up names.
    #[must_use]
    pub fn context(&self) -> ThreadContext<'_> {
        ThreadContext::new(&self.endpoint)
    }

    /// How often the NF has withdrawn its per-flow verdicts.
    #[must_use]
    pub const fn withdrawn(&self) -> u64 {
        self.engine.withdrawn()
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
            for (port, frame) in burst {
                assert!(frame.len() <= MAX_PACKET, "a packet of {} bytes", frame.len());
                assert!(self.engine.put(*port, frame), "the ring is larger than a burst");
            }
            while let Some(mut burst) = self.endpoint.try_receive() {
                function.burst(&mut burst);
            }
            if function.withdraws() {
                self.endpoint.withdraw();
            }
            outcomes.extend(self.engine.take());
        }
        outcomes
    }
}
