// SPDX-License-Identifier: Apache-2.0
//! Routes, and the parser of their file.

use std::path::Path;

use netvm_nf_common::{ConfigError, FastMap, Lines};
use netvm_wire::{Address, IpNet, MacAddr, VlanId};

use crate::Prefixes;

/// The syntax of a line.
const FORM: &str = "`PREFIX NEXT-HOP-MAC PORT [VLAN]` expected, as in `10.0.1.0/24 02:00:00:00:00:01 server`";

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its port.
    pub port: Box<str>,
    /// Its VLAN; `None`: untagged.
    pub vlan: Option<VlanId>,
}

/// Routes by prefix. Next hops are numbered from 0.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    next_hops: Vec<NextHop>,
    prefixes: Prefixes<u32>,
}

impl Routes {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the line, what was found and what was expected.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::from_lines(&Lines::read(path)?)
    }

    /// As [`Routes::read`], from lines already read.
    ///
    /// # Errors
    /// As for [`Routes::read`].
    pub fn from_lines(lines: &Lines) -> Result<Self, ConfigError> {
        let mut this = Self::default();
        let mut numbers: FastMap<NextHop, u32> = FastMap::default();
        let mut places: FastMap<IpNet, usize> = FastMap::default();
        for (line, text) in lines.entries() {
            let (net, next_hop) = route(text).map_err(|problem| lines.error(line, problem))?;
            if let Some(first) = places.insert(net, line) {
                let problem = format!("{net} has a route already, in line {first}: remove one of the two");
                return Err(lines.error(line, problem));
            }
            let number = *numbers.entry(next_hop).or_insert_with_key(|next_hop| {
                this.next_hops.push(next_hop.clone());
                this.next_hops.len() as u32 - 1
            });
            this.prefixes.insert(net, number);
        }
        Ok(this)
    }

    /// The next hop's number for an address.
    #[inline]
    #[must_use]
    pub fn to(&self, address: Address) -> Option<u32> {
        self.prefixes.longest(address)
    }

    /// All next hops by number.
    #[must_use]
    pub fn next_hops(&self) -> &[NextHop] {
        &self.next_hops
    }

    /// Number of routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether there are no routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }
}

fn route(text: &str) -> Result<(IpNet, NextHop), String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let (prefix, mac, port, vlan) = match words[..] {
        [prefix, mac, port] => (prefix, mac, port, None),
        [prefix, mac, port, vlan] => (prefix, mac, port, Some(vlan)),
        _ => return Err(format!("found `{text}`, {FORM}")),
    };
    let net = prefix.parse::<IpNet>().map_err(|error| error.to_string())?;
    let mac = mac.parse::<MacAddr>().map_err(|error| error.to_string())?;
    if mac.is_multicast() {
        return Err(format!("{mac} is a group address, not a next hop"));
    }
    let vlan = vlan.map(|text| {
        let id = text.parse::<u16>().map_err(|_| format!("`{text}` is not a VLAN: 1 to 4094 expected"))?;
        VlanId::new(id).map_err(|error| error.to_string())
    });
    Ok((net, NextHop { mac, port: port.into(), vlan: vlan.transpose()? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn parsed(text: &str) -> Result<Routes, String> {
        Routes::from_lines(&Lines::from_text(Path::new("r"), text)).map_err(|error| error.to_string())
    }

    fn to<'a>(routes: &'a Routes, address: &str) -> Option<&'a NextHop> {
        let number = routes.to(address.parse::<IpAddr>().unwrap().into())?;
        routes.next_hops().get(number as usize)
    }

    #[test]
    fn routes_are_found_by_longest_prefix() {
        let routes = parsed(
            "# two links and a default\n\
             10.0.1.0/24 02:00:00:00:00:01 left\n\
             10.0.1.128/25 02:00:00:00:00:02 right 7\n\
             0.0.0.0/0 02:00:00:00:00:01 left\n\
             fd00::/16 02:00:00:00:00:03 right\n",
        )
        .unwrap();
        assert_eq!((routes.len(), routes.next_hops().len()), (4, 3), "equal next hops are one");
        let port = |address| to(&routes, address).map(|hop| (&*hop.port, hop.vlan.map(VlanId::get)));
        assert_eq!(port("10.0.1.1"), Some(("left", None)));
        assert_eq!(port("10.0.1.200"), Some(("right", Some(7))));
        assert_eq!(port("192.0.2.1"), Some(("left", None)));
        assert_eq!(port("fd00::1"), Some(("right", None)));
        assert_eq!(port("2001:db8::1"), None, "the default route is for IPv4");
    }

    #[test]
    fn errors_name_line_and_expected_syntax() {
        let mac = "02:00:00:00:00:01";
        for (text, expected) in [
            ("10.0.0.0/8".to_owned(), "r:1: found `10.0.0.0/8`, `PREFIX NEXT-HOP-MAC PORT [VLAN]` expected"),
            (format!("\n10.0.0.0/33 {mac} a"), "r:2: "),
            (format!("10.0.0.1/8 {mac} a"), "r:1: "),
            ("10.0.0.0/8 xx a".to_owned(), "r:1: `xx` is not a MAC address"),
            ("10.0.0.0/8 03:00:00:00:00:01 a".to_owned(), "r:1: 03:00:00:00:00:01 is a group address"),
            (format!("10.0.0.0/8 {mac} a 4095"), "r:1: "),
            (format!("10.0.0.0/8 {mac} a x"), "r:1: `x` is not a VLAN: 1 to 4094 expected"),
            (format!("::/0 {mac} a\n::/0 {mac} b"), "r:2: ::/0 has a route already, in line 1"),
        ] {
            let error = parsed(&text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
