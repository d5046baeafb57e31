//! What the demo calls the things that it makes. Every name has the number of the process that made it, so that two demos
//! do not meet, and what a killed one left behind can be told from what a living one uses.

use std::path::{Path, PathBuf};

/// Start of the names of namespaces and folders.
const PREFIX: &str = "netvm-demo-";
/// Start of the names of interfaces, which Linux keeps to 15 characters.
const SHORT_PREFIX: &str = "nvd";

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It downloads and pings.
    Client,
    /// It serves and answers.
    Server,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// Its name, which is that of netvm's port, too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// Its subnet's third byte.
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

    /// Its own address.
    pub fn address(self) -> String {
        format!("10.77.{}.2", self.number())
    }

    /// The address of its gateway, for which the l3-forward NF answers.
    pub fn gateway(self) -> String {
        format!("10.77.{}.1", self.number())
    }

    /// The MAC address of its end of the veth pair; locally administered.
    pub fn mac(self) -> String {
        format!("02:77:00:00:00:{:02x}", self.number())
    }
}

/// The names of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names(pub u32);

impl Names {
    /// The names of this process.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// The namespace of a side.
    pub fn namespace(self, side: Side) -> String {
        format!("{PREFIX}{}-{}", self.0, side.name())
    }

    /// The interface in the root namespace, which is netvm's port.
    pub fn interface(self, side: Side) -> String {
        format!("{SHORT_PREFIX}{}{}", self.0, &side.name()[..1])
    }

    /// The folder of everything that the run writes.
    pub fn folder(self) -> PathBuf {
        std::env::temp_dir().join(format!("{PREFIX}{}", self.0))
    }

    /// Whose namespace, interface or folder that is, if it is a demo's.
    pub fn of(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(SHORT_PREFIX))?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let names = Self(rest[..digits].parse().ok()?);
        let mut all: Vec<String> =
            Side::BOTH.into_iter().flat_map(|side| [names.namespace(side), names.interface(side)]).collect();
        all.extend(names.folder().file_name().map(|name| name.to_string_lossy().into_owned()));
        all.iter().any(|known| known == name).then_some(names)
    }

    /// Whether the demo with these names still runs; another program may have got its number.
    pub fn is_alive(self) -> bool {
        let comm = Path::new("/proc").join(self.0.to_string()).join("comm");
        std::fs::read_to_string(comm).is_ok_and(|comm| comm.trim_end() == "netvm-demo")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_enough_and_are_recognised() {
        let largest = Names(4_194_304);
        for side in Side::BOTH {
            assert!(largest.interface(side).len() <= 15);
            for name in [largest.namespace(side), largest.interface(side)] {
                assert_eq!(Names::of(&name), Some(largest), "{name}");
            }
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
    fn only_a_demo_is_taken_for_one() {
        // This is a test program, whose name has a hash at its end.
        assert!(!Names::own().is_alive());
        assert!(!Names(4_194_304 + 1).is_alive());
    }
}
