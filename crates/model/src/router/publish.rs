// SPDX-License-Identifier: Apache-2.0
//! Published ports: what Docker's `-p` is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netvm_wire::{IpProto, ParsePortRangeError, PortRange};

/// Ports of a router's addresses that lead to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Publish {
    /// The address; `None`: those of the router's interfaces with source NAT.
    pub address: Option<IpAddr>,
    /// Ports of the address.
    pub outside: PortRange,
    /// As many ports of the container.
    pub inside: PortRange,
    /// TCP, UDP or SCTP.
    pub protocol: IpProto,
}

/// Why a text does not publish ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePublishError {
    /// Not an outer and an inner port.
    #[error(
        "write the router's port, then the container's, such as \"8080:80/tcp\", \"203.0.113.2:53:53/udp\" or \
         \"[2001:db8::1]:80:80\""
    )]
    Syntax,
    /// No port.
    #[error("{0}")]
    Ports(#[from] ParsePortRangeError),
    /// Port 0.
    #[error("ports are from 1 to 65535")]
    Zero,
    /// Ranges of different lengths.
    #[error("give as many ports of the container as of the router: {0} and {1} differ in length")]
    Lengths(PortRange, PortRange),
    /// A protocol without ports.
    #[error("end it with /tcp, /udp or /sctp, or with nothing for TCP")]
    Protocol,
    /// The checksum of SCTP covers the whole packet.
    #[error("SCTP keeps its ports: write {0}:{0}/sctp")]
    SctpPorts(PortRange),
}

impl Publish {
    /// Number of ports.
    fn count(ports: PortRange) -> u16 {
        ports.last() - ports.first()
    }

    /// Outer ports with the inner port that each leads to; of all at once if they are equal, without an inner port.
    pub fn pairs(self) -> impl Iterator<Item = (PortRange, Option<u16>)> {
        let is_same = self.outside == self.inside;
        let all = is_same.then_some((self.outside, None));
        let each = self.outside.first()..=self.outside.last();
        let each = each.zip(self.inside.first()..=self.inside.last()).filter(move |_| !is_same);
        all.into_iter().chain(each.map(|(outside, inside)| (outside.into(), Some(inside))))
    }

    /// Whether packets may be for both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let is_other_address = self.address.zip(other.address).is_some_and(|(one, other)| one != other);
        self.protocol == other.protocol && self.outside.overlaps(other.outside) && !is_other_address
    }
}

impl FromStr for Publish {
    type Err = ParsePublishError;

    /// `8080:80`, `8080:80/tcp`, `203.0.113.2:53:53/udp`, `[2001:db8::1]:8000-8010:8000-8010`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ParsePublishError::{Lengths, Protocol, SctpPorts, Syntax, Zero};
        let (rest, protocol) = match text.rsplit_once('/') {
            Some((rest, "tcp")) => (rest, IpProto::TCP),
            Some((rest, "udp")) => (rest, IpProto::UDP),
            Some((rest, "sctp")) => (rest, IpProto::SCTP),
            Some(_) => return Err(Protocol),
            None => (text, IpProto::TCP),
        };
        let (rest, inside) = rest.rsplit_once(':').ok_or(Syntax)?;
        let (address, outside) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((address, outside)) => {
                let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let address: IpAddr = bare.unwrap_or(address).parse().map_err(|_| Syntax)?;
                (Some(address), outside)
            }
        };
        let (outside, inside): (PortRange, PortRange) = (outside.parse()?, inside.parse()?);
        if outside.contains(0) || inside.contains(0) {
            return Err(Zero);
        }
        if Self::count(outside) != Self::count(inside) {
            return Err(Lengths(outside, inside));
        }
        if protocol == IpProto::SCTP && outside != inside {
            return Err(SctpPorts(inside));
        }
        Ok(Self { address, outside, inside, protocol })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V4(address)) => write!(f, "{address}:")?,
            Some(IpAddr::V6(address)) => write!(f, "[{address}]:")?,
            None => {}
        }
        write!(f, "{}:{}/{}", self.outside, self.inside, self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_docker() {
        for (text, written) in [
            ("8080:80", "8080:80/tcp"),
            ("203.0.113.2:53:53/udp", "203.0.113.2:53:53/udp"),
            ("[2001:db8::1]:80:80", "[2001:db8::1]:80:80/tcp"),
            ("8000-8010:9000-9010/udp", "8000-8010:9000-9010/udp"),
            ("5000:5000/sctp", "5000:5000/sctp"),
        ] {
            assert_eq!(text.parse::<Publish>().unwrap().to_string(), written);
        }
        for (text, remedy) in [
            ("80", "the router's port, then the container's"),
            ("host:80:80", "the router's port"),
            ("0:80", "from 1 to 65535"),
            ("80:http", "write 80 or 1024-65535"),
            ("8000-8010:80", "differ in length"),
            ("80:80/icmp", "/tcp, /udp or /sctp"),
            ("80:81/sctp", "write 81:81/sctp"),
        ] {
            let error = text.parse::<Publish>().unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn equal_ranges_are_one_pair_and_others_one_a_port() {
        let pairs = |text: &str| text.parse::<Publish>().unwrap().pairs().collect::<Vec<_>>();
        assert_eq!(pairs("80-81:80-81"), [("80-81".parse().unwrap(), None)]);
        assert_eq!(pairs("80-81:90-91"), [(80.into(), Some(90)), (81.into(), Some(91))]);
    }
}
