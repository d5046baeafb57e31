// SPDX-License-Identifier: Apache-2.0
//! Sets of ports with sockets that tests send to.

use std::os::unix::net::UnixDatagram;

use dpdk::Batch;
use netvm_notify::new_eventfd;

use super::*;
use crate::ids::MemoryId;
use crate::interface::{Device, PortContext};
use crate::memory::Memory;
use crate::worker::state::handoff::Handoff;

const COUNT: u16 = 100;

/// A device that passes no packets.
enum Idle {
    /// With a socket that tests send to.
    Socket(UnixDatagram),
    /// It has something to do after this time, and gets nothing.
    Timer(Duration),
}

impl Device for Idle {
    fn receive(&mut self, _: &Memory, _: &mut Batch, _: usize, _: &PortContext<'_>) {}

    fn enqueue(&mut self, _: &Memory, _: &mut Batch, _: &PortContext<'_>) {}

    fn flush(&mut self, _: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn drop_unsent(&mut self, _: &PortContext<'_>) {}

    fn arrival(&self) -> Arrival<'_> {
        match self {
            Self::Socket(socket) => Arrival::Readable(socket.as_fd()),
            Self::Timer(_) => Arrival::Ask,
        }
    }

    fn expects(&self) -> Expects<'_> {
        match self {
            Self::Socket(socket) => Expects::Readable(socket.as_fd()),
            Self::Timer(_) => Expects::Nothing,
        }
    }

    fn time_to_timer(&self) -> Option<Duration> {
        match self {
            Self::Socket(_) => None,
            Self::Timer(time) => Some(*time),
        }
    }
}

struct Rig {
    events: PortEvents,
    ports: Ports,
    inputs: Inputs,
    senders: Vec<UnixDatagram>,
    /// Copies of the devices' sockets.
    receivers: Vec<UnixDatagram>,
    now: u64,
}

impl Rig {
    fn new() -> Self {
        let (mut ports, mut inputs) = (Ports::new(Handoff::default()), Inputs::default());
        let mut events = PortEvents::new(ReadySet::new().unwrap());
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for n in 0..COUNT {
            let (receiver, sender) = UnixDatagram::pair().unwrap();
            receivers.push(receiver.try_clone().unwrap());
            senders.push(sender);
            let device: Box<dyn Device> = Box::new(Idle::Socket(receiver));
            ports.add(Box::new(PortQueue::new(PortId(n), MemoryId(0), false, vec![device])));
            inputs.add(PortId(n));
            events.add(ports.get(PortId(n)).unwrap(), &mut inputs);
        }
        Self { events, ports, inputs, senders, receivers, now: clock::cycles_in_micros(QUIET_MICROS) }
    }

    /// These ports have a packet.
    fn send_by(&self, ports: [usize; 2]) {
        for n in ports {
            self.senders[n].send(&[0]).unwrap();
        }
    }

    /// Sleeps for a millisecond at most. Returns the ports that may have packets, sorted.
    fn sleep(&mut self) -> Vec<u16> {
        let limit = Duration::from_millis(1);
        let other = new_eventfd().unwrap();
        let others = [other.as_fd(); 2];
        let limits = Limits { longest: limit, polled: limit };
        assert_eq!(self.events.sleep(&mut self.ports, others, limits), [false; 2]);
        assert_eq!(self.events.due(), self.events.readable());
        let mut due: Vec<u16> = self.events.due().iter().map(|port| port.0).collect();
        due.sort_unstable();
        due
    }

    /// Looks at the set so much later.
    fn check_after(&mut self, micros: u64) {
        self.now += clock::cycles_in_micros(micros);
        self.events.check(&mut self.ports, &mut self.inputs, self.now);
    }

    /// The ports of the next turn, while others have packets.
    fn turn(&mut self) -> Vec<u16> {
        self.inputs.begin_turn(64);
        let (mut ports, mut cursor) = (Vec::new(), 0);
        while let Some((n, port)) = self.inputs.next_due(&mut cursor) {
            self.inputs.polled(n, 0);
            ports.push(port.0);
        }
        ports
    }
}

#[test]
fn quiet_ports_are_polled_only_when_they_have_packets() {
    let mut rig = Rig::new();
    rig.check_after(0);
    assert_eq!((rig.events.outside.len(), rig.events.in_set.is_empty()), (0, false));
    // Ports are busy at first.
    (0..40).for_each(|_| _ = rig.turn());
    assert!(rig.turn().is_empty());
    rig.send_by([7, 70]);
    rig.check_after(CHECK_MICROS);
    let turn = rig.turn();
    assert!(turn.contains(&7) && turn.contains(&70) && turn.len() <= 3, "{turn:?}");
    assert_eq!(rig.sleep(), [7, 70]);
    for n in [7, 70] {
        rig.receivers[n].recv(&mut [0]).unwrap();
    }
    assert!(rig.sleep().is_empty());
}

#[test]
fn ports_that_send_leave_the_set_and_wake_the_worker_all_the_same() {
    let mut rig = Rig::new();
    rig.check_after(0);
    rig.ports.mark_unsent(PortId(3));
    rig.check_after(CHECK_MICROS);
    assert_eq!(rig.events.outside[..], [PortId(3)]);
    rig.send_by([3, 4]);
    assert_eq!(rig.sleep(), [3, 4]);
    // A few stay outside for good.
    rig.check_after(2 * QUIET_MICROS);
    rig.check_after(2 * QUIET_MICROS);
    assert_eq!(rig.events.outside[..], [PortId(3)]);
    // Many return after a second without a packet sent.
    (0..COUNT).for_each(|n| rig.ports.mark_unsent(PortId(n)));
    rig.check_after(CHECK_MICROS);
    assert_eq!(rig.events.outside.len(), usize::from(COUNT));
    rig.check_after(QUIET_MICROS);
    assert_eq!(rig.events.outside.len(), usize::from(COUNT), "they sent within the last second");
    rig.check_after(QUIET_MICROS);
    assert!(rig.events.outside.is_empty());
    assert_eq!(rig.sleep(), [3, 4]);
}

#[test]
fn a_removed_port_is_not_reported_though_its_socket_is_open() {
    let mut rig = Rig::new();
    rig.check_after(0);
    for n in [5, 6] {
        rig.senders[usize::from(n)].send(&[0]).unwrap();
        rig.ports.mark_unsent(PortId(6));
        rig.check_after(CHECK_MICROS);
        let queue = rig.ports.get(PortId(n)).unwrap();
        rig.events.remove(queue);
        rig.inputs.remove(PortId(n));
        drop(rig.ports.remove(PortId(n)));
        assert!(rig.sleep().is_empty());
    }
}

#[test]
fn a_sleep_ends_when_a_port_has_something_to_do() {
    let mut rig = Rig::new();
    let device: Box<dyn Device> = Box::new(Idle::Timer(Duration::from_micros(50)));
    rig.ports.add(Box::new(PortQueue::new(PortId(COUNT), MemoryId(0), false, vec![device])));
    rig.inputs.add(PortId(COUNT));
    rig.events.add(rig.ports.get(PortId(COUNT)).unwrap(), &mut rig.inputs);
    let limit = Duration::from_secs(20);
    let other = new_eventfd().unwrap();
    let limits = Limits { longest: limit, polled: limit };
    rig.events.sleep(&mut rig.ports, [other.as_fd(); 2], limits);
    assert_eq!(rig.events.due(), [PortId(COUNT)], "the port is polled after the sleep");
}
