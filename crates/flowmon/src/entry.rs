// SPDX-License-Identifier: Apache-2.0
//! A flow in a table, and the record of it that is exported.

use std::fmt;

use netvm_wire::FiveTuple;

use crate::key::{Endpoints, Key};

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Packets.
    pub packets: u64,
    /// Bytes of whole frames without FCS.
    pub bytes: u64,
    /// Bytes of the IP packets, without Ethernet header and padding (RFC 5102 `octetDeltaCount`); 0 if not IP.
    pub octets: u64,
}

impl Amount {
    /// Adds another.
    pub const fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.octets += other.octets;
    }
}

/// What became of a flow's packets by rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Not known.
    #[default]
    Unknown = 0,
    /// They go on.
    Forwarded = 1,
    /// They are dropped.
    Dropped = 2,
    /// They are dropped, and their sender is told.
    Rejected = 3,
}

impl Verdict {
    /// As eve files have it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Forwarded => "forwarded",
            Self::Dropped => "dropped",
            Self::Rejected => "rejected",
        }
    }
}

/// What rules have decided of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decided {
    /// The number of the rule, plus 1; 0: none.
    pub rule: u32,
    /// What became of the packets.
    pub verdict: Verdict,
}

/// One packet, as tables count it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Its flow.
    pub key: Key,
    /// The key's hash.
    pub hash: u64,
    /// It goes from the key's higher endpoint to its lower one.
    pub from_higher: bool,
    /// TCP flags.
    pub tcp_flags: u8,
    /// Port that it came in by.
    pub ingress: u16,
    /// Bytes of the frame.
    pub bytes: u32,
    /// Bytes of the IP packet.
    pub octets: u32,
    /// Monotonic time in cycles.
    pub now: u64,
}

/// A flow in a table. Two cache lines: IPv4 and IPv6 packets of the first direction that set no new flag write the
/// first and the octets of the second.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Time of the last packet, in cycles.
    pub last: u64,
    packets: [u64; 2],
    bytes: [u64; 2],
    octets: [u64; 2],
    /// Time of the first packet since the last record.
    pub first: u64,
    /// Index of its name, plus 1; 0 for none.
    pub(crate) name: u32,
    decided: Decided,
    ingress: u16,
    tcp_flags: [u8; 2],
    /// The first packet came from the key's higher endpoint.
    from_higher: bool,
    /// In a table.
    pub(crate) used: bool,
}

impl Entry {
    /// A flow that begins with this packet, which is not counted yet.
    #[inline]
    pub(crate) fn begin(&mut self, sample: &Sample) {
        *self = Self {
            key: sample.key,
            first: sample.now,
            last: sample.now,
            ingress: sample.ingress,
            from_higher: sample.from_higher,
            used: true,
            ..Self::default()
        };
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn count(&mut self, sample: &Sample) {
        let direction = usize::from(sample.from_higher != self.from_higher);
        self.last = sample.now;
        self.packets[direction] += 1;
        self.bytes[direction] += u64::from(sample.bytes);
        self.octets[direction] += u64::from(sample.octets);
        self.tcp_flags[direction] |= sample.tcp_flags;
    }

    /// Counts packets that were not taken one by one.
    pub(crate) fn count_unseen(&mut self, from_higher: bool, now: u64, unseen: Amount) {
        let direction = usize::from(from_higher != self.from_higher);
        self.last = now;
        self.packets[direction] += unseen.packets;
        self.bytes[direction] += unseen.bytes;
        self.octets[direction] += unseen.octets;
    }

    /// Whether a packet has the direction of the first one.
    pub(crate) const fn begins(&self, sample: &Sample) -> bool {
        sample.from_higher == self.from_higher
    }

    /// Notes what rules have decided of a packet. A later one replaces it.
    pub(crate) const fn decide(&mut self, decided: Decided) {
        self.decided = decided;
    }

    /// Whether this slot of its table has a flow.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// Packets of both directions since the last record.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.packets[0] + self.packets[1]
    }

    /// Counts of the direction of the first packet, or of the reverse direction.
    #[must_use]
    pub const fn amount(&self, reverse: bool) -> Amount {
        let n = reverse as usize;
        Amount { packets: self.packets[n], bytes: self.bytes[n], octets: self.octets[n] }
    }

