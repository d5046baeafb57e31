//! Huge pages that two DPDK processes share: a file system in the benchmark's private mounts, and pages that the kernel
//! makes on demand and takes back.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Pages beyond the reserved ones that the kernel may make.
const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

/// Huge pages below a folder, while this lives.
#[derive(Debug)]
pub struct HugePages {
    folder: PathBuf,
    /// The limit before.
    before: String,
}

impl HugePages {
    /// Mounts huge pages, at most `pages` of the default size, on a new folder `huge` of `sandbox`.
    ///
    /// # Errors
    /// The kernel has none, or this process may not mount or ask for them.
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
        // What cannot be undone costs no memory: without files there are no pages.
        let _ = fs::write(LIMIT, self.before.trim());
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}
