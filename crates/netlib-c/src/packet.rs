// SPDX-License-Identifier: Apache-2.0
//! Packets and verdicts in C.

use std::ffi::c_int;

use netlib::{BURST, ChainId, Idle, OwnedPacket, Packet, PortId, RoleId, Steer, Verdict};

use crate::endpoint::{Place, borrow, netlib_endpoint};
use crate::status::{Failure, guard, netlib_status};

mod owned;

pub use owned::{
    netlib_alloc, netlib_alloc_for, netlib_clone, netlib_hold, netlib_may_hold, netlib_now, netlib_release,
    netlib_send_packet, netlib_set_ingress,
};

/// Most packets of a burst.
pub const NETLIB_BURST: usize = 32;
const _: () = assert!(NETLIB_BURST == BURST);

/// Verdict: send the packet to the next hop of its chain, or after the last hop to the chain's output.
pub const NETLIB_NEXT: u32 = 0;
/// Verdict: discard the packet.
pub const NETLIB_DROP: u32 = 0x10000;
/// Verdict: send the packet to the next hop, and the rest of its flow on the way on which no NF has steered it.
pub const NETLIB_STEER_BACK: u32 = 0x90000;

/// One packet. Read its members; change them only through the functions below.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netlib_packet {
    /// Its bytes, from the Ethernet header on. The NF may change them in place until it sends the packet.
    pub data: *mut u8,
    /// Number of bytes.
    pub length: u32,
    /// Its ingress port.
    pub ingress: u16,
    /// Number of its chain.
    pub chain: u16,
    /// Position of this NF in the chain, from 0.
    pub hop: u8,
    /// Eight bits of the flow's hash, which select a replica.
    pub hash: u8,
    /// Index in its burst, or number of a packet that the NF has beyond bursts; for netlib.
    pub index: u16,
    /// Number of its burst, or of the use of its number; for netlib.
    pub serial: u32,
    /// The endpoint that holds it; for netlib.
    pub endpoint: *mut netlib_endpoint,
}

impl netlib_packet {
    /// Describes packet `n` of the endpoint's burst for C. `me` is C's pointer to this endpoint.
    pub(crate) fn describe(
        endpoint: &mut netlib_endpoint,
        n: usize,
        me: *mut netlib_endpoint,
    ) -> Option<Self> {
        let serial = endpoint.serial();
        let burst = endpoint.current_burst()?;
        if let Some(ahead) = burst.packet(n + 4) {
            ahead.prefetch();
        }
        let mut packet = burst.packet(n)?;
        Some(Self {
            data: packet.data_mut().as_mut_ptr(),
            length: packet.len() as u32,
            ingress: packet.ingress().0,
            chain: packet.chain(),
            hop: packet.hop(),
            hash: packet.hash(),
            index: n as u16,
            serial,
            endpoint: me,
        })
    }

    /// Describes a packet that the NF has beyond bursts. Its ingress port is 65535 if it has none.
    pub(crate) fn of_owned(owned: &mut OwnedPacket, place: Place, me: *mut netlib_endpoint) -> Self {
        let ingress = owned.ingress().map_or(u16::MAX, |port| port.0);
        let mut packet = owned.packet();
        Self {
            data: packet.data_mut().as_mut_ptr(),
            length: packet.len() as u32,
            ingress,
            chain: packet.chain(),
            hop: packet.hop(),
            hash: packet.hash(),
            index: place.index,
            serial: place.serial,
            endpoint: me,
        }
    }

    pub(crate) const fn place(&self) -> Place {
        Place { index: self.index, serial: self.serial }
    }
}

/// Converts a verdict from its number.
pub(crate) fn verdict(raw: u32) -> Option<Verdict> {
    let argument = raw as u16;
    match (raw, raw >> 16) {
        (NETLIB_NEXT, _) => Some(Verdict::Next),
        (NETLIB_DROP, _) => Some(Verdict::Drop),
        (_, 2) => Some(Verdict::Port(PortId(argument))),
        (_, 3) => Some(Verdict::Role(RoleId(argument))),
        (_, 4) => Some(Verdict::DropFlow(Idle(argument))),
        (_, 5) => Some(Verdict::SkipFlow(Idle(argument))),
        (_, 6) => Some(Verdict::SteerFlow(Steer::Chain(ChainId(argument)))),
        (_, 7) => Some(Verdict::SteerFlow(Steer::Role(RoleId(argument)))),
        (_, 8) => Some(Verdict::SteerFlow(Steer::Port(PortId(argument)))),
        (NETLIB_STEER_BACK, _) => Some(Verdict::SteerFlow(Steer::Back)),
        _ => None,
    }
}

/// The number of a verdict.
pub(crate) fn number(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Next => NETLIB_NEXT,
        Verdict::Drop => NETLIB_DROP,
        Verdict::Port(PortId(port)) => 2 << 16 | u32::from(port),
        Verdict::Role(RoleId(role)) => 3 << 16 | u32::from(role),
        Verdict::DropFlow(Idle(seconds)) => 4 << 16 | u32::from(seconds),
        Verdict::SkipFlow(Idle(seconds)) => 5 << 16 | u32::from(seconds),
        Verdict::SteerFlow(Steer::Chain(ChainId(chain))) => 6 << 16 | u32::from(chain),
        Verdict::SteerFlow(Steer::Role(RoleId(role))) => 7 << 16 | u32::from(role),
        Verdict::SteerFlow(Steer::Port(PortId(port))) => 8 << 16 | u32::from(port),
        Verdict::SteerFlow(Steer::Back) => NETLIB_STEER_BACK,
    }
}