    /// The endpoints as packets of the direction of the first packet have them, or of the reverse direction.
    #[must_use]
    pub fn endpoints(&self, reverse: bool) -> Endpoints {
        self.key.endpoints(self.from_higher != reverse)
    }

    /// Counts from here on are of the next record.
    pub(crate) fn restart(&mut self) {
        (self.packets, self.bytes, self.octets, self.tcp_flags) = ([0; 2], [0; 2], [0; 2], [0; 2]);
        self.first = self.last;
    }

    /// Whether TCP has closed the connection: a reset, or FIN both ways.
    fn is_closed(&self) -> bool {
        let [there, back] = self.tcp_flags;
        (there | back) & 4 != 0 || there & back & 1 != 0
    }

    /// The record of what was counted.
    pub(crate) fn record(&self, reason: EndReason, name: Option<Name>) -> Record {
        let reason = if reason == EndReason::Idle && self.is_closed() { EndReason::Closed } else { reason };
        Record {
            key: self.key,
            from_higher: self.from_higher,
            first: self.first,
            last: self.last,
            there: self.amount(false),
            back: self.amount(true),
            tcp_flags: self.tcp_flags,
            ingress: self.ingress,
            reason,
            name,
            decided: self.decided,
            translated: None,
        }
    }
}

/// Why a record was made (RFC 5102 `flowEndReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// No packet for the inactive time-out.
    Idle = 1,
    /// The flow goes on, and the active time-out is over.
    Active = 2,
    /// TCP closed the connection.
    Closed = 3,
    /// The monitor ends.
    Forced = 4,
    /// The table was full.
    NoRoom = 5,
}

impl EndReason {
    /// As eve files have it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Idle => "timeout",
            Self::Active => "active",
            Self::Closed => "closed",
            Self::Forced => "forced",
            Self::NoRoom => "no-room",
        }
    }
}

/// Where a name was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameKind {
    /// Name of the first question of a DNS query or answer.
    Dns,
    /// `server_name` of a TLS ClientHello.
    TlsServer,
}

/// A host name from a packet: at most 127 bytes, printable ASCII; what is longer is cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    kind: NameKind,
    length: u8,
    bytes: [u8; Self::MAX],
}

impl Name {
    /// Longest name that is kept.
    pub const MAX: usize = 127;

    /// An empty name.
    pub(crate) const fn new(kind: NameKind) -> Self {
        Self { kind, length: 0, bytes: [0; Self::MAX] }
    }

    /// Appends bytes; those that are not printable become `?`. What does not fit is left out.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let Some(place) = self.bytes.get_mut(usize::from(self.length)) else { return };
            *place = if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\') { *byte } else { b'?' };
            self.length += 1;
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// Where it was seen.
    #[must_use]
    pub const fn kind(&self) -> NameKind {
        self.kind
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.kind, self.as_str())
    }
}

/// What was counted of a flow from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The flow.
    pub key: Key,
    /// Its first packet came from the key's higher endpoint.
    pub from_higher: bool,
    /// Time of the first packet of the record, in cycles.
    pub first: u64,
    /// Time of the last packet.
    pub last: u64,
    /// The direction of the flow's first packet.
    pub there: Amount,
    /// The other direction.
    pub back: Amount,
    /// TCP flags seen in each direction.
    pub tcp_flags: [u8; 2],
    /// Port that the first packet came in by.
    pub ingress: u16,
    /// Why it ended.
    pub reason: EndReason,
    /// A name seen in its packets.
    pub name: Option<Name>,
    /// What rules decided of its last packet in the direction of the first.
    pub decided: Decided,
    /// The endpoints with which packets of that direction leave, if NAT changes them.
    pub translated: Option<FiveTuple>,
}

impl Record {
    /// The endpoints as packets of the first direction have them.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        self.key.endpoints(self.from_higher)
    }

    /// Both directions.
    #[must_use]
    pub const fn total(&self) -> Amount {
        let mut total = self.there;
        total.add(self.back);
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_two_cache_lines() {
        assert_eq!(size_of::<Entry>(), 128);
    }

    #[test]
    fn names_are_printable_and_bounded() {
        let mut name = Name::new(NameKind::Dns);
        name.push(b"a b\n\"\\\xff.example");
        assert_eq!(name.as_str(), "a?b????.example");
        name.push(&[b'x'; 300]);
        assert_eq!(name.as_str().len(), Name::MAX);
    }
}
