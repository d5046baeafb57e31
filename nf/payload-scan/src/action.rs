//! What becomes of packets.

use std::fmt;
use std::str::FromStr;

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Way {
    /// They are discarded.
    Drop,
    /// To the next hop.
    #[default]
    Next,
    /// Out of the port with this name.
    Port(Box<str>),
    /// To the role with this name.
    Role(Box<str>),
}

/// What a pattern does with packets in which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are counted; where they go, others say.
    Count,
    /// They go this way.
    Send(Way),
}

/// Why something is not a [`Way`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way for packets: drop, next, port:NAME or role:NAME expected")]
pub struct ParseWayError(String);

/// Why something is not an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action: drop, next, port:NAME, role:NAME or count expected")]
pub struct ParseActionError(String);

impl FromStr for Way {
    type Err = ParseWayError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "drop" => Ok(Self::Drop),
            None if text == "next" => Ok(Self::Next),
            Some(("port", name)) if !name.is_empty() => Ok(Self::Port(name.into())),
            Some(("role", name)) if !name.is_empty() => Ok(Self::Role(name.into())),
            _ => Err(ParseWayError(text.to_owned())),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Next => f.write_str("next"),
            Self::Port(name) => write!(f, "port:{name}"),
            Self::Role(name) => write!(f, "role:{name}"),
        }
    }
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "count" => Ok(Self::Count),
            _ => text.parse().map(Self::Send).map_err(|ParseWayError(text)| ParseActionError(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_are_written() {
        for way in [Way::Drop, Way::Next, Way::Port("wan".into()), Way::Role("audit".into())] {
            assert_eq!(way.to_string().parse(), Ok(way.clone()));
            assert_eq!(way.to_string().parse(), Ok(Action::Send(way)));
        }
        assert_eq!("count".parse(), Ok(Action::Count));
        for text in ["", "pass", "port:", "role:", "drop:x", "nf:x", "Count"] {
            assert!(text.parse::<Way>().is_err() && text.parse::<Action>().is_err(), "{text}");
        }
        assert!("count".parse::<Way>().is_err(), "packets must go somewhere");
    }
}
