// SPDX-License-Identifier: Apache-2.0
//! Packets that an NF makes, copies, holds and sends: it has them beyond the burst.

use std::ffi::c_int;

use netlib::{Outbox, OwnedPacket, Packet, PortId};

use super::{netlib_packet, verdict};
use crate::endpoint::{Place, borrow, netlib_endpoint};
use crate::status::{Failure, guard, netlib_status};

/// Makes a packet of `length` zero bytes, without ingress port: send it out of a port (NETLIB_TO_PORT), or set its
/// ingress port. It is the NF's until netlib_send_packet() or netlib_release(), over any number of bursts.
///
/// @param made receives the packet.
/// @return NETLIB_OK; NETLIB_ERR_SPACE if no buffer is free (see `allocate` of `[[nf]]`) or large enough;
/// NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_send(); `made` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_alloc(
    endpoint: *mut netlib_endpoint,
    length: usize,
    made: *mut netlib_packet,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe {
        keep(endpoint, made, |endpoint| {
            endpoint.outbox().alloc(length).ok_or(netlib_status::NETLIB_ERR_SPACE)
        })
    })
}

/// As netlib_alloc(), for a packet that answers or replaces `packet`: with its ingress port and its place in the chain.
///
/// @param packet of the current burst, or one that the NF has beyond it.
/// @return as netlib_alloc(); NETLIB_ERR_STALE.
///
/// # Safety
/// As for netlib_set_verdict(); `made` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_alloc_for(
    packet: *const netlib_packet,
    length: usize,
    made: *mut netlib_packet,
) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe {
        let handle = packet.as_ref().ok_or(Failure::Null("packet"))?;
        keep(handle.endpoint, made, |endpoint| {
            beside(endpoint, handle, |packet, outbox| outbox.alloc_for(packet, length))
        })
    })
}

/// Copies a packet.
///
/// @param packet as for netlib_alloc_for().
/// @param copy receives the copy.
/// @return as netlib_alloc_for().
///
/// # Safety
/// As for netlib_alloc_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_clone(packet: *const netlib_packet, copy: *mut netlib_packet) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe {
        let handle = packet.as_ref().ok_or(Failure::Null("packet"))?;
        keep(handle.endpoint, copy, |endpoint| {
            beside(endpoint, handle, |packet, outbox| outbox.clone_of(packet))
        })
    })
}

/// Holds a packet of the current burst: it is the NF's beyond the burst, and the verdict on it is ignored. `packet` is
/// stale afterwards.
///
/// @param held receives the packet.
/// @return NETLIB_OK; NETLIB_ERR_SPACE if the thread holds as many as `hold` of `[[nf]]` allows; NETLIB_ERR_STALE,
/// NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_alloc_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_hold(packet: *const netlib_packet, held: *mut netlib_packet) -> c_int {
    // SAFETY: the caller's promises.
    guard(|| unsafe {
        let handle = *packet.as_ref().ok_or(Failure::Null("packet"))?;
        keep(handle.endpoint, held, |endpoint| hold(endpoint, &handle))
    })
}

/// Sends a packet that the NF has made or held, by a verdict as of netlib_set_verdict(). Within a burst, it leaves
/// before the first packet that has no verdict yet, else at once. `packet` is stale afterwards.
///
/// @return NETLIB_OK, NETLIB_ERR_ARGUMENT, NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_send_packet(packet: *const netlib_packet, number: u32) -> c_int {
    guard(|| {
        let verdict = verdict(number).ok_or(Failure::Plain(netlib_status::NETLIB_ERR_ARGUMENT))?;
        // SAFETY: the caller's promise.
        let (endpoint, packet) = unsafe { take(packet) }?;
        endpoint.outbox().send(packet, verdict);
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Frees a packet that the NF has made or held. `packet` is stale afterwards.
///
/// @return NETLIB_OK, NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_release(packet: *const netlib_packet) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take(packet) }?.1);
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Makes a packet that the NF has made count as received by a port, one of those that its trust group may use.
///
/// @return NETLIB_OK, NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_set_ingress(packet: *mut netlib_packet, port: u16) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { packet.as_mut() }.ok_or(Failure::Null("packet"))?;
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(handle.endpoint) }?;
        let owned = endpoint.owned.get(handle.place()).ok_or(STALE)?;
        owned.set_ingress(PortId(port));
        handle.ingress = port;
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Number of further packets that the endpoint's thread may hold; 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_may_hold(endpoint: *mut netlib_endpoint) -> usize {
    // SAFETY: the caller's promise.
    unsafe { borrow(endpoint) }.map_or(0, |endpoint| endpoint.outbox().may_hold())
}

