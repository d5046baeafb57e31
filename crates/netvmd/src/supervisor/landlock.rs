//! A Landlock domain for each NF. A process cannot trace processes outside its domain, nor reach their /proc/PID/mem
//! and descriptors; from Landlock ABI 6 on it cannot signal them either. So NFs that share a user but not a trust group
//! cannot reach each other's packets through the kernel.
//!
//! A ruleset must forbid some file access: this one forbids creating devices, which no NF needs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: libc::c_uint = 1;
/// `LANDLOCK_ACCESS_FS_MAKE_CHAR` and `LANDLOCK_ACCESS_FS_MAKE_BLOCK`.
const MAKE_DEVICES: u64 = 1 << 6 | 1 << 11;
/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `LANDLOCK_SCOPE_SIGNAL`.
const SCOPES: u64 = 1 << 0 | 1 << 1;
/// The first ABI version with scopes.
const WITH_SCOPES: libc::c_long = 6;

/// `struct landlock_ruleset_attr` of `linux/landlock.h`.
#[repr(C)]
struct Attributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// A ruleset. Each process that enters it gets a new domain.
#[derive(Debug)]
pub(super) struct Domain(OwnedFd);

impl Domain {
    /// Creates the ruleset; `None` if the kernel has no Landlock.
    pub(super) fn new() -> Option<Self> {
        // SAFETY: without attributes and with this flag the call returns the version and reads no memory.
        let version = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Attributes>(), 0usize, VERSION)
        };
        if version < 1 {
            return None;
        }
        let scoped = if version >= WITH_SCOPES { SCOPES } else { 0 };
        let attributes = Attributes { handled_access_fs: MAKE_DEVICES, handled_access_net: 0, scoped };
        // Older kernels have a shorter structure and accept a longer one that ends in zeros.
        // SAFETY: the call reads as many bytes as the structure has.
        let fd = unsafe {
            let (at, size) = (&raw const attributes, size_of::<Attributes>());
            libc::syscall(libc::SYS_landlock_create_ruleset, at, size, 0 as libc::c_uint)
        };
        let fd = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: a new close-on-exec descriptor that nothing else owns.
        Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Enters a new domain, irrevocably. Async-signal-safe.
    pub(super) fn enter(&self) -> io::Result<()> {
        // SAFETY: the call takes integers only.
        let entered =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0 as libc::c_uint) };
        if entered < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_a_domain_cannot_read_anothers_memory() {
        let Some(domain) = Domain::new() else {
            println!("SKIP: this kernel has no Landlock");
            return;
        };
        let mut other = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let memory = format!("/proc/{}/mem", other.id());
        let read = move || {
            let before = std::fs::File::open(&memory).is_ok();
            // SAFETY: the call takes integers only and affects this thread alone.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
            domain.enter().unwrap();
            (before, std::fs::File::open(&memory).is_ok())
        };
        let outcome = std::thread::spawn(read).join().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!outcome.1, "readable from within the domain (before: {})", outcome.0);
    }
}
