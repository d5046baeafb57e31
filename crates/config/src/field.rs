//! Values of a rule's fields as people write them: what [`str::parse`] takes, `Display` gives back.

use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;

use netvm_policy::{Masked, SetVlan, Span};
use netvm_wire::{Fragment, IpProto, MacAddr, TcpFlags, VlanId};

/// Bits of a MAC address.
pub(crate) const MAC_MASK: u64 = (1 << 48) - 1;

/// Why a text is not the value of a field: what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("write {0}")]
    Syntax(&'static str),
    #[error("from {0} to {1} is possible")]
    Range(u16, u16),
    #[error("write {1}-{0}: the lower number comes first")]
    Backwards(u16, u16),
    #[error("{0}")]
    Mac(#[from] netvm_wire::ParseMacError),
    #[error("write {0}: the other bits are outside the mask")]
    OutsideMask(MacAddr),
    #[error("flags are {}", FLAGS.map(|(word, _)| word).join(", "))]
    Flag,
    #[error("`{0}` is asked for and forbidden: keep one of them")]
    Contrary(&'static str),
    #[error("add `protocol = \"icmp\"` or `protocol = \"icmpv6\"`, which have different numbers for it")]
    WhichIcmp,
}

/// A number or a range of numbers up to `last`, such as `8` or `8-11`.
fn span(text: &str, range: (u16, u16), syntax: &'static str) -> Result<Span<u16>, FieldError> {
    let number = |text: &str| {
        let text = text.trim();
        let number = match text.parse::<u16>() {
            Ok(number) if !text.starts_with('+') => number,
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => u16::MAX,
            _ => return Err(FieldError::Syntax(syntax)),
        };
        let fits = (range.0..=range.1).contains(&number);
        if fits { Ok(number) } else { Err(FieldError::Range(range.0, range.1)) }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    Span::new(first, last).ok_or(FieldError::Backwards(first, last))
}

fn write_span<T: fmt::Display + PartialEq>(span: &Span<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if span.first == span.last { span.first.fmt(f) } else { write!(f, "{}-{}", span.first, span.last) }
}

const fn narrow(span: Span<u16>) -> Span<u8> {
    Span { first: span.first as u8, last: span.last as u8 }
}

/// VLAN ids; 0 is a packet without a tag, written `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlans(pub(crate) Span<u16>);

impl FromStr for Vlans {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(Span::single(0)));
        }
        let syntax = "a VLAN such as 10, a range such as \"20-30\", or \"none\" for packets without a tag";
        span(text, (1, VlanId::MAX), syntax).map(Self)
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Span::single(0) { f.write_str("none") } else { write_span(&self.0, f) }
    }
}

/// VLAN ids of tags.
pub(crate) fn tagged(text: &str) -> Result<Span<u16>, FieldError> {
    span(text, (1, VlanId::MAX), "a VLAN such as 10, or a range such as \"20-30\"")
}

/// What becomes of the outer tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) SetVlan);

impl FromStr for Tag {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(SetVlan::Strip));
        }
        let number: u16 = text
            .parse()
            .map_err(|_| FieldError::Syntax("a VLAN such as 10, or \"none\" to take the tag off"))?;
        let vlan = VlanId::new(number).map_err(|_| FieldError::Range(1, VlanId::MAX))?;
        Ok(Self(SetVlan::Tag(vlan)))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SetVlan::Tag(vlan) => vlan.fmt(f),
            SetVlan::Strip => f.write_str("none"),
        }
    }
}

/// MAC addresses, such as `02:00:00:00:00:01`, or with a mask behind a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Macs(pub(crate) Masked<u64>);

pub(crate) const fn mac_bits(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

const fn mac(bits: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

impl FromStr for Macs {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((value, mask)) = text.split_once('/') else {
            return Ok(Self(Masked::<u64>::new(mac_bits(text.parse()?), MAC_MASK)));
        };
        let (value, mask) = (mac_bits(value.parse()?), mac_bits(mask.parse()?));
        if value & !mask != 0 {
            return Err(FieldError::OutsideMask(mac(value & mask)));
        }
        Ok(Self(Masked::<u64>::new(value, mask)))
    }
}

impl fmt::Display for Macs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = self.0.mask & MAC_MASK;
        mac(self.0.value).fmt(f)?;
        if mask == MAC_MASK { Ok(()) } else { write!(f, "/{}", mac(mask)) }
    }
}

const FLAGS: [(&str, TcpFlags); 8] = [
    ("fin", TcpFlags::FIN),
    ("syn", TcpFlags::SYN),
    ("rst", TcpFlags::RST),
    ("psh", TcpFlags::PSH),
    ("ack", TcpFlags::ACK),
    ("urg", TcpFlags::URG),
    ("ece", TcpFlags::ECE),
    ("cwr", TcpFlags::CWR),
];

