//! The guests of each socket: their devices, kicks, relays and refusals.

use std::ffi::{CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dpdk_sys as sys;
use netvm_notify::EpollWaiter;
use rustix::io::Errno;

use super::calls::PendingCalls;
use super::in_flight_dma::InFlightDma;
use super::messages::{Relay, Taken, connection};
use super::rcu::{ActiveDevice, RcuSlot, synchronize};
use super::{Accepts, Refusal, VhostMode, VhostStatus, lock};
use crate::DmaChannel;

pub(super) const MAX_PAIRS: u16 = sys::NETVM_VHOST_MAX_PAIRS as u16;
/// Connections per socket, including old ones whose relay still runs.
const MOST_RELAYS: usize = 16;

/// The sockets being served.
static SERVED: Mutex<Vec<Arc<Guests>>> = Mutex::new(Vec::new());

/// A connection: a guest's device.
#[derive(Debug)]
pub(super) struct Device {
    number: i32,
    /// Its driver is ready.
    pub(super) ready: bool,
    /// It truncated memory that it shares.
    pub(super) truncated: bool,
    /// Messages about its memory or rings that the library has not handled yet.
    pub(super) messages: u32,
    pub(super) accepts: u8,
    /// Bit mask of the queue pairs to which the DMA channel may copy.
    pub(super) copied: u64,
    /// Bit masks of the queue pairs whose receive ring, and transmit ring, is enabled.
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

/// The kick descriptors (eventfds) of one queue.
#[derive(Debug)]
pub(super) struct Kicks {
    pub(super) waiter: EpollWaiter,
    /// The watched descriptors.
    watched: Mutex<Vec<OwnedFd>>,
    all_watched: AtomicBool,
}

impl Kicks {
    fn new() -> Result<Self, Errno> {
        Ok(Self {
            waiter: EpollWaiter::new()?,
            watched: Mutex::default(),
            all_watched: AtomicBool::new(false),
        })
    }

    /// Whether the queue watches a kick descriptor for every pair.
    pub(super) fn all_watched(&self) -> bool {
        self.all_watched.load(Ordering::Acquire)
    }

    /// Watches these descriptors instead of the previous ones.
    fn set(&self, kicks: Vec<OwnedFd>) {
        let mut watched = lock(&self.watched);
        self.all_watched.store(false, Ordering::Release);
        watched.drain(..).for_each(|kick| self.waiter.remove(&kick));
        let all_watched = !kicks.is_empty() && kicks.iter().all(|kick| self.waiter.add(kick).is_ok());
        *watched = kicks;
        self.all_watched.store(all_watched, Ordering::Release);
    }
}

/// The guests of one socket; one of them is active.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) path: CString,
    pub(super) mode: VhostMode,
    pub(super) rcu_slots: Box<[RcuSlot]>,
    /// Kick descriptors by queue.
    pub(super) kicks: Box<[Kicks]>,
    /// Connections, the newest last. The newest ready one is active.
    devices: Mutex<Vec<Device>>,
    epoch: AtomicU16,
    /// The port's DMA channel.
    pub(super) in_flight_dma: Option<InFlightDma>,
    /// How often a guest has truncated its memory.
    pub(super) truncations: AtomicU32,
    /// Devices behind a relay, with their guests' call descriptors.
    pub(super) relayed: Mutex<Vec<(i32, Arc<PendingCalls>)>>,
    /// Running relay threads.
    relays: AtomicUsize,
    pub(super) refused: Mutex<Refused>,
}

/// Why guests were disconnected.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Disconnects, not counting repeated ones.
    pub(super) count: u32,
    pub(super) last: Option<Refusal>,
    /// True until the next guest becomes ready.
    pub(super) holds: bool,
}

