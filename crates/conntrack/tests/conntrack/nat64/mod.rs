// SPDX-License-Identifier: Apache-2.0
//! Translation between IPv6 and IPv4: headers, errors, and tayga as the oracle.

mod errors;
mod headers;
mod prefix;
mod sessions;
mod tayga;

use netvm_conntrack::nat64::{Counterpart, Ends, Front, Original, Untranslatable, translate};
use netvm_wire::{Address, checksum, parse};

pub const HOST: &str = "2001:db8:1::1";
pub const HOST_OUTSIDE: &str = "203.0.113.1";
pub const SERVER: &str = "198.51.100.7";
pub const SERVER_INSIDE: &str = "2001:db8:64::c633:6407";

/// Bytes of packets at hand.
pub const AT_HAND: usize = 256;

pub fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

pub fn ends(source: &str, destination: &str, ports: Option<[u16; 2]>) -> Ends {
    Ends { source: address(source), destination: address(destination), ports }
}

/// Between host and server: to IPv4, or to IPv6.
pub fn counterpart(to_v4: bool, ports: Option<[u16; 2]>) -> Counterpart {
    let [a, b] = if to_v4 { [HOST_OUTSIDE, SERVER] } else { [SERVER_INSIDE, HOST] };
    let back = ports.map(|[source, destination]| [destination, source]);
    Counterpart { ends: ends(a, b, ports), about: ends(b, a, back), identification: 0 }
}

/// Translates a whole packet, and computes a checksum that is left to a device.
pub fn apply(frame: &[u8], to: &Counterpart) -> Result<Vec<u8>, Untranslatable> {
    let mut front = Front::new();
    let original =
        Original { front: &frame[..frame.len().min(AT_HAND)], length: frame.len(), is_partial: false };
    let translated = translate(&original, to, &mut front)?;
    let mut new = [front.bytes(), &frame[translated.replaced..]].concat();
    assert!(translated.length <= new.len());
    new.truncate(translated.length);
    if translated.is_partial {
        let headers = parse(&new).unwrap();
        checksum::fill(&mut new, &headers).unwrap();
    }
    Ok(new)
}
