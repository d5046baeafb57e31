// SPDX-License-Identifier: Apache-2.0
//! Templates of IPFIX data records (RFC 7011 section 3.4) and the records themselves.
//!
//! A template is chosen by what a record has: IPv4, IPv6 or neither; packets in the reverse direction (RFC 5103); a
//! name; what rules have decided; what NAT has made of it. The rule is a `selectorName`, as a rule selects packets
//! (RFC 5477 section 8.2). Names have information elements of CERT's (enterprise 6871, as YAF exports them), since IANA
//! has none.

use crate::entry::{NameKind, Record, Verdict};
use crate::key::{Endpoints, Kind};

/// Enterprise of reverse information elements (RFC 5103).
const REVERSE: u32 = 29305;
/// Enterprise of CERT's information elements.
const CERT: u32 = 6871;
/// Length of a field of variable length.
const VARIABLE: u16 = 0xffff;
/// First template number of data records.
const FIRST: u16 = 256;
/// Template number of the options record on sampling.
pub(super) const SAMPLING: u16 = FIRST + Template::COUNT as u16;

/// forwardingStatus, selectorName.
const DECIDED: [Field; 2] = [iana(89, 1), iana(335, VARIABLE)];
/// postNATSourceIPv4Address, postNATDestinationIPv4Address; the same of IPv6.
const NAT_V4: [Field; 2] = [iana(225, 4), iana(226, 4)];
const NAT_V6: [Field; 2] = [iana(281, 16), iana(282, 16)];
/// postNAPTSourceTransportPort, postNAPTDestinationTransportPort.
const NAT_PORTS: [Field; 2] = [iana(227, 2), iana(228, 2)];
/// Values of forwardingStatus: forwarded; dropped by an ACL.
const FORWARDED: u8 = 64;
const DROPPED_BY_ACL: u8 = 129;

/// Kind, whether packets went both ways, and so on: which fields a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Template {
    kind: Kind,
    is_biflow: bool,
    name: Option<NameKind>,
    is_decided: bool,
    /// The family that NAT has made of it.
    translated: Option<Kind>,
}

#[derive(Clone, Copy)]
pub(super) struct Field {
    id: u16,
    length: u16,
    enterprise: u32,
}

pub(super) const fn iana(id: u16, length: u16) -> Field {
    Field { id, length, enterprise: 0 }
}

const fn reverse(id: u16, length: u16) -> Field {
    Field { id, length, enterprise: REVERSE }
}

/// flowStartMilliseconds, flowEndMilliseconds, packetDeltaCount.
const COMMON: [Field; 3] = [iana(152, 8), iana(153, 8), iana(2, 8)];
/// ingressInterface, flowEndReason, vlanId.
const LAST: [Field; 3] = [iana(10, 4), iana(136, 1), iana(58, 2)];
/// sourceTransportPort, destinationTransportPort, protocolIdentifier, tcpControlBits, octetDeltaCount.
const TRANSPORT: [Field; 5] = [iana(7, 2), iana(11, 2), iana(4, 1), iana(6, 2), iana(1, 8)];

impl Template {
    pub(super) const COUNT: usize = 108;

    pub(super) fn of(record: &Record) -> Self {
        Self {
            kind: record.key.kind(),
            is_biflow: record.back.packets > 0,
            name: record.name.map(|name| name.kind()),
            is_decided: record.decided.verdict != Verdict::Unknown,
            translated: record
                .translated
                .map(|ends| if ends.source.is_v4() { Kind::Ipv4 } else { Kind::Ipv6 }),
        }
    }

    /// From 0 to `COUNT - 1`.
    pub(super) const fn index(self) -> usize {
        let name = match self.name {
            None => 0,
            Some(NameKind::Dns) => 1,
            Some(NameKind::TlsServer) => 2,
        };
        let translated = match self.translated {
            None => 0,
            Some(Kind::Ipv4) => 1,
            Some(_) => 2,
        };
        let kind = (self.kind as usize * 2 + self.is_biflow as usize) * 3 + name;
        (kind * 2 + self.is_decided as usize) * 3 + translated
    }

    /// Template number, and the number of the sets of its records.
    pub(super) const fn id(self) -> u16 {
        FIRST + self.index() as u16
    }

    pub(super) fn fields(self) -> Vec<Field> {
        let mut fields = COMMON.to_vec();
        match self.kind {
            Kind::Ipv4 => fields.extend([iana(8, 4), iana(12, 4)]),
            Kind::Ipv6 => fields.extend([iana(27, 16), iana(28, 16)]),
            // sourceMacAddress, destinationMacAddress, ethernetType, layer2OctetDeltaCount
            Kind::Ethernet => fields.extend([iana(56, 6), iana(80, 6), iana(256, 2), iana(352, 8)]),
        }
        if self.kind != Kind::Ethernet {
            fields.extend(TRANSPORT);
        }
        fields.extend(LAST);
        if self.is_biflow {
            fields.push(reverse(2, 8));
            match self.kind {
                Kind::Ethernet => fields.push(reverse(352, 8)),
                _ => fields.extend([reverse(1, 8), reverse(6, 2)]),
            }
        }
        match self.name {
            None => {}
            Some(NameKind::Dns) => fields.push(Field { id: 179, length: VARIABLE, enterprise: CERT }),
            Some(NameKind::TlsServer) => fields.push(Field { id: 294, length: VARIABLE, enterprise: CERT }),
        }
        if self.is_decided {
            fields.extend(DECIDED);
        }
        if let Some(family) = self.translated {
            fields.extend(if family == Kind::Ipv4 { NAT_V4 } else { NAT_V6 });
            fields.extend(NAT_PORTS);
        }
        fields
    }

