// SPDX-License-Identifier: Apache-2.0
//! Actions of patterns and destinations of packets.

use std::fmt;
use std::str::FromStr;

/// The destination of packets.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Destination {
    /// None: drop them.
    Drop,
    /// The next hop.
    #[default]
    Next,
    /// The port with this name.
    Port(Box<str>),
    /// The role with this name.
    Role(Box<str>),
}

/// A pattern's action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Count matching packets; other patterns decide their destination.
    Count,
    /// Send matching packets to this destination.
    Send(Destination),
}

/// A text is not a [`Destination`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a destination: expected drop, next, port:NAME or role:NAME")]
pub struct ParseDestinationError(String);

/// A text is not an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action: expected drop, next, port:NAME, role:NAME or count")]
pub struct ParseActionError(String);

impl FromStr for Destination {
    type Err = ParseDestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "drop" => Ok(Self::Drop),
            None if text == "next" => Ok(Self::Next),
            Some(("port", name)) if !name.is_empty() => Ok(Self::Port(name.into())),
            Some(("role", name)) if !name.is_empty() => Ok(Self::Role(name.into())),
            _ => Err(ParseDestinationError(text.to_owned())),
        }
    }
}

impl fmt::Display for Destination {
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
            _ => text.parse().map(Self::Send).map_err(|ParseDestinationError(text)| ParseActionError(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_round_trip() {
        for destination in [
            Destination::Drop,
            Destination::Next,
            Destination::Port("wan".into()),
            Destination::Role("audit".into()),
        ] {
            assert_eq!(destination.to_string().parse(), Ok(destination.clone()));
            assert_eq!(destination.to_string().parse(), Ok(Action::Send(destination)));
        }
        assert_eq!("count".parse(), Ok(Action::Count));
        for text in ["", "pass", "port:", "role:", "drop:x", "nf:x", "Count"] {
            assert!(text.parse::<Destination>().is_err() && text.parse::<Action>().is_err(), "{text}");
        }
        assert!("count".parse::<Destination>().is_err(), "count is not a destination");
    }
}
