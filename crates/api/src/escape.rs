// SPDX-License-Identifier: Apache-2.0
//! Percent-encoding (RFC 3986, 2.1): for a role in a path, and for a file name in a header, which carries ASCII only.

/// `text` with everything escaped but unreserved characters and those of `plain`.
pub(crate) fn encode(text: &str, plain: &str) -> String {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.as_bytes().contains(&byte)
    };
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The file name in a [`crate::FILE_HEADER`]. What is not properly escaped stays as it is.
#[must_use]
pub fn file_name(header: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(header.len());
    let mut rest = header;
    while let Some((first, after)) = rest.split_first() {
        let digits = if *first == b'%' { after.get(..2) } else { None };
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_header() {
        for name in ["/etc/netvm/host.toml", "mein Büro.toml", "100%", "%2", "a%zz", ""] {
            assert_eq!(file_name(encode(name, "/").as_bytes()), name);
        }
        assert_eq!(encode("../x", ""), "..%2Fx");
        assert_eq!(file_name(b"100%"), "100%");
        assert_eq!(file_name(b"%ff%4"), "\u{fffd}%4");
    }
}