    /// Appends a data record; `millis` turns its times into Unix milliseconds.
    pub(super) fn write(self, record: &Record, millis: impl Fn(u64) -> u64, out: &mut Vec<u8>) {
        out.extend(millis(record.first).to_be_bytes());
        out.extend(millis(record.last).to_be_bytes());
        out.extend(record.there.packets.to_be_bytes());
        let [flags, reverse_flags] = record.tcp_flags.map(u16::from);
        match record.endpoints() {
            Endpoints::Ip(tuple) => {
                for address in [tuple.source, tuple.destination] {
                    match address.v4_bits().filter(|_| self.kind == Kind::Ipv4) {
                        Some(bits) => out.extend(bits.to_be_bytes()),
                        None => out.extend(address.v6_bits().to_be_bytes()),
                    }
                }
                out.extend(tuple.source_port.to_be_bytes());
                out.extend(tuple.destination_port.to_be_bytes());
                out.push(tuple.protocol.0);
                out.extend(flags.to_be_bytes());
                out.extend(record.there.octets.to_be_bytes());
            }
            Endpoints::Ethernet { source, destination, ether_type } => {
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(ether_type.0.to_be_bytes());
                out.extend(record.there.bytes.to_be_bytes());
            }
        }
        out.extend(u32::from(record.ingress).to_be_bytes());
        out.push(record.reason as u8);
        out.extend(record.key.vlan().to_be_bytes());
        if self.is_biflow {
            out.extend(record.back.packets.to_be_bytes());
            if self.kind == Kind::Ethernet {
                out.extend(record.back.bytes.to_be_bytes());
            } else {
                out.extend(record.back.octets.to_be_bytes());
                out.extend(reverse_flags.to_be_bytes());
            }
        }
        if let Some(name) = record.name {
            write_text(name.as_str(), out);
        }
    }

    /// Appends what [`Template::write`] leaves out: the last fields. `rule`: the name of the rule.
    pub(super) fn write_decided(self, record: &Record, rule: Option<&str>, out: &mut Vec<u8>) {
        match record.decided.verdict {
            Verdict::Unknown => {}
            Verdict::Forwarded => out.push(FORWARDED),
            Verdict::Dropped | Verdict::Rejected => out.push(DROPPED_BY_ACL),
        }
        if self.is_decided {
            write_text(rule.unwrap_or_default(), out);
        }
        if let Some(ends) = record.translated {
            for address in [ends.source, ends.destination] {
                match address.v4_bits().filter(|_| self.translated == Some(Kind::Ipv4)) {
                    Some(bits) => out.extend(bits.to_be_bytes()),
                    None => out.extend(address.v6_bits().to_be_bytes()),
                }
            }
            out.extend(ends.source_port.to_be_bytes());
            out.extend(ends.destination_port.to_be_bytes());
        }
    }
}

/// Appends a string.
fn write_text(text: &str, out: &mut Vec<u8>) {
    // The short form of a length (RFC 7011 section 7).
    let bytes = &text.as_bytes()[..text.len().min(254)];
    out.push(bytes.len() as u8);
    out.extend(bytes);
}

/// Appends a template record.
pub(super) fn describe(id: u16, fields: &[Field], out: &mut Vec<u8>) {
    out.extend(id.to_be_bytes());
    out.extend((fields.len() as u16).to_be_bytes());
    for Field { id, length, enterprise } in fields {
        let bit = if *enterprise == 0 { 0 } else { 0x8000 };
        out.extend((id | bit).to_be_bytes());
        out.extend(length.to_be_bytes());
        if *enterprise != 0 {
            out.extend(enterprise.to_be_bytes());
        }
    }
}

/// Appends the options template of the sampling record (RFC 5477): selectorId as scope, selectorAlgorithm,
/// samplingPacketInterval, samplingPacketSpace.
pub(super) fn describe_sampling(out: &mut Vec<u8>) {
    for number in [SAMPLING, 4, 1, 302, 8, 304, 2, 305, 4, 306, 4] {
        out.extend(number.to_be_bytes());
    }
}

/// Appends the options template of a record on an interface (RFC 7011 section 3.4.2): ingressInterface as scope,
/// interfaceName, interfaceDescription.
pub(super) fn describe_interface(id: u16, out: &mut Vec<u8>) {
    for number in [id, 3, 1, 10, 4, 82, VARIABLE, 83, VARIABLE] {
        out.extend(number.to_be_bytes());
    }
}

/// Appends a record on an interface.
pub(super) fn write_interface(number: u16, name: &str, description: &str, out: &mut Vec<u8>) {
    out.extend(u32::from(number).to_be_bytes());
    write_text(name, out);
    write_text(description, out);
}

/// Appends the sampling record: one packet of `interval`, systematic by count (1).
pub(super) fn write_sampling(interval: u32, out: &mut Vec<u8>) {
    out.extend(1u64.to_be_bytes());
    out.extend(1u16.to_be_bytes());
    out.extend(1u32.to_be_bytes());
    out.extend((interval - 1).to_be_bytes());
}
