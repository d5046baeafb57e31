// SPDX-License-Identifier: Apache-2.0
//! The server name of a TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3). Read here and not by
//! `tls-parser`, which allocates. Of a hello that spans segments, only the first one is read.

use crate::entry::{Name, NameKind};

/// Record type, version major, handshake type.
#[inline]
pub(crate) fn is_client_hello(payload: &[u8]) -> bool {
    matches!(payload, [22, 3, _, _, _, 1, ..])
}

/// The `server_name` of the ClientHello that a TCP payload begins with.
#[must_use]
pub fn server_name(payload: &[u8]) -> Option<Name> {
    if !is_client_hello(payload) {
        return None;
    }
    // Record header of 5 bytes, handshake header of 4, version of 2, random of 32.
    let mut hello = Reader(payload.get(43..)?);
    hello.prefixed::<1>()?; // session id
    hello.prefixed::<2>()?; // cipher suites
    hello.prefixed::<1>()?; // compression methods
    let length = hello.number::<2>()?;
    // The record may go on in a later segment: what is here is read.
    let mut extensions = Reader(hello.0.get(..length).unwrap_or(hello.0));
    loop {
        let kind = extensions.number::<2>()?;
        let mut extension = Reader(extensions.prefixed::<2>()?);
        if kind != 0 {
            continue;
        }
        let mut list = Reader(extension.prefixed::<2>()?);
        let kind = list.number::<1>()?;
        let host = list.prefixed::<2>()?;
        if kind != 0 || host.is_empty() {
            return None;
        }
        let mut name = Name::new(NameKind::TlsServer);
        name.push(host);
        return Some(name);
    }
}

/// Reads numbers and length-prefixed fields in network byte order.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number<const BYTES: usize>(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_at_checked(BYTES)?;
        self.0 = rest;
        Some(number.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn prefixed<const BYTES: usize>(&mut self) -> Option<&'a [u8]> {
        let length = self.number::<BYTES>()?;
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
        let extensions: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, body)| [kind.to_be_bytes().to_vec(), sized(body)].concat())
            .collect();
        let body =
            [&[3, 3][..], &[7; 32], &[2, 9, 9], &[0, 2, 0x13, 1], &[1, 0], &sized(&extensions)].concat();
        let length = (body.len() as u32).to_be_bytes();
        let handshake = [&[1], &length[1..], &body].concat();
        [&[22, 3, 1][..], &sized(&handshake)].concat()
    }

    fn server(name: &[u8]) -> (u16, Vec<u8>) {
        let entry = [&[0][..], &(name.len() as u16).to_be_bytes(), name].concat();
        (0, [&(entry.len() as u16).to_be_bytes()[..], &entry].concat())
    }

    #[test]
    fn names_are_read() {
        let of = |bytes: &[u8]| server_name(bytes).map(|name| name.as_str().to_owned());
        let whole = hello(&[(10, vec![1, 2, 3]), server(b"www.example.org"), (16, vec![0; 9])]);
        assert_eq!(of(&whole).as_deref(), Some("www.example.org"));
        let end = whole.windows(3).position(|bytes| bytes == b"org").unwrap() + 3;
        assert_eq!(of(&whole[..end]).as_deref(), Some("www.example.org"), "the first segment suffices");
        assert!((0..end).all(|end| of(&whole[..end]).is_none()));
        assert_eq!(of(&hello(&[(10, vec![])])), None);
        assert_eq!(of(&hello(&[server(b"")])), None);
        assert_eq!(of(b"GET / HTTP/1.1"), None);
    }

    proptest! {
        /// Whatever comes before and after the extension.
        #[test]
        fn the_name_is_found_among_others(
            name in "[a-z0-9.-]{1,60}",
            others in prop::collection::vec((20u16..40, prop::collection::vec(any::<u8>(), 0..20)), 0..4),
            at in any::<prop::sample::Index>(),
            byte: Option<u8>,
        ) {
            let mut extensions = others;
            extensions.insert(at.index(extensions.len() + 1), server(name.as_bytes()));
            let mut bytes = hello(&extensions);
            if let Some(byte) = byte {
                let place = at.index(bytes.len());
                bytes[place] = byte;
            }
            let found = server_name(&bytes).map(|name| name.as_str().to_owned());
            prop_assert!(byte.is_some() || found.as_deref() == Some(name.as_str()));
        }

        #[test]
        fn no_bytes_harm_it(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = server_name(&[&[22, 3, 1, 0, 0, 1][..], &bytes].concat());
        }
    }
}
