// SPDX-License-Identifier: Apache-2.0
//! What the run directory says of a router: a file with the name of its namespace and, for each interface, what was
//! last configured. The next netvmd knows from it which routers to remove, and what somebody changed in a namespace.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use netvm_wire::MacAddr;

use crate::routers::links::Configured;

/// A router's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The name of its namespace.
    pub(super) namespace: String,
    /// By outer end.
    pub(super) interfaces: BTreeMap<String, Configured>,
}

impl Record {
    /// Reads a router's file, if there is one.
    pub(super) fn read(file: &Path) -> Option<Self> {
        Some(Self::parse(&fs::read_to_string(file).ok()?))
    }

    /// Files of older versions have only the first line.
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let namespace = lines.next().unwrap_or_default().to_owned();
        let interface = |line: &str| {
            let mut words = line.split(' ');
            let (end, mac, mtu) = (words.next()?, words.next()?, words.next()?);
            let mac: MacAddr = mac.parse().ok()?;
            Some((end.to_owned(), Configured { mac: mac.0, mtu: mtu.parse().ok()? }))
        };
        Self { namespace, interfaces: lines.filter_map(interface).collect() }
    }

    /// Writes it, if that changes the file.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        if Self::read(file).as_ref() == Some(self) {
            return Ok(());
        }
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, self.text())
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", self.namespace);
        for (end, Configured { mac, mtu }) in &self.interfaces {
            text += &format!("{end} {} {mtu}\n", MacAddr(*mac));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_so_is_that_of_an_older_netvmd() {
        let mut record = Record { namespace: "netvm-blue".to_owned(), ..Record::default() };
        assert_eq!(Record::parse("netvm-blue"), record);
        let configured = Configured { mac: [2, 0, 0, 0, 0, 0xfe], mtu: 1400 };
        record.interfaces.insert("nv0123456789ab".to_owned(), configured);
        assert_eq!(Record::parse(&record.text()), record);
        // Damaged lines are left out.
        assert_eq!(Record::parse(&(record.text() + "nv x\nnv 02:00:00:00:00:01 big\n\n")), record);
    }
}
