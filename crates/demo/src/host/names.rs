// SPDX-License-Identifier: Apache-2.0
//! Names of everything that the demo creates. Every name holds the demo's process id, so that concurrent demos do not
//! conflict and the remains of a killed demo can be recognised.

use std::path::{Path, PathBuf};

/// Prefix of namespaces and folders.
const PREFIX: &str = "netvm-demo-";
/// Prefix of interfaces, whose names have at most 15 characters.
const SHORT_PREFIX: &str = "nvd";

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Downloads and pings.
    Client,
    /// Serves and answers.
    Server,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// Its name, also of its netvm port.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The third byte of its subnet.
    const fn number(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }

    /// Its subnet.
    pub fn subnet(self) -> String {
        format!("10.77.{}.0/24", self.number())
    }

    /// Its address.
    pub fn address(self) -> String {
        format!("10.77.{}.2", self.number())
    }

    /// Its address on the kernel's bridge.
    pub fn bridge_address(self) -> String {
        format!("10.77.3.{}", self.number())
    }

    /// The address of its gateway, the l3-forward NF.
    pub fn gateway(self) -> String {
        format!("10.77.{}.1", self.number())
    }

    /// The MAC address of its interface; locally administered.
    pub fn mac(self) -> String {
        format!("02:77:00:00:00:{:02x}", self.number())
    }
}

/// The names of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names(pub u32);

impl Names {
    /// This process's names.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// The namespace of a side.
    pub fn namespace(self, side: Side) -> String {
        format!("{PREFIX}{}-{}", self.0, side.name())
    }

    /// The namespace of the kernel's bridge, which the demo compares with.
    pub fn bridge(self) -> String {
        format!("{PREFIX}{}-bridge", self.0)
    }

    /// All namespaces.
    pub fn namespaces(self) -> [String; 3] {
        [self.namespace(Side::Client), self.namespace(Side::Server), self.bridge()]
    }

    /// The interface in the root namespace, which is a netvm port.
    pub fn interface(self, side: Side) -> String {
        format!("{SHORT_PREFIX}{}{}", self.0, &side.name()[..1])
    }

    /// The folder of all files.
    pub fn folder(self) -> PathBuf {
        std::env::temp_dir().join(format!("{PREFIX}{}", self.0))
    }

    /// The run that a namespace, interface or folder belongs to, if any.
    pub fn of(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(SHORT_PREFIX))?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let names = Self(rest[..digits].parse().ok()?);
        let mut all = names.namespaces().to_vec();
        all.extend(Side::BOTH.map(|side| names.interface(side)));
        all.extend(names.folder().file_name().map(|name| name.to_string_lossy().into_owned()));
        all.iter().any(|known| known == name).then_some(names)
    }

    /// Whether the run's demo is alive; another program may have its process id.
    pub fn is_alive(self) -> bool {
        let comm = Path::new("/proc").join(self.0.to_string()).join("comm");
        std::fs::read_to_string(comm).is_ok_and(|comm| comm.trim_end() == "netvm-demo")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_recognised() {
        let largest = Names(4_194_304);
        for side in Side::BOTH {
            assert!(largest.interface(side).len() <= 15);
            assert_eq!(Names::of(&largest.interface(side)), Some(largest));
        }
        for name in largest.namespaces() {
            assert_eq!(Names::of(&name), Some(largest), "{name}");
        }
        assert_eq!(Names::of("netvm-demo-12"), Some(Names(12)));
        for foreign in [
            "nvd",
            "nvd12",
            "nvd12x",
            "nvdc",
            "netvm-demo-",
            "netvm-demo-12-other",
            "eth0",
            "nvd99999999999c",
        ] {
            assert_eq!(Names::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_a_demo_counts_as_alive() {
        // The name of a test binary ends in a hash.
        assert!(!Names::own().is_alive());
        assert!(!Names(4_194_304 + 1).is_alive());
    }
}