/// Nanoseconds since the endpoint's thread attached; in the simulator, what netlib_sim_set_time() has set. 0 for NULL.
///
/// # Safety
/// As for netlib_send().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_now(endpoint: *mut netlib_endpoint) -> u64 {
    // SAFETY: the caller's promise.
    let now = unsafe { borrow(endpoint) }.map(|endpoint| endpoint.outbox().now());
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

const STALE: Failure = Failure::Plain(netlib_status::NETLIB_ERR_STALE);

/// Makes a packet for that of a handle.
fn beside(
    endpoint: &mut netlib_endpoint,
    handle: &netlib_packet,
    make: impl FnOnce(&Packet<'_>, &mut Outbox<'_>) -> Option<OwnedPacket>,
) -> Result<OwnedPacket, netlib_status> {
    let made = if Place::is_owned(handle.index) {
        let mut like = endpoint.owned.take_out(handle.place()).ok_or(netlib_status::NETLIB_ERR_STALE)?;
        let made = make(&like.packet(), &mut endpoint.outbox());
        endpoint.owned.put_back(handle.place(), like);
        made
    } else {
        let burst = endpoint.burst(handle.serial).ok_or(netlib_status::NETLIB_ERR_STALE)?;
        let made = burst.with_outbox(handle.index.into(), |packet, outbox| make(&packet, outbox));
        made.ok_or(netlib_status::NETLIB_ERR_STALE)?
    };
    made.ok_or(netlib_status::NETLIB_ERR_SPACE)
}

/// Holds the packet of a handle.
fn hold(endpoint: &mut netlib_endpoint, handle: &netlib_packet) -> Result<OwnedPacket, netlib_status> {
    let burst = endpoint.burst(handle.serial).filter(|_| !Place::is_owned(handle.index));
    let burst = burst.ok_or(netlib_status::NETLIB_ERR_STALE)?;
    let n = usize::from(handle.index);
    if burst.packet(n).is_none() {
        return Err(netlib_status::NETLIB_ERR_STALE);
    }
    burst.hold(n).ok_or(netlib_status::NETLIB_ERR_SPACE)
}

/// Keeps what `make` makes, and describes it for C.
///
/// # Safety
/// `endpoint` is NULL or belongs to an attached NF, and no other thread uses it; `handle` is NULL or writable.
unsafe fn keep(
    endpoint: *mut netlib_endpoint,
    handle: *mut netlib_packet,
    make: impl FnOnce(&mut netlib_endpoint) -> Result<OwnedPacket, netlib_status>,
) -> Result<c_int, Failure> {
    let me = endpoint;
    if handle.is_null() {
        return Err(Failure::Null("the place for the new packet"));
    }
    // SAFETY: the caller's promise.
    let endpoint = unsafe { borrow(endpoint) }?;
    let packet = make(endpoint).map_err(Failure::Plain)?;
    let no_number = |_| Failure::Plain(netlib_status::NETLIB_ERR_SPACE);
    let place = endpoint.owned.put(packet).map_err(no_number)?;
    let packet = endpoint.owned.get(place).ok_or(STALE)?;
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { handle.write(netlib_packet::of_owned(packet, place, me)) };
    Ok(netlib_status::NETLIB_OK as c_int)
}

/// Takes the packet of a handle out of its endpoint.
///
/// # Safety
/// As for netlib_set_verdict().
unsafe fn take<'a>(packet: *const netlib_packet) -> Result<(&'a mut netlib_endpoint, OwnedPacket), Failure> {
    // SAFETY: the caller's promise.
    let handle = unsafe { packet.as_ref() }.ok_or(Failure::Null("packet"))?;
    // SAFETY: the caller's promise.
    let endpoint = unsafe { borrow(handle.endpoint) }?;
    let packet = endpoint.owned.take(handle.place()).ok_or(STALE)?;
    Ok((endpoint, packet))
}
