// SPDX-License-Identifier: Apache-2.0
//! Symbolic names of numbers in iptables and nftables.

use netvm_wire::{ConnState, TcpFlags};

type Names<T> = [(&'static str, T)];

fn find<T: Copy>(names: &Names<T>, name: &str) -> Option<T> {
    names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// A number, hexadecimal after `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let only_digits = digits.chars().all(|sign| sign.is_digit(radix));
    if only_digits { u64::from_str_radix(digits, radix).ok() } else { None }
}

/// An IP protocol by its name on Linux (`/etc/protocols`) or its number.
pub(super) fn protocol(name: &str) -> Option<u8> {
    find(&PROTOCOLS, name).or_else(|| number(name)?.try_into().ok())
}

/// `/etc/protocols`, and the names built into iptables and nftables.
const PROTOCOLS: [(&str, u8); 48] = [
    ("ip", 0),
    ("hopopt", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("comp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("mobility-header", 135),
    ("ipv6-mh", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
];

/// A TCP flag by name.
pub(super) fn tcp_flag(name: &str) -> Option<TcpFlags> {
    let other = if name.eq_ignore_ascii_case("ecn") { Some(TcpFlags::ECE) } else { None };
    let named = TcpFlags::all().iter_names().find(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, flag)| flag).or(other)
}

/// What connection tracking says of a packet, by name.
pub(super) fn conn_state(name: &str) -> Option<ConnState> {
    ConnState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(name))
}

/// A differentiated services code point by name (RFC 2474, 2597, 3246, 5865, 8622).
pub(super) fn dscp(name: &str) -> Option<u8> {
    let class = |digits: &str, highest: u8| {
        let digit = digits.parse::<u8>().ok().filter(|_| digits.len() == 1)?;
        (digit <= highest).then_some(digit)
    };
    let lower = name.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("cs") {
        return class(digits, 7).map(|class| class << 3);
    }
    if let Some(digits) = lower.strip_prefix("af").filter(|digits| digits.len() == 2 && digits.is_ascii()) {
        let (precedence, drop) = (class(&digits[..1], 4)?, class(&digits[1..], 3)?);
        return (precedence > 0 && drop > 0).then_some(precedence << 3 | drop << 1);
    }
    find(&[("be", 0), ("df", 0), ("lephb", 1), ("va", 0x2c), ("ef", 0x2e)], name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_standards() {
        assert_eq!(["cs0", "CS7", "af11", "AF43", "EF", "be"].map(dscp), [0, 56, 10, 38, 46, 0].map(Some));
        assert_eq!(["cs8", "af10", "af51", "af1", "cs", "af€", "x", "cs+1"].map(dscp), [None; 8]);
        assert_eq!(
            ["tcp", "IPv6-ICMP", "ipip", "132", "0xff"].map(protocol),
            [6, 58, 94, 132, 255].map(Some)
        );
        assert_eq!(["256", "tcpx", "", "0x", "-1", "+1"].map(protocol), [None; 6]);
        assert_eq!(
            ["SYN", "ecn", "ece", "cwr"].map(|name| tcp_flag(name).map(|flag| flag.bits())),
            [Some(2), Some(64), Some(64), Some(128)]
        );
        assert_eq!(tcp_flag("all"), None);
    }
}
