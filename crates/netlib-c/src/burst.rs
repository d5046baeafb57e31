// SPDX-License-Identifier: Apache-2.0
//! The burst API: receives a burst, takes its verdicts, sends it.

use std::ffi::c_int;
use std::time::Duration;

use netlib::Verdict;

use crate::endpoint::{borrow, netlib_endpoint};
use crate::packet::{NETLIB_BURST, netlib_packet, verdict};
use crate::status::{Failure, guard, netlib_status};

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
        if endpoint.is_serving() {
            return Err(Failure::Argument("netlib_receive was called within a callback"));
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_micros);
        let Some(count) = endpoint.receive(timeout) else {
            return Ok(netlib_status::NETLIB_END as c_int);
        };
        for n in 0..count {
            if let Some(packet) = netlib_packet::describe(endpoint, n, me) {
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
        if endpoint.is_serving() {
            return Err(Failure::Argument("netlib_send was called within a callback"));
        }
        endpoint.send();
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Sets the verdicts on the first `count` packets of the endpoint's burst, in one call: for languages in which a call
/// of C is dear.
///
/// @return NETLIB_OK; NETLIB_ERR_ARGUMENT for a number that is not a verdict, which discards its packet;
/// NETLIB_ERR_STALE if the burst has less packets; NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_send(); `verdicts` is NULL or has `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_set_verdicts(
    endpoint: *mut netlib_endpoint,
    verdicts: *const u32,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        if verdicts.is_null() {
            return Err(Failure::Null("verdicts"));
        }
        let burst = endpoint.current_burst().filter(|burst| count <= burst.len());
        let burst = burst.ok_or(Failure::Plain(netlib_status::NETLIB_ERR_STALE))?;
        let mut result = Ok(netlib_status::NETLIB_OK as c_int);
        for n in 0..count {
            // SAFETY: `n` is below `count`, and the list has that many by the caller's promise.
            let verdict = verdict(unsafe { verdicts.add(n).read() });
            if verdict.is_none() {
                result = Err(Failure::Plain(netlib_status::NETLIB_ERR_ARGUMENT));
            }
            burst.set(n, verdict.unwrap_or(Verdict::Drop));
        }
        result
    })
}