/// TCP flags that are set, and with `!` those that are not, such as `syn,!ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) Masked<u8>);

impl FromStr for Flags {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut flags = Masked::<u8>::ANY;
        for part in text.split(',').map(str::trim) {
            let word = part.strip_prefix('!').unwrap_or(part);
            let known = FLAGS.iter().find(|(known, _)| *known == word);
            let (known, flag) = known.ok_or(FieldError::Flag)?;
            let bit = Masked::<u8>::new(if word == part { u8::MAX } else { 0 }, flag.bits());
            flags = flags.intersect(&bit).ok_or(FieldError::Contrary(known))?;
        }
        Ok(Self(flags))
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Masked { value, mask } = self.0;
        let mut gap = "";
        for (word, flag) in FLAGS.iter().filter(|(_, flag)| mask & flag.bits() != 0) {
            let not = if value & flag.bits() == 0 { "!" } else { "" };
            write!(f, "{gap}{not}{word}")?;
            gap = ",";
        }
        Ok(())
    }
}

/// Code points of differentiated services: numbers, ranges, and the names of RFC 2474 (`cs0` to `cs7`), RFC 2597
/// (`af11` to `af43`), RFC 3246 (`ef`), RFC 5865 (`va`) and RFC 8622 (`le`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dscp(pub(crate) Span<u8>);

impl FromStr for Dscp {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digit = |text: &str, range: (u8, u8)| match text.as_bytes() {
            [digit] if (range.0..=range.1).contains(digit) => Some(digit - b'0'),
            _ => None,
        };
        let lower = text.to_ascii_lowercase();
        let class = lower.strip_prefix("cs").and_then(|class| Some(digit(class, (b'0', b'7'))? << 3));
        let assured = || {
            let (class, drop) = lower.strip_prefix("af")?.split_at_checked(1)?;
            Some(digit(class, (b'1', b'4'))? << 3 | digit(drop, (b'1', b'3'))? << 1)
        };
        let named = match lower.as_str() {
            "le" => Some(1),
            "va" => Some(44),
            "ef" => Some(46),
            _ => class.or_else(assured),
        };
        match named {
            Some(number) => Ok(Self(Span::single(number))),
            None => {
                let syntax = "a number up to 63, a range such as \"8-15\", or a name such as \"ef\", \"cs6\", \"af41\"";
                span(text, (0, 63), syntax).map(|span| Self(narrow(span)))
            }
        }
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_span(&self.0, f)
    }
}

/// A number of one byte or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Span<u8>);

impl FromStr for Bytes {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        span(text, (0, 255), "a number such as 8, or a range such as \"8-11\"").map(|span| Self(narrow(span)))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_span(&self.0, f)
    }
}

/// Names of ICMP types, with the number in ICMP (RFC 792) and in ICMPv6 (RFC 4443, RFC 4861).
const ICMP_TYPES: [(&str, Option<u8>, Option<u8>); 11] = [
    ("echo-reply", Some(0), Some(129)),
    ("echo-request", Some(8), Some(128)),
    ("unreachable", Some(3), Some(1)),
    ("time-exceeded", Some(11), Some(3)),
    ("parameter-problem", Some(12), Some(4)),
    ("packet-too-big", None, Some(2)),
    ("redirect", Some(5), Some(137)),
    ("router-solicitation", Some(10), Some(133)),
    ("router-advertisement", Some(9), Some(134)),
    ("neighbour-solicitation", None, Some(135)),
    ("neighbour-advertisement", None, Some(136)),
];

/// An ICMP type by number, range or name; what a name means depends on the protocols that the rule is for.
pub(crate) fn icmp_type(text: &str, protocols: &[IpProto]) -> Result<Span<u8>, FieldError> {
    let Some((_, v4, v6)) = ICMP_TYPES.iter().find(|(name, _, _)| *name == text) else {
        let syntax = "a number, a range such as \"8-11\", or a name such as \"echo-request\", \"unreachable\", \"time-exceeded\"";
        return span(text, (0, 255), syntax).map(narrow);
    };
    let number = match protocols {
        [IpProto::ICMP] => v4,
        [IpProto::ICMPV6] => v6,
        _ => return Err(FieldError::WhichIcmp),
    };
    number.map(Span::single).ok_or(FieldError::Syntax("another type: ICMP of IPv4 has none of that name"))
}

/// The words of [`Fragment`].
const FRAGMENTS: [(&str, Fragment); 3] =
    [("no", Fragment::Whole), ("first", Fragment::First), ("later", Fragment::Later)];

/// Whether a packet is a fragment, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragments(pub(crate) Fragment);

impl FromStr for Fragments {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = FRAGMENTS.iter().find(|(word, _)| *word == text);
        known.map(|(_, fragment)| Self(*fragment)).ok_or(FieldError::Syntax("\"no\", \"first\" or \"later\""))
    }
}

