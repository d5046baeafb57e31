//! The name that a DNS message asks for, read by NLnet Labs' `domain`.

use domain::base::Message;

use crate::entry::{Name, NameKind};

/// The name of the first question of a message, query or answer; `.` for the root.
#[must_use]
pub fn question(message: &[u8]) -> Option<Name> {
    let message = Message::from_slice(message).ok()?;
    let question = message.first_question()?;
    let mut name = Name::new(NameKind::Dns);
    for label in question.qname().iter() {
        if label.is_root() {
            break;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
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
