// SPDX-License-Identifier: Apache-2.0
//! The guests of each socket: their devices, kicks and refusals.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use netvm_guest_socket::RefusedPeers;
use netvm_notify::{EpollWaiter, Signaller};
use netvm_vhost_user::Refusal;
use rustix::io::Errno;

use super::announcement::Announcement;
use super::in_flight_dma::InFlightDma;
use super::rcu::{ActiveDevice, RcuSlot, synchronize};
use super::{Accepts, VhostMode, VhostStatus, lock, truncated};

pub(super) const MAX_PAIRS: u16 = sys::NETVM_VHOST_MAX_PAIRS as u16;

/// The sockets being served.
static SERVED: Mutex<Vec<Arc<Guests>>> = Mutex::new(Vec::new());

/// What workers may use of a device.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// Its driver is ready.
    pub(super) is_ready: bool,
    /// Its driver has begun, but the front-end has shared no memory.
    pub(super) lacks_memory: bool,
    /// Offloads that the guest accepts: bits of `NETVM_VHOST_*`.
    pub(super) accepts: u8,
    /// Bit masks of the queue pairs whose receive ring, and transmit ring, is ready.
    pub(super) receiving: u64,
    pub(super) sending: u64,
    /// Kick descriptors of transmit rings, by queue pair.
    pub(super) kicks: Vec<(u16, Arc<OwnedFd>)>,
}

/// A guest's device that was ready at least once.
#[derive(Debug)]
struct Device {
    number: i32,
    /// It truncated memory that it shares.
    truncated: bool,
    /// A message about its memory or rings is being applied.
    paused: bool,
    /// Bit mask of the queue pairs to which the DMA channel may copy.
    copied: u64,
    /// Since when its driver has waited for the front-end to share memory.
    lacking: Option<Instant>,
    /// Its memory does not hold what it writes.
    is_private: bool,
    published: Publication,
}

/// A front-end that can share its guest's memory does so by then.
const SHARING_TIME: Duration = Duration::from_secs(1);

impl Device {
    const fn usable(&self) -> bool {
        self.published.is_ready && !self.truncated
    }
}