impl Guests {
    /// `None` if the socket is already served; an error if descriptors run out.
    pub(super) fn register(
        path: CString,
        mode: VhostMode,
        queues: u16,
        dma: Option<DmaChannel>,
    ) -> Result<Option<Arc<Self>>, Errno> {
        let kicks = (0..queues).map(|_| Kicks::new()).collect::<Result<_, _>>()?;
        let mut served = lock(&SERVED);
        if served.iter().any(|guests| guests.path == path) {
            return Ok(None);
        }
        let guests = Arc::new(Self {
            path,
            mode,
            rcu_slots: (0..queues).map(|_| RcuSlot::default()).collect(),
            kicks,
            devices: Mutex::default(),
            epoch: AtomicU16::new(0),
            in_flight_dma: dma.map(InFlightDma::new),
            truncations: AtomicU32::new(0),
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

    /// Changes the state of a device, and publishes the device that is active then.
    pub(super) fn change(&self, number: i32, change: impl FnOnce(&mut Vec<Device>, usize)) {
        let mut devices = lock(&self.devices);
        let place = index_of(&mut devices, number);
        change(&mut devices, place);
        let current = current(&devices);
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        if let Some(device) = current.filter(|device| device.messages > 0) {
            self.rcu_slots.iter().for_each(|rcu_slot| rcu_slot.pause(device.accepts));
            return;
        }
        for ((n, rcu_slot), kicks) in (0u16..).zip(&self.rcu_slots).zip(&self.kicks) {
            let pairs = current.map_or(0, |device| device.sending & share(n, self.rcu_slots.len()));
            kicks.set(current.map_or_else(Vec::new, |device| kicks_of(device.number, pairs)));
            let open = current.map(|device| {
                let send_pair = send_pair(device.receiving, n);
                let dma = (device.copied >> send_pair & 1) as u8 * sys::NETVM_VHOST_DMA as u8;
                ActiveDevice { device: device.number, epoch, send_pair, accepts: device.accepts | dma }
            });
            rcu_slot.set(open, pairs);
        }
    }

    /// Withdraws a device before the library gets a message about its memory or rings, until the library has handled this
    /// message and all later ones. Only the device's relay calls this; `pending_calls` identifies it.
    ///
    /// The library locks the rings while it handles the message. An owner that waits in a read section for such a lock
    /// (to start DMA copies, for example) would never leave it. Nor may it get the lock afterwards: if the library
    /// fails to replace memory, it unmaps the old memory, leaves the rings as they were and releases their locks before
    /// it reports that the device is gone (DPDK 22.11 to 25.11).
    ///
    /// This does not call the library, which may be handling other messages.
    fn pause_device(&self, number: i32, pending_calls: &Arc<PendingCalls>) {
        let relayed = lock(&self.relayed);
        if !relayed.iter().any(|(other, its)| *other == number && Arc::ptr_eq(its, pending_calls)) {
            // The device is gone, and another may have its number.
            return;
        }
        let mut devices = lock(&self.devices);
        let place = index_of(&mut devices, number);
        devices[place].messages += 1;
        if let Some(device) = current(&devices).filter(|device| device.number == number) {
            self.rcu_slots.iter().for_each(|rcu_slot| rcu_slot.pause(device.accepts));
        }
        drop((devices, relayed));
        synchronize(&self.rcu_slots);
    }

    /// Inserts a relay into a new device's connection. Returns false if that fails; the connection is then closed.
    pub(super) fn relay(self: &Arc<Self>, number: i32) -> bool {
        let connection = connection::take(&self.path, self.mode);
        let has_room = self.relays.fetch_add(1, Ordering::Relaxed) < MOST_RELAYS;
        // The relay must find itself in the list.
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
            relay.run(|pending_calls| guests.pause_device(number, pending_calls), |why| guests.refuse(why));
            drop(taken);
            guests.relays.fetch_sub(1, Ordering::Relaxed);
        };
        // If no thread can be started, both ends close.
        std::thread::Builder::new().name("vhost-relay".to_owned()).spawn(run).ok().map(|_| pending_calls)
    }

    fn refuse(&self, why: Refusal) {
        let mut refused = lock(&self.refused);
        refused.count += u32::from(!refused.holds);
        (refused.last, refused.holds) = (Some(why), true);
    }

    /// Withdraws the device if it is active. This does not call the library, which may be handling messages.
    fn cut_off(&self, number: i32) {
        let mut devices = lock(&self.devices);
        let current = current(&devices).map(|device| device.number);
        let Some(device) = devices.iter_mut().find(|device| device.number == number && !device.truncated)
        else {
            return;
        };
        device.truncated = true;
        self.truncations.fetch_add(1, Ordering::Relaxed);
        if current == Some(number) {
            self.withdraw();
        }
    }

    fn withdraw(&self) {
        for (rcu_slot, kicks) in self.rcu_slots.iter().zip(&self.kicks) {
            kicks.set(Vec::new());
            rcu_slot.set(None, 0);
        }
    }
}

/// The active device.
fn current(devices: &[Device]) -> Option<&Device> {
    devices.iter().rev().find(|device| device.usable())
}

/// Index of a device in the list; adds it if needed.
fn index_of(devices: &mut Vec<Device>, number: i32) -> usize {
    devices.iter().position(|device| device.number == number).unwrap_or_else(|| {
        devices.push(Device::new(number));
        devices.len() - 1
    })
}

/// Bit mask of the queue pairs that a queue serves.
fn share(queue: u16, queues: usize) -> u64 {
    (queue..MAX_PAIRS).step_by(queues.max(1)).fold(0, |pairs, pair| pairs | 1 << pair)
}

/// The queue pair that a queue sends to: its own, or another enabled one. If none is enabled, the library refuses the
/// first.
fn send_pair(receiving: u64, queue: u16) -> u16 {
    let wanted = queue.checked_rem(receiving.count_ones() as u16).unwrap_or(0);
    (0..MAX_PAIRS).filter(|pair| receiving >> pair & 1 == 1).nth(wanted.into()).unwrap_or(0)
}

/// Duplicates of a device's kick descriptors, of all pairs or none.
fn kicks_of(device: i32, pairs: u64) -> Vec<OwnedFd> {
    let of = |pair: u16| {
        // SAFETY: the device exists: the library is calling for it.
        let fd = unsafe { sys::netvm_vhost_kick(device, 2 * pair + 1) };
        // SAFETY: takes no pointer; a number without a descriptor gives an error.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: a new descriptor.
        (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })
    };
    let all = (0..MAX_PAIRS).filter(|pair| pairs >> pair & 1 == 1).map(of);
    all.collect::<Option<_>>().unwrap_or_default()
}

/// The guests of the socket with this path.
pub(super) fn by_path(path: &CStr) -> Option<Arc<Guests>> {
    lock(&SERVED).iter().find(|guests| guests.path.as_c_str() == path).cloned()
}

/// Withdraws a device whose guest truncated shared memory, until the guest connects again.
pub(super) fn close(device: i32) {
    for guests in lock(&SERVED).iter() {
        guests.cut_off(device);
    }
}

#[cfg(test)]
mod tests;
