//! VLAN tags.
//!
//! A tag is added or taken by moving the 12 bytes of MAC addresses; the rest of the frame stays where it is. The functions
//! therefore take a buffer and where the frame begins in it, and say where it begins afterwards.

use thiserror::Error;

use crate::ether::{EtherType, VlanId};

/// Why a tag was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VlanError {
    /// Fewer than 4 bytes before the frame.
    #[error("no room for a VLAN tag: {0} bytes before the frame, 4 are needed")]
    NoHeadroom(usize),
    /// The buffer ends within the header.
    #[error("the frame is too short to have an Ethernet header")]
    FrameTooShort,
}

const MACS: usize = 12;
const TAG: usize = 4;
const VID: u16 = 0x0fff;

/// Puts the frame that begins at `offset` into a VLAN: a frame with a tag keeps its priority and its tag's type and gets
/// the new id; one without gets a tag of 802.1Q with priority 0. Returns where the frame begins now.
///
/// # Errors
/// [`VlanError`].
pub fn set_vlan(buffer: &mut [u8], offset: usize, vlan: VlanId) -> Result<usize, VlanError> {
    if !outer_type(buffer, offset)?.is_vlan() {
        return push_vlan(buffer, offset, EtherType::VLAN, vlan);
    }
    let at = offset + MACS + 2;
    let tag = buffer.get_mut(at..at + 2).ok_or(VlanError::FrameTooShort)?;
    let tci = u16::from_be_bytes([tag[0], tag[1]]);
    tag.copy_from_slice(&(tci & !VID | vlan.get()).to_be_bytes());
    Ok(offset)
}

/// Adds an outer tag of type `tag` ([`EtherType::VLAN`] or [`EtherType::SERVICE_VLAN`]) with priority 0 to the frame that
/// begins at `offset`. Returns where the frame begins now: 4 bytes earlier.
///
/// # Errors
/// [`VlanError`].
pub fn push_vlan(buffer: &mut [u8], offset: usize, tag: EtherType, vlan: VlanId) -> Result<usize, VlanError> {
    outer_type(buffer, offset)?;
    let start = offset.checked_sub(TAG).ok_or(VlanError::NoHeadroom(offset))?;
    buffer.copy_within(offset..offset + MACS, start);
    let place = buffer.get_mut(start + MACS..offset + MACS).ok_or(VlanError::FrameTooShort)?;
    let ([kind_high, kind_low], [id_high, id_low]) = (tag.0.to_be_bytes(), vlan.get().to_be_bytes());
    place.copy_from_slice(&[kind_high, kind_low, id_high, id_low]);
    Ok(start)
}

/// Takes the outer tag away from the frame that begins at `offset`. Returns where the frame begins now: 4 bytes later, or
/// where it was when it has no tag.
///
/// # Errors
/// [`VlanError::FrameTooShort`].
pub fn strip_vlan(buffer: &mut [u8], offset: usize) -> Result<usize, VlanError> {
    if !outer_type(buffer, offset)?.is_vlan() {
        return Ok(offset);
    }
    if buffer.len() < offset + MACS + TAG + 2 {
        return Err(VlanError::FrameTooShort);
    }
    buffer.copy_within(offset..offset + MACS, offset + TAG);
    Ok(offset + TAG)
}

/// The EtherType right behind the MAC addresses.
fn outer_type(buffer: &[u8], offset: usize) -> Result<EtherType, VlanError> {
    let header = buffer.get(offset..).and_then(<[u8]>::first_chunk::<14>);
    header
        .map(|header| EtherType(u16::from_be_bytes([header[12], header[13]])))
        .ok_or(VlanError::FrameTooShort)
}
