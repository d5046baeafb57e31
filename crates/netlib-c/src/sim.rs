// SPDX-License-Identifier: Apache-2.0
//! The simulator in C: tests an NF without an engine, in the test's own thread. In: packets. Out: the NF's verdicts and
//! the changed packets.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use netlib::sim::{Engine, MAX_PACKET, Outcome};
use netlib::{MAX_COUNTERS, Outgoing, PortId};

use crate::callback::{netlib_callback, serve_waiting};
use crate::endpoint::messages::{message_of, netlib_message, sent};
use crate::endpoint::{borrow, netlib_endpoint};
use crate::packet::number;
use crate::status::{Failure, guard, netlib_status};

/// A simulated engine with one NF thread, for tests. Packets go in by netlib_sim_put(); the NF handles them in
/// netlib_sim_run(), or in a loop of its own on netlib_sim_endpoint(); netlib_sim_take() returns them with their
/// verdicts.
#[derive(Debug)]
pub struct netlib_sim {
    /// A leaked box, to which the caller has a pointer.
    endpoint: NonNull<netlib_endpoint>,
    engine: Engine,
    outcomes: VecDeque<Outcome>,
    /// Messages that the NF has sent.
    told: VecDeque<Outgoing>,
}

impl Drop for netlib_sim {
    fn drop(&mut self) {
        // SAFETY: from Box::leak in netlib_sim_new(), freed only here.
        drop(unsafe { Box::from_raw(self.endpoint.as_ptr()) });
    }
}

/// Makes a simulator. Ports and roles are numbered in the order of the lists.
///
/// @param ports names, the last one followed by NULL; NULL for none.
/// @param roles as `ports`.
/// @param sim receives the simulator, to be passed to netlib_sim_free(); NULL after a failure.
/// @return NETLIB_OK; NETLIB_ERR_SYSTEM, NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// Pointers are NULL or valid; strings are zero-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_new(
    ports: *const *const c_char,
    roles: *const *const c_char,
    sim: *mut *mut netlib_sim,
) -> c_int {
    guard(|| {
        if sim.is_null() {
            return Err(Failure::Null("sim"));
        }
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { sim.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise about both lists.
        let (ports, roles) = unsafe { (names(ports, "ports")?, names(roles, "roles")?) };
        let (engine, endpoint) = Engine::new(&ports, &roles)?;
        let endpoint = NonNull::from(Box::leak(Box::new(netlib_endpoint::new(endpoint, MAX_COUNTERS))));
        let made =
            Box::new(netlib_sim { endpoint, engine, outcomes: VecDeque::new(), told: VecDeque::new() });
        // SAFETY: as above.
        unsafe { sim.write(Box::into_raw(made)) };
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Gives chains names, numbered in the order of the list.
///
/// @param chains names, the last one followed by NULL; NULL for none.
/// @return NETLIB_OK; NETLIB_ERR_NULL, NETLIB_ERR_ARGUMENT.
///
/// # Safety
/// As for netlib_sim_new().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_name_chains(sim: *mut netlib_sim, chains: *const *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let sim = unsafe { sim.as_mut() }.ok_or(Failure::Null("sim"))?;
        // SAFETY: the caller's promise.
        sim.engine.name_chains(&unsafe { names(chains, "chains") }?);
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Sends the NF a message, as netvmd does.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE if the NF has not read the last ones yet; NETLIB_ERR_ARGUMENT, NETLIB_ERR_NULL.
///
/// # Safety
/// `sim` is NULL or came from netlib_sim_new(), and no other thread uses it; `message` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_tell(sim: *mut netlib_sim, message: *const netlib_message) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let sim = unsafe { sim.as_mut() }.ok_or(Failure::Null("sim"))?;
        // SAFETY: the caller's promise.
        let message = unsafe { message.as_ref() }.ok_or(Failure::Null("message"))?;
        let message = message_of(message).ok_or(Failure::Argument("message is none that netvmd sends"))?;
        if !sim.engine.tell(&message) {
            return Err(Failure::Plain(netlib_status::NETLIB_ERR_SPACE));
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// The next message that the NF has sent: its role is the receivers'.
///
/// @return 1 if `message` has one, 0 if there is none; NETLIB_ERR_NULL.
///
/// # Safety
/// `sim` is NULL or came from netlib_sim_new(), and no other thread uses it; `message` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_told(sim: *mut netlib_sim, message: *mut netlib_message) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let sim = unsafe { sim.as_mut() }.ok_or(Failure::Null("sim"))?;
        if message.is_null() {
            return Err(Failure::Null("message"));
        }
        sim.told.extend(sim.engine.told());
        let Some(next) = sim.told.pop_front() else { return Ok(0) };
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { message.write(sent(next)) };
        Ok(1)
    })
}

/// Frees a simulator. NULL is ignored.
///
/// # Safety
/// `sim` is NULL or came from netlib_sim_new(), and neither it nor its endpoint is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_free(sim: *mut netlib_sim) {
    guard(|| {
        if !sim.is_null() {
            // SAFETY: the caller's promise; made by Box::into_raw.
            drop(unsafe { Box::from_raw(sim) });
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    });
}

/// The endpoint of the NF's thread, for names, counters, and an NF with a loop of its own (netlib_receive() with
/// timeout 0). NULL for NULL.
///
/// # Safety
/// As for netlib_sim_put().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_endpoint(sim: *mut netlib_sim) -> *mut netlib_endpoint {
    // SAFETY: the caller's promise.
    unsafe { sim.as_ref() }.map_or(std::ptr::null_mut(), |sim| sim.endpoint.as_ptr())
}

/// Sends a packet to the NF.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE if it is longer than 16128 bytes, or if the NF has NETLIB_BURST packets that
/// netlib_sim_take() did not return yet; NETLIB_ERR_NULL.
///
/// # Safety
/// `sim` is NULL or came from netlib_sim_new(), and no other thread uses it; `bytes` is NULL or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_put(
    sim: *mut netlib_sim,
    ingress: u16,
    bytes: *const u8,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let sim = unsafe { sim.as_mut() }.ok_or(Failure::Null("sim"))?;
        if bytes.is_null() {
            return Err(Failure::Null("bytes"));
        }
        if length > MAX_PACKET || !sim.outcomes.is_empty() {
            return Err(Failure::Plain(netlib_status::NETLIB_ERR_SPACE));
        }
        // SAFETY: the caller's promise, and the length is bounded.
        let frame = unsafe { std::slice::from_raw_parts(bytes, length) };
        if !sim.engine.put(PortId(ingress), frame) {
            return Err(Failure::Plain(netlib_status::NETLIB_ERR_SPACE));
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Calls `callback` on every packet that was put, as netlib_serve() would, and returns.
///
/// @return NETLIB_OK; NETLIB_ERR_NULL, NETLIB_ERR_PANIC.
///
/// # Safety
/// As for netlib_sim_put() and netlib_serve().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_run(
    sim: *mut netlib_sim,
    callback: netlib_callback,
    user: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { netlib_sim_endpoint(sim) };
        let callback = callback.ok_or(Failure::Null("callback"))?;
        // SAFETY: the caller's promise.
        unsafe { borrow(endpoint) }?;
        // SAFETY: as above; no other thread uses the endpoint.
        unsafe { serve_waiting(endpoint, callback, user) }
    })
}

