//! The burst API: the endpoints of an NF's threads.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;
use std::time::Duration;

use netlib::{Burst, Endpoint, MAX_COUNTERS};

use crate::options;
use crate::packet::{NETLIB_BURST, netlib_packet};
use crate::status::{Failure, guard, netlib_status};

/// The rings of one NF thread. Use each endpoint from one thread at a time.
#[derive(Debug)]
pub struct netlib_endpoint {
    /// The burst that was received and not yet sent. While there is one, only it accesses the endpoint. Declared first,
    /// so dropped first.
    burst: Option<Burst<'static>>,
    /// A leaked box, so that `burst` can borrow it.
    endpoint: NonNull<Endpoint>,
    /// Number of the burst, to detect packets of older bursts.
    serial: u32,
    /// Whether the burst belongs to netlib_serve().
    serving: bool,
    thread: u16,
    counters: [u64; MAX_COUNTERS],
    counted: usize,
}

impl netlib_endpoint {
    pub(crate) fn new(endpoint: Endpoint, counted: usize) -> Self {
        let thread = endpoint.thread();
        let endpoint = NonNull::from(Box::leak(Box::new(endpoint)));
        let counters = [0; MAX_COUNTERS];
        Self { burst: None, endpoint, serial: 0, serving: false, thread, counters, counted }
    }

    /// The burst with this number, if it is the current one.
    #[inline]
    pub(crate) fn burst(&mut self, serial: u32) -> Option<&mut Burst<'static>> {
        if serial == self.serial { self.burst.as_mut() } else { None }
    }

    pub(crate) fn current_burst(&mut self) -> Option<&mut Burst<'static>> {
        self.burst.as_mut()
    }

    pub(crate) fn counter(&self, counter: usize) -> u64 {
        self.counters.get(counter).copied().unwrap_or(0)
    }

    pub(crate) fn set_serving(&mut self, serving: bool) {
        self.serving = serving;
    }

    pub(crate) fn send(&mut self) {
        if self.burst.take().is_some() {
            self.serial = self.serial.wrapping_add(1);
            self.report();
        }
    }

    /// Publishes the counters. Only without a burst.
    fn report(&mut self) {
        // SAFETY: the box lives as long as `self`, and no burst borrows it now.
        unsafe { self.endpoint.as_ref() }.report(&self.counters[..self.counted]);
    }

    /// Withdraws the per-flow verdicts.
    fn withdraw(&mut self) {
        match &mut self.burst {
            Some(burst) => burst.withdraw(),
            // SAFETY: the box lives as long as `self`, and no burst borrows it now.
            None => unsafe { self.endpoint.as_mut() }.withdraw(),
        }
    }

    /// Sends the current burst and receives the next one. Returns its size, 0 after `timeout`, or `None` when the NF
    /// must end. Without a timeout it waits forever.
    pub(crate) fn receive(&mut self, timeout: Option<Duration>) -> Option<usize> {
        self.send();
        self.report();
        // SAFETY: the box lives as long as `self`. `burst`, the only other borrow, is empty and receives this one. The
        // order of the fields keeps the lifetime that is lost here: `burst` is dropped before the box.
        let endpoint = unsafe { &mut *self.endpoint.as_ptr() };
        self.burst = match timeout {
            None => endpoint.receive(),
            Some(Duration::ZERO) => endpoint.try_receive(),
            Some(timeout) => endpoint.receive_for(timeout),
        };
        match &self.burst {
            Some(burst) => Some(burst.len()),
            // SAFETY: as above, and no burst borrows it now.
            None if unsafe { self.endpoint.as_ref() }.ended() => None,
            None => Some(0),
        }
    }

    /// Describes packet `n` of the current burst for C. `me` is C's pointer to this endpoint.
    pub(crate) fn describe(&mut self, n: usize, me: *mut Self) -> Option<netlib_packet> {
        let burst = self.burst.as_mut()?;
        if let Some(ahead) = burst.packet(n + 4) {
            ahead.prefetch();
        }
        let mut packet = burst.packet(n)?;
        Some(netlib_packet::new(&mut packet, me, self.serial, n))
    }
}

impl Drop for netlib_endpoint {
    fn drop(&mut self) {
        self.send();
        // SAFETY: from Box::leak in `new`, freed only here; the burst that borrowed it is gone.
        drop(unsafe { Box::from_raw(self.endpoint.as_ptr()) });
    }
}

/// The endpoint behind C's pointer.
///
/// # Safety
/// `endpoint` is NULL or came from this library for an NF that is still attached, and no other thread uses it.
pub(crate) unsafe fn borrow<'a>(endpoint: *mut netlib_endpoint) -> Result<&'a mut netlib_endpoint, Failure> {
    // SAFETY: the caller's promise.
    unsafe { endpoint.as_mut() }.ok_or(Failure::Null("endpoint"))
}

