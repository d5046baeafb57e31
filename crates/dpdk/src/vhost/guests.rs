//! What is known of the guests of each socket, and the calls by which the library tells.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dpdk_sys as sys;

use super::connection::Connection;
use super::flights::{self, Flights};
use super::gate::{Gate, Pass, quiesce, quiesce_within};
use super::protocol::{self, Verdict};
use super::stall::{self, Stay};
use super::{Accepts, BAR, VhostMode, VhostStatus, call, shrunk};
use crate::Copier;

const MAX_PAIRS: u16 = sys::NETVM_VHOST_MAX_PAIRS as u16;

/// What the library calls.
pub(super) const CALLBACKS: sys::netvm_vhost_callbacks = sys::netvm_vhost_callbacks {
    met: Some(met),
    arrived: Some(arrived),
    left: Some(left),
    gone: Some(gone),
    vring: Some(vring),
    message: Some(message),
    handled: Some(handled),
    refused: Some(refused),
};

/// The message that brings the guest's memory (vhost-user, "Front-end message types").
const SET_MEM_TABLE: u32 = 5;
/// The one that brings a descriptor by which the guest is told.
const SET_VRING_CALL: u32 = 13;
/// Looks for which a message waits for those who may wait for it: some 5 ms.
const PATIENCE: u32 = 1250;

/// The sockets that are served.
static SERVED: Mutex<Vec<Arc<Guests>>> = Mutex::new(Vec::new());

/// A connection: a guest's device.
#[derive(Debug)]
struct Device {
    number: i32,
    /// Its driver is ready.
    ready: bool,
    /// It has taken back memory that it shares.
    shrunk: bool,
    /// It has had a thread wait where the guest is told of packets.
    blocking: bool,
    /// A message about its memory or rings is being handled.
    suspended: bool,
    accepts: u8,
    /// Queue pairs to which the copier may copy, a bit each.
    copied: u64,
    /// Queue pairs whose receive ring, or transmit ring, is switched on, a bit each.
    receiving: u64,
    sending: u64,
}

impl Device {
    const fn usable(&self) -> bool {
        self.ready && !self.shrunk && !self.blocking
    }
}

/// What a port knows of its guest.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) path: CString,
    mode: VhostMode,
    pub(super) gates: Box<[Gate]>,
    /// By queue: the eventfds by which the guest tells of packets that it sends; a new list for each change.
    kicks: Box<[Mutex<Arc<[OwnedFd]>>]>,
    /// Connections, the newest last. It is the newest that is ready which has the port.
    devices: Mutex<Vec<Device>>,
    epoch: AtomicU16,
    /// What the copier has under way.
    pub(super) flights: Option<Flights>,
    /// How often a guest has shrunk its memory.
    pub(super) shrinks: AtomicU32,
    /// How often a guest has had a thread wait.
    pub(super) stalls: AtomicU32,
    /// Until when no guest is let in after one has.
    barred: Mutex<Option<Instant>>,
    /// Where threads are that tell guests of packets outside of the gates.
    visits: Mutex<Vec<Arc<Stay>>>,
    connections: Mutex<Vec<Connection>>,
    /// One was hung up on for what it said, and none has become ready since; and how often this has become so.
    refused: AtomicBool,
    pub(super) refusals: AtomicU32,
}

impl Guests {
    /// `None` if the socket is served already.
    pub(super) fn register(
        path: CString,
        mode: VhostMode,
        queues: u16,
        copier: Option<Copier>,
    ) -> Option<Arc<Self>> {
        let mut served = lock(&SERVED);
        if served.iter().any(|guests| guests.path == path) {
            return None;
        }
        let guests = Arc::new(Self {
            path,
            mode,
            gates: (0..queues).map(|_| Gate::default()).collect(),
            kicks: (0..queues).map(|_| Mutex::new(Arc::default())).collect(),
            devices: Mutex::default(),
            epoch: AtomicU16::new(0),
            flights: copier.map(Flights::new),
            shrinks: AtomicU32::new(0),
            stalls: AtomicU32::new(0),
            barred: Mutex::default(),
            visits: Mutex::default(),
            connections: Mutex::default(),
            refused: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
        });
        served.push(Arc::clone(&guests));
        Some(guests)
    }

    pub(super) fn unregister(&self) {
        lock(&SERVED).retain(|guests| guests.path != self.path);
    }

