// SPDX-License-Identifier: Apache-2.0
//! A guest's virtio-net device, as its front-end sets it up.
//!
//! The state that workers use is in the ring code (`dpdk_sys`), by the device's number. The caller sees to it that no
//! worker uses the device while a message that [`changes_rings`] is applied.

mod shared;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use ::vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVringState};
use dpdk_sys as sys;
use netvm_vhost_user::message::Reply;
use netvm_vhost_user::payload::{number, structure};
use netvm_vhost_user::protocol::{LOG_ALL, MAX_RING, MIN_RING, PACKED, Protocol, REGIONS, RINGS, SLOTS};
use netvm_vhost_user::request::{
    ADD_MEM_REG, GET_FEATURES, GET_INFLIGHT_FD, GET_MAX_MEM_SLOTS, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
    GET_STATUS, GET_VRING_BASE, REM_MEM_REG, SEND_RARP, SET_FEATURES, SET_INFLIGHT_FD, SET_LOG_BASE,
    SET_MEM_TABLE, SET_PROTOCOL_FEATURES, SET_STATUS, SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_ENABLE,
    SET_VRING_KICK,
};
use netvm_vhost_user::{End, Refusal};
use vm_memory::ByteValued;

use super::super::guests::{MAX_PAIRS, Publication};
use super::super::{calls, lock, truncated};
use shared::Shared;

// What the state machine allows, the ring code serves.
const _: () = assert!(
    RINGS == 2 * sys::NETVM_VHOST_MAX_PAIRS
        && MAX_RING == sys::NETVM_VHOST_MAX_ENTRIES
        && MIN_RING == sys::NETVM_VHOST_MIN_ENTRIES
        && REGIONS <= SLOTS
        && SLOTS == sys::NETVM_VHOST_MAX_REGIONS as usize
        && OFFERED & LOG_ALL != 0
);

/// Bits of virtio features (virtio 1.2, sections 5.1.3 and 6; vhost-user, "Feature bits").
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// What is offered. Not: fragmentation of UDP by the peer (UFO), which no driver since Linux 4.14 sends.
const OFFERED: u64 = bits(&[
    0,  // CSUM
    1,  // GUEST_CSUM
    3,  // MTU
    6,  // GSO
    7,  // GUEST_TSO4
    8,  // GUEST_TSO6
    9,  // GUEST_ECN
    11, // HOST_TSO4
    12, // HOST_TSO6
    13, // HOST_ECN
    15, // MRG_RXBUF
    17, // CTRL_VQ
    18, // CTRL_RX
    21, // GUEST_ANNOUNCE
    22, // MQ
    26, // VHOST_F_LOG_ALL
    27, // ANY_LAYOUT
    28, // INDIRECT_DESC
    29, // EVENT_IDX
    30, // PROTOCOL_FEATURES
    32, // VERSION_1
    34, // RING_PACKED
    35, // IN_ORDER
]);
const OFFERED_PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::MTU)
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::RARP)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::STATUS);
/// Bit of the device status (virtio 1.2, section 2.1).
const DRIVER_OK: u64 = 4;

const fn bits(numbers: &[u32]) -> u64 {
    let (mut bits, mut n) = (0, 0);
    while n < numbers.len() {
        bits |= 1 << numbers[n];
        n += 1;
    }
    bits
}

/// Numbers of devices in use.
static NUMBERS: Mutex<[bool; sys::NETVM_VHOST_MAX_DEVICES as usize]> =
    Mutex::new([false; sys::NETVM_VHOST_MAX_DEVICES as usize]);

/// Whether a message changes what workers or the DMA channel use, or whether they may.
pub(super) const fn changes_rings(request: u32) -> bool {
    matches!(
        request,
        SET_FEATURES
            | SET_MEM_TABLE
            | ADD_MEM_REG
            | REM_MEM_REG
            | SET_LOG_BASE
            | SET_INFLIGHT_FD
            | SEND_RARP
            | SET_VRING_ADDR
            | GET_VRING_BASE
            | SET_VRING_KICK
            | SET_VRING_CALL
            | SET_VRING_ENABLE
            | SET_STATUS
    )
}

/// A ring, beyond what the state machine knows.
#[derive(Debug, Default)]
struct Ring {
    started: bool,
    /// Its position, if it is started and its memory is gone until another message.
    lost: Option<u16>,
    enabled: bool,
    /// The front-end has said how to call, since it stopped the ring.
    has_call: bool,
    kick: Option<Arc<OwnedFd>>,
}

