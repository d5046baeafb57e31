// SPDX-License-Identifier: Apache-2.0
//! The name that a DNS message asks for (RFC 1035, section 4.1). The tests compare with NLnet Labs' `domain`.

use crate::entry::{Name, NameKind};

/// Bytes of a message's header.
const HEADER: usize = 12;
/// A name has fewer bytes than these, with the lengths of its labels and without the root's.
const MAX_NAME: usize = 255;
/// More compression pointers than these are an attack on the reader's time.
const MAX_POINTERS: u32 = 255;
/// Bytes of type and class, which follow the name of a question.
const TYPE_AND_CLASS: usize = 4;

/// The name of the first question of a message, query or answer; `.` for the root.
#[must_use]
pub fn question(message: &[u8]) -> Option<Name> {
    if *message.get(4)? == 0 && *message.get(5)? == 0 {
        return None;
    }
    let mut name = Name::new(NameKind::Dns);
    let mut at = HEADER;
    // Where the question goes on, once a compression pointer has led elsewhere.
    let mut after = None;
    let (mut length, mut pointers) = (0, 0);
    loop {
        let first = usize::from(*message.get(at)?);
        match first {
            0 => break,
            1..0x40 => {
                length += 1 + first;
                if length >= MAX_NAME {
                    return None;
                }
                let label = message.get(at + 1..)?.get(..first)?;
                if !name.as_str().is_empty() {
                    name.push(b".");
                }
                name.push(label);
                at += 1 + first;
            }
            0xc0.. => {
                let to = (first & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                after.get_or_insert(at + 2);
                pointers += 1;
                // Pointers point back. Between two that make a circle lies a label, so the length ends it.
                if to >= at || pointers > MAX_POINTERS {
                    return None;
                }
                at = to;
            }
            _ => return None,
        }
    }
    message.get(after.unwrap_or(at + 1)..)?.get(..TYPE_AND_CLASS)?;
    if name.as_str().is_empty() {
        name.push(b".");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::Message;
    use proptest::prelude::*;

    /// What `domain` reads.
    fn reference(message: &[u8]) -> Option<Name> {
        let question = Message::from_slice(message).ok()?.first_question()?;
        let mut name = Name::new(NameKind::Dns);
        for label in question.qname().iter().filter(|label| !label.is_root()) {
            if !name.as_str().is_empty() {
                name.push(b".");
            }
            name.push(label.as_slice());
        }
        if name.as_str().is_empty() {
            name.push(b".");
        }
        Some(name)
    }

    fn text(name: Option<Name>) -> Option<String> {
        name.map(|name| name.as_str().to_owned())
    }

    fn message(labels: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label);
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    }

    #[test]
    fn questions_are_read() {
        let of = |bytes: &[u8]| question(bytes).map(|name| name.as_str().to_owned());
        assert_eq!(of(&message(&[b"www", b"example", b"org"])).as_deref(), Some("www.example.org"));
        assert_eq!(of(&message(&[])).as_deref(), Some("."));
        assert_eq!(of(&message(&[b"a\n\"b"])).as_deref(), Some("a??b"));
        let long = of(&message(&[[b'x'; 60].as_slice(); 4])).unwrap();
        assert_eq!(long.len(), Name::MAX);
        let whole = message(&[b"example", b"org"]);
        assert!((0..whole.len()).all(|end| of(&whole[..end]).is_none()), "cut messages have no name");
        // A compression pointer to itself, and no question.
        assert_eq!(of(&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1]), None);
        assert_eq!(of(&[0; 12]), None);
    }

    /// Bytes behind a header, often lengths of labels or pointers that make sense.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            3 => 0u8..6,
            1 => Just(0),
            2 => Just(0xc0),
            3 => 10u8..40,
            1 => prop_oneof![Just(0x3f), Just(0x40), Just(0x80), Just(0xff)],
            1 => any::<u8>(),
        ];
        (0u8..3, prop::collection::vec(byte, 0..400)).prop_map(|(questions, body)| {
            let mut bytes = vec![0, 1, 1, 0, 0, questions, 0, 0, 0, 0, 0, 0];
            bytes.extend(body);
            bytes
        })
    }

    #[test]
    fn names_of_the_longest_length_are_read_as_domain_reads_them() {
        let label = [b'x'; 63];
        for last in 57..63 {
            let bytes = message(&[&label, &label, &label, &label[..last]]);
            assert_eq!(text(question(&bytes)), text(reference(&bytes)), "a last label of {last} bytes");
        }
    }

    proptest! {
        #[test]
        fn it_reads_what_domain_reads(bytes in hostile()) {
            prop_assert_eq!(text(question(&bytes)), text(reference(&bytes)));
        }

        #[test]
        fn no_bytes_harm_it(bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..30, byte: u8) {
            let _ = question(&bytes);
            let mut bytes = message(&[b"www", b"example", b"org"]);
            let place = at % bytes.len();
            bytes[place] = byte;
            prop_assert!(question(&bytes).is_none_or(|name| name.as_str().bytes().all(|b| b.is_ascii_graphic())));
        }
    }
}
