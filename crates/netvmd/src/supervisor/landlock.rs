//! A Landlock domain for each NF. A process in a domain cannot trace processes outside it, so it cannot reach their
//! /proc/PID/mem or descriptors. Since Landlock ABI 6 it cannot signal them either. NFs that share a user, but not a
//! trust group, therefore cannot reach each other's packets through the kernel.
//!
//! The domain also forbids creating devices, which no NF needs; a ruleset must forbid something.

use std::io;
use std::os::fd::OwnedFd;

use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetCreated, Scope};

/// The rules of a domain. Each process that enters gets a domain of its own.
#[derive(Debug)]
pub(super) struct Domain(RulesetCreated);

impl Domain {
    /// Prepares the rules; `None` if the kernel has no Landlock.
    pub(super) fn new() -> Option<Self> {
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
        let ruleset = Ruleset::default().handle_access(devices).ok()?;
        let ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal).ok()?.create().ok()?;
        let descriptor: Option<OwnedFd> = ruleset.try_clone().ok()?.into();
        descriptor.map(|_| Self(ruleset))
    }

    /// Enters a new domain, for good. Async-signal-safe: system calls only.
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
