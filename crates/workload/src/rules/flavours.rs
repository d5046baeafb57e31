// SPDX-License-Identifier: Apache-2.0
//! The parameters of rule sets.
//!
//! Source: the parameter files acl1, acl2, fw1, fw2 and ipc1 of ClassBench (D. E. Taylor, J. S. Turner, ClassBench: A
//! Packet Classification Benchmark, INFOCOM 2005, and IEEE/ACM Transactions on Networking 15(3), 2007), which
//! describe filter sets of Internet providers and network equipment vendors. The shares here are those of sets that
//! ClassBench's generator makes from these files, rounded; they were counted in `Ruleset/` of the public repository
//! TeamRossi/VPP-ACL. The terms are the paper's: WC (any port), HI (1024 to 65535), EM (one port), AR (another
//! range); prefix lengths are counted in pairs (its section III.C), and addresses branch and lean at each level of a
//! binary tree (its section III.D).

/// The shape of a rule set.
#[derive(Clone, Copy, Debug)]
pub struct Flavour {
    /// ClassBench's name.
    pub name: &'static str,
    /// IP protocols; `None`: any.
    pub(super) protocols: &'static [(Option<u8>, u32)],
    /// Classes of source and destination ports.
    pub(super) ports: &'static [((Class, Class), u32)],
    /// Protocols without ports have some all the same, as in fw2, whose protocol column cannot be meant as IP
    /// protocols.
    pub(super) has_ports_anywhere: bool,
    /// Exact source and destination ports.
    pub(super) exact: [&'static [(u16, u32)]; 2],
    /// Other ranges of ports.
    pub(super) ranges: &'static [((u16, u16), u32)],
    /// First and last length of source prefixes, and of destination prefixes.
    pub(super) lengths: &'static [([u8; 4], u32)],
    /// Source and destination addresses: in how many of 1,000 cases a node has both branches, for each four levels.
    /// Chosen so that 1,000 rules have about as many distinct prefixes as the published sets.
    pub(super) branching: [[u16; 8]; 2],
    /// In how many of 1,000 rules the destination is in the source's /16.
    pub(super) local: u64,
    /// Value and mask of TCP flags.
    pub(super) tcp_flags: &'static [((u16, u16), u32)],
    /// Value and mask of ICMP type and code.
    pub(super) icmp: &'static [((u16, u16), u32)],
}

/// ClassBench's classes of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Any,
    High,
    Exact,
    Range,
}

use Class::{Any, Exact, High, Range};

const TCP: Option<u8> = Some(6);
const UDP: Option<u8> = Some(17);
const ICMP: Option<u8> = Some(1);
const GRE: Option<u8> = Some(47);

// Tables of many short pairs: one pair a line would hide their shape.

/// The access list of a router, by server and service.
#[rustfmt::skip]
pub const ACL1: Flavour = Flavour {
    name: "acl1",
    protocols: &[(TCP, 873), (None, 82), (ICMP, 33), (UDP, 12)],
    ports: &[((Any, Exact), 63), ((Any, Any), 22), ((Any, Range), 15)],
    has_ports_anywhere: false,
    exact: [
        &[],
        &[
            (1521, 160), (1526, 50), (1221, 45), (1525, 35), (135, 35), (1706, 33), (1433, 31), (14753, 28),
            (5541, 28), (1717, 27),
            (1712, 25), (20, 25), (21, 25), (1724, 25), (1705, 25), (80, 22), (443, 20), (5632, 18),
            (1707, 18), (1489, 16),
            (5540, 15), (1734, 15), (30210, 12), (6790, 12), (55444, 10), (25, 10), (53, 10), (3389, 8),
            (8080, 8), (1023, 6),
        ],
    ],
    ranges: &[
        ((1300, 1349), 12), ((5001, 65535), 9), ((1600, 1649), 7), ((1300, 1350), 7), ((61900, 61909), 6),
        ((1600, 1650), 6),
        ((7500, 7599), 6), ((20000, 20010), 5), ((61800, 61809), 4), ((61600, 61609), 4), ((61500, 61509), 4),
        ((61300, 61309), 4),
    ],
    lengths: &[
        ([32, 32, 32, 32], 490), ([31, 31, 32, 32], 120), ([32, 32, 31, 31], 118), ([31, 31, 31, 31], 28),
        ([21, 24, 31, 32], 62),
        ([29, 30, 31, 32], 42), ([32, 32, 28, 30], 28), ([31, 32, 21, 25], 68), ([21, 24, 21, 25], 14),
        ([32, 32, 4, 17], 27),
        ([0, 1, 31, 32], 3),
    ],
    branching: [[350, 140, 0, 0, 40, 110, 140, 290], [1000, 350, 90, 80, 40, 60, 40, 90]],
    local: 30,
    tcp_flags: &[((0, 0), 824), ((0, 0x0200), 98), ((0x1000, 0x1000), 78)],
    icmp: &[((0, 0), 1)],
};