/// Sends the burst that the endpoint holds, and receives the next one.
///
/// @param packets an array of at least NETLIB_BURST packets.
/// @param room the length of the array.
/// @param timeout in microseconds; 0 does not wait, a negative timeout waits forever.
/// @return the number of packets, 0 after the timeout; NETLIB_END, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// `endpoint` is NULL or belongs to an attached NF, and no other thread uses it; `packets` is NULL or has `room`
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_receive(
    endpoint: *mut netlib_endpoint,
    packets: *mut netlib_packet,
    room: usize,
    timeout: i64,
) -> c_int {
    guard(|| {
        let me = endpoint;
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        if packets.is_null() {
            return Err(Failure::Null("packets"));
        }
        if room < NETLIB_BURST {
            return Err(Failure::Argument("room is less than NETLIB_BURST packets"));
        }
        if endpoint.serving {
            return Err(Failure::Argument("netlib_receive was called within a callback"));
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_micros);
        let Some(count) = endpoint.receive(timeout) else {
            return Ok(netlib_status::NETLIB_END as c_int);
        };
        for n in 0..count {
            if let Some(packet) = endpoint.describe(n, me) {
                // SAFETY: a burst has at most NETLIB_BURST packets, and the array has at least as many elements.
                unsafe { packets.add(n).write(packet) };
            }
        }
        Ok(count as c_int)
    })
}

/// Sends the burst that the endpoint holds, by its verdicts; packets without a verdict go to the next hop. The caller
/// must not access their bytes afterwards.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// `endpoint` is NULL or belongs to an attached NF, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_send(endpoint: *mut netlib_endpoint) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        if endpoint.serving {
            return Err(Failure::Argument("netlib_send was called within a callback"));
        }
        endpoint.send();
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Number of the endpoint's thread in the NF, from 0; 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_thread(endpoint: *const netlib_endpoint) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { endpoint.as_ref() }.map_or(0, |endpoint| endpoint.thread)
}

/// Adds to one of the NF's own counters, by its index in options->counters. The next send or receive publishes it.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_count(endpoint: *mut netlib_endpoint, counter: usize, by: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        let counter = endpoint.counters[..endpoint.counted].get_mut(counter);
        let counter = counter.ok_or(Failure::Plain(netlib_status::NETLIB_ERR_ARGUMENT))?;
        *counter = counter.wrapping_add(by);
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Withdraws the per-flow verdicts (NETLIB_DROP_FLOW, NETLIB_SKIP_FLOW) that this endpoint's thread gave in bursts
/// already sent, but not those in its current burst. May be called within a callback.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_withdraw(endpoint: *mut netlib_endpoint) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { borrow(endpoint) }?.withdraw();
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// A number that changes whenever ports, roles or chains change, so that names may have other numbers. 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_epoch(endpoint: *const netlib_endpoint) -> u64 {
    // SAFETY: the caller's promise.
    let Some(this) = (unsafe { endpoint.as_ref() }) else { return 0 };
    // SAFETY: the box lives as long as `this`, and the closure runs only if no burst borrows it.
    let free = || unsafe { this.endpoint.as_ref() }.epoch();
    this.burst.as_ref().map_or_else(free, Burst::epoch)
}

/// The current number of the port with this name.
///
/// @return NETLIB_OK, NETLIB_ERR_NAME, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_send(); `name` is NULL or zero-terminated, `port` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_port(
    endpoint: *const netlib_endpoint,
    name: *const c_char,
    port: *mut u16,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe { look_up(endpoint, name, port, "port") })
}

/// The current number of the role with this name.
///
/// @return NETLIB_OK, NETLIB_ERR_NAME, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_port().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_role(
    endpoint: *const netlib_endpoint,
    name: *const c_char,
    role: *mut u16,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe { look_up(endpoint, name, role, "role") })
}

/// # Safety
/// As for netlib_port().
unsafe fn look_up(
    endpoint: *const netlib_endpoint,
    name: *const c_char,
    number: *mut u16,
    what: &'static str,
) -> Result<c_int, Failure> {
    // SAFETY: the caller's promise.
    let this = unsafe { endpoint.as_ref() }.ok_or(Failure::Null("endpoint"))?;
    // SAFETY: the caller's promise.
    let name = unsafe { options::text(name, "name") }?.ok_or(Failure::Null("name"))?;
    if number.is_null() {
        return Err(Failure::Null(what));
    }
    let found = match (&this.burst, what) {
        (Some(burst), "port") => burst.context().port(name).map(|port| port.0),
        (Some(burst), _) => burst.context().role(name).map(|role| role.0),
        // SAFETY: the box lives as long as `this`, and no burst borrows it.
        (None, "port") => unsafe { this.endpoint.as_ref() }.port(name).map(|port| port.0),
        // SAFETY: as above.
        (None, _) => unsafe { this.endpoint.as_ref() }.role(name).map(|role| role.0),
    };
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { number.write(found.ok_or(Failure::Name(what))?) };
    Ok(netlib_status::NETLIB_OK as c_int)
}
