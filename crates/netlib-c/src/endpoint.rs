//! An attached NF, and its threads' endpoints: the burst API.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;
use std::time::Duration;

use netlib::{Burst, Endpoint, MAX_COUNTERS, Stop};

use crate::options::{self, netlib_options};
use crate::packet::{NETLIB_BURST, netlib_packet};
use crate::status::{Failure, guard, netlib_status};

/// An NF that has attached.
#[derive(Debug)]
pub struct netlib_t {
    /// From Box::into_raw: each is its thread's from netlib_get_endpoint() to netlib_detach().
    endpoints: Vec<NonNull<netlib_endpoint>>,
    stop: Stop,
}

/// One NF thread's access to packets. Use each from one thread at a time.
#[derive(Debug)]
pub struct netlib_endpoint {
    /// What was received and not yet sent on. While there is one, the endpoint is reached through it alone. Declared
    /// first, dropped first.
    burst: Option<Burst<'static>>,
    /// From Box::into_raw, so that `burst` may borrow it.
    endpoint: NonNull<Endpoint>,
    /// Number of the burst; identifies packets of older bursts.
    serial: u32,
    /// Whether the burst belongs to netlib_serve().
    serving: bool,
    thread: u16,
    counters: [u64; MAX_COUNTERS],
    counted: usize,
}

impl netlib_endpoint {
    fn new(endpoint: Endpoint, counted: usize) -> Self {
        let thread = endpoint.thread();
        let endpoint = NonNull::from(Box::leak(Box::new(endpoint)));
        let counters = [0; MAX_COUNTERS];
        Self { burst: None, endpoint, serial: 0, serving: false, thread, counters, counted }
    }

    /// The burst of the packets with this number.
    #[inline]
    pub(crate) fn burst(&mut self, serial: u32) -> Option<&mut Burst<'static>> {
        if serial == self.serial { self.burst.as_mut() } else { None }
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

    /// Shows the counters, when no burst is held.
    fn report(&mut self) {
        // SAFETY: the box lives as long as `self`, and there is no burst now that borrows it.
        unsafe { self.endpoint.as_ref() }.report(&self.counters[..self.counted]);
    }

    /// Takes back what was said of whole flows.
    fn withdraw(&mut self) {
        match &mut self.burst {
            Some(burst) => burst.withdraw(),
            // SAFETY: the box lives as long as `self`, and there is no burst now that borrows it.
            None => unsafe { self.endpoint.as_mut() }.withdraw(),
        }
    }

    /// Sends on what is held, and takes a burst: its size, 0 when `timeout` has passed, `None` when the NF is to end.
    /// Without a timeout, waits for as long as it takes.
    pub(crate) fn receive(&mut self, timeout: Option<Duration>) -> Option<usize> {
        self.send();
        self.report();
        // SAFETY: the box lives as long as `self`, whose `burst`, the only other borrow, is empty; it is filled with this
        // one, and the lifetime that it loses here is kept by the order of its fields.
        let endpoint = unsafe { &mut *self.endpoint.as_ptr() };
        self.burst = match timeout {
            None => endpoint.receive(),
            Some(Duration::ZERO) => endpoint.try_receive(),
            Some(timeout) => endpoint.receive_for(timeout),
        };
        match &self.burst {
            Some(burst) => Some(burst.len()),
            // SAFETY: as above, and there is no burst.
            None if unsafe { self.endpoint.as_ref() }.ended() => None,
            None => Some(0),
        }
    }

    /// Describes packet `n` of the burst that is held, for C, which knows this endpoint as `me`.
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

impl netlib_t {
    pub(crate) fn endpoints(&self) -> &[NonNull<netlib_endpoint>] {
        &self.endpoints
    }

    pub(crate) fn stop(&self) {
        self.stop.request();
    }
}

/// An endpoint of C's, to use.
///
/// # Safety
/// `endpoint` is NULL or was given by this library for an NF that is attached still, and no other thread uses it.
pub(crate) unsafe fn borrow<'a>(endpoint: *mut netlib_endpoint) -> Result<&'a mut netlib_endpoint, Failure> {
    // SAFETY: the caller's promise.
    unsafe { endpoint.as_mut() }.ok_or(Failure::Null("endpoint"))
}

/// Attaches to the engine: by the socket that netvmd left open for an NF that it started, by options->socket, by $NETVM_ATTACH,
/// or by the default path.
///
/// @param nf receives the NF, to be given back to netlib_detach(); NULL after a failure.
/// @return NETLIB_OK; NETLIB_ERR_CONNECT, _REFUSED, _PROTOCOL, _SYSTEM, _NULL, _ARGUMENT.
///
/// # Safety
/// Pointers are NULL or valid; strings end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_attach(options: *const netlib_options, nf: *mut *mut netlib_t) -> c_int {
    guard(|| {
        if nf.is_null() {
            return Err(Failure::Null("nf"));
        }
        // SAFETY: not NULL, and the caller's to write.
        unsafe { nf.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let options = unsafe { options::read(options) }?;
        let endpoints = netlib::attach(&options)?.into_endpoints().into_iter();
        let boxed = |endpoint| Box::new(netlib_endpoint::new(endpoint, options.counters.len()));
        let endpoints = endpoints.map(|endpoint| NonNull::from(Box::leak(boxed(endpoint)))).collect();
        let attached = Box::new(netlib_t { endpoints, stop: options.stop });
        // SAFETY: as above.
        unsafe { nf.write(Box::into_raw(attached)) };
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Sends on what the endpoints hold, leaves the engine and frees everything; NULL is nothing to free.
///
/// # Safety
/// `nf` is NULL or came from netlib_attach(); it and its endpoints are not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_detach(nf: *mut netlib_t) {
    guard(|| {
        if let Some(nf) = NonNull::new(nf) {
            // SAFETY: the caller's promise; `nf` and the endpoints come from boxes, and are freed only here.
            let nf = unsafe { Box::from_raw(nf.as_ptr()) };
            for endpoint in &nf.endpoints {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(endpoint.as_ptr()) });
            }
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    });
}

/// Asks all threads of the NF to end, within 100 ms. May be called from any thread and from a signal handler. NULL is ignored.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_stop(nf: *const netlib_t) {
    // SAFETY: the caller's promise. One atomic store: nothing that could fail, panic or disturb what a signal interrupts.
    if let Some(nf) = unsafe { nf.as_ref() } {
        nf.stop();
    }
}

/// How many threads, and so endpoints, the NF has; 0 for NULL.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_threads(nf: *const netlib_t) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { nf.as_ref() }.map_or(0, |nf| nf.endpoints.len() as u16)
}

