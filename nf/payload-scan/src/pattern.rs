// SPDX-License-Identifier: Apache-2.0
//! A pattern, and the parser of its line.

use std::fmt;
use std::iter::Peekable;
use std::str::{Chars, FromStr};

use crate::{Action, Destination};

/// Longest pattern in bytes.
const MAX_LENGTH: usize = 1024;

/// Bytes to search for, and the action for packets that hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The bytes, 1 to 1024.
    pub bytes: Box<[u8]>,
    /// Whether ASCII letters match in either case.
    pub ignore_case: bool,
    /// The action.
    pub action: Action,
}

/// A line is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatternError {
    /// The action is unknown.
    #[error(transparent)]
    Action(#[from] crate::action::ParseActionError),
    /// No pattern follows the action.
    #[error("found `{0}`, expected a pattern: \"text\" or hex: and bytes, as in hex:de ad be ef")]
    NoPattern(String),
    /// The closing quote is missing.
    #[error(
        "the text does not end: a `\"` is missing (within a text write `\"` as \\\", and ` #`, which begins a comment, as \\x20#)"
    )]
    Open,
    /// A text has an unknown escape.
    #[error("unknown escape `\\{0}`: expected \\\\ \\\" \\n \\r \\t \\0 or \\xHH")]
    Escape(String),
    /// Extra characters follow the text.
    #[error("found `{0}` after the text, expected `i` (ignore case) or the end of the line")]
    Behind(String),
    /// The hexadecimal bytes are malformed.
    #[error("`{0}` is not hexadecimal: expected pairs of digits, as in hex:de ad be ef")]
    Hex(String),
    /// The pattern is empty.
    #[error("the pattern is empty and would match every packet: use --default for that")]
    Empty,
    /// The pattern is too long.
    #[error("the pattern has {0} bytes, more than {MAX_LENGTH}: use a part of it")]
    TooLong(usize),
}

impl Pattern {
    /// Parses a line; `ignore_case` applies to all texts.
    pub(crate) fn parse(line: &str, ignore_case: bool) -> Result<Self, ParsePatternError> {
        let is_pattern = |text: &str| text.starts_with('"') || text.starts_with("hex:");
        let (action, rest) = if is_pattern(line) {
            (Action::Send(Destination::Drop), line)
        } else {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            (word.parse()?, rest.trim_start())
        };
        let (bytes, ignore_case) = if let Some(digits) = rest.strip_prefix("hex:") {
            (hex(digits)?, false)
        } else if let Some(text) = rest.strip_prefix('"') {
            let (bytes, either_case) = quoted(text)?;
            (bytes, either_case || ignore_case)
        } else {
            return Err(ParsePatternError::NoPattern(rest.to_owned()));
        };
        match bytes.len() {
            0 => Err(ParsePatternError::Empty),
            1..=MAX_LENGTH => Ok(Self { bytes: bytes.into(), ignore_case, action }),
            length => Err(ParsePatternError::TooLong(length)),
        }
    }
}

impl FromStr for Pattern {
    type Err = ParsePatternError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        Self::parse(line, false)
    }
}

