//! What is known of the guests of each socket.

use std::ffi::{CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use netvm_notify::EpollWaiter;
use rustix::io::Errno;

use super::calls::PendingCalls;
use super::connection::Taken;
use super::gate::{Gate, Pass, quiesce};
use super::in_flight_dma::InFlightDma;
use super::relay::Relay;
use super::{Accepts, Refusal, VhostMode, VhostStatus, connection};
use crate::Copier;

pub(super) const MAX_PAIRS: u16 = sys::NETVM_VHOST_MAX_PAIRS as u16;
/// Connections that a socket has at most, with those whose guests keep their relays.
const MOST_RELAYS: usize = 16;

/// The sockets that are served.
static SERVED: Mutex<Vec<Arc<Guests>>> = Mutex::new(Vec::new());

/// A connection: a guest's device.
#[derive(Debug)]
pub(super) struct Device {
    number: i32,
    /// Its driver is ready.
    pub(super) ready: bool,
    /// It has taken back memory that it shares.
    pub(super) truncated: bool,
    /// Messages about its memory or rings that have been said, and not handled yet.
    pub(super) messages: u32,
    pub(super) accepts: u8,
    /// Queue pairs to which the copier may copy, a bit each.
    pub(super) copied: u64,
    /// Queue pairs whose receive ring, or transmit ring, is switched on, a bit each.
    pub(super) receiving: u64,
    pub(super) sending: u64,
}

impl Device {
    const fn new(number: i32) -> Self {
        Self {
            number,
            ready: false,
            truncated: false,
            messages: 0,
            accepts: 0,
            copied: 0,
            receiving: 0,
            sending: 0,
        }
    }

    const fn usable(&self) -> bool {
        self.ready && !self.truncated
    }
}

/// How a guest tells of packets that it sends by a queue.
#[derive(Debug)]
pub(super) struct Kicks {
    pub(super) waiter: EpollWaiter,
    /// What it hears.
    heard: Mutex<Vec<OwnedFd>>,
    are_heard: AtomicBool,
}

impl Kicks {
    fn new() -> Result<Self, Errno> {
        Ok(Self { waiter: EpollWaiter::new()?, heard: Mutex::default(), are_heard: AtomicBool::new(false) })
    }

    /// Whether the guest can tell of all packets.
    pub(super) fn are_heard(&self) -> bool {
        self.are_heard.load(Ordering::Acquire)
    }

    /// Hears these from now on, in place of others.
    fn set(&self, kicks: Vec<OwnedFd>) {
        let mut heard = lock(&self.heard);
        self.are_heard.store(false, Ordering::Release);
        heard.drain(..).for_each(|kick| self.waiter.remove(&kick));
        let are_heard = !kicks.is_empty() && kicks.iter().all(|kick| self.waiter.add(kick).is_ok());
        *heard = kicks;
        self.are_heard.store(are_heard, Ordering::Release);
    }
}

/// What a port knows of its guest.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) path: CString,
    pub(super) mode: VhostMode,
    pub(super) gates: Box<[Gate]>,
    /// By queue: how the guest tells of packets that it sends.
    pub(super) kicks: Box<[Kicks]>,
    /// Connections, the newest last. It is the newest that is ready which has the port.
    devices: Mutex<Vec<Device>>,
    epoch: AtomicU16,
    /// What the copier has under way.
    pub(super) in_flight_dma: Option<InFlightDma>,
    /// How often a guest has truncated its memory.
    pub(super) shrinks: AtomicU32,
    /// Devices whose connection is not the library's any more, with what their guests are to be told by.
    pub(super) relayed: Mutex<Vec<(i32, Arc<PendingCalls>)>>,
    /// How many threads stand between guests and the library.
    relays: AtomicUsize,
    pub(super) refused: Mutex<Refused>,
}

/// What guests were hung up on for.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// How often, not counting those that followed on another.
    pub(super) count: u32,
    pub(super) last: Option<Refusal>,
    /// None has become ready since.
    pub(super) holds: bool,
}