    pub(super) fn status(&self) -> VhostStatus {
        let devices = lock(&self.devices);
        let Some(device) = devices.iter().rev().find(|device| device.usable()) else {
            return VhostStatus {
                shrunk: devices.iter().any(|device| device.shrunk),
                blocking: self.is_barred() || devices.iter().any(|device| device.blocking),
                refused: self.refused.load(Ordering::Relaxed),
                ..VhostStatus::default()
            };
        };
        VhostStatus {
            connected: true,
            shrunk: false,
            blocking: false,
            refused: false,
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
            devices.push(Device {
                number,
                ready: false,
                shrunk: false,
                blocking: self.is_barred(),
                suspended: false,
                accepts: 0,
                copied: 0,
                receiving: 0,
                sending: 0,
            });
            devices.len() - 1
        });
        change(&mut devices, place);
        let current = devices.iter().rev().find(|device| device.usable());
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        if let Some(device) = current.filter(|device| device.suspended) {
            self.gates.iter().for_each(|gate| gate.pause(device.accepts));
            return;
        }
        for ((n, gate), known) in (0u16..).zip(&self.gates).zip(&self.kicks) {
            let pairs = current.map_or(0, |device| device.sending & share(n, self.gates.len()));
            *lock(known) = current.map_or_else(Arc::default, |device| kicks_of(device.number, pairs));
            let open = current.map(|device| {
                let send_pair = send_pair(device.receiving, n);
                let copier = (device.copied >> send_pair & 1) as u8 * sys::NETVM_VHOST_COPIER as u8;
                Pass { device: device.number, epoch, send_pair, accepts: device.accepts | copier }
            });
            gate.set(open, pairs);
        }
        stall::wake();
    }

    fn refuse(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Closes the gates if the device has them. Nothing is asked of the library, which handles messages at the same time.
    fn cut_off(&self, number: i32) {
        let mut devices = lock(&self.devices);
        let current = devices.iter().rev().find(|device| device.usable()).map(|device| device.number);
        let Some(device) = devices.iter_mut().find(|device| device.number == number && !device.shrunk) else {
            return;
        };
        device.shrunk = true;
        self.shrinks.fetch_add(1, Ordering::Relaxed);
        if current == Some(number) {
            self.close_gates();
        }
    }

    fn close_gates(&self) {
        for (gate, kicks) in self.gates.iter().zip(&self.kicks) {
            *lock(kicks) = Arc::default();
            gate.set(None, 0);
        }
    }

    fn is_barred(&self) -> bool {
        lock(&self.barred).is_some_and(|end| Instant::now() < end)
    }

    /// Cuts off whoever is connected, and lets nobody in for a while: who may do again at once what it did could have
    /// workers wait for most of the time.
    fn bar(&self) {
        let mut devices = lock(&self.devices);
        *lock(&self.barred) = Some(Instant::now() + BAR);
        devices.iter_mut().for_each(|device| device.blocking = true);
        self.stalls.fetch_add(1, Ordering::Relaxed);
        self.close_gates();
    }

    /// Where threads may be made to wait.
    fn each_stay(&self, mut look: impl FnMut(&Stay)) {
        self.gates.iter().for_each(|gate| look(&gate.busy));
        lock(&self.visits).iter().for_each(|stay| look(stay));
    }

    /// Does what may tell guests of packets, outside of the gates.
    fn visit<R>(&self, inside: impl FnOnce() -> R) -> R {
        let stay = Arc::new(Stay::default());
        lock(&self.visits).push(Arc::clone(&stay));
        stay.begin();
        stall::wake();
        let result = inside();
        stay.end();
        lock(&self.visits).retain(|other| !Arc::ptr_eq(other, &stay));
        result
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
        call::is_eventfd(&own).then_some(own)
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

extern "C" fn met(device: c_int) -> c_int {
    // Nobody says that a connection is gone which ends with its port.
    forget(device);
    protocol::met(device);
    let Some(guests) = of(device) else { return -1 };
    let served = lock(&SERVED).clone();
    let known =
        |guests: &Arc<Guests>| lock(&guests.connections).iter().map(|one| one.inode).collect::<Vec<_>>();
    let known: Vec<u64> = served.iter().flat_map(known).collect();
    match Connection::find(device, &guests.path, guests.mode, &known) {
        Some(connection) => lock(&guests.connections).push(connection),
        None if guests.mode == VhostMode::Server => return -1,
        // The library would not connect again.
        None => {}
    }
    0
}

extern "C" fn arrived(number: c_int) -> c_int {
    let Some(guests) = of(number) else { return -1 };
    // SAFETY: the device is there, as the library calls for it.
    let accepts = unsafe { sys::netvm_vhost_accepts(number) } as u8;
    // SAFETY: the same, and nobody is inside yet.
    unsafe { sys::netvm_vring_learn(number) };
    guests.change(number, |devices, place| {
        // Vrings have been switched on before; it becomes the newest.
        let mut device = devices.remove(place);
        device.ready = true;
        if shrunk::is_marked(number) && !device.shrunk {
            device.shrunk = true;
            guests.shrinks.fetch_add(1, Ordering::Relaxed);
        }
        device.accepts = accepts;
        device.copied = guests.flights.as_ref().map_or(0, |flights| flights.begin(number, false));
        devices.push(device);
    });
    guests.refused.store(false, Ordering::Relaxed);
    0
}

/// Called without any of the library's locks, so that those who wait for one of these get it, and leave.
extern "C" fn left(device: c_int) {
    if let Some(guests) = of(device) {
        guests.change(device, |devices, place| {
            devices[place].ready = false;
            devices[place].copied = 0;
        });
        quiesce(&guests.gates);
        if let Some(flights) = &guests.flights {
            guests.visit(|| flights.end(device, false));
        }
    }
}

extern "C" fn gone(device: c_int) {
    if let Some(guests) = of(device) {
        guests.change(device, |devices, place| {
            devices.remove(place);
        });
        lock(&guests.connections).retain(|connection| connection.device != device);
    }
    shrunk::handled();
    forget(device);
}

/// The device's memory is gone; nobody is inside any more.
fn forget(device: c_int) {
    shrunk::forget(device);
    protocol::forget(device);
    // SAFETY: nobody fills its rings.
    unsafe { sys::netvm_vring_forget(device) };
}

extern "C" fn message(device: c_int, request: u32, payload: *const u8, bytes: u32, locked: c_int) -> c_int {
    if let Some(guests) = of(device) {
        let connections = lock(&guests.connections);
        connections.iter().filter(|one| one.device == device).for_each(Connection::shut_if_full);
    }
    // SAFETY: the library has read so many bytes of the message, which nobody else has, and calls before it goes on with them.
    let payload = unsafe { slice::from_raw_parts(payload, bytes as usize) };
    match protocol::message(device, request, payload) {
        Verdict::Handle => {}
        Verdict::Ignore => return 1,
        Verdict::HangUp => {
            if let Some(guests) = of(device) {
                guests.refuse();
            }
            return -1;
        }
    }
    shrunk::message(device, request == SET_MEM_TABLE);
    if locked != 0 && !suspend(device, request) { -1 } else { 0 }
}

/// Keeps everybody out of a device whose memory or rings are about to change, as nobody inside has the library's locks, and
/// takes its rings from the copier.
///
/// `false`: with a copier, somebody may wait inside for a lock that this thread has. Should the library fail to replace
/// memory, it takes the old away, leaves the vrings as they were, and gives back their locks before it tells that the device
/// is gone (DPDK 22.11 to 25.11): whoever waited would write to what is not there.
fn suspend(device: c_int, request: u32) -> bool {
    let Some(guests) = of(device) else { return true };
    let ends = flights::ends(request);
    guests.change(device, |devices, place| {
        devices[place].suspended = true;
        if ends {
            devices[place].copied = 0;
        }
    });
    let Some(flights) = &guests.flights else {
        quiesce(&guests.gates);
        return true;
    };
    if !quiesce_within(&guests.gates, PATIENCE) && request == SET_MEM_TABLE {
        return false;
    }
    if ends {
        guests.visit(|| flights.end(device, true));
    }
    true
}

/// The message has been handled.
fn resume(device: c_int, request: u32) {
    let Some(guests) = of(device) else { return };
    guests.change(device, |devices, place| {
        let known = &mut devices[place];
        known.suspended = false;
        if let Some(flights) = guests.flights.as_ref().filter(|_| known.ready && flights::ends(request)) {
            known.copied = flights.begin(device, true);
        }
    });
}

extern "C" fn handled(device: c_int, request: u32, locked: c_int) {
    if request == SET_MEM_TABLE {
        shrunk::brought(device);
        // SAFETY: nobody is inside, and the library has just mapped the memory.
        unsafe { sys::netvm_vring_learn(device) };
    }
    if locked != 0 {
        resume(device, request);
    }
    shrunk::handled();
}

/// Whether to hang up after a message that has been handled, while nobody may use what it has brought yet.
extern "C" fn refused(device: c_int, request: u32, word: u64) -> c_int {
    let is_refused = request == SET_VRING_CALL && !call::is_fit(device, word as u8);
    (is_refused || of(device).is_some_and(|guests| guests.is_barred())).into()
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

/// Closes the gates of a guest that has taken back memory which it shares, until it connects again.
pub(super) fn close(device: c_int) {
    for guests in lock(&SERVED).iter() {
        guests.cut_off(device);
    }
}

/// Whether anybody may be made to wait by a guest.
pub(super) fn is_used() -> bool {
    lock(&SERVED).iter().any(|guests| {
        let mut used = guests.gates.iter().any(|gate| gate.glance().is_some());
        guests.each_stay(|stay| used |= stay.is_inside());
        used
    })
}

/// Frees those who are, and bars their guests.
pub(super) fn look() {
    let served = lock(&SERVED).clone();
    for guests in served {
        let mut stalled = false;
        guests.each_stay(|stay| stalled |= stay.is_stalled());
        if stalled {
            guests.bar();
            guests.each_stay(Stay::free);
        }
    }
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
