// SPDX-License-Identifier: Apache-2.0
//! The key layout for `rte_acl`: the protocol in the first byte, then words of four bytes in network order.
//!
//! A layout has only the words that rules use. Policies on IPv4 addresses, protocols and ports have the classic key of
//! 16 bytes:
//!
//! ```text
//!   0          1        4             8              12           14          16
//!   | protocol | unused | source      | destination  | source port| dest. port|
//! ```

use dpdk::{AclField, AclKind, AclValue};
use netvm_policy::{Cube, Family, Fields, Span};
use netvm_wire::{Address, FlowKey, MacAddr, VlanId};

/// A cube and the number of its entry.
pub(crate) type Numbered = (Cube, u32);

/// Bytes of the classic key.
pub(crate) const CLASSIC: usize = 16;
/// Bytes of a key with every word.
pub(crate) const WIDE: usize = 4 + 4 * WORDS.len();

/// A word of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A quarter of the source address; 3 is the lowest, the whole IPv4 address.
    Source(u32),
    /// A quarter of the destination address.
    Destination(u32),
    /// Source port, destination port.
    Ports,
    /// Outer VLAN, inner VLAN.
    Vlans,
    /// The first four octets of the source MAC address.
    SourceMac,
    /// The first four octets of the destination MAC address.
    DestinationMac,
    /// The last two octets of either.
    MacEnds,
    /// TCP flags, DSCP, ICMP type, ICMP code.
    Types,
    /// EtherType, ARP operation.
    Kinds,
    /// Fragment, state, and two unused bytes.
    States,
}

/// All words in the order of keys.
const WORDS: [Word; 16] = [
    Word::Source(0),
    Word::Source(1),
    Word::Source(2),
    Word::Source(3),
    Word::Destination(0),
    Word::Destination(1),
    Word::Destination(2),
    Word::Destination(3),
    Word::Ports,
    Word::Vlans,
    Word::SourceMac,
    Word::DestinationMac,
    Word::MacEnds,
    Word::Types,
    Word::Kinds,
    Word::States,
];

const CLASSIC_WORDS: [Word; 3] = [Word::Source(3), Word::Destination(3), Word::Ports];

/// The words of a family's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    family: Family,
    words: Vec<Word>,
}

impl Layout {
    /// The layout with the words that the cubes, all of one family, use.
    pub(crate) fn of(family: Family, cubes: &[Numbered]) -> Self {
        let any = Cube { family, fields: Fields::ANY };
        let used = |word: &Word| {
            let nothing = word.values(&any);
            cubes.iter().any(|(cube, _)| word.values(cube) != nothing)
        };
        let words: Vec<Word> = WORDS.into_iter().filter(used).collect();
        let classic = family == Family::V4 && words.iter().all(|word| CLASSIC_WORDS.contains(word));
        Self { family, words: if classic { CLASSIC_WORDS.to_vec() } else { words } }
    }

    /// Whether keys are classic.
    pub(crate) fn is_classic(&self) -> bool {
        self.family == Family::V4 && self.words == CLASSIC_WORDS
    }

    /// The fields of keys.
    pub(crate) fn fields(&self) -> Vec<AclField> {
        let protocol = AclField { kind: AclKind::Masked, bytes: 1 };
        let words = self.words.iter().flat_map(|word| word.fields());
        std::iter::once(protocol).chain(words.copied()).collect()
    }

    /// A cube's values of the fields.
    pub(crate) fn values(&self, cube: &Cube) -> Vec<AclValue> {
        let protocol = masked(cube.fields.protocol.value.into(), cube.fields.protocol.mask.into());
        let words = self.words.iter().flat_map(|word| word.values(cube));
        std::iter::once(protocol).chain(words).collect()
    }

