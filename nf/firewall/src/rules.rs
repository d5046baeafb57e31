// SPDX-License-Identifier: Apache-2.0
//! Rules, and the parser of their file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use clap::ValueEnum;
use netvm_nf_common::{ConfigError, Lines};
use netvm_wire::{FiveTuple, Fragment, IpNet, IpProto, PortRange};

/// A rule's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Action {
    /// Send the packet to the next hop
    Allow,
    /// Drop the packet
    Deny,
    /// Drop the packet, and tell its sender: a TCP reset, or else an ICMP error
    Reject,
}

/// The protocols that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// All.
    Any,
    /// ICMP and ICMPv6.
    Icmp,
    /// One.
    One(IpProto),
}

/// One side of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Endpoint {
    /// The prefix of the address; `None` matches every address of both families.
    pub net: Option<IpNet>,
    /// The port range; `None` matches every port, and protocols without ports.
    pub ports: Option<PortRange>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Its action.
    pub action: Action,
    /// Protocols.
    pub protocol: Protocol,
    /// The sender.
    pub from: Endpoint,
    /// The receiver.
    pub to: Endpoint,
    /// The netvm port on which the packet arrived; `None` matches every port.
    pub ingress: Option<Box<str>>,
}

/// The fields of a packet that rules match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Addresses, protocol, ports.
    pub tuple: FiveTuple,
    /// Whether it is a fragment without ports.
    pub later_fragment: bool,
    /// Id of the ingress port.
    pub ingress: u16,
}

impl Subject {
    /// The subject of a packet with these fields.
    #[must_use]
    pub fn new(tuple: FiveTuple, fragment: Fragment, ingress: u16) -> Self {
        Self { tuple, later_fragment: fragment == Fragment::Later, ingress }
    }
}

impl Rule {
    /// Whether the rule matches; `in_port`: the packet arrived on the rule's port.
    ///
    /// A later fragment has no ports. A rule with ports allows it by addresses and protocol alone, and does not deny
    /// it: without the first fragment, to which the rule applies in full, no host can reassemble the packet (RFC 1858).
    #[inline]
    #[must_use]
    pub fn matches(&self, subject: &Subject, ingress_matches: bool) -> bool {
        let tuple = &subject.tuple;
        let ports = |ports: Option<PortRange>, port| match ports {
            None => true,
            Some(_) if subject.later_fragment => self.action == Action::Allow,
            Some(ports) => ports.contains(port),
        };
        (self.ingress.is_none() || ingress_matches)
            && self.protocol.contains(tuple.protocol)
            && self.from.net.is_none_or(|net| net.contains(tuple.source))
            && self.to.net.is_none_or(|net| net.contains(tuple.destination))
            && ports(self.from.ports, tuple.source_port)
            && ports(self.to.ports, tuple.destination_port)
    }
}

impl Protocol {
    #[inline]
    fn contains(self, protocol: IpProto) -> bool {
        match self {
            Self::Any => true,
            Self::Icmp => matches!(protocol, IpProto::ICMP | IpProto::ICMPV6),
            Self::One(one) => one == protocol,
        }
    }
}

/// The rules of a file, in order.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    list: Vec<Rule>,
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the line, what was found and what was expected.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::from_lines(&Lines::read(path)?)
    }

    /// As [`Rules::read`], from lines already read.
    ///
    /// # Errors
    /// As for [`Rules::read`].
    pub fn from_lines(lines: &Lines) -> Result<Self, ConfigError> {
        Ok(Self { list: lines.parse(str::parse)? })
    }

    /// All rules.
    #[must_use]
    pub fn list(&self) -> &[Rule] {
        &self.list
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = Words(text.split_whitespace());
        let action = match words.next("`allow`, `deny` or `reject`")? {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            "reject" => Action::Reject,
            other => return Err(format!("found `{other}`, `allow`, `deny` or `reject` expected")),
        };
        let protocol = match words.next("a protocol (tcp, udp, icmp, any, ...)")? {
            "any" => Protocol::Any,
            "icmp" => Protocol::Icmp,
            other => Protocol::One(other.parse().map_err(|_| {
                format!("found `{other}`, a protocol expected: tcp, udp, icmp, any, another name, or a number up to 255")
            })?),
        };
        words.expect("from")?;
        let (from, word) = endpoint(&mut words, protocol)?;
        match word {
            Some("to") => {}
            Some(other) => return Err(format!("found `{other}`, `port` or `to` expected")),
            None => return Err("the line ends, `to` expected".to_owned()),
        }
        let (to, word) = endpoint(&mut words, protocol)?;
        let ingress = match word {
            None => None,
            Some("in") => Some(words.next("the name of a port of netvm")?.into()),
            Some(other) => {
                return Err(format!("found `{other}`, `port`, `in` or the end of the line expected"));
            }
        };
        if let Some(other) = words.0.next() {
            return Err(format!("found `{other}`, the end of the line expected"));
        }
        if let (Some(a), Some(b)) = (from.net, to.net)
            && a.is_v4() != b.is_v4()
        {
            return Err(format!("{a} and {b} are of different families: no packet is of both"));
        }
        Ok(Self { action, protocol, from, to, ingress })
    }
}

/// Parses an endpoint; returns it and the next word.
fn endpoint<'a>(words: &mut Words<'a>, protocol: Protocol) -> Result<(Endpoint, Option<&'a str>), String> {
    let net = match words.next("a prefix, an address or `any`")? {
        "any" => None,
        text => Some(text.parse::<IpNet>().map_err(|error| error.to_string())?),
    };
    let word = words.0.next();
    if word != Some("port") {
        return Ok((Endpoint { net, ports: None }, word));
    }
    if !matches!(protocol, Protocol::One(one) if one.has_ports()) {
        return Err("found `port`, which only rules for tcp, udp and sctp can have".to_owned());
    }
    let ports =
        words.next("a port or a range of ports")?.parse::<PortRange>().map_err(|error| error.to_string())?;
    Ok((Endpoint { net, ports: Some(ports) }, words.0.next()))
}

struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("the line ends, {expected} expected"))
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.next(&format!("`{word}`"))? {
            found if found == word => Ok(()),
            found => Err(format!("found `{found}`, `{word}` expected")),
        }
    }
}

impl fmt::Display for Rule {
    /// Formats it as it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            Action::Allow => "allow ",
            Action::Deny => "deny ",
            Action::Reject => "reject ",
        })?;
        match self.protocol {
            Protocol::Any => f.write_str("any")?,
            Protocol::Icmp => f.write_str("icmp")?,
            // The rule syntax has no name for ICMP of IPv4 alone.
            Protocol::One(IpProto::ICMP) => f.write_str("1")?,
            Protocol::One(one) => write!(f, "{one}")?,
        }
        write!(f, " from {} to {}", self.from, self.to)?;
        match &self.ingress {
            Some(port) => write!(f, " in {port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net {
            Some(net) => write!(f, "{net}")?,
            None => f.write_str("any")?,
        }
        match self.ports {
            Some(ports) => write!(f, " port {ports}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