/// The access list of another router: half of its rules say nothing of ports.
#[rustfmt::skip]
pub const ACL2: Flavour = Flavour {
    name: "acl2",
    protocols: &[(TCP, 455), (None, 446), (UDP, 72), (Some(88), 13), (ICMP, 14)],
    ports: &[((Any, Exact), 45), ((Any, Any), 40), ((Any, Range), 14), ((Any, High), 1)],
    has_ports_anywhere: false,
    exact: [
        &[],
        &[
            (25, 47), (80, 33), (137, 16), (23, 12), (139, 11), (135, 11), (5730, 11), (138, 10), (8080, 10),
            (161, 9), (443, 9), (53, 9),
            (20, 8), (21, 8), (67, 6), (68, 6), (81, 5), (5729, 5), (16002, 4), (32766, 3),
        ],
    ],
    ranges: &[((1025, 65535), 1)],
    lengths: &[
        ([32, 32, 32, 32], 82), ([32, 32, 23, 31], 140), ([32, 32, 10, 17], 60), ([12, 17, 31, 32], 165),
        ([23, 25, 31, 32], 125),
        ([23, 26, 23, 26], 70), ([31, 31, 30, 32], 60), ([31, 31, 13, 25], 50), ([12, 17, 12, 17], 45),
        ([12, 16, 22, 25], 60),
        ([26, 30, 24, 32], 40), ([0, 1, 16, 32], 70), ([16, 32, 0, 1], 33),
    ],
    branching: [[1000, 210, 140, 90, 50, 60, 50, 50], [1000, 340, 170, 120, 60, 70, 50, 40]],
    local: 25,
    tcp_flags: &[((0, 0), 90), ((0x1000, 0x1000), 5), ((0, 0x0200), 5)],
    icmp: &[((0, 0xff00), 46), ((0x0303, 0xffff), 38), ((0x0800, 0xff00), 16)],
};

/// A firewall: wildcards on one side, servers on the other.
#[rustfmt::skip]
pub const FW1: Flavour = Flavour {
    name: "fw1",
    protocols: &[(TCP, 526), (UDP, 356), (GRE, 63), (ICMP, 43), (None, 12)],
    ports: &[
        ((Any, Exact), 53), ((Any, Any), 18), ((Exact, Any), 10), ((High, High), 8), ((High, Exact), 4),
        ((Exact, Exact), 3),
        ((Exact, High), 3), ((High, Range), 1),
    ],
    has_ports_anywhere: false,
    exact: [
        &[(53, 39), (750, 26), (123, 23), (161, 14), (88, 10), (69, 7), (162, 4)],
        &[
            (22, 63), (25, 57), (53, 48), (80, 41), (123, 36), (21, 26), (544, 22), (161, 17), (67, 15),
            (23, 15), (750, 12), (24032, 10),
            (443, 10), (879, 8), (2105, 8), (13, 4),
        ],
    ],
    ranges: &[((33434, 33600), 1)],
    lengths: &[
        ([0, 2, 32, 32], 300), ([0, 2, 31, 31], 160), ([0, 2, 30, 30], 40), ([32, 32, 32, 32], 58),
        ([32, 32, 0, 2], 83), ([31, 31, 0, 2], 65),
        ([31, 32, 31, 32], 60), ([26, 30, 0, 2], 70), ([26, 30, 26, 32], 60), ([20, 25, 0, 2], 30),
        ([0, 2, 20, 22], 30), ([31, 32, 20, 30], 30),
        ([9, 19, 30, 32], 10), ([0, 0, 0, 0], 4),
    ],
    branching: [[1000, 100, 40, 20, 40, 60, 80, 60], [1000, 140, 20, 0, 10, 60, 20, 40]],
    local: 120,
    tcp_flags: &[((0x0200, 0x1200), 94), ((0, 0), 3), ((0x0100, 0x0100), 1), ((0, 0x0200), 2)],
    icmp: &[((0x1100, 0xff00), 28), ((0x0d00, 0xff00), 21), ((0, 0), 21), ((0x0f00, 0xff00), 16), ((0, 0xff00),
    14)],
};

