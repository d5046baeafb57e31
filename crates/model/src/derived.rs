// SPDX-License-Identifier: Apache-2.0
//! What is derived from names, and so always the same: MAC addresses and names of devices. Addresses that other
//! machines see on a network they share are derived from the machine, too.

use std::sync::LazyLock;

use netvm_wire::MacAddr;

/// What no other machine has: its id (machine-id(5)), or else its name.
#[must_use]
pub fn machine() -> &'static str {
    static MACHINE: LazyLock<String> = LazyLock::new(|| {
        let read = |file| std::fs::read_to_string(file).ok().filter(|text| !text.trim().is_empty());
        let id = read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname"));
        id.unwrap_or_default().trim().to_owned()
    });
    &MACHINE
}

/// FNV-1a of 64 bits (draft-eastlake-fnv, section 2): the same on every machine and in every version.
pub(crate) fn stable_hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The names of an interface and of its owner, as bytes that differ for different names.
pub(crate) fn names_of(owner: &str, interface: &str) -> impl Iterator<Item = u8> {
    owner.bytes().chain([0]).chain(interface.bytes())
}

/// A locally administered MAC address derived from a name.
pub(crate) fn derived_mac(name: impl Iterator<Item = u8>) -> MacAddr {
    let [a, b, c, d, e, ..] = stable_hash(name).to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}