/// The kick descriptors (eventfds) of one queue.
#[derive(Debug)]
pub(super) struct Kicks {
    pub(super) waiter: EpollWaiter,
    /// The watched descriptors.
    watched: Mutex<Vec<Arc<OwnedFd>>>,
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
    fn set(&self, kicks: Vec<Arc<OwnedFd>>) {
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
    pub(super) path: PathBuf,
    pub(super) mode: VhostMode,
    pub(super) rcu_slots: Box<[RcuSlot]>,
    /// Kick descriptors by queue.
    pub(super) kicks: Box<[Kicks]>,
    /// The newest last. The newest ready one is active.
    devices: Mutex<Vec<Device>>,
    epoch: AtomicU16,
    /// Copies of the port's DMA channel.
    pub(super) in_flight_dma: Option<InFlightDma>,
    /// The guest is to create the socket, and has not.
    pub(super) is_absent: AtomicBool,
    /// A guest that has moved here.
    pub(super) announcement: Announcement,
    /// How often a guest has truncated its memory.
    pub(super) truncations: AtomicU32,
    pub(super) refused: Mutex<Refused>,
    /// Guests that were refused, because another one is connected.
    pub(super) refused_peers: RefusedPeers,
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
        path: PathBuf,
        mode: VhostMode,
        queues: u16,
        in_flight_dma: Option<InFlightDma>,
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
            in_flight_dma,
            is_absent: AtomicBool::new(false),
            announcement: Announcement::default(),
            truncations: AtomicU32::new(0),
            refused: Mutex::default(),
            refused_peers: RefusedPeers::default(),
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
            let mut lacking = devices.iter().filter_map(|device| device.lacking);
            return VhostStatus {
                unshared: lacking.any(|since| since.elapsed() >= SHARING_TIME),
                truncated: devices.iter().any(|device| device.truncated),
                absent: self.is_absent.load(Ordering::Relaxed),
                refused: refused.last.clone().filter(|_| refused.holds),
                ..VhostStatus::default()
            };
        };
        let Publication { accepts, receiving, sending, .. } = device.published;
        VhostStatus {
            connected: true,
            unshared: device.is_private,
            absent: false,
            truncated: false,
            refused: None,
            queue_pairs: (receiving | sending).count_ones() as u16,
            accepts: Accepts::from_bits(accepts),
        }
    }

    /// Publishes the device that is active now.
    fn update(&self, devices: &[Device]) {
        let current = current(devices);
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        if let Some(device) = current.filter(|device| device.paused) {
            self.rcu_slots.iter().for_each(|rcu_slot| rcu_slot.pause(device.published.accepts));
            return;
        }
        for ((n, rcu_slot), kicks) in (0u16..).zip(&self.rcu_slots).zip(&self.kicks) {
            let pairs = current.map_or(0, |device| device.published.sending & share(n, self.rcu_slots.len()));
            kicks.set(current.map_or_else(Vec::new, |device| kicks_of(&device.published.kicks, pairs)));
            let open = current.map(|device| {
                let send_pair = send_pair(device.published.receiving, n);
                let copied = device.copied.checked_shr(send_pair.into()).unwrap_or(0) & 1;
                let dma = copied as u8 * sys::NETVM_VHOST_DMA as u8;
                let accepts = device.published.accepts | dma;
                ActiveDevice { device: device.number, epoch, send_pair, accepts }
            });
            rcu_slot.set(open, pairs);
        }
    }

    /// Withdraws a device before a message about its memory or rings is applied, and detaches the DMA channel. Returns
    /// whether workers may have used it.
    pub(super) fn pause(&self, number: i32) -> bool {
        let mut devices = lock(&self.devices);
        let Some(device) = devices.iter_mut().find(|device| device.number == number) else { return false };
        device.paused = true;
        let was_ready = device.published.is_ready;
        if let Some(device) = current(&devices).filter(|device| device.number == number) {
            self.rcu_slots.iter().for_each(|rcu_slot| rcu_slot.pause(device.published.accepts));
        }
        drop(devices);
        synchronize(&self.rcu_slots);
        self.detach_dma(number);
        was_ready
    }

    /// Detaches the DMA channel from a device that no worker uses.
    fn detach_dma(&self, number: i32) {
        if let Some(in_flight_dma) = &self.in_flight_dma {
            in_flight_dma.detach(number);
        }
    }

    /// Publishes a device after a message was applied. One that becomes ready is the newest.
    pub(super) fn publish(&self, number: i32, published: Publication) {
        let mut devices = lock(&self.devices);
        let place = devices.iter().position(|device| device.number == number);
        let before = place.map(|place| devices.remove(place));
        let was_ready = before.as_ref().is_some_and(|device| device.published.is_ready);
        let is_ready = published.is_ready;
        let lacking = before.as_ref().and_then(|device| device.lacking);
        let mut device = Device {
            number,
            is_private: false,
            lacking: published.lacks_memory.then(|| lacking.unwrap_or_else(Instant::now)),
            truncated: before.is_some_and(|device| device.truncated),
            paused: false,
            copied: 0,
            published,
        };
        if is_ready {
            let dma = self.in_flight_dma.as_ref();
            device.copied = dma.map_or(0, |in_flight_dma| in_flight_dma.attach(number));
        }
        // It may have done so before it was ready.
        if truncated::is_marked(number) && !device.truncated {
            device.truncated = true;
            self.truncations.fetch_add(1, Ordering::Relaxed);
        }
        if is_ready && !was_ready {
            lock(&self.refused).holds = false;
        }
        let place = place.filter(|_| was_ready || !is_ready).unwrap_or(devices.len());
        devices.insert(place, device);
        self.update(&devices);
    }

    /// Notes whether a device's memory lacks what its guest writes.
    pub(super) fn note_memory(&self, number: i32, is_private: bool) {
        let mut devices = lock(&self.devices);
        devices.iter_mut().filter(|device| device.number == number).for_each(|d| d.is_private = is_private);
    }

    /// Removes a device. Returns once no thread uses it.
    pub(super) fn remove(&self, number: i32) {
        let mut devices = lock(&self.devices);
        devices.retain(|device| device.number != number);
        self.update(&devices);
        drop(devices);
        synchronize(&self.rcu_slots);
        self.detach_dma(number);
    }

    /// Has a worker that waits for kicks look at its rings.
    pub(super) fn wake(&self) {
        let signaller = Signaller::new();
        for kicks in &self.kicks {
            lock(&kicks.watched).iter().for_each(|kick| {
                signaller.signal(&**kick);
            });
        }
    }

    pub(super) fn refuse(&self, why: Refusal) {
        let mut refused = lock(&self.refused);
        refused.count += u32::from(!refused.holds);
        (refused.last, refused.holds) = (Some(why), true);
    }

    /// Withdraws the device if it is active.
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

/// Bit mask of the queue pairs that a queue serves.
fn share(queue: u16, queues: usize) -> u64 {
    (queue..MAX_PAIRS).step_by(queues.max(1)).fold(0, |pairs, pair| pairs | 1 << pair)
}

/// The queue pair that a queue sends to: its own, or another enabled one. If none is enabled, one that no device has.
fn send_pair(receiving: u64, queue: u16) -> u16 {
    let wanted = queue.checked_rem(receiving.count_ones() as u16).unwrap_or(0);
    (0..MAX_PAIRS).filter(|pair| receiving >> pair & 1 == 1).nth(wanted.into()).unwrap_or(MAX_PAIRS)
}

/// The kick descriptors of these pairs: of all or none.
fn kicks_of(kicks: &[(u16, Arc<OwnedFd>)], pairs: u64) -> Vec<Arc<OwnedFd>> {
    let of = |pair: u16| kicks.iter().find(|(its, _)| *its == pair).map(|(_, kick)| Arc::clone(kick));
    let all = (0..MAX_PAIRS).filter(|pair| pairs >> pair & 1 == 1).map(of);
    all.collect::<Option<_>>().unwrap_or_default()
}

/// Withdraws a device whose guest truncated shared memory, until the guest connects again.
pub(super) fn close(device: i32) {
    for guests in lock(&SERVED).iter() {
        guests.cut_off(device);
    }
}

#[cfg(test)]
mod tests;