/// Calls `act` on the packet behind C's struct, and updates the struct.
///
/// # Safety
/// `packet` is NULL, or this library filled it in for an attached NF's endpoint that only this thread uses.
unsafe fn with<R>(
    packet: *mut netlib_packet,
    act: impl FnOnce(&mut Packet<'_>) -> Option<R>,
) -> Result<R, Failure> {
    // SAFETY: the caller's promise.
    let handle = unsafe { packet.as_mut() }.ok_or(Failure::Null("packet"))?;
    // SAFETY: the caller's promise.
    let endpoint = unsafe { borrow(handle.endpoint) }?;
    let mut packet = if Place::is_owned(handle.index) {
        endpoint.owned.get(handle.place()).map(OwnedPacket::packet)
    } else {
        endpoint.burst(handle.serial).and_then(|burst| burst.packet(usize::from(handle.index)))
    }
    .ok_or(Failure::Plain(netlib_status::NETLIB_ERR_STALE))?;
    let result = act(&mut packet).ok_or(Failure::Plain(netlib_status::NETLIB_ERR_SPACE))?;
    (handle.data, handle.length) = (packet.data_mut().as_mut_ptr(), packet.len() as u32);
    handle.hash = packet.hash();
    Ok(result)
}

/// As [`with`], and returns a status.
///
/// # Safety
/// As for [`with`].
unsafe fn change(packet: *mut netlib_packet, act: impl FnOnce(&mut Packet<'_>) -> Option<()>) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unsafe { with(packet, act) }.map(|()| netlib_status::NETLIB_OK as c_int))
}

/// Sets the verdict on the packet: NETLIB_NEXT, NETLIB_DROP, NETLIB_TO_PORT(number), NETLIB_TO_ROLE(number),
/// NETLIB_DROP_FLOW(seconds), NETLIB_SKIP_FLOW(seconds), NETLIB_STEER_TO_CHAIN(number), NETLIB_STEER_TO_ROLE(number),
/// NETLIB_STEER_TO_PORT(number) or NETLIB_STEER_BACK. The last call counts; a packet without a verdict goes to the next
/// hop.
///
/// @return NETLIB_OK; NETLIB_ERR_ARGUMENT for a number that is not a verdict, NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// `packet` is NULL or was filled in by netlib_receive(), or given to a callback, in this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_set_verdict(packet: *const netlib_packet, verdict: u32) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { packet.as_ref() }.ok_or(Failure::Null("packet"))?;
        let verdict = self::verdict(verdict).ok_or(Failure::Plain(netlib_status::NETLIB_ERR_ARGUMENT))?;
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(handle.endpoint) }?;
        let index = usize::from(handle.index);
        match endpoint.burst(handle.serial) {
            Some(burst) if index < burst.len() => burst.set(index, verdict),
            _ => return Err(Failure::Plain(netlib_status::NETLIB_ERR_STALE)),
        }
        Ok(netlib_status::NETLIB_OK as c_int)
    })
}

/// Bytes that can be prepended.
///
/// @return the number of bytes; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_headroom(packet: *mut netlib_packet) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unsafe { with(packet, |packet| c_int::try_from(packet.headroom()).ok()) })
}

/// Bytes that can be appended.
///
/// @return the number of bytes; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_tailroom(packet: *mut netlib_packet) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unsafe { with(packet, |packet| c_int::try_from(packet.tailroom()).ok()) })
}

/// Prepends `count` uninitialised bytes. Changes packet->data and packet->length.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE, and no change, without enough headroom; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_prepend(packet: *mut netlib_packet, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(packet, |packet| packet.prepend(count).map(drop)) }
}

/// Appends `count` uninitialised bytes. Changes packet->length.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE, and no change, without enough tailroom; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_append(packet: *mut netlib_packet, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(packet, |packet| packet.append(count).map(drop)) }
}

/// Removes `count` bytes from the front. Changes packet->data and packet->length.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE, and no change, if the packet is shorter; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_trim_front(packet: *mut netlib_packet, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(packet, |packet| packet.trim_front(count).map(drop)) }
}

/// Shortens the packet to `length` bytes. Changes packet->length.
///
/// @return NETLIB_OK; NETLIB_ERR_SPACE, and no change, if it is shorter already; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_truncate(packet: *mut netlib_packet, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change(packet, |packet| packet.truncate(length).map(drop)) }
}

/// Sets the hash that selects replicas from here on. Changes packet->hash.
///
/// @return NETLIB_OK; NETLIB_ERR_STALE, NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_set_verdict().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_set_hash(packet: *mut netlib_packet, hash: u8) -> c_int {
    let set = |packet: &mut Packet<'_>| {
        packet.set_hash(hash);
        Some(())
    };
    // SAFETY: the caller's promise.
    unsafe { change(packet, set) }
}
