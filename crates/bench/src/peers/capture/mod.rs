// SPDX-License-Identifier: Apache-2.0
//! Other programs that capture packets to files: `tcpdump`, and DPDK's `dpdk-dumpcap` and `dpdk-pdump`.

pub mod dpdk;
mod huge_pages;
pub mod tcpdump;

use std::path::PathBuf;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

/// Packets that passed a program, and those that it stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Packets that passed.
    pub offered: u64,
    /// Packets in its files.
    pub packets: u64,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Stored {
    /// Million packets per second in its files.
    pub fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds / 1e6
    }

    /// Million packets per second that passed.
    pub fn offered_mpps(&self) -> f64 {
        self.offered as f64 / self.seconds / 1e6
    }

    /// The lost share, in percent.
    pub fn lost_percent(&self) -> f64 {
        self.offered.saturating_sub(self.packets) as f64 / self.offered.max(1) as f64 * 100.0
    }
}

/// Finds a program in the search path, or in the system's folders that a user's path may lack.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.exists()).unwrap_or_else(|| name.into())
}

/// A process; killed on drop.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn interrupt(&self) {
        if let Some(pid) = Pid::from_raw(self.0.id() as i32) {
            // It may have ended.
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_stored_is_lost() {
        let stored = Stored { offered: 4_000_000, packets: 1_000_000, seconds: 0.5 };
        assert_eq!((stored.mpps(), stored.offered_mpps(), stored.lost_percent()), (2.0, 8.0, 75.0));
        // Packets that passed before the first reading may be in the file.
        assert_eq!(Stored { packets: 5_000_000, ..stored }.lost_percent(), 0.0);
    }
}
