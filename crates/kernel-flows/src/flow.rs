// SPDX-License-Identifier: Apache-2.0
//! What the table knows of a flow:
//!
//! ```text
//!  bytes  0 .. 4   index of netvm's end of the port that packets go to     4 .. 8   slot of that port
//!         8 .. 12  epoch of the port that receives them                    12 .. 16 epoch of the other
//!        16 .. 20  longest frame                                           20 .. 24 flags
//!        24 .. 32  packets        32 .. 40  bytes                          40 .. 48 time of the last packet
//!        48 .. 60  MAC addresses of routed packets, destination first      60 .. 64 zeros
//!        64 .. 68  source of translated packets of IPv4                    68 .. 72 destination
//!        72 .. 76  their ports                                             76 .. 80 zeros
//! ```

use std::net::Ipv4Addr;
use std::time::Duration;

use netvm_wire::MacAddr;

/// Bytes of a flow in the table, beside its key.
pub(crate) const BYTES: usize = 80;
pub(crate) const INTERFACE: i16 = 0;
pub(crate) const SLOT: i16 = 4;
pub(crate) const EPOCH: i16 = 8;
pub(crate) const OTHER_EPOCH: i16 = 12;
pub(crate) const MAX_FRAME: i16 = 16;
pub(crate) const FLAGS: i16 = 20;
pub(crate) const PACKETS: i16 = 24;
pub(crate) const OCTETS: i16 = 32;
pub(crate) const LAST: i16 = 40;
/// Packets with SYN, FIN or RST are misses.
pub(crate) const FLAG_TRACKED: i32 = 1;
/// Packets get the MAC addresses of the flow, and the next TTL.
pub(crate) const FLAG_ROUTED: i32 = 2;
/// Packets get the addresses and ports of the flow.
pub(crate) const FLAG_TRANSLATED: i32 = 4;
/// The lease does not matter.
pub(crate) const FLAG_CONTINUES: i32 = 8;
pub(crate) const MACS: i16 = 48;
pub(crate) const ADDRESSES: i16 = 64;
pub(crate) const PORTS: i16 = 72;
/// Bytes of both MAC addresses.
pub(crate) const MAC_BYTES: i32 = 12;

/// Where packets of a flow go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Index of netvm's end of the veth pair of the port that they go to.
    pub interface: u32,
    /// The slot of that port.
    pub slot: u32,
    /// The epochs that the port that receives them, and the port that they go to, had when this was decided.
    pub epochs: [u32; 2],
    /// The longest frame that may go there, in bytes with the Ethernet header; segments count one by one.
    pub max_frame: u32,
    /// Whether netvm sees when a connection opens and closes: packets with SYN, FIN or RST are misses.
    pub is_tracked: bool,
    /// Whether packets are forwarded when the lease has run out, too.
    pub continues: bool,
    /// The MAC addresses that a router gives its packets, destination first, whose TTL it decrements; `None`: packets
    /// stay as they are.
    pub routed: Option<[MacAddr; 2]>,
    /// What NAT makes of their ends; `None`: they stay. The key then has whole addresses and ports of IPv4.
    pub translated: Option<Ends>,
}

/// Ends of packets of IPv4, source first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Their addresses.
    pub addresses: [Ipv4Addr; 2],
    /// Their ports.
    pub ports: [u16; 2],
}

/// What a flow has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Packets on the wire: segments count one by one.
    pub packets: u64,
    /// Bytes of these packets, each with its headers.
    pub bytes: u64,
    /// When the last one came, by CLOCK_MONOTONIC_COARSE; zero before the first.
    pub last: Duration,
}

impl Flow {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let tracked = if self.is_tracked { FLAG_TRACKED as u32 } else { 0 };
        let routed = if self.routed.is_some() { FLAG_ROUTED as u32 } else { 0 };
        let translated = if self.translated.is_some() { FLAG_TRANSLATED as u32 } else { 0 };
        let continues = if self.continues { FLAG_CONTINUES as u32 } else { 0 };
        let flags = tracked | routed | translated | continues;
        let words = [self.interface, self.slot, self.epochs[0], self.epochs[1], self.max_frame, flags];
        let mut bytes = [0; BYTES];
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        let macs = self.routed.iter().flatten().flat_map(|mac| mac.0);
        bytes.iter_mut().skip(MACS as usize).zip(macs).for_each(|(to, from)| *to = from);
        if let Some(Ends { addresses, ports }) = self.translated {
            let ends =
                addresses.iter().flat_map(Ipv4Addr::octets).chain(ports.map(u16::to_be_bytes).concat());
            bytes.iter_mut().skip(ADDRESSES as usize).zip(ends).for_each(|(to, from)| *to = from);
        }
        bytes
    }
}

impl FlowCounts {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let double = |at: i16| {
            let bytes = bytes.get(at as usize..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        Self { packets: double(PACKETS), bytes: double(OCTETS), last: Duration::from_nanos(double(LAST)) }
    }
}