/// Takes one packet that the NF has returned, in the order in which they were put.
///
/// @param bytes receives the packet's bytes.
/// @param length the room in `bytes`; receives the packet's length.
/// @param verdict receives the verdict; NULL if it does not matter.
/// @return 1; 0 if there is none; NETLIB_ERR_SPACE, with the length, if it needs more room; NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_sim_put(); `bytes` is NULL or has `*length` bytes, `length` and `verdict` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_take(
    sim: *mut netlib_sim,
    bytes: *mut u8,
    length: *mut usize,
    verdict: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let sim = unsafe { sim.as_mut() }.ok_or(Failure::Null("sim"))?;
        if bytes.is_null() || length.is_null() {
            return Err(Failure::Null("bytes or length"));
        }
        if sim.outcomes.is_empty() {
            sim.outcomes.extend(sim.engine.take());
        }
        let Some(outcome) = sim.outcomes.front() else { return Ok(0) };
        // SAFETY: not NULL, and readable and writable by the caller's promise.
        let room = unsafe { length.replace(outcome.bytes.len()) };
        if room < outcome.bytes.len() {
            return Err(Failure::Plain(netlib_status::NETLIB_ERR_SPACE));
        }
        // SAFETY: `bytes` has at least `room` bytes by the caller's promise, and the packet is not longer.
        unsafe { bytes.copy_from_nonoverlapping(outcome.bytes.as_ptr(), outcome.bytes.len()) };
        if !verdict.is_null() {
            // SAFETY: writable by the caller's promise.
            unsafe { verdict.write(number(outcome.verdict)) };
        }
        sim.outcomes.pop_front();
        Ok(1)
    })
}

/// Sets what netlib_now() returns from now on, in nanoseconds. Sends the burst that the endpoint holds.
///
/// @return NETLIB_OK, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_sim_put().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_set_time(sim: *mut netlib_sim, nanoseconds: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(netlib_sim_endpoint(sim)) }?;
        endpoint.send();
        endpoint.set_time(Duration::from_nanos(nanoseconds));
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// One of the NF's own counters, by its index; 0 if there is none.
///
/// # Safety
/// As for netlib_sim_put().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_sim_counter(sim: *const netlib_sim, counter: usize) -> u64 {
    // SAFETY: the caller's promise; the box lives as long as `sim`.
    unsafe { sim.as_ref().map_or(0, |sim| sim.endpoint.as_ref().counter(counter)) }
}

/// The names of a list that ends with NULL.
///
/// # Safety
/// `list` is NULL, or its strings are zero-terminated and the last one is followed by NULL.
unsafe fn names<'a>(list: *const *const c_char, what: &'static str) -> Result<Vec<&'a str>, Failure> {
    let mut names = Vec::new();
    if list.is_null() {
        return Ok(names);
    }
    loop {
        // SAFETY: the caller's promise: a pointer is there up to the first NULL.
        let name = unsafe { list.add(names.len()).read() };
        if name.is_null() {
            return Ok(names);
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(name) };
        names.push(text.to_str().map_err(|_| Failure::Utf8(what))?);
    }
}