fn hex(text: &str) -> Result<Vec<u8>, ParsePatternError> {
    let bytes = |word: &str| {
        let pairs = word.as_bytes().chunks(2);
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
            _ => None,
        };
        pairs.map(byte).collect::<Option<Vec<u8>>>().ok_or_else(|| ParsePatternError::Hex(word.to_owned()))
    };
    let words: Vec<_> = text.split_whitespace().map(bytes).collect::<Result<_, _>>()?;
    Ok(words.concat())
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The bytes of a text after its opening quote, and whether an `i` follows it.
fn quoted(text: &str) -> Result<(Vec<u8>, bool), ParsePatternError> {
    let mut bytes = Vec::new();
    let mut rest = text.chars().peekable();
    loop {
        match rest.next().ok_or(ParsePatternError::Open)? {
            '"' => break,
            '\\' => bytes.push(escape(&mut rest)?),
            other => bytes.extend(other.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    match rest.collect::<String>().as_str() {
        "" => Ok((bytes, false)),
        "i" => Ok((bytes, true)),
        other => Err(ParsePatternError::Behind(other.trim().to_owned())),
    }
}

fn escape(rest: &mut Peekable<Chars<'_>>) -> Result<u8, ParsePatternError> {
    match rest.next().ok_or(ParsePatternError::Open)? {
        'n' => Ok(b'\n'),
        'r' => Ok(b'\r'),
        't' => Ok(b'\t'),
        '0' => Ok(0),
        '\\' => Ok(b'\\'),
        '"' => Ok(b'"'),
        'x' => {
            let mut digit = || rest.next_if(char::is_ascii_hexdigit);
            let digits: String = [digit(), digit()].into_iter().flatten().collect();
            match u8::from_str_radix(&digits, 16) {
                Ok(byte) if digits.len() == 2 => Ok(byte),
                _ => Err(ParsePatternError::Escape(format!("x{digits}"))),
            }
        }
        other => Err(ParsePatternError::Escape(other.to_string())),
    }
}

impl fmt::Display for Pattern {
    /// Formats it as it is parsed; printable ASCII as text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            Action::Count => f.write_str("count \"")?,
            Action::Send(destination) => write!(f, "{destination} \"")?,
        }
        for byte in &self.bytes {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", char::from(*byte))?,
                b'!'..=b'~' => write!(f, "{}", char::from(*byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        f.write_str(if self.ignore_case { "\"i" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_nf_common::Lines;
    use proptest::prelude::*;
    use std::path::Path;

    fn pattern(action: Action, bytes: &[u8], ignore_case: bool) -> Pattern {
        Pattern { bytes: bytes.into(), ignore_case, action }
    }

    #[test]
    fn lines_are_parsed() {
        let drop = || Action::Send(Destination::Drop);
        for (line, expected) in [
            ("\"GET /\"", pattern(drop(), b"GET /", false)),
            ("drop   \"a\\\"b\\\\\\r\\n\\t\\0\\xFf\"", pattern(drop(), b"a\"b\\\r\n\t\0\xff", false)),
            ("next \"\u{e9}\"i", pattern(Action::Send(Destination::Next), &[0xc3, 0xa9], true)),
            (
                "port:wan hex:de ad BEEF",
                pattern(Action::Send(Destination::Port("wan".into())), &[0xde, 0xad, 0xbe, 0xef], false),
            ),
            ("role:audit\t\"x\"", pattern(Action::Send(Destination::Role("audit".into())), b"x", false)),
            ("count hex: 00", pattern(Action::Count, &[0], false)),
            ("hex:00ff", pattern(drop(), &[0, 0xff], false)),
        ] {
            assert_eq!(line.parse(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn errors_name_the_expected_syntax() {
        let long = format!("\"{}\"", "a".repeat(1025));
        for (line, expected) in [
            ("allow \"x\"", "`allow` is not an action: expected drop, next"),
            ("drop", "found ``, expected a pattern"),
            ("drop x", "found `x`, expected a pattern"),
            ("drop \"x", "the text does not end"),
            ("drop \"x\\", "the text does not end"),
            ("drop \"\\q\"", "unknown escape `\\q`"),
            ("drop \"\\x1\"", "unknown escape `\\x1`"),
            ("drop \"x\" y", "found `y` after the text"),
            ("drop \"x\"I", "found `I` after the text"),
            ("drop hex:abc", "`abc` is not hexadecimal"),
            ("drop hex:+1", "`+1` is not hexadecimal"),
            ("drop hex:\u{e9}", "`\u{e9}` is not hexadecimal"),
            ("drop hex:", "the pattern is empty"),
            ("\"\"", "the pattern is empty"),
            (&long, "the pattern has 1025 bytes"),
        ] {
            let error = line.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn patterns_round_trip(
            bytes in prop::collection::vec(any::<u8>(), 1..40),
            ignore_case in any::<bool>(),
            action in prop::sample::select(vec!["drop", "next", "port:a-b", "role:x", "count"]),
        ) {
            let pattern = pattern(action.parse().unwrap(), &bytes, ignore_case);
            let line = pattern.to_string();
            let lines = Lines::from_text(Path::new("p"), line);
            let read = lines.entries().map(|(_, line)| line.parse()).collect::<Vec<_>>();
            prop_assert_eq!(read, [Ok(pattern)], "also after comments are removed");
        }

        #[test]
        fn no_line_harms_it(line in "\\PC{0,40}") {
            let _ = line.parse::<Pattern>();
            let _ = format!("drop \"{line}").parse::<Pattern>();
            let _ = format!("hex:{line}").parse::<Pattern>();
        }
    }
}