/// The endpoint of thread `thread`, from 0; freed by netlib_detach(). NULL when there is none.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_get_endpoint(nf: *const netlib_t, thread: u16) -> *mut netlib_endpoint {
    // SAFETY: the caller's promise.
    let endpoint = unsafe { nf.as_ref() }.and_then(|nf| nf.endpoints.get(usize::from(thread)));
    endpoint.map_or(std::ptr::null_mut(), |endpoint| endpoint.as_ptr())
}

/// Takes a burst. What the endpoint still held is sent on before.
///
/// @param packets room for at least NETLIB_BURST packets.
/// @param room how many that are.
/// @param timeout in microseconds; 0 does not wait, less than 0 waits for as long as it takes.
/// @return how many packets, 0 when the time has passed; NETLIB_END, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// `endpoint` is NULL or an attached NF's, used by this thread alone; `packets` has the room that `room` says.
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
            return Err(Failure::Argument("room for fewer than NETLIB_BURST packets"));
        }
        if endpoint.serving {
            return Err(Failure::Argument("netlib_receive within a callback"));
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_micros);
        let Some(count) = endpoint.receive(timeout) else {
            return Ok(netlib_status::NETLIB_END as c_int);
        };
        for n in 0..count {
            if let Some(packet) = endpoint.describe(n, me) {
                // SAFETY: a burst has at most NETLIB_BURST packets, for which the caller has room.
                unsafe { packets.add(n).write(packet) };
            }
        }
        Ok(count as c_int)
    })
}

/// Sends on the burst that the endpoint holds, by the verdicts that were set; packets without one go to the next hop. Their
/// bytes must not be touched afterwards.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// `endpoint` is NULL or an attached NF's, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_send(endpoint: *mut netlib_endpoint) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        if endpoint.serving {
            return Err(Failure::Argument("netlib_send within a callback"));
        }
        endpoint.send();
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Which thread of the NF this endpoint is for, from 0; 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_thread(endpoint: *const netlib_endpoint) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { endpoint.as_ref() }.map_or(0, |endpoint| endpoint.thread)
}

/// Adds to one of the NF's own counters, by its place in options->counters. Shown with the next send or receive.
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

/// Withdraws the per-flow verdicts (NETLIB_DROP_FLOW, NETLIB_SKIP_FLOW) that this endpoint's thread gave in bursts already sent, but not those in its
/// current burst. May be called within a callback.
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

/// A number that moves whenever ports, roles or chains have changed: then names may have other numbers. 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_epoch(endpoint: *const netlib_endpoint) -> u64 {
    // SAFETY: the caller's promise.
    let Some(this) = (unsafe { endpoint.as_ref() }) else { return 0 };
    // SAFETY: the box lives as long as `this`, and there is no burst that borrows it when it is asked.
    let free = || unsafe { this.endpoint.as_ref() }.epoch();
    this.burst.as_ref().map_or_else(free, Burst::epoch)
}

/// The number of the port with this name, as of now.
///
/// @return NETLIB_OK, NETLIB_ERR_NAME, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_send(); `name` is NULL or ends with a zero, `port` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_port(
    endpoint: *const netlib_endpoint,
    name: *const c_char,
    port: *mut u16,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe { look_up(endpoint, name, port, "port") })
}

/// The number of the role with this name, as of now.
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
        // SAFETY: the box lives as long as `this`, and there is no burst that borrows it.
        (None, "port") => unsafe { this.endpoint.as_ref() }.port(name).map(|port| port.0),
        // SAFETY: as above.
        (None, _) => unsafe { this.endpoint.as_ref() }.role(name).map(|role| role.0),
    };
    // SAFETY: not NULL, and the caller's to write.
    unsafe { number.write(found.ok_or(Failure::Name(what))?) };
    Ok(netlib_status::NETLIB_OK as c_int)
}
