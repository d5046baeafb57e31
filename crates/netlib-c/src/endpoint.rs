// SPDX-License-Identifier: Apache-2.0
//! The endpoints of an NF's threads: the burst that each holds, names and counters.

pub mod messages;

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;
use std::time::Duration;

use netlib::{Burst, Endpoint, MAX_COUNTERS, Message, MessageError, Outbox, Outgoing};

use crate::options;
use crate::status::{Failure, guard, netlib_status};

mod slots;

pub(crate) use slots::{Place, Slots};

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
    /// Packets that the NF has beyond bursts.
    pub(crate) owned: Slots,
}

impl netlib_endpoint {
    pub(crate) fn new(endpoint: Endpoint, counted: usize) -> Self {
        let thread = endpoint.thread();
        let endpoint = NonNull::from(Box::leak(Box::new(endpoint)));
        let counters = [0; MAX_COUNTERS];
        let owned = Slots::default();
        Self { burst: None, endpoint, serial: 0, serving: false, thread, counters, counted, owned }
    }

    /// The burst with this number, if it is the current one.
    #[inline]
    pub(crate) fn burst(&mut self, serial: u32) -> Option<&mut Burst<'static>> {
        if serial == self.serial { self.burst.as_mut() } else { None }
    }

    pub(crate) fn current_burst(&mut self) -> Option<&mut Burst<'static>> {
        self.burst.as_mut()
    }

    /// Makes and sends packets: with the current burst, or at once without one.
    pub(crate) fn outbox(&mut self) -> Outbox<'_> {
        match &mut self.burst {
            Some(burst) => burst.outbox(),
            // SAFETY: the box lives as long as `self`, and no burst borrows it now.
            None => unsafe { self.endpoint.as_mut() }.outbox(),
        }
    }

    /// Sets the time that the NF sees; only without a burst.
    pub(crate) fn set_time(&mut self, time: Duration) {
        // SAFETY: the box lives as long as `self`, and no burst borrows it now.
        netlib::sim::set_time(unsafe { self.endpoint.as_mut() }, time);
    }

    /// The number of the current burst.
    #[inline]
    pub(crate) const fn serial(&self) -> u32 {
        self.serial
    }

    pub(crate) const fn is_serving(&self) -> bool {
        self.serving
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

    /// The next message.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        match &mut self.burst {
            Some(burst) => burst.next_message(),
            // SAFETY: the box lives as long as `self`, and no burst borrows it now.
            None => unsafe { self.endpoint.as_mut() }.next_message(),
        }
    }

    /// Sends a message.
    pub(crate) fn send_message(&self, message: Outgoing) -> Result<(), MessageError> {
        match &self.burst {
            Some(burst) => burst.send_message(message),
            // SAFETY: the box lives as long as `self`, and no burst borrows it now.
            None => unsafe { self.endpoint.as_ref() }.send_message(message),
        }
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

/// Withdraws the per-flow verdicts (NETLIB_DROP_FLOW, NETLIB_SKIP_FLOW, NETLIB_STEER_…) that this endpoint's thread
/// gave in bursts already sent, but not those in its current burst. May be called within a callback.
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

/// The current number of the chain with this name, for NETLIB_STEER_TO_CHAIN().
///
/// @return NETLIB_OK, NETLIB_ERR_NAME, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_port().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_chain(
    endpoint: *const netlib_endpoint,
    name: *const c_char,
    chain: *mut u16,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe { look_up(endpoint, name, chain, "chain") })
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
        (Some(burst), "chain") => burst.context().chain(name).map(|chain| chain.0),
        (Some(burst), _) => burst.context().role(name).map(|role| role.0),
        // SAFETY: the box lives as long as `this`, and no burst borrows it.
        (None, "port") => unsafe { this.endpoint.as_ref() }.port(name).map(|port| port.0),
        // SAFETY: as above.
        (None, "chain") => unsafe { this.endpoint.as_ref() }.chain(name).map(|chain| chain.0),
        // SAFETY: as above.
        (None, _) => unsafe { this.endpoint.as_ref() }.role(name).map(|role| role.0),
    };
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { number.write(found.ok_or(Failure::Name(what))?) };
    Ok(netlib_status::NETLIB_OK as c_int)
}
