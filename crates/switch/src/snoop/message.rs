// SPDX-License-Identifier: Apache-2.0
//! Messages of IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810), and other signs of multicast routers: hellos of
//! PIM (RFC 7761) and advertisements of RFC 4286. In: the headers of a packet to a group address, then the whole frame.
//! Out: what it is to snooping.
//!
//! Sources that hosts choose or exclude (IGMPv3, MLDv2) are read only as far as they say whether the group is wanted:
//! packets are forwarded by group (RFC 4541 section 2.1.2).

use std::time::Duration;

use netvm_wire::checksum::{internet_checksum, verify};
use netvm_wire::{Address, FlowKey, Fragment, Headers, IpProto};

const IGMP: IpProto = IpProto(2);
const PIM: IpProto = IpProto(103);

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
const IGMP_ROUTER: u8 = 0x30;
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_V2: u8 = 143;
const MLD_ROUTER: u8 = 151;
/// Bytes of a query of IGMPv3, and of MLDv2, without sources.
const QUERY_V3: usize = 12;
const MLD_QUERY_V2: usize = 28;
/// The time that a host has to answer, if the query names none (IGMPv1).
const DEFAULT_RESPONSE: Duration = Duration::from_secs(10);

/// What a packet to a group address is, by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPacket {
    /// All ports get it: it is not IP, or its group stays on the link, so that hosts need not report it.
    Flooded,
    /// Data for a group.
    Data(Address),
    /// IGMP, MLD or PIM: [`Message::read`] reads it.
    Control,
}

impl GroupPacket {
    /// Of a packet with these header fields.
    #[must_use]
    pub fn of(key: &FlowKey) -> Self {
        let is_control = key.fragment == Fragment::Whole
            && match key.protocol {
                IGMP => key.destination.is_v4(),
                IpProto::ICMPV6 => is_mld(key.icmp_type),
                PIM => true,
                _ => false,
            };
        if is_control {
            return Self::Control;
        }
        // RFC 4541 sections 2.1.2 and 3.
        match key.destination.is_group_beyond_link() {
            true => Self::Data(key.destination),
            false => Self::Flooded,
        }
    }
}

const fn is_mld(icmp_type: u8) -> bool {
    matches!(icmp_type, MLD_QUERY | MLD_REPORT | MLD_DONE | MLD_REPORT_V2 | MLD_ROUTER)
}

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The address of the querier; [`Address::UNSPECIFIED`] or 0.0.0.0 of a switch without one.
    pub source: Address,
    /// `None`: for all groups.
    pub group: Option<Address>,
    /// The time that hosts have for an answer.
    pub response: Duration,
    /// The interval of the querier's general queries, if it says so.
    pub interval: Option<Duration>,
    /// Whether memberships end if nobody answers: not so if the query asks for sources, or if it says that routers are
    /// to keep their timers.
    pub may_end: bool,
}

/// What a host says of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It listens.
    Join,
    /// It listens, and never says when it ends (IGMPv1).
    JoinV1,
    /// It no longer listens.
    Leave,
    /// It no longer listens to some of the sources, so it may have ended.
    Block,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A query.
    Query(Query),
    /// Reports of a host.
    Reports(Reports<'a>),
    /// The sender is a multicast router.
    Router,
    /// Another message, which all ports get (RFC 4541 section 2.1.1).
    Other,
}

/// A length or a checksum is wrong, or an address that the message must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message of IGMP or MLD is invalid")]
pub struct InvalidMessage;

impl<'a> Message<'a> {
    /// Reads the message of a whole frame with these headers.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn read(frame: &'a [u8], headers: &Headers) -> Result<Self, InvalidMessage> {
        let (key, start) = (headers.key(), headers.l4_offset().unwrap_or(headers.payload_offset()));
        let body = frame.get(start..headers.payload_end()).ok_or(InvalidMessage)?;
        if key.protocol == PIM {
            const ALL_PIM_ROUTERS: [Address; 2] =
                [Address::from_v4_bits(0xe000_000d), Address::from_v6_bits(0xff02 << 112 | 0xd)];
            // Version 2, hello.
            let is_hello = body.first() == Some(&0x20) && ALL_PIM_ROUTERS.contains(&key.destination);
            return Ok(if is_hello { Self::Router } else { Self::Other });
        }
        verify(frame, headers).map_err(|_| InvalidMessage)?;
        if key.protocol == IGMP {
            return if internet_checksum(body) == 0 { igmp(body, key.source) } else { Err(InvalidMessage) };
        }
        let hop_limit = frame.get(headers.l3_offset() + 7).ok_or(InvalidMessage)?;
        if *hop_limit != 1 {
            return Err(InvalidMessage);
        }
        mld(body, key.source)
    }
}

fn igmp(body: &[u8], source: Address) -> Result<Message<'_>, InvalidMessage> {
    let head: &[u8; 8] = body.first_chunk().ok_or(InvalidMessage)?;
    let group = Address::from_v4_octets([head[4], head[5], head[6], head[7]]);
    let reports = |change| Reports::one(group, change).map(Message::Reports);
    match head[0] {
        QUERY => {
            let is_general = group.v4_bits() == Some(0);
            let tenths = |code| Duration::from_millis(100 * u64::from(unfold(code, 4)));
            let (response, interval, may_end) = match body.get(8..QUERY_V3) {
                Some(rest) => (tenths(head[1]), interval_of(rest[1]), ends(rest[0], [rest[2], rest[3]])),
                None if body.len() > 8 => return Err(InvalidMessage),
                None if head[1] == 0 => (DEFAULT_RESPONSE, None, true),
                None => (Duration::from_millis(100 * u64::from(head[1])), None, true),
            };
            let group = if is_general { None } else { Some(group_of(group)?) };
            Ok(Message::Query(Query { source, group, response, interval, may_end }))
        }
        REPORT_V1 => reports(Change::JoinV1),
        REPORT_V2 => reports(Change::Join),
        LEAVE => reports(Change::Leave),
        REPORT_V3 => Ok(Message::Reports(Reports::records(head, &body[8..], 4))),
        IGMP_ROUTER => Ok(Message::Router),
        _ => Ok(Message::Other),
    }
}

