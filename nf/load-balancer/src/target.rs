//! What the options name: roles with weights, and the way of packets that are in no flow.

use std::fmt;
use std::str::FromStr;

const MAX_WEIGHT: u16 = 100;

/// A role that takes packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub role: String,
    /// Its share, beside those of the others: 1 to 100.
    pub weight: u16,
}

/// Why something is not a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTargetError {
    /// There is no name.
    #[error("`{0}` names no role: write ROLE or ROLE=WEIGHT, as in web=3")]
    NoRole(String),
    /// The weight is not one.
    #[error("`{0}` is not a weight: 1 to 100 expected")]
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

/// What becomes of packets that belong to no flow.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Other {
    /// They are discarded.
    Drop,
    /// They go to the next hop.
    #[default]
    Next,
    /// They leave by the port with this name.
    Port(String),
}

/// Why something is not an [`Other`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way for packets: drop, next or port:NAME expected")]
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
    fn targets_are_read() {
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
    fn ways_are_read_as_they_are_written() {
        for way in [Other::Drop, Other::Next, Other::Port("up".to_owned())] {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        for text in ["", "pass", "port:", "up"] {
            assert!(text.parse::<Other>().is_err(), "{text}");
        }
    }
}
