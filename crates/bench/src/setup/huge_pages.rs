// SPDX-License-Identifier: Apache-2.0
//! Huge pages that a measurement reserves.

use std::{fs, io};

use crate::error::BenchError;
use crate::machine::meminfo;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages of the default size. Dropping it restores their number of before.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Has at least so many bytes of huge pages free.
    ///
    /// # Errors
    /// The kernel has no room for them in one piece each, or this user may not reserve them.
    pub fn reserve(bytes: u64) -> Result<Self, BenchError> {
        let before = meminfo("HugePages_Total:");
        let size = meminfo("Hugepagesize:") * 1024;
        let wanted = bytes.div_ceil(size.max(1));
        let missing = wanted.saturating_sub(meminfo("HugePages_Free:"));
        let this = Self { before };
        write(before + missing)?;
        match meminfo("HugePages_Free:") {
            free if free >= wanted => Ok(this),
            free => {
                let problem =
                    format!("{wanted} are needed, and the kernel has {free} free: free memory, or reboot");
                Err(BenchError::system("huge pages")(io::Error::other(problem)))
            }
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // The next measurement says if it has too few.
        let _ = write(self.before);
    }
}

fn write(count: u64) -> Result<(), BenchError> {
    fs::write(RESERVED, count.to_string())
        .map_err(BenchError::system(format!("cannot reserve huge pages in {RESERVED}")))
}
