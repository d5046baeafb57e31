//! The callbacks by which the library reports guests.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use super::guests::{self, Guests, MAX_PAIRS};
use super::lock;
use super::messages::locks_vrings;
use super::rcu::synchronize;
use super::{VhostMode, calls, in_flight_dma, truncated};
use crate::vhost_user::{RESET_OWNER, SET_MEM_TABLE, SET_VRING_CALL};

pub(super) const ALL: sys::netvm_vhost_callbacks = sys::netvm_vhost_callbacks {
    met: Some(met),
    arrived: Some(arrived),
    left: Some(left),
    gone: Some(gone),
    vring: Some(vring),
    message: Some(message),
    handled: Some(handled),
};

/// The guests of a device's socket.
fn of(device: c_int) -> Option<Arc<Guests>> {
    let mut path = [0 as c_char; sys::NETVM_VHOST_PATH as usize];
    // SAFETY: `path` has the length that the function expects; the function terminates it with NUL.
    if unsafe { sys::netvm_vhost_path(device, path.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: see above; the array lives for longer than the reference.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    guests::by_path(path)
}

extern "C" fn met(device: c_int) -> c_int {
    // The library does not report the end of a connection that ends with its port.
    forget(device);
    let Some(guests) = of(device) else { return -1 };
    // If the guest created the socket, a refusal here would prevent the library from connecting again. Instead, netvm
    // disconnects the guest at its first message.
    if guests.relay(device) || guests.mode == VhostMode::Client { 0 } else { -1 }
}

extern "C" fn arrived(number: c_int) -> c_int {
    let Some(guests) = of(number) else { return -1 };
    // SAFETY: the device exists: the library is calling for it.
    let accepts = unsafe { sys::netvm_vhost_accepts(number) } as u8;
    // SAFETY: as above; no owner uses the device yet.
    unsafe { sys::netvm_vring_learn(number) };
    guests.change(number, |devices, place| {
        // The device's vrings were enabled earlier. It becomes the newest device.
        let mut device = devices.remove(place);
        device.ready = true;
        if truncated::is_marked(number) && !device.truncated {
            device.truncated = true;
            guests.truncations.fetch_add(1, Ordering::Relaxed);
        }
        device.accepts = accepts;
        device.copied =
            guests.in_flight_dma.as_ref().map_or(0, |in_flight_dma| in_flight_dma.attach(number, false));
        devices.push(device);
    });
    lock(&guests.refused).holds = false;
    0
}

/// The guest's driver has stopped. The library holds no lock here, so an owner that waits for a lock gets it and leaves its
/// read section.
extern "C" fn left(device: c_int) {
    if let Some(guests) = of(device) {
        guests.change(device, |devices, place| {
            devices[place].ready = false;
            devices[place].copied = 0;
        });
        synchronize(&guests.rcu_slots);
        if let Some(in_flight_dma) = &guests.in_flight_dma {
            in_flight_dma.detach(device, false);
        }
    }
}

extern "C" fn gone(device: c_int) {
    if let Some(guests) = of(device) {
        // From now on, the device's relay cannot add it to the devices again.
        lock(&guests.relayed).retain(|(other, _)| *other != device);
        guests.change(device, |devices, place| {
            devices.remove(place);
        });
    }
    truncated::end_message();
    forget(device);
}

/// Removes the state of a device whose memory is unmapped and that no owner uses.
fn forget(device: c_int) {
    truncated::forget(device);
    calls::forget(device);
    // SAFETY: no owner fills its rings.
    unsafe { sys::netvm_vring_forget(device) };
}

extern "C" fn message(device: c_int, request: u32) -> sys::netvm_vhost_verdict {
    let is_memory = request == SET_MEM_TABLE;
    let pending_calls = of(device).and_then(|guests| {
        let relayed = lock(&guests.relayed);
        relayed.iter().find(|(other, _)| *other == device).map(|(_, pending_calls)| Arc::clone(pending_calls))
    });
    let Some(pending_calls) = pending_calls else {
        return if is_memory { sys::NETVM_VHOST_REFUSE_MEMORY } else { sys::NETVM_VHOST_REFUSE };
    };
    // Obsolete; back ends must ignore it (vhost-user, "Front-end message types").
    if request == RESET_OWNER {
        return sys::NETVM_VHOST_PASS_OVER;
    }
    truncated::begin_message(device);
    if in_flight_dma::needs_detach(request) {
        detach_dma(device);
    }
    if is_memory {
        // Until now, an owner in a read section may have touched a missing page.
        truncated::forget_pieces(device);
    }
    if request == SET_VRING_CALL {
        pending_calls.install(device);
    }
    sys::NETVM_VHOST_HANDLE
}

/// Detaches the DMA channel from a device's rings before they change. No owner is in a read section.
fn detach_dma(device: c_int) {
    let Some(guests) = of(device) else { return };
    let Some(in_flight_dma) = &guests.in_flight_dma else { return };
    guests.change(device, |devices, place| devices[place].copied = 0);
    in_flight_dma.detach(device, true);
}

/// Publishes the device again after the message.
fn resume(device: c_int, request: u32) {
    let Some(guests) = of(device) else { return };
    guests.change(device, |devices, place| {
        let known = &mut devices[place];
        known.messages = known.messages.saturating_sub(1);
        if let Some(in_flight_dma) =
            guests.in_flight_dma.as_ref().filter(|_| known.ready && in_flight_dma::needs_detach(request))
        {
            known.copied = in_flight_dma.attach(device, true);
        }
    });
}

extern "C" fn handled(device: c_int, request: u32) {
    if request == SET_MEM_TABLE {
        truncated::record_pieces(device);
        // SAFETY: no owner is in a read section, and the library has just mapped the memory.
        unsafe { sys::netvm_vring_learn(device) };
    }
    if locks_vrings(request) {
        resume(device, request);
    }
    truncated::end_message();
}

/// The library may hold its locks here, so this never waits.
extern "C" fn vring(device: c_int, vring: u16, enabled: c_int) -> c_int {
    let pair = vring / 2;
    if let Some(guests) = of(device).filter(|_| pair < MAX_PAIRS) {
        guests.change(device, |devices, place| {
            let device = &mut devices[place];
            let pairs = if vring.is_multiple_of(2) { &mut device.receiving } else { &mut device.sending };
            if enabled == 0 {
                *pairs &= !(1 << pair);
            } else {
                *pairs |= 1 << pair;
            }
        });
    }
    0
}