impl Ring {
    const fn is_ready(&self) -> bool {
        self.started && self.lost.is_none() && self.enabled && self.has_call
    }
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) number: i32,
    protocol: Protocol,
    status: u64,
    shared: Shared,
    rings: Vec<Ring>,
    /// Its driver has begun.
    has_features: bool,
    /// Its driver is ready: until it stops a ring, or resets the device.
    is_ready: bool,
    /// A DMA engine copies to the guest.
    is_copied_to: bool,
}

impl Device {
    /// A device without rings; `None` if there are too many.
    pub(super) fn new(is_copied_to: bool) -> Option<Self> {
        let mut numbers = lock(&NUMBERS);
        let number = numbers.iter().position(|used| !used)?;
        // SAFETY: the number is free, and `numbers` is locked.
        if unsafe { sys::netvm_vhost_create(number as i32) } != 0 {
            return None;
        }
        *numbers.get_mut(number)? = true;
        Some(Self {
            number: number as i32,
            protocol: Protocol::default(),
            status: 0,
            shared: Shared::default(),
            rings: (0..RINGS).map(|_| Ring::default()).collect(),
            has_features: false,
            is_ready: false,
            is_copied_to,
        })
    }

    /// Checks a message against those before it.
    pub(super) fn check(&mut self, request: u32, payload: &[u8], fds: &[OwnedFd]) -> Result<(), Refusal> {
        self.protocol.check(request, payload, fds)
    }