    /// Writes the keys of the rows in order.
    pub(crate) fn pack(&self, keys: &[FlowKey], rows: &[u8], packed: &mut [[u8; WIDE]]) {
        let rows = || rows.iter().filter_map(|row| keys.get(usize::from(*row)));
        for (key, packed) in rows().zip(packed.iter_mut()) {
            packed[..4].copy_from_slice(&[key.protocol.0, 0, 0, 0]);
        }
        for (word, at) in self.words.iter().zip((4..).step_by(4)) {
            let keys = rows().zip(packed.iter_mut()).map(|(key, packed)| (key, &mut packed[at..at + 4]));
            match *word {
                Word::Source(part) => put(keys, |key| self.quarter(key.source, part)),
                Word::Destination(part) => put(keys, |key| self.quarter(key.destination, part)),
                Word::Ports => put(keys, |key| pair(key.source_port, key.destination_port)),
                Word::Vlans => put(keys, |key| pair(vlan(key.vlan), vlan(key.inner_vlan))),
                Word::SourceMac => put(keys, |key| mac_start(key.source_mac)),
                Word::DestinationMac => put(keys, |key| mac_start(key.destination_mac)),
                Word::MacEnds => put(keys, |key| pair(mac_end(key.source_mac), mac_end(key.destination_mac))),
                Word::Types => put(keys, |key| {
                    u32::from_be_bytes([key.tcp_flags.bits(), key.dscp, key.icmp_type, key.icmp_code])
                }),
                Word::Kinds => put(keys, |key| pair(key.ether_type.0, key.arp_operation)),
                Word::States => {
                    put(keys, |key| u32::from_be_bytes([key.fragment as u8, key.state as u8, 0, 0]));
                }
            }
        }
    }

    fn quarter(&self, address: Address, part: u32) -> u32 {
        quarter(self.family.address_bits(address), part)
    }
}

/// Writes the classic keys of the rows in order.
pub(crate) fn pack_classic(keys: &[FlowKey], rows: &[u8], packed: &mut [[u8; CLASSIC]]) {
    let keys = rows.iter().filter_map(|row| keys.get(usize::from(*row)));
    for (key, packed) in keys.zip(packed) {
        let [_, source] = key.source.words();
        let [_, destination] = key.destination.words();
        let addresses =
            u64::from((source as u32).swap_bytes()) | u64::from((destination as u32).swap_bytes()) << 32;
        let ports = pair(key.source_port, key.destination_port).swap_bytes();
        let words = u128::from(key.protocol.0) | u128::from(addresses) << 32 | u128::from(ports) << 96;
        *packed = words.to_le_bytes();
    }
}

#[inline(always)]
fn put<'a>(keys: impl Iterator<Item = (&'a FlowKey, &'a mut [u8])>, word: impl Fn(&FlowKey) -> u32) {
    for (key, packed) in keys {
        packed.copy_from_slice(&word(key).to_be_bytes());
    }
}

impl Word {
    fn fields(self) -> &'static [AclField] {
        const fn of(kind: AclKind, bytes: u8) -> AclField {
            AclField { kind, bytes }
        }
        const NUMBER: [AclField; 1] = [of(AclKind::Masked, 4)];
        const RANGES: [AclField; 2] = [of(AclKind::Range, 2); 2];
        const MASKS: [AclField; 2] = [of(AclKind::Masked, 2); 2];
        const BYTE: AclField = of(AclKind::Range, 1);
        const TYPES: [AclField; 4] = [of(AclKind::Masked, 1), BYTE, BYTE, BYTE];
        const STATES: [AclField; 3] = [BYTE, BYTE, of(AclKind::Masked, 2)];
        match self {
            Self::Source(_) | Self::Destination(_) | Self::SourceMac | Self::DestinationMac => &NUMBER,
            Self::Ports | Self::Vlans | Self::Kinds => &RANGES,
            Self::MacEnds => &MASKS,
            Self::Types => &TYPES,
            Self::States => &STATES,
        }
    }

    /// A cube's values of the word's fields.
    fn values(self, cube: &Cube) -> Vec<AclValue> {
        let fields = &cube.fields;
        match self {
            Self::Source(part) => {
                vec![masked(quarter(fields.source.value, part), quarter(fields.source.mask, part))]
            }
            Self::Destination(part) => {
                let set = fields.destination;
                vec![masked(quarter(set.value, part), quarter(set.mask, part))]
            }
            Self::Ports => vec![range(fields.source_ports), range(fields.destination_ports)],
            Self::Vlans => vec![range(fields.vlan), range(fields.inner_vlan)],
            Self::SourceMac => {
                let set = fields.source_mac;
                vec![masked((set.value >> 16) as u32, (set.mask >> 16) as u32)]
            }
            Self::DestinationMac => {
                let set = fields.destination_mac;
                vec![masked((set.value >> 16) as u32, (set.mask >> 16) as u32)]
            }
            Self::MacEnds => {
                let end = |bits: u64| u32::from(bits as u16);
                let (source, destination) = (fields.source_mac, fields.destination_mac);
                vec![
                    masked(end(source.value), end(source.mask)),
                    masked(end(destination.value), end(destination.mask)),
                ]
            }
            Self::Types => vec![
                masked(fields.tcp_flags.value.into(), fields.tcp_flags.mask.into()),
                range(fields.dscp),
                range(fields.icmp_type),
                range(fields.icmp_code),
            ],
            Self::Kinds => vec![range(fields.ether_type), range(fields.arp_operation)],
            Self::States => vec![range(fields.fragment), range(fields.state), masked(0, 0)],
        }
    }
}

