// SPDX-License-Identifier: Apache-2.0
//! The left side of a match: its field and implied conditions.

use netvm_wire::{EtherType, IpProto};
use serde_json::Value;

use super::reader::{RuleReader, Stop};
use super::single;
use super::symbols::Kind;
use crate::algebra::Field;
use crate::{IpVersion, NoteReason};
use netvm_policy::Match;
use netvm_policy::Span;

/// A field and its implied conditions.
pub(super) struct LeftOperand<'v> {
    pub(super) what: String,
    /// The packets that have the field.
    pub(super) implies: Match,
    pub(super) target: Target,
    pub(super) kind: Kind,
    /// The significant bits, if not all.
    pub(super) mask: Option<&'v Value>,
    /// Whether it belongs to the transport header.
    pub(super) transport: bool,
    /// Why rules with it are skipped, unless other matches of the rule make it exact.
    pub(super) differs: Option<NoteReason>,
}

/// The field in a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Field(Field),
    SourceMac,
    DestinationMac,
    EtherType,
    /// Type of an untagged frame.
    FrameType,
    Flags,
    /// Offset and flags of an IPv4 fragment.
    FragmentBits,
    /// State of the packet's connection.
    State,
    ComesIn,
    GoesOut,
}

/// IP packets.
pub(super) fn ip() -> Match {
    Match { ether_type: vec![EtherType::IPV4, EtherType::IPV6], ..Match::default() }
}

fn version(version: IpVersion) -> Match {
    Match { ether_type: vec![version.ether_type()], ..Match::default() }
}