impl fmt::Display for Fragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FRAGMENTS.iter().find(|(_, known)| *known == self.0).map_or("", |(word, _)| word))
    }
}

/// Operations of ARP (RFC 826); 1 is `request`, 2 is `reply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArpOperations(pub(crate) Span<u16>);

impl FromStr for ArpOperations {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "request" => Ok(Self(Span::single(1))),
            "reply" => Ok(Self(Span::single(2))),
            _ => {
                span(text, (1, u16::MAX), "\"request\", \"reply\", a number or a range of numbers").map(Self)
            }
        }
    }
}

impl fmt::Display for ArpOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.first, self.0.last) {
            (1, 1) => f.write_str("request"),
            (2, 2) => f.write_str("reply"),
            _ => write_span(&self.0, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says<T: FromStr<Err = FieldError> + fmt::Display + fmt::Debug>(text: &str) -> String {
        match text.parse::<T>() {
            Ok(value) => value.to_string(),
            Err(error) => format!("? {error}"),
        }
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        for text in ["10", "20-30", "none", "1-4094"] {
            assert_eq!(says::<Vlans>(text), text);
        }
        for text in ["02:00:00:00:00:01", "02:00:00:00:00:00/ff:00:00:00:00:00", "00:00:00:00:00:00"] {
            assert_eq!(says::<Macs>(text), text);
        }
        for text in ["syn,!ack", "fin,syn,rst,psh,ack,urg,ece,cwr", "!syn"] {
            assert_eq!(says::<Flags>(text), text);
        }
        for text in ["no", "first", "later"] {
            assert_eq!(says::<Fragments>(text), text);
        }
        for text in ["request", "reply", "3", "1-2", "4-65535"] {
            assert_eq!(says::<ArpOperations>(text), text);
        }
        for text in ["0", "255", "8-11"] {
            assert_eq!(says::<Bytes>(text), text);
        }
        assert_eq!(says::<Tag>("none"), "none");
        assert_eq!(says::<Tag>("4094"), "4094");
    }

    #[test]
    fn names_of_code_points_are_numbers() {
        for (text, number) in [
            ("cs0", "0"),
            ("cs6", "48"),
            ("CS7", "56"),
            ("af11", "10"),
            ("af43", "38"),
            ("ef", "46"),
            ("va", "44"),
            ("le", "1"),
            ("8-15", "8-15"),
            ("63", "63"),
        ] {
            assert_eq!(says::<Dscp>(text), number, "{text}");
        }
        for wrong in ["64", "cs8", "af51", "af14", "af1", "af", "ef1", "", "-", "1-2-3"] {
            assert!(says::<Dscp>(wrong).starts_with('?'), "{wrong}");
        }
    }

    #[test]
    fn names_of_icmp_types_depend_on_the_protocol() {
        let number = |text: &str, protocols: &[IpProto]| icmp_type(text, protocols).map(|span| span.first);
        assert_eq!(number("echo-request", &[IpProto::ICMP]), Ok(8));
        assert_eq!(number("echo-request", &[IpProto::ICMPV6]), Ok(128));
        assert_eq!(number("echo-request", &[]), Err(FieldError::WhichIcmp));
        assert_eq!(number("echo-request", &[IpProto::ICMP, IpProto::ICMPV6]), Err(FieldError::WhichIcmp));
        assert_eq!(icmp_type("8-11", &[]), Ok(Span { first: 8, last: 11 }));
        assert!(number("packet-too-big", &[IpProto::ICMP]).is_err());
        assert!(number("echo", &[IpProto::ICMP]).is_err());
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_right() {
        for (error, expected) in [
            (says::<Vlans>("30-20"), "write 20-30"),
            (says::<Vlans>("0"), "from 1 to 4094"),
            (says::<Vlans>("99999999999"), "from 1 to 4094"),
            (says::<Vlans>("+1"), "a VLAN such as 10"),
            (says::<Vlans>("untagged"), "or \"none\""),
            (says::<Macs>("02:00:00:00:00:01/ff:00:00:00:00:00"), "write 02:00:00:00:00:00"),
            (says::<Macs>("02:00"), "six bytes"),
            (says::<Flags>("syn,sin"), "fin, syn, rst"),
            (says::<Flags>(""), "fin, syn, rst"),
            (says::<Flags>("syn,!syn"), "keep one of them"),
            (says::<Bytes>("256"), "from 0 to 255"),
            (says::<Fragments>("yes"), "\"no\", \"first\" or \"later\""),
            (says::<Tag>("4095"), "from 1 to 4094"),
            (says::<Tag>("x"), "\"none\""),
        ] {
            assert!(error.starts_with("? ") && error.contains(expected), "{error}");
        }
    }
}
