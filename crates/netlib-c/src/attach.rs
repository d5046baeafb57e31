// SPDX-License-Identifier: Apache-2.0
//! An attached NF: from netlib_attach() to netlib_detach().

use std::ffi::c_int;
use std::ptr::NonNull;

use netlib::Stop;

use crate::endpoint::netlib_endpoint;
use crate::options::{self, netlib_options};
use crate::status::{Failure, guard, netlib_status};

/// An attached NF.
#[derive(Debug)]
pub struct netlib_t {
    /// Leaked boxes. Each belongs to its thread from netlib_get_endpoint() to netlib_detach().
    endpoints: Vec<NonNull<netlib_endpoint>>,
    stop: Stop,
}

impl netlib_t {
    pub(crate) fn endpoints(&self) -> &[NonNull<netlib_endpoint>] {
        &self.endpoints
    }

    pub(crate) fn stop(&self) {
        self.stop.request();
    }
}

/// Attaches to the engine. Uses options->socket, else the socket that netvmd left open for an NF that it started, else
/// $NETVM_ATTACH, else the default path.
///
/// @param nf receives the NF, to be passed to netlib_detach(); NULL after a failure.
/// @return NETLIB_OK; NETLIB_ERR_CONNECT, _REFUSED, _PROTOCOL, _SYSTEM, _NULL, _ARGUMENT.
///
/// # Safety
/// Pointers are NULL or valid; strings are zero-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_attach(options: *const netlib_options, nf: *mut *mut netlib_t) -> c_int {
    guard(|| {
        if nf.is_null() {
            return Err(Failure::Null("nf"));
        }
        // SAFETY: not NULL, and writable by the caller's promise.
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

/// Sends the bursts that the endpoints hold, leaves the engine and frees everything. NULL is ignored.
///
/// # Safety
/// `nf` is NULL or came from netlib_attach(); no thread uses it or its endpoints any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_detach(nf: *mut netlib_t) {
    guard(|| {
        if let Some(nf) = NonNull::new(nf) {
            // SAFETY: the caller's promise. `nf` and the endpoints are leaked boxes, and are freed only here.
            let nf = unsafe { Box::from_raw(nf.as_ptr()) };
            for endpoint in &nf.endpoints {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(endpoint.as_ptr()) });
            }
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    });
}

/// Asks the NF to end, which its threads do within 100 ms. May be called from any thread and from a signal handler.
/// NULL is ignored.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_stop(nf: *const netlib_t) {
    // SAFETY: the caller's promise. A single atomic store is async-signal-safe.
    if let Some(nf) = unsafe { nf.as_ref() } {
        nf.stop();
    }
}

/// The number of the NF's threads and endpoints; 0 for NULL.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_threads(nf: *const netlib_t) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { nf.as_ref() }.map_or(0, |nf| nf.endpoints.len() as u16)
}

/// The endpoint of thread `thread`, from 0; NULL if there is none. netlib_detach() frees it.
///
/// # Safety
/// `nf` is NULL or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_get_endpoint(nf: *const netlib_t, thread: u16) -> *mut netlib_endpoint {
    // SAFETY: the caller's promise.
    let endpoint = unsafe { nf.as_ref() }.and_then(|nf| nf.endpoints.get(usize::from(thread)));
    endpoint.map_or(std::ptr::null_mut(), |endpoint| endpoint.as_ptr())
}
