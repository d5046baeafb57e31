// SPDX-License-Identifier: Apache-2.0
//! The callback API: netlib calls a C function on every packet, and runs the loop.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use netlib::{Error, Verdict};

use crate::attach::{netlib_attach, netlib_detach, netlib_t};
use crate::endpoint::{borrow, netlib_endpoint};
use crate::options::netlib_options;
use crate::packet::{netlib_packet, verdict};
use crate::status::{Failure, guard, netlib_status};

/// Reads and may change one packet, and returns its verdict: NETLIB_NEXT, NETLIB_DROP, NETLIB_TO_PORT(number),
/// NETLIB_TO_ROLE(number), NETLIB_DROP_FLOW(seconds), NETLIB_SKIP_FLOW(seconds), NETLIB_STEER_TO_CHAIN(number),
/// NETLIB_STEER_TO_ROLE(number), NETLIB_STEER_TO_PORT(number) or NETLIB_STEER_BACK; any other number discards the
/// packet. Each thread of the NF calls it with the thread's endpoint (for names and counters, not for netlib_receive()
/// and netlib_send()) and with the `user` of netlib_serve(), which all threads share. It must return: no longjmp, no
/// C++ exception.
pub type netlib_callback = Option<
    unsafe extern "C" fn(
        endpoint: *mut netlib_endpoint,
        packet: *mut netlib_packet,
        user: *mut c_void,
    ) -> u32,
>;

type Callback = unsafe extern "C" fn(*mut netlib_endpoint, *mut netlib_packet, *mut c_void) -> u32;

/// The arguments of a thread.
struct Work {
    endpoint: NonNull<netlib_endpoint>,
    callback: Callback,
    user: *mut c_void,
}

// SAFETY: the caller of netlib_serve does not use the endpoints meanwhile, and each goes to one thread. The header
// requires that several threads may call the callback with the same `user`.
unsafe impl Send for Work {}

/// Calls `callback` on every packet until the NF must end. Starts a thread for each endpoint; a single endpoint runs in
/// the calling thread.
///
/// @return NETLIB_OK if the engine or netlib_stop() ended the NF; NETLIB_ERR_NULL, NETLIB_ERR_SYSTEM, NETLIB_ERR_PANIC.
///
/// # Safety
/// `nf` is NULL or attached, and no other thread uses its endpoints; several threads may call `callback`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_serve(
    nf: *const netlib_t,
    callback: netlib_callback,
    user: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let nf = unsafe { nf.as_ref() }.ok_or(Failure::Null("nf"))?;
        let callback = callback.ok_or(Failure::Null("callback"))?;
        let work = |endpoint: &NonNull<netlib_endpoint>| Work { endpoint: *endpoint, callback, user };
        let mut works: Vec<Work> = nf.endpoints().iter().map(work).collect();
        if works.len() == 1
            && let Some(work) = works.pop()
        {
            return finish(0, serve(&work));
        }
        thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut result = Ok(netlib_status::NETLIB_OK as c_int);
            for (number, work) in (0..).zip(works) {
                let builder = thread::Builder::new().name(format!("nf-{number}"));
                match builder.spawn_scoped(scope, move || serve(&work)) {
                    Ok(handle) => threads.push((number, handle)),
                    Err(source) => {
                        nf.stop();
                        result = Err(Error::Thread { thread: number, source }.into());
                        break;
                    }
                }
            }
            for (number, handle) in threads {
                // `serve` catches panics; a thread whose join fails has panicked all the same.
                let ended = finish(number, handle.join().unwrap_or(false));
                result = result.and(ended);
            }
            result
        })
    })
}

fn finish(thread: u16, has_returned: bool) -> Result<c_int, Failure> {
    if has_returned { Ok(netlib_status::NETLIB_OK as c_int) } else { Err(Error::Panicked { thread }.into()) }
}

/// Calls netlib_attach(), netlib_serve() and netlib_detach(), for a program that only the engine ends. A program that
/// also calls netlib_stop() must call the three itself.
///
/// @return as these three functions.
///
/// # Safety
/// As for netlib_attach() and netlib_serve().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_run(
    options: *const netlib_options,
    callback: netlib_callback,
    user: *mut c_void,
) -> c_int {
    if callback.is_none() {
        return guard(|| Err(Failure::Null("callback")));
    }
    let mut nf = std::ptr::null_mut();
    // SAFETY: the caller's promises. Only netlib_serve uses the attached NF, which is detached afterwards.
    unsafe {
        let attached = netlib_attach(options, &raw mut nf);
        if attached != netlib_status::NETLIB_OK as c_int {
            return attached;
        }
        let served = netlib_serve(nf, callback, user);
        netlib_detach(nf);
        served
    }
}

/// Calls `callback` on the packets that wait, and returns.
///
/// # Safety
/// As for netlib_serve(), for the endpoint's thread.
pub(crate) unsafe fn serve_waiting(
    endpoint: *mut netlib_endpoint,
    callback: Callback,
    user: *mut c_void,
) -> Result<c_int, Failure> {
    let work = Work { endpoint: NonNull::new(endpoint).ok_or(Failure::Null("endpoint"))?, callback, user };
    finish(0, serve_until(&work, Some(Duration::ZERO)))
}

/// One thread's loop; returns whether it ended without a panic.
fn serve(work: &Work) -> bool {
    serve_until(work, None)
}

/// The loop, which ends as soon as no packet came within the time, if one is given.
fn serve_until(work: &Work, timeout: Option<Duration>) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        while let Some(count) = receive(work, timeout).filter(|count| *count > 0 || timeout.is_none()) {
            for n in 0..count {
                call(work, n);
            }
        }
    }));
    // SAFETY: as in `receive`.
    if let Ok(endpoint) = unsafe { borrow(work.endpoint.as_ptr()) } {
        endpoint.set_serving(false);
        endpoint.send();
    }
    ended.is_ok()
}

fn receive(work: &Work, timeout: Option<Duration>) -> Option<usize> {
    // SAFETY: only this thread uses the endpoint (see Work), and no borrow of it lives while a callback runs.
    let endpoint = unsafe { borrow(work.endpoint.as_ptr()) }.ok()?;
    endpoint.set_serving(true);
    endpoint.receive(timeout)
}

fn call(work: &Work, n: usize) {
    let me = work.endpoint.as_ptr();
    // SAFETY: as in `receive`; the borrow ends before the callback, which reaches the endpoint by the same pointer.
    let packet = unsafe { borrow(me) }.ok().and_then(|endpoint| netlib_packet::describe(endpoint, n, me));
    let Some(mut packet) = packet else { return };
    let serial = packet.serial;
    // SAFETY: the C function has this type, and the arguments are as its declaration promises.
    let raw = unsafe { (work.callback)(me, &raw mut packet, work.user) };
    // SAFETY: as in `receive`.
    let endpoint = unsafe { borrow(me) };
    if let Some(burst) = endpoint.ok().and_then(|endpoint| endpoint.burst(serial)) {
        burst.set(n, verdict(raw).unwrap_or(Verdict::Drop));
    }
}