fn mld(body: &[u8], source: Address) -> Result<Message<'_>, InvalidMessage> {
    let head: &[u8; 8] = body.first_chunk().ok_or(InvalidMessage)?;
    let is_link_local = source.v6_bits() >> 118 == 0xfe80 >> 6;
    if !is_link_local && (source != Address::UNSPECIFIED || matches!(head[0], MLD_QUERY | MLD_ROUTER)) {
        return Err(InvalidMessage);
    }
    let group = || {
        let bytes = body.get(8..24).and_then(<[u8]>::first_chunk).ok_or(InvalidMessage)?;
        Ok(Address::from_v6_octets(*bytes))
    };
    let reports = |change| Reports::one(group()?, change).map(Message::Reports);
    match head[0] {
        MLD_QUERY => {
            let (group, code) = (group()?, u16::from_be_bytes([head[4], head[5]]));
            let (response, interval, may_end) = match body.get(24..MLD_QUERY_V2) {
                Some(rest) => (unfold(code, 12), interval_of(rest[1]), ends(rest[0], [rest[2], rest[3]])),
                None if body.len() > 24 => return Err(InvalidMessage),
                None => (code.into(), None, true),
            };
            let response = Duration::from_millis(response.into());
            let group = if group == Address::UNSPECIFIED { None } else { Some(group_of(group)?) };
            Ok(Message::Query(Query { source, group, response, interval, may_end }))
        }
        MLD_REPORT => reports(Change::Join),
        MLD_DONE => reports(Change::Leave),
        MLD_REPORT_V2 => Ok(Message::Reports(Reports::records(head, &body[8..], 16))),
        MLD_ROUTER => Ok(Message::Router),
        _ => Ok(Message::Other),
    }
}

/// A number that has an exponent of three bits above a mantissa of `bits`, if the bit above both is set (RFC 3376
/// section 4.1.1, RFC 3810 section 5.1.3).
fn unfold(code: impl Into<u32>, bits: u32) -> u32 {
    let (code, leading) = (code.into(), 1 << bits);
    if code >> (bits + 3) & 1 == 0 {
        return code;
    }
    (code & (leading - 1) | leading) << ((code >> bits & 7) + 3)
}

fn interval_of(code: u8) -> Option<Duration> {
    let seconds = unfold(code, 4);
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Whether a query with these flags and this number of sources may end memberships.
const fn ends(flags: u8, sources: [u8; 2]) -> bool {
    const SUPPRESS: u8 = 0x08;
    flags & SUPPRESS == 0 && u16::from_be_bytes(sources) == 0
}

fn group_of(address: Address) -> Result<Address, InvalidMessage> {
    let is_group = address.v4_bits().map_or(address.v6_bits() >> 120 == 0xff, |bits| bits >> 28 == 0xe);
    if is_group { Ok(address) } else { Err(InvalidMessage) }
}

/// What a report says of each group beyond the link, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reports<'a> {
    one: Option<(Address, Change)>,
    records: u16,
    bytes: &'a [u8],
    /// Bytes of an address.
    width: usize,
}

impl<'a> Reports<'a> {
    fn one(group: Address, change: Change) -> Result<Self, InvalidMessage> {
        Ok(Self { one: Some((group_of(group)?, change)), records: 0, bytes: &[], width: 4 })
    }

    fn records(head: &[u8; 8], bytes: &'a [u8], width: usize) -> Self {
        Self { one: None, records: u16::from_be_bytes([head[6], head[7]]), bytes, width }
    }

    /// The next record; `None` behind the last, and in place of one that the message has no room for.
    fn record(&mut self) -> Option<(Address, Option<Change>)> {
        self.records = self.records.checked_sub(1)?;
        let head: &[u8; 4] = self.bytes.first_chunk()?;
        let sources = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let length = 4 + self.width * (1 + sources) + 4 * usize::from(head[1]);
        let group = self.bytes.get(4..4 + self.width)?;
        let group = match group.first_chunk::<16>() {
            Some(bytes) => Address::from_v6_octets(*bytes),
            None => Address::from_v4_octets(*group.first_chunk()?),
        };
        self.bytes = self.bytes.get(length..)?;
        let change = match (head[0], sources) {
            // Including none is no membership; excluding is one, whatever is excluded.
            (1 | 3 | 5, 1..) | (2 | 4, _) => Some(Change::Join),
            (3, 0) => Some(Change::Leave),
            (6, 1..) => Some(Change::Block),
            _ => None,
        };
        Some((group, change))
    }
}

impl Iterator for Reports<'_> {
    type Item = (Address, Change);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(one) = self.one.take() {
            return Some(one).filter(|(group, _)| group.is_group_beyond_link());
        }
        loop {
            let (group, change) = self.record()?;
            if let Some(change) = change.filter(|_| group.is_group_beyond_link()) {
                return Some((group, change));
            }
        }
    }
}
