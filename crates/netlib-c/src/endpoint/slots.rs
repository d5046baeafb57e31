// SPDX-License-Identifier: Apache-2.0
//! The packets that an NF thread has beyond bursts, by number, since C has no owners.

use netlib::{BURST, OwnedPacket};

/// A place for a packet.
#[derive(Debug, Default)]
struct Slot {
    packet: Option<OwnedPacket>,
    /// Changes with each packet, to detect handles of earlier ones.
    serial: u32,
}

/// Where a packet is, in the fields `index` and `serial` of a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// At least [`BURST`], unlike that of a packet of a burst.
    pub(crate) index: u16,
    pub(crate) serial: u32,
}

impl Place {
    /// Whether a handle with this index is of a packet beyond bursts.
    pub(crate) const fn is_owned(index: u16) -> bool {
        index as usize >= BURST
    }
}

/// The packets of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    /// Keeps a packet; gives it back if there is no number for it.
    pub(crate) fn put(&mut self, packet: OwnedPacket) -> Result<Place, OwnedPacket> {
        let n = match self.free.pop() {
            Some(n) => n,
            None if self.slots.len() + BURST < usize::from(u16::MAX) => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u16
            }
            None => return Err(packet),
        };
        let slot = &mut self.slots[usize::from(n)];
        slot.packet = Some(packet);
        Ok(Place { index: n + BURST as u16, serial: slot.serial })
    }

    /// The packet there.
    pub(crate) fn get(&mut self, place: Place) -> Option<&mut OwnedPacket> {
        self.slot(place)?.packet.as_mut()
    }

    /// Takes the packet there.
    pub(crate) fn take(&mut self, place: Place) -> Option<OwnedPacket> {
        let slot = self.slot(place)?;
        let packet = slot.packet.take()?;
        slot.serial = slot.serial.wrapping_add(1);
        self.free.push(place.index - BURST as u16);
        Some(packet)
    }

    /// Takes the packet there, for a moment: [`Slots::put_back`].
    pub(crate) fn take_out(&mut self, place: Place) -> Option<OwnedPacket> {
        self.slot(place)?.packet.take()
    }

    /// Puts a packet where it was.
    pub(crate) fn put_back(&mut self, place: Place, packet: OwnedPacket) {
        if let Some(slot) = self.slot(place) {
            slot.packet = Some(packet);
        }
    }

    fn slot(&mut self, place: Place) -> Option<&mut Slot> {
        let n = usize::from(place.index).checked_sub(BURST)?;
        self.slots.get_mut(n).filter(|slot| slot.serial == place.serial)
    }
}
