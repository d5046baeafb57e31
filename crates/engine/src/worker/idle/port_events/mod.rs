// SPDX-License-Identifier: Apache-2.0
//! Finds the ports that have packets: during a sleep of the worker, and now and then for ports that turns do not poll.
//!
//! A sleep polls (poll(2)) the descriptors of ports that send, and asks devices without a lasting descriptor. With more
//! ports than [`POLL_ALL_UP_TO`], those that have not sent for a second wait in an epoll set, where they cost nothing;
//! the worker reads the set after a sleep and every [`CHECK_MICROS`]. So a virtual router with 512 interfaces pays for
//! those that it uses. A port that sends leaves the set, because the kernel would look for the set's waiters after each
//! packet that it has sent.
//!
//! Cost of a sleep in addition to two system calls: a cache miss for each port outside the set. Reading the set is one
//! system call.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use netvm_clock as clock;
use netvm_notify::ReadySet;
use netvm_region::MAX_PORTS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;

use crate::ids::PortId;
use crate::interface::{Arrival, Expects, PortQueue};
use crate::port_bits::PortBits;
use crate::worker::inputs::Inputs;
use crate::worker::state::ports::Ports;

/// Descriptors that can end a sleep: the set, two others, and one for each port outside the set.
const MAX_FDS: usize = MAX_PORTS + 3;
/// So many ports stay outside the set.
const POLL_ALL_UP_TO: usize = 16;
/// A port that has not sent for as long enters the set.
const QUIET_MICROS: u64 = 1_000_000;
/// How often a worker that does not sleep looks at the set.
const CHECK_MICROS: u64 = 100;

/// Limits of a sleep: at most `longest`, and at most `polled` if something can only be polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) longest: Duration,
    pub(crate) polled: Duration,
}

/// The ports' part of a worker's sleeps.
#[derive(Debug)]
pub(crate) struct PortEvents {
    set: ReadySet,
    /// Ports in the set.
    in_set: PortBits,
    /// Ports outside the set.
    outside: ArrayVec<PortId, MAX_PORTS>,
    /// When the worker last looked at the set, and when ports could last enter it.
    looked: u64,
    entered: u64,
    /// After a sleep: the ports that may have packets; first those without a descriptor.
    due: ArrayVec<PortId, MAX_PORTS>,
    /// How many of them have no descriptor.
    unnoticed: usize,
}

impl PortEvents {
    pub(crate) fn new(set: ReadySet) -> Self {
        Self {
            set,
            in_set: PortBits::default(),
            outside: ArrayVec::new_const(),
            looked: 0,
            entered: 0,
            due: ArrayVec::new_const(),
            unnoticed: 0,
        }
    }

    /// Packets of the port end the next sleeps. The port is one of `inputs`.
    pub(crate) fn add(&mut self, queue: &PortQueue, inputs: &mut Inputs) {
        if queue.devices().iter().all(|device| matches!(device.arrival(), Arrival::Never)) {
            inputs.watch(queue.port, true);
        } else {
            // Each is added once, and there are no more.
            let _ = self.outside.try_push(queue.port);
        }
    }

    /// Undoes [`PortEvents::add`], before the worker gives the port away.
    pub(crate) fn remove(&mut self, queue: &PortQueue) {
        self.outside.retain(|port| *port != queue.port);
        if self.in_set.take(queue.port) {
            lasting(queue).for_each(|fd| self.set.remove(fd));
        }
    }

    /// Looks at the set, if it is time.
    #[inline]
    pub(crate) fn check(&mut self, ports: &mut Ports, inputs: &mut Inputs, now: u64) {
        if now.wrapping_sub(self.looked) >= clock::cycles_in_micros(CHECK_MICROS) {
            self.looked = now;
            self.check_now(ports, inputs, now);
        }
    }

    #[inline(never)]
    fn check_now(&mut self, ports: &mut Ports, inputs: &mut Inputs, now: u64) {
        self.release_senders(ports, inputs);
        if now.wrapping_sub(self.entered) >= clock::cycles_in_micros(QUIET_MICROS) {
            self.entered = now;
            if self.outside.len() > POLL_ALL_UP_TO {
                self.admit_quiet(ports, inputs);
            }
            ports.sent = PortBits::default();
        }
        if !self.in_set.is_empty() {
            self.due.clear();
            read_set(&self.set, ports, &mut self.due);
            inputs.found(&self.due);
            inputs.poll_next_watched();
        }
    }

    /// Takes ports that have sent out of the set.
    fn release_senders(&mut self, ports: &Ports, inputs: &mut Inputs) {
        for port in self.in_set.take_all_of(&ports.sent) {
            if let Some(queue) = ports.get(port) {
                lasting(queue).for_each(|fd| self.set.remove(fd));
                let _ = self.outside.try_push(port);
                inputs.watch(port, false);
            }
        }
    }

