// SPDX-License-Identifier: Apache-2.0
//! Huge pages for the run, so that there are some to exhaust.

use std::fs;

const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// Pages to reserve where there are none: 128 MiB.
const WANTED: &str = "64";

/// Pages that are reserved until this is dropped.
pub struct HugePages {
    is_ours: bool,
}

impl HugePages {
    /// Reserves some if the machine has none. Without any, runs go on without.
    pub fn reserve() -> Self {
        let is_ours = fs::read_to_string(RESERVED).is_ok_and(|reserved| reserved.trim() == "0")
            && fs::write(RESERVED, WANTED).is_ok();
        println!("{} free huge pages", free());
        Self { is_ours }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.is_ours {
            // They cannot be given back while a process has them.
            let _ = fs::write(RESERVED, "0");
        }
    }
}

/// Free pages of 2 MiB.
pub fn free() -> u64 {
    fs::read_to_string(FREE).ok().and_then(|free| free.trim().parse().ok()).unwrap_or_default()
}