    /// Applies a message that was checked; returns its reply, if it has one. If this fails, the connection ends.
    pub(super) fn apply(
        &mut self,
        request: u32,
        payload: &[u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Option<Reply>, End> {
        let value = number(payload).unwrap_or(0);
        let reply = |value: u64| Ok(Some(Reply::from(value)));
        let refused = End::Refused(Refusal::Protocol);
        match request {
            GET_FEATURES => return reply(OFFERED),
            GET_PROTOCOL_FEATURES => return reply(OFFERED_PROTOCOL.bits()),
            GET_QUEUE_NUM => return reply(MAX_PAIRS.into()),
            GET_STATUS => return reply(self.status),
            GET_MAX_MEM_SLOTS => return reply(SLOTS as u64),
            GET_INFLIGHT_FD => return Self::new_inflight(payload).map(Some).ok_or(End::Closed),
            GET_VRING_BASE => return self.stop(payload).map(Some).ok_or(refused),
            // Its reply has no payload (vhost-user, `VHOST_USER_SET_LOG_BASE`).
            SET_LOG_BASE => {
                self.set_log(fds.pop()).ok_or(refused)?;
                return Ok(Some(Reply::default()));
            }
            SET_FEATURES if value & !OFFERED != 0 => return Err(refused),
            SET_FEATURES => {
                self.has_features = true;
                // SAFETY: the device exists, and no worker uses it.
                unsafe { sys::netvm_vhost_set_features(self.number, value) };
                self.end_log();
            }
            SET_PROTOCOL_FEATURES if value & !OFFERED_PROTOCOL.bits() != 0 => return Err(refused),
            SET_STATUS => self.status = value,
            SET_MEM_TABLE => self.set_memory(std::mem::take(fds)).ok_or(refused)?,
            ADD_MEM_REG => self.add_region(payload, fds.pop()).ok_or(refused)?,
            REM_MEM_REG => self.remove_region(payload).ok_or(refused)?,
            SET_INFLIGHT_FD => self.set_inflight(fds.pop()).ok_or(refused)?,
            SET_VRING_ADDR => self.log_used(u16::from(value as u8)),
            SET_VRING_KICK => self.start(value, fds.pop()).ok_or(refused)?,
            SET_VRING_CALL => self.set_call(value, fds.pop()),
            SET_VRING_ENABLE => {
                let VhostUserVringState { index, num } = structure(payload).unwrap_or_default();
                self.rings.get_mut(index as usize).ok_or(refused)?.enabled = num != 0;
            }
            // The state machine keeps what other messages say.
            _ => {}
        }
        self.is_ready =
            self.is_driver_ok() && (self.is_ready || self.rings.iter().take(2).all(Ring::is_ready));
        Ok(None)
    }

    /// Whether the driver says that it is ready, if the front-end passes that on.
    const fn is_driver_ok(&self) -> bool {
        self.protocol.protocol_features & VhostUserProtocolFeatures::STATUS.bits() == 0
            || self.status & DRIVER_OK != 0
    }

    /// Starts a ring, or replaces its kick descriptor.
    fn start(&mut self, value: u64, kick: Option<OwnedFd>) -> Option<()> {
        let index = value as u8;
        let has_features = self.protocol.features & PROTOCOL_FEATURES != 0;
        let ring = self.rings.get_mut(usize::from(index))?;
        ring.kick = kick.map(Arc::new);
        // Without protocol features, nobody enables rings (vhost-user, "Ring states").
        ring.enabled |= !has_features;
        if std::mem::replace(&mut ring.started, true) {
            return Some(());
        }
        let base = self.protocol.known(index.into()).base.unwrap_or(0);
        self.start_at(index.into(), base as u16)
    }

    /// Stops a ring, and with it the device, until both rings of the first pair run again. Returns its state.
    fn stop(&mut self, payload: &[u8]) -> Option<Reply> {
        let index = structure::<VhostUserVringState>(payload)?.index;
        let ring = self.rings.get_mut(index as usize)?;
        self.is_ready = false;
        (ring.started, ring.has_call, ring.kick) = (false, false, None);
        let lost = ring.lost.take();
        // SAFETY: the device exists, and no worker uses it. A ring that is not started is at position 0.
        let position = unsafe { sys::netvm_vhost_stop(self.number, index as u16) };
        let position = lost.unwrap_or(position);
        // Of packed rings, the next available and the next used descriptor, which are the same in a ring that is not
        // used.
        let is_packed = self.protocol.features & PACKED != 0;
        let num = u32::from(position) | if is_packed { u32::from(position) << 16 } else { 0 };
        Some(Reply { payload: VhostUserVringState::new(index, num).as_slice().to_vec(), fd: None })
    }

    fn set_call(&mut self, value: u64, fd: Option<OwnedFd>) {
        let index = value as u8;
        if let Some(ring) = self.rings.get_mut(usize::from(index)) {
            ring.has_call = true;
            calls::install(self.number, index.into(), fd);
        }
    }

    /// Whether all is there that workers need: the memory of all rings, and of a guest that is migrated a log, without
    /// which what they write would be lost.
    fn is_usable(&self) -> bool {
        self.rings.iter().all(|ring| ring.lost.is_none()) && self.protocol.is_log_sufficient()
    }

    pub(super) const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether the first descriptor of its first ring is empty, which no driver leaves so: then what the guest writes
    /// does not reach the files that it shares.
    pub(super) fn has_empty_ring(&self) -> bool {
        let ring = self.protocol.known(0);
        let Some(at) = ring.addresses.filter(|_| ring.started) else { return false };
        let Some(first) = self.shared.memory.translate(at.descriptors) else { return false };
        let word = |n: usize| {
            // SAFETY: the state machine has checked that the ring's descriptors, of 16 bytes each and aligned to 16,
            // lie in the memory, which is mapped as long as the device has it; if the guest has truncated it, the page
            // is filled.
            unsafe { first.cast::<u64>().wrapping_add(n).read_volatile() }
        };
        word(0) == 0 && word(1) == 0
    }

    /// What workers may use.
    pub(super) fn publication(&self) -> Publication {
        let features = self.protocol.features;
        let accepted = [
            (GUEST_CSUM, sys::NETVM_VHOST_CSUM),
            (GUEST_TSO4, sys::NETVM_VHOST_TSO4),
            (GUEST_TSO6, sys::NETVM_VHOST_TSO6),
        ];
        let accepts = accepted.iter().filter(|(bit, _)| features & bit != 0);
        let mut publication = Publication {
            is_ready: self.is_ready && self.is_usable(),
            lacks_memory: self.has_features && self.protocol.memory.is_empty(),
            accepts: accepts.fold(0, |all, (_, bit)| all | *bit as u8),
            ..Publication::default()
        };
        for (pair, rings) in (0..MAX_PAIRS).zip(self.rings.chunks_exact(2)) {
            publication.receiving |= u64::from(rings[0].is_ready()) << pair;
            publication.sending |= u64::from(rings[1].is_ready()) << pair;
            publication.kicks.extend(rings[1].kick.iter().map(|kick| (pair, Arc::clone(kick))));
        }
        publication
    }
}

impl Drop for Device {
    /// No worker uses it any more.
    fn drop(&mut self) {
        truncated::forget(self.number);
        calls::forget(self.number);
        // SAFETY: the device exists; nothing refers to it.
        unsafe { sys::netvm_vhost_remove(self.number) };
        if let Some(used) = lock(&NUMBERS).get_mut(self.number as usize) {
            *used = false;
        }
    }
}