impl RuleReader<'_> {
    /// The fields of a left side; several if concatenated.
    pub(super) fn left<'v>(&self, left: &'v Value) -> Result<Vec<LeftOperand<'v>>, Stop> {
        let Some((kind, inner)) = single(left) else {
            return Err(self.schema("a field of packets", left).into());
        };
        match kind {
            "concat" => {
                let parts = inner.as_array().ok_or_else(|| self.schema("fields", inner))?;
                let mut fields = vec![];
                for part in parts {
                    fields.extend(self.left(part)?);
                }
                Ok(fields)
            }
            "&" => {
                let [left, mask] = inner.as_array().map(Vec::as_slice).unwrap_or_default() else {
                    return Err(self.schema("a field and a mask", inner).into());
                };
                let mut fields = self.left(left)?;
                match &mut fields[..] {
                    [field] if field.mask.is_none() => field.mask = Some(mask),
                    _ => return Err(Stop::Note("mask".into(), NoteReason::Match)),
                }
                Ok(fields)
            }
            "payload" => self.payload(inner).map(|field| vec![field]),
            "meta" => self.meta(inner).map(|field| vec![field]),
            "ct" => self.connection(inner).map(|field| vec![field]),
            other => Err(Stop::Note(other.to_owned(), NoteReason::Match)),
        }
    }

    fn payload<'v>(&self, payload: &Value) -> Result<LeftOperand<'v>, Stop> {
        let text = |key| payload.get(key).and_then(Value::as_str);
        let (Some(protocol), Some(name)) = (text("protocol"), text("field")) else {
            return Err(match payload.get("base") {
                Some(_) => Stop::Note("raw payload".into(), NoteReason::Match),
                None => self.schema("protocol and field", payload).into(),
            });
        };
        let (v4, v6) = (IpVersion::V4, IpVersion::V6);
        let l4 = |protocol| Match { protocol: vec![protocol], ..ip() };
        let arp = || Match { ether_type: vec![EtherType::ARP], ..Match::default() };
        let tagged = || Match { vlan: vec![Span { first: 1, last: 4094 }], ..Match::default() };
        let mut differs = None;
        let (implies, target, kind) = match (protocol, name) {
            ("ip", "saddr") => (version(v4), Target::Field(Field::Source(v4)), Kind::Address(v4)),
            ("ip", "daddr") => (version(v4), Target::Field(Field::Destination(v4)), Kind::Address(v4)),
            ("ip", "protocol") => (version(v4), Target::Field(Field::Protocol), Kind::Protocol),
            ("ip", "dscp") => (version(v4), Target::Field(Field::Dscp), Kind::Dscp),
            ("ip", "frag-off") => (version(v4), Target::FragmentBits, Kind::Number),
            ("ip6", "saddr") => (version(v6), Target::Field(Field::Source(v6)), Kind::Address(v6)),
            ("ip6", "daddr") => (version(v6), Target::Field(Field::Destination(v6)), Kind::Address(v6)),
            ("ip6", "dscp") => (version(v6), Target::Field(Field::Dscp), Kind::Dscp),
            ("ip6", "nexthdr") => {
                differs = Some(NoteReason::FirstHeader);
                (version(v6), Target::Field(Field::Protocol), Kind::Protocol)
            }
            ("tcp" | "udp" | "sctp" | "th", "sport" | "dport") => {
                let implies = match protocol {
                    "tcp" => l4(IpProto::TCP),
                    "udp" => l4(IpProto::UDP),
                    "sctp" => l4(IpProto::SCTP),
                    _ => {
                        differs = Some(NoteReason::SomePorts);
                        Match { protocol: vec![IpProto::TCP, IpProto::UDP, IpProto::SCTP], ..ip() }
                    }
                };
                let field = if name == "sport" { Field::SourcePorts } else { Field::DestinationPorts };
                (implies, Target::Field(field), Kind::Port)
            }
            (_, "sport" | "dport") => {
                return Err(Stop::Note(format!("{protocol} {name}"), NoteReason::NoPorts));
            }
            ("tcp", "flags") => (l4(IpProto::TCP), Target::Flags, Kind::Flags),
            ("icmp" | "icmpv6", "type" | "code") => {
                let (protocol, version) = match protocol {
                    "icmp" => (IpProto::ICMP, version(v4)),
                    _ => (IpProto::ICMPV6, version(v6)),
                };
                let implies = Match { protocol: vec![protocol], ..version };
                match name {
                    "type" => (implies, Target::Field(Field::IcmpType), Kind::Type(protocol)),
                    _ => (implies, Target::Field(Field::IcmpCode), Kind::Code(protocol)),
                }
            }
            ("ether", "saddr") => (Match::default(), Target::SourceMac, Kind::Mac),
            ("ether", "daddr") => (Match::default(), Target::DestinationMac, Kind::Mac),
            ("ether", "type") => (Match::default(), Target::FrameType, Kind::EtherType),
            ("vlan", "id") => (tagged(), Target::Field(Field::Vlan), Kind::Vlan),
            ("vlan", "type") => (tagged(), Target::EtherType, Kind::EtherType),
            ("arp", "operation") => (arp(), Target::Field(Field::ArpOperation), Kind::Operation),
            ("arp", "saddr ip") => (arp(), Target::Field(Field::Source(v4)), Kind::Address(v4)),
            ("arp", "daddr ip") => (arp(), Target::Field(Field::Destination(v4)), Kind::Address(v4)),
            _ => return Err(Stop::Note(format!("{protocol} {name}"), NoteReason::Match)),
        };
        let transport = matches!(protocol, "tcp" | "udp" | "sctp" | "th" | "icmp" | "icmpv6");
        Ok(LeftOperand {
            what: format!("{protocol} {name}"),
            implies,
            target,
            kind,
            mask: None,
            transport,
            differs,
        })
    }

    fn meta<'v>(&self, meta: &Value) -> Result<LeftOperand<'v>, Stop> {
        let Some(key) = meta.get("key").and_then(Value::as_str) else {
            return Err(self.schema("a key", meta).into());
        };
        let (implies, target, kind) = match key {
            "iif" | "iifname" => (Match::default(), Target::ComesIn, Kind::Number),
            "oif" | "oifname" => (Match::default(), Target::GoesOut, Kind::Number),
            "l4proto" => (ip(), Target::Field(Field::Protocol), Kind::Protocol),
            "nfproto" => (ip(), Target::EtherType, Kind::Family),
            "protocol" => (Match::default(), Target::EtherType, Kind::EtherType),
            _ => return Err(Stop::Note(format!("meta {key}"), NoteReason::Match)),
        };
        let what = format!("meta {key}");
        Ok(LeftOperand { what, implies, target, kind, mask: None, transport: false, differs: None })
    }
}