    /// Puts ports that have not sent for a while into the set.
    fn admit_quiet(&mut self, ports: &Ports, inputs: &mut Inputs) {
        let Self { set, in_set, outside, .. } = self;
        outside.retain(|port| {
            let has_entered =
                !ports.sent.has(*port) && ports.get(*port).is_some_and(|queue| enter(set, queue));
            if has_entered {
                in_set.add(*port);
                inputs.watch(*port, true);
            }
            !has_entered
        });
    }

    /// After a sleep: the ports that may have packets.
    pub(crate) fn due(&self) -> &[PortId] {
        &self.due
    }

    /// Those that have packets by their descriptors.
    pub(crate) fn readable(&self) -> &[PortId] {
        &self.due[self.unnoticed..]
    }

    /// Sleeps until packets arrive, one of the `others` is readable, or the time is over. Returns which of the `others`
    /// are readable.
    pub(crate) fn sleep(
        &mut self,
        ports: &mut Ports,
        others: [BorrowedFd<'_>; 2],
        limits: Limits,
    ) -> [bool; 2] {
        for port in &self.outside {
            if let Some(queue) = ports.get_mut(*port) {
                queue.prepare_wait();
            }
        }
        self.due.clear();
        let mut limit = limits.longest;
        let mut fds = ArrayVec::<PollFd<'_>, MAX_FDS>::new();
        for fd in others {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        fds.push(PollFd::new(&self.set, PollFlags::IN));
        let mut polled = ArrayVec::<PortId, MAX_FDS>::new();
        let queues = self.outside.iter().filter_map(|port| ports.get(*port));
        for (port, device) in queues.flat_map(|queue| queue.devices().iter().map(|d| (queue.port, d))) {
            let limit_by = match device.expects() {
                Expects::Readable(fd) => {
                    let fd = PollFd::from_borrowed_fd(fd, PollFlags::IN);
                    let has_room = fds.try_push(fd).map(|()| polled.push(port)).is_ok();
                    (!has_room).then_some(limits.polled)
                }
                Expects::Arrived => Some(Duration::ZERO),
                Expects::Unnoticed => Some(limits.polled),
                Expects::Nothing => None,
            };
            // The next poll of a guest's port sends calls that its limit has delayed.
            let limit_by = limit_by.or_else(|| (!device.is_flushed()).then_some(limits.polled));
            let limit_by = limit_by.into_iter().chain(device.time_to_timer()).min();
            if let Some(by) = limit_by {
                limit = limit.min(by);
                let _ = self.due.try_push(port);
            }
        }
        if ports.has_unsent() {
            limit = limit.min(limits.polled);
        }
        self.unnoticed = self.due.len();
        let timeout = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        // An error (a signal) ends the sleep early, which is harmless.
        let _ = poll(&mut fds, Some(&timeout));
        let mut events = fds.iter();
        let [first, second, set] = [(); 3].map(|()| events.next().is_some_and(|fd| !fd.revents().is_empty()));
        for (port, fd) in polled.into_iter().zip(events) {
            if fd.revents().contains(PollFlags::IN) {
                let _ = self.due.try_push(port);
            }
            if fd.revents().contains(PollFlags::ERR) {
                clear_error(fd);
            }
        }
        if set {
            read_set(&self.set, ports, &mut self.due);
        }
        [first, second]
    }
}

/// Adds the port's descriptors to the set, if all of them last. Returns whether it did.
fn enter(set: &ReadySet, queue: &PortQueue) -> bool {
    let has_entered = queue.devices().iter().all(|device| match device.arrival() {
        // Without room in the set (`fs.epoll.max_user_watches`), the port stays outside.
        Arrival::Readable(fd) => set.add(fd, queue.port.0.into()).is_ok(),
        Arrival::Never => true,
        Arrival::Ask => false,
    });
    if !has_entered {
        lasting(queue).for_each(|fd| set.remove(fd));
    }
    has_entered
}

/// Notes the ports of the set that have packets.
fn read_set(set: &ReadySet, ports: &Ports, due: &mut ArrayVec<PortId, MAX_PORTS>) {
    set.read(|ready| {
        // The numbers are ports.
        let port = PortId(ready.number as u16);
        if ready.is_readable {
            let _ = due.try_push(port);
        }
        if ready.has_error {
            ports.get(port).into_iter().flat_map(lasting).for_each(clear_error);
        }
    });
}

/// The port's descriptors that last as long as the worker has the port.
fn lasting(queue: &PortQueue) -> impl Iterator<Item = BorrowedFd<'_>> {
    queue.devices().iter().filter_map(|device| match device.arrival() {
        Arrival::Readable(fd) => Some(fd),
        Arrival::Never | Arrival::Ask => None,
    })
}

/// Clears a socket's error by taking it: an interface that has gone down leaves one, which would end every further
/// sleep. The port's link shows what happened.
fn clear_error(fd: impl AsFd) {
    let _ = socket_error(fd);
}

#[cfg(test)]
mod tests;
