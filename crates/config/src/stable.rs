//! What is derived from names and must be the same on every machine and for every version.

/// FNV-1a of 64 bits (draft-eastlake-fnv, section 2).
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
