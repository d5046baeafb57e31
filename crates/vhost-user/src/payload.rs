// SPDX-License-Identifier: Apache-2.0
//! What the payload of a message holds.

use vhost::vhost_user::message::VhostUserU64;
use vm_memory::ByteValued;

/// The structure that a payload begins with.
#[must_use]
pub fn structure<T: ByteValued + Default>(payload: &[u8]) -> Option<T> {
    let mut structure = T::default();
    structure.as_mut_slice().copy_from_slice(payload.get(..size_of::<T>())?);
    Some(structure)
}

/// A payload of one number.
#[must_use]
pub fn number(payload: &[u8]) -> Option<u64> {
    structure::<VhostUserU64>(payload).map(|number| number.value)
}
