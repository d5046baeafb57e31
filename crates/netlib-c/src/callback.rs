//! The callback API: a function that is asked about every packet.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::thread;

use netlib::{Error, Verdict};

use crate::endpoint::{borrow, netlib_attach, netlib_detach, netlib_endpoint, netlib_t};
use crate::options::netlib_options;
use crate::packet::{netlib_packet, verdict};
use crate::status::{Failure, guard, netlib_status};

/// Looks at one packet, changes it if it likes, and returns a verdict: NETLIB_NEXT, NETLIB_DROP, NETLIB_TO_PORT(number),
/// NETLIB_TO_ROLE(number), NETLIB_DROP_FLOW(seconds) or NETLIB_SKIP_FLOW(seconds); a number that is none of these discards the packet. Called by each thread of the NF, with that
/// thread's endpoint (for names and counters; not for netlib_receive() and netlib_send()) and with the `user` of
/// netlib_serve(), which is the same for all. It must return: no longjmp, no C++ exception.
pub type netlib_callback = Option<
    unsafe extern "C" fn(
        endpoint: *mut netlib_endpoint,
        packet: *mut netlib_packet,
        user: *mut c_void,
    ) -> u32,
>;

type Callback = unsafe extern "C" fn(*mut netlib_endpoint, *mut netlib_packet, *mut c_void) -> u32;

/// What goes to a thread.
struct Work {
    endpoint: NonNull<netlib_endpoint>,
    callback: Callback,
    user: *mut c_void,
}

// SAFETY: netlib_serve's caller uses the endpoints nowhere else meanwhile, and each goes to one thread; its callback is
// made for being called by several threads with the same `user`, as the header says.
unsafe impl Send for Work {}

/// Asks `callback` about every packet, in a thread for each endpoint (in the calling one when there is but one), until the
/// NF is to end.
///
/// @return NETLIB_OK when the engine ended it or netlib_stop() did; NETLIB_ERR_NULL, NETLIB_ERR_SYSTEM, NETLIB_ERR_PANIC.
///
/// # Safety
/// `nf` is NULL or attached, and its endpoints are used by no other thread; `callback` may be called by several threads.
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
                // `serve` catches panics; a thread that ends by one all the same has panicked.
                let ended = finish(number, handle.join().unwrap_or(false));
                result = result.and(ended);
            }
            result
        })
    })
}

fn finish(thread: u16, sound: bool) -> Result<c_int, Failure> {
    if sound { Ok(netlib_status::NETLIB_OK as c_int) } else { Err(Error::Panicked { thread }.into()) }
}

/// netlib_attach(), netlib_serve(), netlib_detach(). For a program that ends when the engine says so; one that also ends
/// by itself needs the three, for netlib_stop().
///
/// @return as the three.
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
    // SAFETY: the caller's promises; what was attached is used by netlib_serve alone, and detached after it.
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

/// One thread's loop; whether it ended without a panic.
fn serve(work: &Work) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        while let Some(count) = receive(work) {
            for n in 0..count {
                ask(work, n);
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

fn receive(work: &Work) -> Option<usize> {
    // SAFETY: the endpoint is this thread's alone (see Work), and no borrow of it lives while a callback runs.
    let endpoint = unsafe { borrow(work.endpoint.as_ptr()) }.ok()?;
    endpoint.set_serving(true);
    endpoint.receive(None)
}

fn ask(work: &Work, n: usize) {
    let me = work.endpoint.as_ptr();
    // SAFETY: as in `receive`; the borrow ends before the callback, which reaches the endpoint by the same pointer.
    let packet = unsafe { borrow(me) }.ok().and_then(|endpoint| endpoint.describe(n, me));
    let Some(mut packet) = packet else { return };
    let serial = packet.serial;
    // SAFETY: a function of C's of this type, with what its declaration promises it.
    let raw = unsafe { (work.callback)(me, &raw mut packet, work.user) };
    // SAFETY: as in `receive`.
    let endpoint = unsafe { borrow(me) };
    if let Some(burst) = endpoint.ok().and_then(|endpoint| endpoint.burst(serial)) {
        burst.set(n, verdict(raw).unwrap_or(Verdict::Drop));
    }
}
