// SPDX-License-Identifier: Apache-2.0
//! Option values: target roles with weights, and the action for packets without a flow.

use std::fmt;
use std::str::FromStr;

const MAX_WEIGHT: u16 = 100;

/// A target role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub role: String,
    /// Its weight, 1 to 100.
    pub weight: u16,
}

/// A text is not a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTargetError {
    /// The name is empty.
    #[error("`{0}` has no role name: write ROLE or ROLE=WEIGHT, as in web=3")]
    NoRole(String),
    /// The weight is invalid.
    #[error("`{0}` is not a weight: expected 1 to 100")]
    Weight(String),
}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (role, weight) = match text.split_once('=') {
            Some((role, weight)) => {
                let number = weight.parse().ok().filter(|number| (1..=MAX_WEIGHT).contains(number));
                (role, number.ok_or_else(|| ParseTargetError::Weight(weight.to_owned()))?)
            }
            None => (text, 1),
        };
        if role.is_empty() {
            return Err(ParseTargetError::NoRole(text.to_owned()));
        }
        Ok(Self { role: role.to_owned(), weight })
    }
}

/// Action for packets without a flow.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Other {
    /// Drop them.
    Drop,
    /// Send them to the next hop.
    #[default]
    Next,
    /// Send them to this port.
    Port(String),
}

/// A text is not an [`Other`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action: expected drop, next or port:NAME")]
pub struct ParseOtherError(String);

impl FromStr for Other {
    type Err = ParseOtherError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("port:")) {
            ("drop", _) => Ok(Self::Drop),
            ("next", _) => Ok(Self::Next),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Port(name.to_owned())),
            _ => Err(ParseOtherError(text.to_owned())),
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Next => f.write_str("next"),
            Self::Port(name) => write!(f, "port:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed() {
        let target = |role: &str, weight| Target { role: role.to_owned(), weight };
        assert_eq!("web".parse(), Ok(target("web", 1)));
        assert_eq!("web=100".parse(), Ok(target("web", 100)));
        for text in ["web=0", "web=101", "web=", "web=x", "web=1=2"] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(
                matches!(&error, ParseTargetError::Weight(weight) if text == format!("web={weight}")),
                "{error}"
            );
        }
        for text in ["", "=3"] {
            assert_eq!(text.parse::<Target>(), Err(ParseTargetError::NoRole(text.to_owned())));
        }
    }

    #[test]
    fn actions_round_trip() {
        for other in [Other::Drop, Other::Next, Other::Port("up".to_owned())] {
            assert_eq!(other.to_string().parse(), Ok(other));
        }
        for text in ["", "pass", "port:", "up"] {
            assert!(text.parse::<Other>().is_err(), "{text}");
        }
    }
}
