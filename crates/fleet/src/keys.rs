// SPDX-License-Identifier: Apache-2.0
//! The keys in etcd.

use std::fmt;
use std::str::FromStr;

use crate::etcd::KeyRange;

/// Before the keys of hosts.
pub const HOSTS: &str = "/netvm/hosts/";
/// Before the keys of fragments.
pub const FRAGMENTS: &str = "/netvm/fragments/";
/// Longest name.
const MAX_NAME: usize = 64;

/// The name of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostName(String);

/// A text cannot be a host's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name for a host: use 1 to {MAX_NAME} of the characters A-Z a-z 0-9 _ - . and no dot first"
)]
pub struct ParseHostNameError(String);

impl FromStr for HostName {
    type Err = ParseHostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let fits =
            (1..=MAX_NAME).contains(&text.len()) && text.chars().all(allowed) && !text.starts_with('.');
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseHostNameError(netvm_text::line(text).into_owned()))
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of a host, in their order in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostKey {
    /// Its configuration.
    Config,
    /// Why it keeps what it runs.
    Hold,
    /// Whose name it is.
    Machine,
    /// What it reports.
    Status,
}

impl HostKey {
    const ALL: [Self; 4] = [Self::Config, Self::Hold, Self::Machine, Self::Status];

    const fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Hold => "hold",
            Self::Machine => "machine",
            Self::Status => "status",
        }
    }
}

impl HostName {
    /// One of its keys.
    #[must_use]
    pub fn key(&self, which: HostKey) -> String {
        format!("{HOSTS}{self}/{}", which.word())
    }

    /// The keys that say what the host is to run: configuration and hold.
    #[must_use]
    pub fn wanted(&self) -> KeyRange {
        KeyRange::between(&self.key(HostKey::Config), &format!("{}\0", self.key(HostKey::Hold)))
    }
}

/// The key of a fragment.
#[must_use]
pub fn fragment_key(fragment: &str) -> String {
    format!("{FRAGMENTS}{fragment}")
}

/// The host that a key is of, and which of its keys it is.
#[must_use]
pub fn split_host_key(key: &str) -> Option<(HostName, HostKey)> {
    let (name, word) = key.strip_prefix(HOSTS)?.split_once('/')?;
    let which = HostKey::ALL.into_iter().find(|which| which.word() == word)?;
    Some((name.parse().ok()?, which))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_hosts_and_the_wanted_ones_are_a_range() {
        let name: HostName = "edge-1.example".parse().unwrap();
        for which in HostKey::ALL {
            assert_eq!(split_host_key(&name.key(which)), Some((name.clone(), which)));
        }
        let is_wanted = |which| name.wanted().has(&name.key(which));
        assert_eq!(HostKey::ALL.map(is_wanted), [true, true, false, false]);
        for bad in ["", ".a", "a/b", "ä", &"a".repeat(65)] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
        assert_eq!(split_host_key("/netvm/hosts/a/other"), None);
        assert_eq!(split_host_key("/netvm/fragments/a"), None);
    }
}
