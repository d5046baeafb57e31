// SPDX-License-Identifier: Apache-2.0
//! Values as text: for each parser `fn(&str)` there is a function that writes what it parses.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::IntErrorKind;
use std::path::{Path, PathBuf};

use netvm_policy::{Masked, SetVlan, Span};
use netvm_wire::{ConnState, Fragment, IpProto, MacAddr, TcpFlags, VlanId};

/// Bits of a MAC address.
const MAC_MASK: u64 = (1 << 48) - 1;
/// QEMU's program, unless a VM names another.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// Longest user name that Linux's tools create.
const USER_BYTES: usize = 32;
/// Longest path of a socket (`sun_path` of `unix(7)`, without the NUL byte).
const SOCKET_BYTES: usize = 107;
/// Longest secret of a memif.
const SECRET_BYTES: usize = 24;

/// Why a text is invalid: what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("write {0}")]
    Syntax(&'static str),
    #[error("must be from {0} to {1}")]
    Range(u16, u16),
    #[error("write {1}-{0}: the lower number comes first")]
    Backwards(u16, u16),
    #[error("{0}")]
    Mac(#[from] netvm_wire::ParseMacError),
    #[error("write {0}: the other bits are outside the mask")]
    OutsideMask(MacAddr),
    #[error("must be a unicast, non-zero MAC address: write the address of one network card")]
    NoCard,
    #[error("must be a list of {}, each with `!` if it must be clear", FLAGS.map(|(word, _)| word).join(", "))]
    Flag,
    #[error("`{0}` is both required and excluded: keep one of them")]
    Contrary(&'static str),
    #[error("add `protocol = \"icmp\"` or `protocol = \"icmpv6\"`: the type has a different number in each")]
    WhichIcmp,
    #[error("a socket's path has from 1 to {SOCKET_BYTES} bytes, and no NUL byte")]
    Socket,
    #[error("give a name or an absolute path, or leave it out: the default is `{QEMU}`")]
    Program,
    #[error("name a user of this machine, or give its number in quotes")]
    User,
}

/// A number or a range of numbers within bounds, such as `8` or `8-11`.
fn span(text: &str, bounds: (u16, u16), syntax: &'static str) -> Result<Span<u16>, FieldError> {
    let number = |text: &str| {
        let text = text.trim();
        let number = match text.parse::<u16>() {
            Ok(number) if !text.starts_with('+') => number,
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => u16::MAX,
            _ => return Err(FieldError::Syntax(syntax)),
        };
        let fits = (bounds.0..=bounds.1).contains(&number);
        if fits { Ok(number) } else { Err(FieldError::Range(bounds.0, bounds.1)) }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    Span::new(first, last).ok_or(FieldError::Backwards(first, last))
}

pub(crate) fn span_text<T: Display + PartialEq>(span: &Span<T>) -> String {
    if span.first == span.last { span.first.to_string() } else { format!("{}-{}", span.first, span.last) }
}

const fn narrow(span: Span<u16>) -> Span<u8> {
    Span { first: span.first as u8, last: span.last as u8 }
}

/// VLANs; 0 is a packet without a tag, written `none`.
pub(crate) fn vlan(text: &str) -> Result<Span<u16>, FieldError> {
    let syntax = "a VLAN such as 10, a range such as \"20-30\", or \"none\" for packets without a tag";
    if text == "none" { Ok(Span::single(0)) } else { span(text, (1, VlanId::MAX), syntax) }
}

pub(crate) fn vlan_text(vlan: &Span<u16>) -> String {
    if *vlan == Span::single(0) { "none".to_owned() } else { span_text(vlan) }
}

/// VLANs of tags.
pub(crate) fn tagged(text: &str) -> Result<Span<u16>, FieldError> {
    span(text, (1, VlanId::MAX), "a VLAN such as 10, or a range such as \"20-30\"")
}

/// The change of the outer tag.
pub(crate) fn tag(text: &str) -> Result<SetVlan, FieldError> {
    if text == "none" {
        return Ok(SetVlan::Strip);
    }
    let number: u16 =
        text.parse().map_err(|_| FieldError::Syntax("a VLAN such as 10, or \"none\" to remove the tag"))?;
    VlanId::new(number).map(SetVlan::Tag).map_err(|_| FieldError::Range(1, VlanId::MAX))
}

pub(crate) fn tag_text(tag: &SetVlan) -> String {
    match tag {
        SetVlan::Tag(vlan) => vlan.to_string(),
        SetVlan::Strip => "none".to_owned(),
    }
}

const fn mac_bits(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

const fn mac_of(bits: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// MAC addresses, such as `02:00:00:00:00:01`, or with a mask after a slash.
pub(crate) fn mac(text: &str) -> Result<Masked<u64>, FieldError> {
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (value, mac_bits(mask.parse()?)),
        None => (text, MAC_MASK),
    };
    let value = mac_bits(value.parse()?);
    if value & !mask != 0 {
        return Err(FieldError::OutsideMask(mac_of(value & mask)));
    }
    Ok(Masked::<u64>::new(value, mask))
}

pub(crate) fn mac_text(mac: &Masked<u64>) -> String {
    let (value, mask) = (mac_of(mac.value), mac.mask & MAC_MASK);
    if mask == MAC_MASK { value.to_string() } else { format!("{value}/{}", mac_of(mask)) }
}

/// The address of one network card.
pub(crate) fn card_mac(text: &str) -> Result<MacAddr, FieldError> {
    let mac: MacAddr = text.parse()?;
    if mac.is_multicast() || mac == MacAddr::ZERO { Err(FieldError::NoCard) } else { Ok(mac) }
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
pub(crate) fn flags(text: &str) -> Result<Masked<u8>, FieldError> {
    let mut flags = Masked::<u8>::ANY;
    for part in text.split(',').map(str::trim) {
        let word = part.strip_prefix('!').unwrap_or(part);
        let (known, flag) = FLAGS.iter().find(|(known, _)| *known == word).ok_or(FieldError::Flag)?;
        let bit = Masked::<u8>::new(if word == part { u8::MAX } else { 0 }, flag.bits());
        flags = flags.intersect(&bit).ok_or(FieldError::Contrary(known))?;
    }
    Ok(flags)
}

pub(crate) fn flags_text(flags: &Masked<u8>) -> String {
    let words = FLAGS.iter().filter(|(_, flag)| flags.mask & flag.bits() != 0).map(|(word, flag)| {
        let not = if flags.value & flag.bits() == 0 { "!" } else { "" };
        format!("{not}{word}")
    });
    words.collect::<Vec<_>>().join(",")
}

/// Differentiated services code points: numbers, ranges, and the names of RFC 2474 (`cs0` to `cs7`), RFC 2597
/// (`af11` to `af43`), RFC 3246 (`ef`), RFC 5865 (`va`) and RFC 8622 (`le`).
pub(crate) fn dscp(text: &str) -> Result<Span<u8>, FieldError> {
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
    let syntax = "a number up to 63, a range such as \"8-15\", or a name such as \"ef\", \"cs6\", \"af41\"";
    named.map_or_else(|| span(text, (0, 63), syntax).map(narrow), |number| Ok(Span::single(number)))
}

/// A number of one byte or a range of them.
pub(crate) fn byte(text: &str) -> Result<Span<u8>, FieldError> {
    span(text, (0, 255), "a number such as 8, or a range such as \"8-11\"").map(narrow)
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

/// An ICMP type by number, range or name; the number of a name depends on the rule's protocols.
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
    number.map(Span::single).ok_or(FieldError::Syntax("another type: IPv4's ICMP has none of that name"))
}

/// The words of [`Fragment`].
const FRAGMENTS: [(&str, Fragment); 3] =
    [("no", Fragment::Whole), ("first", Fragment::First), ("later", Fragment::Later)];

/// Whether a packet is a fragment, and which.
pub(crate) fn fragment(text: &str) -> Result<Fragment, FieldError> {
    let known = FRAGMENTS.iter().find(|(word, _)| *word == text);
    known.map(|(_, fragment)| *fragment).ok_or(FieldError::Syntax("\"no\", \"first\" or \"later\""))
}

pub(crate) fn fragment_text(fragment: &Fragment) -> String {
    FRAGMENTS.iter().find(|(_, known)| known == fragment).map_or("", |(word, _)| word).to_owned()
}

/// What connection tracking says of a packet.
pub(crate) fn state(text: &str) -> Result<ConnState, FieldError> {
    let syntax = "\"new\", \"established\", \"related\", \"invalid\" or \"untracked\"";
    ConnState::ALL.into_iter().find(|state| state.name() == text).ok_or(FieldError::Syntax(syntax))
}

pub(crate) fn state_text(state: &ConnState) -> String {
    state.name().to_owned()
}

/// ARP operations (RFC 826); 1 is `request`, 2 is `reply`.
pub(crate) fn arp(text: &str) -> Result<Span<u16>, FieldError> {
    match text {
        "request" => Ok(Span::single(1)),
        "reply" => Ok(Span::single(2)),
        _ => span(text, (1, u16::MAX), "\"request\", \"reply\", a number or a range of numbers"),
    }
}

pub(crate) fn arp_text(operations: &Span<u16>) -> String {
    match (operations.first, operations.last) {
        (1, 1) => "request".to_owned(),
        (2, 2) => "reply".to_owned(),
        _ => span_text(operations),
    }
}

/// A PCI address with its domain, which the file may leave out.
pub(crate) fn pci_address(text: &str) -> Result<String, FieldError> {
    let number = |digits: &str, length: usize, most: u32| {
        let value = u32::from_str_radix(digits, 16).ok()?;
        let plain = digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        (plain && value <= most).then_some(value)
    };
    let full = || {
        let (rest, function) = text.rsplit_once('.')?;
        let mut parts = rest.rsplit(':');
        let device = number(parts.next()?, 2, 0x1f)?;
        let bus = number(parts.next()?, 2, 0xff)?;
        let domain = parts.next().map_or(Some(0), |digits| number(digits, 4, 0xffff))?;
        let function = number(function, 1, 7)?;
        parts.next().is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    };
    full().ok_or(FieldError::Syntax("domain:bus:device.function in hexadecimal digits, such as 0000:3b:00.0"))
}

/// The path of a Unix socket.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, FieldError> {
    let fits = (1..=SOCKET_BYTES).contains(&text.len()) && !text.contains('\0');
    if fits { Ok(text.into()) } else { Err(FieldError::Socket) }
}

/// What two sides of a socket know.
pub(crate) fn secret(text: &str) -> Result<String, FieldError> {
    let fits = (1..=SECRET_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let syntax = "a secret of 1 to 24 visible ASCII characters without blanks (DPDK uses the first 23)";
    if fits { Ok(text.to_owned()) } else { Err(FieldError::Syntax(syntax)) }
}

/// The absolute path of a file: netvmd's working directory does not matter.
pub(crate) fn absolute_path(text: &str) -> Result<PathBuf, FieldError> {
    let fits = Path::new(text).is_absolute() && !text.contains('\0');
    let syntax = "the absolute path of a file, such as \"/var/lib/netvm/guest.qcow2\"";
    if fits { Ok(text.into()) } else { Err(FieldError::Syntax(syntax)) }
}

/// The absolute path of a log.
pub(crate) fn log_path(text: &str) -> Result<PathBuf, FieldError> {
    let syntax = "the absolute path of a file, such as \"/var/log/netvm/connections.jsonl\"";
    absolute_path(text).map_err(|_| FieldError::Syntax(syntax))
}

/// The address and port of an IPFIX collector.
pub(crate) fn collector(text: &str) -> Result<SocketAddr, FieldError> {
    let address: Option<SocketAddr> = text.parse().ok();
    let syntax =
        "the address and the port of a collector, such as \"192.0.2.1:4739\" or \"[2001:db8::1]:4739\"";
    address.filter(|address| address.port() != 0).ok_or(FieldError::Syntax(syntax))
}

pub(crate) fn path_text(path: &impl AsRef<Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

/// A user by name or number.
pub(crate) fn user(text: &str) -> Result<String, FieldError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fits = (1..=USER_BYTES).contains(&text.len()) && text.chars().all(allowed);
    if fits { Ok(text.to_owned()) } else { Err(FieldError::User) }
}

/// A file's owner: a user, a group, or both.
pub(crate) fn owner(text: &str) -> Result<String, FieldError> {
    let syntax = "\"user\", \"user:group\" or \":group\", by name or number";
    let (name, group) = text.split_once(':').unwrap_or((text, ""));
    let is_one = |part: &str| part.is_empty() || user(part).is_ok();
    let fits = text != ":" && !text.is_empty() && !text.ends_with(':') && is_one(name) && is_one(group);
    if fits { Ok(text.to_owned()) } else { Err(FieldError::Syntax(syntax)) }
}

/// Permission bits.
pub(crate) fn mode(text: &str) -> Result<u32, FieldError> {
    let digits = text.len() <= 4 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or(FieldError::Syntax("permissions in octal digits, such as \"0660\""))
}

/// A network namespace: a name of `ip netns`, an absolute path, or the ID of a process.
pub(crate) fn namespace(text: &str) -> Result<String, FieldError> {
    let is_name = !text.is_empty() && !text.contains(['/', '\0']) && text != "." && text != "..";
    let is_path = Path::new(text).is_absolute() && !text.contains('\0');
    let syntax = "a name of `ip netns`, the absolute path of a namespace's file, or the ID of a process";
    if is_name || is_path { Ok(text.to_owned()) } else { Err(FieldError::Syntax(syntax)) }
}

/// A loopback address with a port: whatever is served there needs no encryption.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, FieldError> {
    let syntax = "a loopback address and a port, such as \"127.0.0.1:9180\" (reach it from elsewhere by `ssh -L`, or a proxy with TLS)";
    let address: Option<SocketAddr> = text.parse().ok();
    let fits = |address: &SocketAddr| address.ip().is_loopback() && address.port() != 0;
    address.filter(fits).ok_or(FieldError::Syntax(syntax))
}

/// The address of a gateway.
pub(crate) fn gateway(text: &str) -> Result<IpAddr, FieldError> {
    let address: Option<IpAddr> = text.parse().ok();
    let fits =
        |address: &IpAddr| !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
    address.filter(fits).ok_or(FieldError::Syntax("a unicast address, such as \"10.0.0.1\""))
}

/// The address of a querier; 0.0.0.0: none.
pub(crate) fn querier_address(text: &str) -> Result<Ipv4Addr, FieldError> {
    let address: Option<Ipv4Addr> = text.parse().ok();
    let fits =
        |address: &Ipv4Addr| !address.is_multicast() && !address.is_broadcast() && !address.is_loopback();
    address
        .filter(fits)
        .ok_or(FieldError::Syntax("an IPv4 address of this host, such as \"10.0.0.1\", or \"0.0.0.0\""))
}

/// A program by name or path.
pub(crate) fn program(text: &str) -> Result<String, FieldError> {
    if text.is_empty() || text.contains('\0') { Err(FieldError::Program) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests;
