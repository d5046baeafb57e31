// SPDX-License-Identifier: Apache-2.0
//! Maps interface names in files to ports.

use netvm_policy::PortId;

/// The ports by interface name. "Not `eth0`" is every other port of the list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Interfaces {
    ports: Vec<(String, PortId)>,
    is_complete: bool,
}

impl Interfaces {
    /// All ports by their names in the file; a port may have several.
    #[must_use]
    pub fn new<N: Into<String>>(ports: impl IntoIterator<Item = (N, PortId)>) -> Self {
        Self {
            ports: ports.into_iter().map(|(name, port)| (name.into(), port)).collect(),
            is_complete: false,
        }
    }

    /// Declares that other interfaces are no ports of netvm, so that rules for them apply to no packet. Otherwise, the
    /// ports of other interfaces are unknown.
    #[must_use]
    pub fn complete(self) -> Self {
        Self { is_complete: true, ..self }
    }

    /// Whether other interfaces are no ports of netvm.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The ports of a name; a trailing `wildcard` matches any rest.
    pub(super) fn named(&self, name: &str, wildcard: char) -> Vec<PortId> {
        let fits = |known: &str| match name.strip_suffix(wildcard) {
            Some(start) => known.starts_with(start),
            None => known == name,
        };
        sorted(self.ports.iter().filter(|(known, _)| fits(known)).map(|(_, port)| *port))
    }

    /// All ports.
    pub(super) fn all(&self) -> Vec<PortId> {
        sorted(self.ports.iter().map(|(_, port)| *port))
    }
}

fn sorted(ports: impl Iterator<Item = PortId>) -> Vec<PortId> {
    let mut ports: Vec<_> = ports.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_matches_every_name_with_the_prefix() {
        let interfaces = Interfaces::new([("eth0", PortId(3)), ("eth1", PortId(1)), ("tap0", PortId(3))]);
        assert_eq!(interfaces.named("eth0", '+'), [PortId(3)]);
        assert_eq!(interfaces.named("eth+", '+'), [PortId(1), PortId(3)]);
        assert_eq!(interfaces.named("eth+", '*'), []);
        assert_eq!(interfaces.named("+", '+'), interfaces.all());
        assert_eq!(interfaces.named("wan", '+'), []);
        assert_eq!(interfaces.all(), [PortId(1), PortId(3)]);
    }
}
