// SPDX-License-Identifier: Apache-2.0
//! Huge pages that two DPDK processes share: a hugetlbfs in the benchmark's mount namespace, whose pages the kernel
//! allocates on demand and frees later.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The limit for huge pages that the kernel allocates on demand, beyond the reserved pages.
const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

/// A mounted hugetlbfs; unmounted on drop.
#[derive(Debug)]
pub struct HugePages {
    folder: PathBuf,
    /// The limit before the mount.
    before: String,
}

impl HugePages {
    /// Mounts a hugetlbfs on a new folder `huge` of `sandbox`, with up to `pages` pages of the default size.
    ///
    /// # Errors
    /// The kernel has no huge pages, or this process may not mount them or raise the limit.
    pub fn mount(sandbox: &Path, pages: u32) -> io::Result<Self> {
        let folder = sandbox.join("huge");
        fs::create_dir_all(&folder)?;
        mount("none", &folder, "hugetlbfs", MountFlags::empty(), None::<&CStr>)?;
        let own = Self { folder, before: fs::read_to_string(LIMIT)? };
        let before: u64 = own.before.trim().parse().unwrap_or(0);
        fs::write(LIMIT, (before + u64::from(pages)).to_string())?;
        Ok(own)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // A failure costs no memory: without files there are no pages.
        let _ = fs::write(LIMIT, self.before.trim());
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}