impl Guests {
    /// `None` if the socket is served already; an error if there are no more descriptors.
    pub(super) fn register(
        path: CString,
        mode: VhostMode,
        queues: u16,
        copier: Option<Copier>,
    ) -> Result<Option<Arc<Self>>, Errno> {
        let kicks = (0..queues).map(|_| Kicks::new()).collect::<Result<_, _>>()?;
        let mut served = lock(&SERVED);
        if served.iter().any(|guests| guests.path == path) {
            return Ok(None);
        }
        let guests = Arc::new(Self {
            path,
            mode,
            gates: (0..queues).map(|_| Gate::default()).collect(),
            kicks,
            devices: Mutex::default(),
            epoch: AtomicU16::new(0),
            in_flight_dma: copier.map(InFlightDma::new),
            shrinks: AtomicU32::new(0),
            relayed: Mutex::default(),
            relays: AtomicUsize::new(0),
            refused: Mutex::default(),
        });
        served.push(Arc::clone(&guests));
        Ok(Some(guests))
    }

    pub(super) fn unregister(&self) {
        lock(&SERVED).retain(|guests| guests.path != self.path);
    }

    pub(super) fn status(&self) -> VhostStatus {
        let devices = lock(&self.devices);
        let Some(device) = current(&devices) else {
            let refused = lock(&self.refused);
            return VhostStatus {
                truncated: devices.iter().any(|device| device.truncated),
                refused: refused.last.clone().filter(|_| refused.holds),
                ..VhostStatus::default()
            };
        };
        VhostStatus {
            connected: true,
            truncated: false,
            refused: None,
            queue_pairs: (device.receiving | device.sending).count_ones() as u16,
            accepts: Accepts::from_bits(device.accepts),
        }
    }

    /// Changes what is known of a device, and opens the gates to what is there then.
    pub(super) fn change(&self, number: i32, change: impl FnOnce(&mut Vec<Device>, usize)) {
        let mut devices = lock(&self.devices);
        let place = place_of(&mut devices, number);
        change(&mut devices, place);
        let current = current(&devices);
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        if let Some(device) = current.filter(|device| device.messages > 0) {
            self.gates.iter().for_each(|gate| gate.pause(device.accepts));
            return;
        }
        for ((n, gate), kicks) in (0u16..).zip(&self.gates).zip(&self.kicks) {
            let pairs = current.map_or(0, |device| device.sending & share(n, self.gates.len()));
            kicks.set(current.map_or_else(Vec::new, |device| kicks_of(device.number, pairs)));
            let open = current.map(|device| {
                let send_pair = send_pair(device.receiving, n);
                let copier = (device.copied >> send_pair & 1) as u8 * sys::NETVM_VHOST_COPIER as u8;
                Pass { device: device.number, epoch, send_pair, accepts: device.accepts | copier }
            });
            gate.set(open, pairs);
        }
    }

    /// Keeps everybody out of a device before the library is told about its memory or rings, until it has handled that and all
    /// that is said meanwhile. For the device's relay, which is known by this list.
    ///
    /// Once the library has the message, it has locked the rings: who waits inside for such a lock, as one does to hand packets to
    /// a copier, would never leave, and looks like one who has lost its core. Nor may it get the lock afterwards: should the library
    /// fail to replace memory, it takes the old away, leaves the rings as they were, and gives back their locks before it tells
    /// that the device is gone (DPDK 22.11 to 25.11).
    ///
    /// Nothing is asked of the library, which handles other messages at the same time.
    fn keep_out(&self, number: i32, pending_calls: &Arc<PendingCalls>) {
        let relayed = lock(&self.relayed);
        if !relayed.iter().any(|(other, its)| *other == number && Arc::ptr_eq(its, pending_calls)) {
            // It has gone, and another may have its number.
            return;
        }
        let mut devices = lock(&self.devices);
        let place = place_of(&mut devices, number);
        devices[place].messages += 1;
        if let Some(device) = current(&devices).filter(|device| device.number == number) {
            self.gates.iter().for_each(|gate| gate.pause(device.accepts));
        }
        drop((devices, relayed));
        quiesce(&self.gates);
    }

