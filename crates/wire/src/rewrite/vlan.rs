//! Rewrites VLAN tags.
//!
//! Pushing or stripping a tag moves the 12 bytes of MAC addresses; the rest of the frame stays in place. So the
//! functions take a buffer and the offset of the frame in it, and return the new offset.

use thiserror::Error;

use crate::values::{EtherType, VlanId};

/// Why a tag was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VlanError {
    /// Fewer than 4 bytes of headroom.
    #[error("no room for a VLAN tag: 4 bytes of headroom are needed, the frame has {0}")]
    NoHeadroom(usize),
    /// The buffer ends within the Ethernet header.
    #[error("the frame is shorter than an Ethernet header")]
    FrameTooShort,
}

const MACS: usize = 12;
const TAG: usize = 4;
const VID: u16 = 0x0fff;

/// Sets the VLAN of the frame at `offset`. A tagged frame keeps its priority and tag type and gets the new id; an
/// untagged one gets an 802.1Q tag with priority 0. Returns the new offset of the frame.
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

/// Adds an outer tag of type `tag` ([`EtherType::VLAN`] or [`EtherType::SERVICE_VLAN`]) with priority 0 to the frame at
/// `offset`. Returns the new offset of the frame, 4 bytes lower.
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

/// Strips the outer tag of the frame at `offset`. Returns the new offset of the frame: 4 bytes higher, or unchanged for
/// an untagged frame.
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

/// The EtherType directly after the MAC addresses.
fn outer_type(buffer: &[u8], offset: usize) -> Result<EtherType, VlanError> {
    let header = buffer.get(offset..).and_then(<[u8]>::first_chunk::<14>);
    header
        .map(|header| EtherType(u16::from_be_bytes([header[12], header[13]])))
        .ok_or(VlanError::FrameTooShort)
}
