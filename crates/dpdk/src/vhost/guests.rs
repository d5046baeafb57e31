//! What is known of the guests of each socket, and the calls by which the library tells.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use super::gate::{Gate, Pass, quiesce};
use super::{Accepts, VhostStatus};

const MAX_PAIRS: u16 = sys::NETVM_VHOST_MAX_PAIRS as u16;

/// What the library calls.
pub(super) const CALLBACKS: sys::netvm_vhost_callbacks = sys::netvm_vhost_callbacks {
    arrived: Some(arrived),
    left: Some(left),
    gone: Some(gone),
    vring: Some(vring),
};

/// The sockets that are served.
static SERVED: Mutex<Vec<Arc<Guests>>> = Mutex::new(Vec::new());

/// A connection: a guest's device.
#[derive(Debug)]
struct Device {
    number: i32,
    /// Its driver is ready.
    ready: bool,
    accepts: u8,
    /// Queue pairs whose receive ring, or transmit ring, is switched on, a bit each.
    receiving: u64,
    sending: u64,
}

/// What a port knows of its guest.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) path: CString,
    pub(super) gates: Box<[Gate]>,
    /// By queue: the eventfds by which the guest tells of packets that it sends; a new list for each change.
    kicks: Box<[Mutex<Arc<[OwnedFd]>>]>,
    /// Connections, the newest last. It is the newest that is ready which has the port.
    devices: Mutex<Vec<Device>>,
    epoch: AtomicU16,
}

impl Guests {
    /// `None` if the socket is served already.
    pub(super) fn register(path: CString, queues: u16) -> Option<Arc<Self>> {
        let mut served = lock(&SERVED);
        if served.iter().any(|guests| guests.path == path) {
            return None;
        }
        let guests = Arc::new(Self {
            path,
            gates: (0..queues).map(|_| Gate::default()).collect(),
            kicks: (0..queues).map(|_| Mutex::new(Arc::default())).collect(),
            devices: Mutex::default(),
            epoch: AtomicU16::new(0),
        });
        served.push(Arc::clone(&guests));
        Some(guests)
    }

    pub(super) fn unregister(&self) {
        lock(&SERVED).retain(|guests| guests.path != self.path);
    }

    pub(super) fn status(&self) -> VhostStatus {
        let devices = lock(&self.devices);
        let Some(device) = devices.iter().rev().find(|device| device.ready) else {
            return VhostStatus::default();
        };
        VhostStatus {
            connected: true,
            queue_pairs: (device.receiving | device.sending).count_ones() as u16,
            accepts: Accepts::from_bits(device.accepts),
        }
    }

    /// How the guest tells of packets for a queue.
    pub(super) fn kicks(&self, queue: usize) -> Arc<[OwnedFd]> {
        self.kicks.get(queue).map_or_else(Arc::default, |kicks| Arc::clone(&lock(kicks)))
    }

    /// Changes what is known of a device, and opens the gates to what is there then.
    fn change(&self, number: i32, change: impl FnOnce(&mut Vec<Device>, usize)) {
        let mut devices = lock(&self.devices);
        let place = devices.iter().position(|device| device.number == number).unwrap_or_else(|| {
            devices.push(Device { number, ready: false, accepts: 0, receiving: 0, sending: 0 });
            devices.len() - 1
        });
        change(&mut devices, place);
        let current = devices.iter().rev().find(|device| device.ready);
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        for ((n, gate), known) in (0u16..).zip(&self.gates).zip(&self.kicks) {
            let pairs = current.map_or(0, |device| device.sending & share(n, self.gates.len()));
            *lock(known) = current.map_or_else(Arc::default, |device| kicks_of(device.number, pairs));
            let open = current.map(|device| Pass {
                device: device.number,
                epoch,
                send_pair: send_pair(device.receiving, n),
                accepts: device.accepts,
            });
            gate.set(open, pairs);
        }
    }
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

/// Duplicates of the descriptors by which a device's guest tells of packets, of all pairs or none. What is no eventfd does
/// not count: whatever the guest has made of it could block who waits for it.
fn kicks_of(device: i32, pairs: u64) -> Arc<[OwnedFd]> {
    let of = |pair: u16| {
        // SAFETY: the device is there, as the library calls for it.
        let fd = unsafe { sys::netvm_vhost_kick(device, 2 * pair + 1) };
        // SAFETY: takes no pointer; a number without a descriptor gives an error.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: a new descriptor, which nobody else has.
        let own = (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })?;
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", own.as_raw_fd()));
        (kind.ok()?.as_os_str() == "anon_inode:[eventfd]").then_some(own)
    };
    let all = (0..MAX_PAIRS).filter(|pair| pairs >> pair & 1 == 1).map(of);
    all.collect::<Option<Vec<_>>>().map_or_else(Arc::default, Arc::from)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guests of the socket that a device has come by.
fn of(device: c_int) -> Option<Arc<Guests>> {
    let mut path = [0 as c_char; sys::NETVM_VHOST_PATH as usize];
    // SAFETY: `path` is as long as the function wants it, and NUL-terminated afterwards.
    if unsafe { sys::netvm_vhost_path(device, path.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: see above; the array lives for longer than the reference.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    lock(&SERVED).iter().find(|guests| guests.path.as_c_str() == path).cloned()
}

extern "C" fn arrived(device: c_int) -> c_int {
    let Some(guests) = of(device) else { return -1 };
    // SAFETY: the device is there, as the library calls for it.
    let accepts = unsafe { sys::netvm_vhost_accepts(device) } as u8;
    guests.change(device, |devices, place| {
        // Vrings have been switched on before; it becomes the newest.
        let mut device = devices.remove(place);
        device.ready = true;
        device.accepts = accepts;
        devices.push(device);
    });
    0
}

/// Called without any of the library's locks, so that those who wait for one of these get it, and leave.
extern "C" fn left(device: c_int) {
    if let Some(guests) = of(device) {
        guests.change(device, |devices, place| devices[place].ready = false);
        quiesce(&guests.gates);
    }
}

extern "C" fn gone(device: c_int) {
    if let Some(guests) = of(device) {
        guests.change(device, |devices, place| {
            devices.remove(place);
        });
    }
}

/// May be called with the library's locks: waits for nobody.
extern "C" fn vring(device: c_int, vring: u16, enabled: c_int) -> c_int {
    let pair = vring / 2;
    if let Some(guests) = of(device).filter(|_| pair < MAX_PAIRS) {
        guests.change(device, |devices, place| {
            let device = &mut devices[place];
            let pairs = if vring.is_multiple_of(2) { &mut device.receiving } else { &mut device.sending };
            if enabled == 0 {
                *pairs &= !(1 << pair);
            } else {
                *pairs |= 1 << pair;
            }
        });
    }
    0
}

#[cfg(test)]
mod tests {
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
}