    /// Takes a new device's connection from the library; whether that could be done. If not, it is hung up on.
    pub(super) fn relay(self: &Arc<Self>, number: i32) -> bool {
        let connection = connection::take(&self.path, self.mode);
        let has_room = self.relays.fetch_add(1, Ordering::Relaxed) < MOST_RELAYS;
        // The relay finds itself in the list.
        let mut relayed = lock(&self.relayed);
        let begun =
            connection.filter(|_| has_room).and_then(|connection| self.begin_relay(number, connection));
        let is_begun = begun.is_some();
        if let Some(pending_calls) = begun {
            relayed.push((number, pending_calls));
        } else {
            self.relays.fetch_sub(1, Ordering::Relaxed);
        }
        is_begun
    }

    fn begin_relay(
        self: &Arc<Self>,
        number: i32,
        (relay, taken): (Relay, Taken),
    ) -> Option<Arc<PendingCalls>> {
        let (guests, pending_calls) = (Arc::clone(self), Arc::clone(&relay.pending_calls));
        let run = move || {
            relay.run(|pending_calls| guests.keep_out(number, pending_calls), |why| guests.refuse(why));
            drop(taken);
            guests.relays.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread both ends are closed.
        std::thread::Builder::new().name("vhost-relay".to_owned()).spawn(run).ok().map(|_| pending_calls)
    }

    fn refuse(&self, why: Refusal) {
        let mut refused = lock(&self.refused);
        refused.count += u32::from(!refused.holds);
        (refused.last, refused.holds) = (Some(why), true);
    }

    /// Closes the gates if the device has them. Nothing is asked of the library, which handles messages at the same time.
    fn cut_off(&self, number: i32) {
        let mut devices = lock(&self.devices);
        let current = current(&devices).map(|device| device.number);
        let Some(device) = devices.iter_mut().find(|device| device.number == number && !device.truncated)
        else {
            return;
        };
        device.truncated = true;
        self.shrinks.fetch_add(1, Ordering::Relaxed);
        if current == Some(number) {
            self.close_gates();
        }
    }

    fn close_gates(&self) {
        for (gate, kicks) in self.gates.iter().zip(&self.kicks) {
            kicks.set(Vec::new());
            gate.set(None, 0);
        }
    }
}

/// The device that has the port.
fn current(devices: &[Device]) -> Option<&Device> {
    devices.iter().rev().find(|device| device.usable())
}

/// Where a device is in the list, from now on if it was not.
fn place_of(devices: &mut Vec<Device>, number: i32) -> usize {
    devices.iter().position(|device| device.number == number).unwrap_or_else(|| {
        devices.push(Device::new(number));
        devices.len() - 1
    })
}

/// The queue pairs that fall to a queue of so many.
fn share(queue: u16, queues: usize) -> u64 {
    (queue..MAX_PAIRS).step_by(queues.max(1)).fold(0, |pairs, pair| pairs | 1 << pair)
}

/// The queue pair that a queue sends by: its own, or another that is on. If none is, the library refuses the first.
fn send_pair(receiving: u64, queue: u16) -> u16 {
    let wanted = queue.checked_rem(receiving.count_ones() as u16).unwrap_or(0);
    (0..MAX_PAIRS).filter(|pair| receiving >> pair & 1 == 1).nth(wanted.into()).unwrap_or(0)
}

/// Duplicates of the descriptors by which a device's guest tells of packets, of all pairs or none.
fn kicks_of(device: i32, pairs: u64) -> Vec<OwnedFd> {
    let of = |pair: u16| {
        // SAFETY: the device is there, as the library calls for it.
        let fd = unsafe { sys::netvm_vhost_kick(device, 2 * pair + 1) };
        // SAFETY: takes no pointer; a number without a descriptor gives an error.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: a new descriptor, which nobody else has.
        (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })
    };
    let all = (0..MAX_PAIRS).filter(|pair| pairs >> pair & 1 == 1).map(of);
    all.collect::<Option<_>>().unwrap_or_default()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guests of a socket.
pub(super) fn by_path(path: &CStr) -> Option<Arc<Guests>> {
    lock(&SERVED).iter().find(|guests| guests.path.as_c_str() == path).cloned()
}

/// Closes the gates of a guest that has taken back memory which it shares, until it connects again.
pub(super) fn close(device: i32) {
    for guests in lock(&SERVED).iter() {
        guests.cut_off(device);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Barrier;
    use std::time::Duration;

    use super::connection::tests::{ALONE, open_to_programs, pair};
    use super::*;

    #[test]
    fn every_pair_falls_to_one_queue() {
        for queues in [1, 3, 64] {
            let shares: Vec<u64> = (0..queues).map(|n| share(n, queues.into())).collect();
            assert_eq!(shares.iter().fold(0, |all, share| all | share), u64::MAX);
            assert_eq!(shares.iter().map(|share| share.count_ones()).sum::<u32>(), 64);
        }
    }

    #[test]
    fn a_queue_sends_by_a_pair_that_is_on() {
        assert_eq!(send_pair(0, 3), 0);
        assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b1, n)), [0; 4]);
        assert_eq!([0, 1, 2, 3].map(|n| send_pair(0b101, n)), [0, 2, 0, 2]);
    }

    #[test]
    fn who_is_kept_out_of_a_device_has_left_it_and_stays_out_until_all_is_handled() {
        const DEVICE: i32 = 3;
        let path = CString::new("/kept").unwrap();
        let guests = Guests::register(path, VhostMode::Client, 1, None).unwrap().unwrap();
        let (pending_calls, gate) = (Arc::<PendingCalls>::default(), &guests.gates[0]);
        lock(&guests.relayed).push((DEVICE, Arc::clone(&pending_calls)));
        guests.change(DEVICE, |devices, place| devices[place].ready = true);
        let (is_inside, is_done, leave) = (Barrier::new(2), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stay = |pass: Pass, _| {
                    is_inside.wait();
                    while !leave.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    pass.device
                };
                assert_eq!(gate.enter(true, stay), Some(DEVICE));
            });
            is_inside.wait();
            scope.spawn(|| {
                guests.keep_out(DEVICE, &pending_calls);
                is_done.store(true, Ordering::Relaxed);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!is_done.load(Ordering::Relaxed));
            leave.store(true, Ordering::Relaxed);
        });
        // A second message, before the first is handled.
        guests.keep_out(DEVICE, &pending_calls);
        for is_open in [false, true] {
            assert!(gate.is_paused() && gate.enter(true, |_, _| ()).is_none());
            guests.change(DEVICE, |devices, place| devices[place].messages -= 1);
            assert_eq!(gate.enter(true, |_, _| ()).is_some(), is_open);
        }
        // Of a connection that has gone.
        guests.keep_out(DEVICE, &Arc::default());
        assert!(gate.enter(true, |_, _| ()).is_some());
        guests.unregister();
    }

    #[test]
    fn who_is_one_too_many_is_hung_up_on() {
        let _alone = ALONE.lock();
        let path = CString::new("/many").unwrap();
        let guests = Guests::register(path, VhostMode::Client, 1, None).unwrap().unwrap();
        let mut connections = Vec::new();
        for number in 0..=MOST_RELAYS {
            let (_, library, guest) = pair("many");
            open_to_programs(&library);
            assert_eq!(guests.relay(number as i32), number < MOST_RELAYS);
            connections.push((library, guest));
        }
        let (mut library, mut guest) = connections.pop().unwrap();
        assert_eq!((library.read(&mut [0]).unwrap(), guest.read(&mut [0]).unwrap()), (0, 0));
        guests.unregister();
    }
}
