// SPDX-License-Identifier: Apache-2.0
//! The parameters of routing tables.
//!
//! Sources: G. Huston's reports of the BGP table at AS131072 (bgp.potaroo.net) for the sizes and the share of more
//! specific prefixes: IPv6 222,878 prefixes on 2025-04-24, 57 % of them more specific, average length 42.9; IPv4
//! passed a million with about half more specific (BGP in 2024, labs.apnic.net). The shares of lengths, the nesting
//! and the clustering were counted in the public table of the repository gaissmai/iprbench,
//! `testdata/prefixes.txt.gz` (901,899 IPv4 and 160,147 IPv6 prefixes), and rounded.

/// Number of IPv4 prefixes.
pub const V4_COUNT: usize = 1_000_000;
/// Number of IPv6 prefixes.
pub const V6_COUNT: usize = 220_000;

/// The shape of a family's table.
pub(super) struct Shape {
    /// Bits of an address.
    pub(super) width: u32,
    /// Prefixes of each length, in 100,000; ascending lengths.
    pub(super) lengths: &'static [(u8, u32)],
    /// Of 1,000 prefixes, how many are more specific than another one.
    pub(super) nested: u64,
    /// Of 1,000 runs of neighbours, how many are a single prefix.
    pub(super) single: u64,
    /// Blocks that registries assign from, each with the share of prefixes that lie in it.
    pub(super) blocks: Blocks,
    /// Length at which a block's space is used unevenly.
    pub(super) pools: u8,
    /// Of 1,000 prefixes, how many are in a quarter of the pools.
    pub(super) busy: u64,
}

/// The blocks of a family.
pub(super) enum Blocks {
    /// IPv4: /8s, by [`octet_weight`].
    Octets,
    /// Prefixes as bits and length, with weights.
    List(&'static [((u128, u8), u32)]),
}

/// IPv4.
pub(super) const V4: Shape = Shape {
    width: 32,
    // /9 to /15 are few, but cover much. Of 901,899 prefixes, 944 had 32 bits and some dozens 25 to 31.
    lengths: &[
        (8, 2),
        (9, 2),
        (10, 4),
        (11, 11),
        (12, 32),
        (13, 65),
        (14, 130),
        (15, 230),
        (16, 1500),
        (17, 910),
        (18, 1530),
        (19, 2760),
        (20, 4720),
        (21, 5630),
        (22, 12040),
        (23, 10700),
        (24, 59600),
        (25, 8),
        (26, 6),
        (27, 4),
        (28, 4),
        (29, 4),
        (30, 4),
        (32, 100),
    ],
    nested: 507,
    single: 560,
    blocks: Blocks::Octets,
    pools: 16,
    busy: 550,
};

/// IPv6.
pub(super) const V6: Shape = Shape {
    width: 128,
    lengths: &[
        (20, 10),
        (22, 4),
        (24, 20),
        (26, 10),
        (27, 10),
        (28, 120),
        (29, 2730),
        (30, 410),
        (31, 180),
        (32, 14080),
        (33, 1830),
        (34, 1630),
        (35, 650),
        (36, 3740),
        (37, 550),
        (38, 1010),
        (39, 860),
        (40, 8380),
        (41, 560),
        (42, 1440),
        (43, 630),
        (44, 8970),
        (45, 970),
        (46, 1900),
        (47, 1970),
        (48, 47100),
        (56, 16),
        (64, 110),
        (127, 60),
        (128, 10),
    ],
    nested: 570,
    single: 720,
    // IANA's IPv6 Global Unicast Address Assignments, with the shares of the table's prefixes.
    blocks: Blocks::List(&[
        ((0x2400, 12), 326),
        ((0x2a00, 12), 201),
        ((0x2800, 12), 177),
        ((0x2001, 16), 126),
        ((0x2600, 12), 121),
        ((0x2620, 23), 18),
        ((0x2a10, 12), 18),
        ((0x2c00, 12), 9),
        ((0x2610, 23), 3),
        ((0x2409, 16), 1),
    ]),
    pools: 20,
    busy: 800,
};

/// How many prefixes are in this /8, relative to others: none in those that are not routed, ten times the median in
/// those that registries handed out in small pieces (45/8, 103/8, 185/8).
pub(super) const fn octet_weight(octet: u8) -> u32 {
    match octet {
        0 | 10 | 127 | 224.. => 0,
        103 | 185 => 120,
        45 => 85,
        91 | 190 | 192 | 193 | 200 | 202 | 203 => 45,
        // The early assignments, mostly to one holder each.
        3..=9 | 11..=22 | 25..=30 | 33 | 48 | 51 | 53 | 55..=57 => 4,
        _ => 15,
    }
}
