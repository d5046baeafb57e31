// SPDX-License-Identifier: Apache-2.0
//! Finds the processes in `/proc` that hold a resource, for error messages.

use std::fmt;
use std::fs;

/// A process that holds the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id in this process's PID namespace.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

/// The processes found. Others may be hidden from this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(pub Vec<Holder>);

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN: usize = 4;
        if self.0.is_empty() {
            return f.write_str("no process visible from here");
        }
        for (index, Holder { pid, command }) in self.0.iter().take(MAX_SHOWN).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let own = if *pid == std::process::id() { ", this process" } else { "" };
            write!(f, "{comma}{command} (pid {pid}{own})")?;
        }
        if self.0.len() > MAX_SHOWN {
            write!(f, " and {} more", self.0.len() - MAX_SHOWN)?;
        }
        Ok(())
    }
}

impl Holders {
    /// Processes with an XDP link on interface `ifindex`, in any network namespace.
    pub(crate) fn of_link(ifindex: u32) -> Self {
        Self::find(|process| {
            let Ok(entries) = fs::read_dir(format!("{process}/fdinfo")) else { return false };
            entries
                .flatten()
                .any(|entry| fs::read_to_string(entry.path()).is_ok_and(|info| is_xdp_link(&info, ifindex)))
        })
    }

    /// Processes with an AF_XDP socket on any interface, as the kernel does not tell which.
    pub(crate) fn of_sockets() -> Self {
        Self::find(|process| {
            fs::read_to_string(format!("{process}/maps")).is_ok_and(|maps| maps.lines().any(is_fill_ring))
        })
    }

    fn find(holds: impl Fn(&str) -> bool) -> Self {
        let Ok(entries) = fs::read_dir("/proc") else { return Self::default() };
        let mut holders = Vec::new();
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let process = format!("/proc/{pid}");
            if holds(&process) {
                let command = fs::read_to_string(format!("{process}/comm")).unwrap_or_default();
                holders.push(Holder { pid, command: command.trim_end().to_owned() });
            }
        }
        Self(holders)
    }
}

/// Parses `/proc/PID/fdinfo/FD`.
fn is_xdp_link(info: &str, ifindex: u32) -> bool {
    let value =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    value("link_type") == Some("xdp") && value("ifindex").and_then(|v| v.parse().ok()) == Some(ifindex)
}

/// Parses a line of `/proc/PID/maps`. Only AF_XDP maps anything at the fill ring's offset of a socket.
fn is_fill_ring(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    words.nth(2) == Some("100000000") && words.nth(2).is_some_and(|name| name.starts_with("socket:["))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let link = "pos:\t0\nflags:\t02000000\nmnt_id:\t17\nino:\t10\nlink_type:\txdp\nlink_id:\t7\nprog_tag:\tab\n\
                    prog_id:\t31\nifindex:\t12\n";
        assert!(is_xdp_link(link, 12));
        assert!(!is_xdp_link(link, 1));
        assert!(!is_xdp_link(&link.replace("xdp", "netns"), 12));
        let map = "7f5bd9c83000-7f5bd9c86000 rw-s 100000000 00:08 21841                      socket:[21841]";
        assert!(is_fill_ring(map));
        assert!(!is_fill_ring(&map.replace("100000000", "80000000")));
        assert!(!is_fill_ring(&map.replace("socket:[", "/dev/x")));
        assert!(!is_fill_ring("7f5bd9c83000-7f5bd9c86000 rw-p 00000000 00:00 0"));
    }

    #[test]
    fn long_lists_are_shortened() {
        let holders = Holders((1..=6).map(|pid| Holder { pid: pid << 23, command: "nf".into() }).collect());
        let text = holders.to_string();
        assert!(text.starts_with("nf (pid 8388608), nf (pid 16777216)"), "{text}");
        assert!(text.ends_with(" and 2 more"), "{text}");
        assert!(Holders::default().to_string().starts_with("no process"));
    }
}
