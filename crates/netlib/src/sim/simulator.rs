// SPDX-License-Identifier: Apache-2.0
//! The simulator for a function in the test's own thread. In: packets. Out: the function's verdicts and the changed
//! packets.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use netvm_attach::Fds;
use netvm_attach::messages::{Message, Request, try_receive, try_send};
use netvm_ids::PortId;
use netvm_region::ControlError;
use netvm_ring::Descriptor;
use netvm_wire::ConnState;

use super::host::{Host, Returned, socket_error};
use super::{MAX_PACKET, Outcome, clock};
use crate::attach::{Attachment, Error};
use crate::endpoint::{BURST, Endpoint, ThreadContext};
use crate::function::{NetworkFunction, exchange_messages};
use crate::shared::messages::{Outgoing, Transport};
use crate::shared::{Stop, Waiting};

/// Interval of the NF's ticks.
const TICK: Duration = Duration::from_millis(100);

/// The engine's side of a simulator: what it puts into the NF's ring, the NF's endpoint receives.
#[derive(Debug)]
pub struct Engine {
    host: Host,
    /// The buffers of packets that the NF got, in the order in which they were put, until it returns or holds them.
    out: Vec<u32>,
    withdrawn: u64,
    /// netvmd's end of the NF's socket.
    socket: OwnedFd,
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
        let (socket, of_nf) = netvm_attach::pair().map_err(socket_error)?;
        let attachment = Attachment::from_fds(fds, Transport::Socket(of_nf), Waiting::Poll, Stop::default())?;
        match attachment.into_endpoints().pop() {
            Some(endpoint) => Ok((Self { host, out: Vec::new(), withdrawn: 0, socket }, endpoint)),
            None => Err(Error::Control(ControlError::Unsound("simulator"))),
        }
    }

    /// Gives chains names, numbered in the order of the list.
    pub fn name_chains(&mut self, chains: &[&str]) {
        self.host.name_chains(chains);
    }

    /// Sends the NF a message, as netvmd does. Returns whether there was room for it.
    pub fn tell(&self, message: &Message) -> bool {
        try_send(&self.socket, message).unwrap_or(false)
    }

    /// The messages that the NF has sent since the last call.
    pub fn told(&self) -> Vec<Outgoing> {
        let sent = std::iter::from_fn(|| try_receive(&self.socket).ok().flatten());
        let message = |request| match request {
            Request::Send { to, version, payload } => Some(Outgoing { to, version, payload }),
            Request::Subscribe => None,
        };
        sent.filter_map(message).collect()
    }

    /// Sends a packet with ingress port `ingress` to the NF. Returns whether there was room for it: it is at most
    /// [`MAX_PACKET`] bytes long, and the NF has less than [`BURST`] packets since [`Engine::take`] returned nothing
    /// more.
    pub fn put(&mut self, ingress: PortId, frame: &[u8]) -> bool {
        if frame.len() > MAX_PACKET || self.out.len() >= BURST {
            return false;
        }
        let Some(descriptor) = self.host.write_frame(ingress, frame) else { return false };
        self.out.push(descriptor.buffer());
        self.host.rings.iter_mut().map(|(to, _)| to.push(&[descriptor])).sum::<usize>() == 1
    }

    /// What the NF has returned since the last call: packets that it got, in the order in which they were put, then
    /// those that it has made, and those that it had held. Returns are complete when the NF has sent its burst.
    pub fn take(&mut self) -> Vec<Outcome> {
        let mut returned = self.returned();
        returned.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
        returned.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// The same in the order in which the NF has sent them.
    pub fn take_in_order(&mut self) -> Vec<Outcome> {
        self.returned().into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// How often the NF has withdrawn its per-flow verdicts.
    #[must_use]
    pub const fn withdrawn(&self) -> u64 {
        self.withdrawn
    }

    /// The packets that the NF has returned, and the place of each among those that were put. Does what its messages
    /// ask for; ignores descriptors that an engine would refuse.
    fn returned(&mut self) -> Vec<(Option<usize>, Outcome)> {
        let mut returned = Vec::new();
        let before = std::mem::take(&mut self.out);
        self.out.clone_from(&before);
        let mut burst = [Descriptor::default(); BURST];
        for thread in 0..self.host.rings.len() {
            while let count @ 1.. = self.host.rings[thread].1.pop(&mut burst) {
                for descriptor in &burst[..count] {
                    let buffer = descriptor.buffer();
                    let place = before.iter().position(|out| *out == buffer);
                    match self.host.take_back(thread, *descriptor) {
                        Returned::Packet(outcome) => returned.push((place, outcome)),
                        Returned::Withdrawal => self.withdrawn += 1,
                        Returned::Held => {}
                        Returned::Message | Returned::Corrupt => continue,
                    }
                    if !descriptor.is_control() {
                        self.out.retain(|out| *out != buffer);
                    }
                }
            }
        }
        returned
    }
}

/// An engine with one region, one worker and one hop, in the same thread as the NF.
#[derive(Debug)]
pub struct Simulator {
    engine: Engine,
    endpoint: Endpoint,
    /// The NF's clock, once it is set.
    time: Duration,
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
        Ok(Self { engine, endpoint, time: Duration::ZERO })
    }

    /// Gives chains names, numbered in the order of the list.
    pub fn name_chains(&mut self, chains: &[&str]) {
        self.engine.name_chains(chains);
    }

    /// Sends the NF messages, as netvmd does. Returns the messages that it sends then.
    pub fn exchange_messages(
        &mut self,
        function: &mut impl NetworkFunction,
        messages: &[Message],
    ) -> Vec<Outgoing> {
        messages.iter().for_each(|message| assert!(self.engine.tell(message), "there is room"));
        exchange_messages(function, &mut self.endpoint, true);
        self.engine.told()
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

    /// Sends packets to the NF in bursts of [`BURST`], and returns all that it sends meanwhile, in the order in which
    /// it does: these packets, packets that it has made, and those that it had held.
    ///
    /// # Panics
    /// If a packet is longer than [`Simulator::MAX_PACKET`].
    pub fn exchange(
        &mut self,
        function: &mut impl NetworkFunction,
        frames: &[(PortId, &[u8])],
    ) -> Vec<Outcome> {
        self.in_bursts(function, frames, Engine::take_in_order)
    }

    /// Lets time pass for the NF, in steps of 100 ms with a call of [`NetworkFunction::tick`] and
    /// [`NetworkFunction::send_due`] each, and returns what it sends. [`clock::cycles`] moves, too. Without a
    /// call of this, its clock is the processor's.
    pub fn advance(&mut self, function: &mut impl NetworkFunction, time: Duration) -> Vec<Outcome> {
        let end = self.time + time;
        let mut sent = Vec::new();
        while self.time < end {
            let step = TICK.min(end - self.time);
            self.time += step;
            self.endpoint.set_time(self.time);
            clock::advance(step);
            function.tick();
            function.send_due(&mut self.endpoint.outbox());
            sent.append(&mut self.engine.take_in_order());
        }
        sent
    }

    /// Sends one packet with ingress port `ingress` to the NF, and returns the outcome.
    ///
    /// # Panics
    /// If the packet is longer than [`Simulator::MAX_PACKET`], or the NF holds it or sends more than one.
    pub fn inject(&mut self, function: &mut impl NetworkFunction, ingress: PortId, frame: &[u8]) -> Outcome {
        let mut outcomes = self.inject_all(function, &[(ingress, frame)]);
        assert_eq!(outcomes.len(), 1, "one packet in, one verdict out");
        outcomes.remove(0)
    }

    /// Sends packets to the NF in bursts of [`BURST`], and returns the outcomes in the order of the packets, each burst
    /// followed by what else the NF sends.
    ///
    /// # Panics
    /// If a packet is longer than [`Simulator::MAX_PACKET`].
    pub fn inject_all(
        &mut self,
        function: &mut impl NetworkFunction,
        frames: &[(PortId, &[u8])],
    ) -> Vec<Outcome> {
        self.in_bursts(function, frames, Engine::take)
    }

    fn in_bursts(
        &mut self,
        function: &mut impl NetworkFunction,
        frames: &[(PortId, &[u8])],
        take: impl Fn(&mut Engine) -> Vec<Outcome>,
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
            outcomes.extend(take(&mut self.engine));
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use netvm_attach::messages::MAX_PAYLOAD;

    use super::*;
    use crate::packet::{Packet, Verdict};
    use crate::shared::messages::MessageError;

    /// Answers messages of other NFs.
    #[derive(Default)]
    struct Answering(Vec<Outgoing>, Vec<Message>);

    impl NetworkFunction for Answering {
        fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
            Verdict::Next
        }

        fn message(&mut self, message: &Message) {
            if let Message::FromNf { role, version, payload, .. } = message {
                let (to, payload) = (role.clone(), payload.iter().rev().copied().collect());
                self.0.push(Outgoing { to, version: *version, payload });
            }
            self.1.push(message.clone());
        }

        fn sends(&mut self) -> Option<Outgoing> {
            self.0.pop()
        }
    }

    #[test]
    fn messages_reach_the_function_and_its_own_are_sent() {
        let mut simulator = Simulator::new(&[], &[]).unwrap();
        let mut function = Answering::default();
        assert_eq!(simulator.exchange_messages(&mut function, &[]), []);
        let from_nf =
            Message::FromNf { role: "scan".to_owned(), instance: 3, version: 2, payload: vec![1, 2, 3] };
        let messages = [from_nf, Message::Unknown, Message::Load { percent: 7 }, Message::Drain];
        let answer = Outgoing { to: "scan".to_owned(), version: 2, payload: vec![3, 2, 1] };
        assert_eq!(simulator.exchange_messages(&mut function, &messages), [answer]);
        let [first, _, third, fourth] = messages;
        assert_eq!(function.1, [first, third, fourth], "not one of a later version");
        // A ring is bounded, and so is a message.
        let endpoint = &simulator.endpoint;
        let message = |length| Outgoing { to: "log".to_owned(), version: 1, payload: vec![0xff; length] };
        let sent = (0..10_000).take_while(|_| endpoint.send_message(message(MAX_PAYLOAD)).is_ok()).count();
        assert!((10..10_000).contains(&sent), "{sent}");
        assert!(matches!(endpoint.send_message(message(1)), Err(MessageError::Full)));
        let too_long = endpoint.send_message(message(MAX_PAYLOAD + 1));
        assert!(matches!(too_long, Err(MessageError::TooLong(1025))));
    }
}
