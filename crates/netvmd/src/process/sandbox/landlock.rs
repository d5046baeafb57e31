// SPDX-License-Identifier: Apache-2.0
//! A Landlock domain for each NF and each QEMU. A process in a domain cannot trace processes outside of it, so it
//! cannot reach their /proc/PID/mem or descriptors. Since Landlock ABI 6 it cannot signal them either. Therefore, NFs
//! of the same user but of different trust groups cannot reach each other's packets through the kernel.
//!
//! An NF can change files only in the folders that its configuration names (`writable`). A QEMU must write its disks,
//! which are files, so its domain only forbids creating devices: a ruleset must forbid something.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    Scope,
};

/// The newest ABI whose rights the rulesets use, as far as the kernel knows them.
const RIGHTS: ABI = ABI::V5;
/// Devices that every NF may write.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];

/// The rules of a domain. Each process that enters gets a domain of its own.
#[derive(Debug)]
pub(crate) struct Domain(RulesetCreated);

impl Domain {
    /// Prepares the rules for a QEMU; `None` if the kernel has no Landlock.
    pub(super) fn new() -> Option<Self> {
        Self::forbidding(AccessFs::MakeChar | AccessFs::MakeBlock)
    }

    /// Prepares the rules for an NF that may change files in `writable`; `None` if the kernel has no Landlock.
    ///
    /// # Errors
    /// A folder cannot be opened: its path, and the kernel's error.
    pub(in crate::process) fn of_nf(writable: &[PathBuf]) -> Result<Option<Self>, (PathBuf, io::Error)> {
        let Some(Self(mut rules)) = Self::forbidding(AccessFs::from_write(RIGHTS)) else { return Ok(None) };
        let in_folder = AccessFs::from_write(RIGHTS) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
        let in_file = AccessFs::WriteFile | AccessFs::Truncate;
        let devices = DEVICES.iter().map(|device| (PathBuf::from(device), in_file, false));
        for (path, rights, is_needed) in
            writable.iter().map(|path| (path.clone(), in_folder, true)).chain(devices)
        {
            let opened = match PathFd::new(&path) {
                Ok(opened) => opened,
                Err(error) if is_needed => return Err((path, io::Error::other(error))),
                Err(_) => continue,
            };
            rules = rules
                .add_rule(PathBeneath::new(opened, rights))
                .map_err(|error| (path, io::Error::other(error)))?;
        }
        Ok(Some(Self(rules)))
    }

    fn forbidding(rights: BitFlags<AccessFs>) -> Option<Self> {
        let ruleset = Ruleset::default().handle_access(rights).ok()?;
        let ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal).ok()?.create().ok()?;
        let descriptor: Option<OwnedFd> = ruleset.try_clone().ok()?.into();
        descriptor.map(|_| Self(ruleset))
    }

    /// Enters a new domain, irrevocably. Async-signal-safe: system calls only.
    pub(super) fn enter(&self) -> io::Result<()> {
        let ruleset = self.0.try_clone()?;
        ruleset.restrict_self().map_err(|_| io::Error::last_os_error())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_keeps_a_process_from_reading_anothers_memory() {
        let Some(domain) = Domain::new() else {
            println!("SKIP: this kernel has no Landlock");
            return;
        };
        let mut other = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let memory = format!("/proc/{}/mem", other.id());
        let read = move || {
            let before = std::fs::File::open(&memory).is_ok();
            domain.enter().unwrap();
            (before, std::fs::File::open(&memory).is_ok())
        };
        let outcome = std::thread::spawn(read).join().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!outcome.1, "readable from within the domain (before: {})", outcome.0);
    }
}