fn masked(value: u32, mask: u32) -> AclValue {
    AclValue { value, mask_or_last: mask }
}

fn range<T: Into<u32>>(span: Span<T>) -> AclValue {
    AclValue { value: span.first.into(), mask_or_last: span.last.into() }
}

const fn quarter(bits: u128, part: u32) -> u32 {
    (bits >> (32 * (3 - part))) as u32
}

fn pair(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

fn vlan(vlan: Option<VlanId>) -> u16 {
    vlan.map_or(0, VlanId::get)
}

fn mac_start(mac: MacAddr) -> u32 {
    let [a, b, c, d, _, _] = mac.octets();
    u32::from_be_bytes([a, b, c, d])
}

fn mac_end(mac: MacAddr) -> u16 {
    let [_, _, _, _, e, f] = mac.octets();
    u16::from_be_bytes([e, f])
}

#[cfg(test)]
mod tests {
    use netvm_policy::Masked;
    use netvm_policy::arbitrary::Generator;

    use super::*;

    #[test]
    fn keys_have_only_the_used_words() {
        let any = Cube { family: Family::V4, fields: Fields::ANY };
        assert!(Layout::of(Family::V4, &[(any, 0)]).is_classic());
        let mut cube = any;
        cube.fields.destination = Masked { value: 0x0a00_0000, mask: 0xff00_0000 };
        assert!(Layout::of(Family::V4, &[(any, 0), (cube, 1)]).is_classic());
        cube.fields.fragment = Span::single(0);
        let layout = Layout::of(Family::V4, &[(any, 0), (cube, 1)]);
        assert_eq!(layout.words, [Word::Destination(3), Word::States]);
        let cube = Cube { family: Family::V6, ..cube };
        assert!(!Layout::of(Family::V6, &[(cube, 0)]).is_classic());
    }

    #[test]
    fn values_agree_with_the_cube() {
        let mut generator = Generator::new(1);
        let takes = |kind: AclKind, value: &AclValue, found: u32| match kind {
            AclKind::Masked => found & value.mask_or_last == value.value,
            AclKind::Range => (value.value..=value.mask_or_last).contains(&found),
        };
        for round in 0..2000 {
            let (family, like) = (generator.uniform_key(), generator.uniform_key());
            let family = Family::of(&family);
            let mut cube = Cube { family, fields: Fields::ANY };
            let exact = |bits| Masked::<u128>::single(bits);
            match round % 11 {
                0 => cube.fields.source = exact(family.address_bits(like.source)),
                1 => cube.fields.destination = exact(family.address_bits(like.destination)),
                2 => cube.fields.source_ports.last = like.source_port,
                3 => cube.fields.vlan.last = vlan(like.vlan),
                4 => cube.fields.tcp_flags = Masked::<u8>::new(like.tcp_flags.bits(), 0x12),
                5 => cube.fields.ether_type.first = like.ether_type.0,
                6 => cube.fields.fragment.last = like.fragment as u8,
                7 => cube.fields.dscp.first = like.dscp,
                8 => cube.fields.protocol = Masked::<u8>::single(like.protocol.0),
                9 => cube.fields.state = Span::single(like.state as u8),
                _ => cube.fields.arp_operation.last = like.arp_operation,
            }
            let layout = Layout::of(family, &[(cube, 0)]);
            let key = if generator.once_in(2) { generator.key_in(&cube) } else { generator.uniform_key() };
            if Family::of(&key) != family {
                continue;
            }
            let mut packed = [[0xee; WIDE]];
            layout.pack(&[key], &[0], &mut packed);
            let mut at = 0;
            let all = layout.fields().iter().zip(layout.values(&cube)).all(|(field, value)| {
                let bytes = &packed[0][at..][..field.bytes.into()];
                at += if at == 0 { 4 } else { bytes.len() };
                takes(field.kind, &value, bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
            });
            assert_eq!(all, cube.contains(&key), "{cube:?} {key:?}");
            if layout.is_classic() {
                let mut classic = [[0; CLASSIC]];
                pack_classic(&[key], &[0], &mut classic);
                assert_eq!(classic[0], packed[0][..CLASSIC]);
            }
        }
    }
}