/// Another firewall, with protocols that have no ports, and ports all the same.
#[rustfmt::skip]
pub const FW2: Flavour = Flavour {
    name: "fw2",
    protocols: &[(Some(2), 361), (ICMP, 257), (None, 232), (Some(4), 125), (Some(3), 25)],
    ports: &[((Exact, Any), 43), ((Any, Any), 36), ((High, Any), 21)],
    has_ports_anywhere: true,
    exact: [&[(53, 163), (123, 131), (119, 54), (20, 29), (25, 22), (80, 16), (21, 13)], &[]],
    ranges: &[],
    lengths: &[
        ([32, 32, 32, 32], 152), ([23, 23, 0, 1], 156), ([24, 24, 0, 1], 160), ([25, 25, 0, 1], 90),
        ([31, 32, 31, 32], 80), ([31, 32, 0, 1], 80),
        ([22, 22, 0, 1], 30), ([0, 1, 23, 25], 100), ([14, 17, 0, 1], 60), ([22, 26, 22, 26], 40),
        ([30, 32, 30, 32], 52),
    ],
    branching: [[1000, 800, 210, 50, 30, 60, 20, 10], [1000, 590, 140, 10, 20, 30, 0, 10]],
    local: 0,
    tcp_flags: &[((0, 0), 1)],
    icmp: &[((0, 0), 1)],
};

/// The chains of a Linux host (ipchains): both directions, services on either side.
#[rustfmt::skip]
pub const IPC1: Flavour = Flavour {
    name: "ipc1",
    protocols: &[(None, 358), (UDP, 357), (TCP, 267), (ICMP, 10), (Some(51), 3), (Some(50), 2), (GRE, 3)],
    ports: &[
        ((Any, Exact), 54), ((Exact, Any), 22), ((Any, High), 9), ((Any, Any), 4), ((Any, Range), 4),
        ((Range, Any), 3), ((Exact, Exact), 2),
        ((High, Any), 2),
    ],
    has_ports_anywhere: false,
    exact: [
        &[(161, 29), (53, 20), (80, 19), (25, 17), (1433, 10), (5510, 6), (137, 6), (143, 6), (138, 4)],
        &[
            (514, 68), (69, 59), (80, 38), (9003, 26), (53, 20), (25, 18), (137, 12), (1433, 12), (22, 10),
            (143, 8), (1723, 6), (139, 6), (119, 5),
            (6699, 5),
        ],
    ],
    ranges: &[((20, 23), 11), ((20, 21), 8), ((109, 110), 9), ((1645, 1646), 7), ((1812, 1813), 4),
    ((5000, 5001), 2), ((20, 2511), 1)],
    lengths: &[
        ([32, 32, 32, 32], 148), ([31, 31, 31, 32], 68), ([32, 32, 31, 31], 40), ([23, 25, 32, 32], 95),
        ([32, 32, 23, 27], 95), ([22, 26, 22, 27], 230),
        ([31, 31, 22, 26], 40), ([22, 27, 31, 31], 60), ([14, 18, 23, 32], 40), ([23, 32, 14, 18], 55),
        ([26, 30, 26, 32], 70), ([0, 1, 16, 32], 45),
        ([16, 32, 0, 1], 14),
    ],
    branching: [[1000, 140, 140, 70, 110, 130, 60, 30], [1000, 290, 130, 60, 140, 60, 120, 40]],
    local: 50,
    tcp_flags: &[((0, 0), 60), ((0, 0x0200), 39), ((0x0200, 0x0200), 1)],
    icmp: &[((0x0500, 0xff00), 5), ((0, 0), 3), ((0, 0xff00), 1), ((0x0e00, 0xff00), 1)],
};
