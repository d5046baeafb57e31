// SPDX-License-Identifier: Apache-2.0
//! Expedites the kernel's RCU grace periods while many ports open or close.
//!
//! The kernel waits for a grace period when it closes a bound AF_XDP socket, and when it attaches or detaches an XDP
//! program, one after another: some 12 ms each, seconds for the interfaces of many routers, also when a killed netvmd
//! ends. An expedited grace period takes microseconds, because the kernel interrupts busy cores instead of waiting for
//! them. The kernel has one switch for all of them, `/sys/kernel/rcu_expedited`, so netvmd turns it on only for these
//! moments.
//!
//! Each netvmd that needs it holds a shared lock (flock(2)) on [`USERS`], and the last one turns the switch off. That
//! file has contents while netvm has turned the switch on. If the switch is on and the file is empty, then the
//! administrator turned it on, and it stays on.
//!
//! A killed netvmd cannot turn it on; the process `netvmd expedite-exit` does. It waits for the record lock (fcntl(2))
//! of [`crate::run`]'s directory, because the kernel releases record locks of a process before it closes the sockets.

use std::fs::{File, OpenOptions};
use std::io::{self, stdin};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// The kernel's switch, as `rcupdate.rcu_expedited` on its command line.
const SWITCH: &str = "/sys/kernel/rcu_expedited";
/// Locked by those who need it, not empty if they turned it on. Only root may open it.
const USERS: &str = "/run/netvm-rcu.lock";

/// Expedites grace periods for a netvmd that has virtual routers.
#[derive(Debug)]
pub(crate) struct GracePeriods {
    /// A file on which this process holds a record lock for as long as it lives.
    lock: Option<PathBuf>,
    /// The process that expedites them when this one is killed.
    at_exit: Mutex<Option<Child>>,
}

impl GracePeriods {
    pub(crate) fn new(lock: Option<PathBuf>) -> Self {
        Self { lock, at_exit: Mutex::default() }
    }

    /// Expedites grace periods until the result is dropped, and from now on also when this process ends. `None`: the
    /// administrator has done so, or the kernel does not let netvmd; everything works then, if slower.
    pub(crate) fn expedite(&self) -> Option<Expedited> {
        let failed = |error: &io::Error| {
            tracing::debug!("{SWITCH}: {error}: many interfaces take longer to open and to close");
        };
        let expedited = Expedited::begin(SWITCH, USERS).inspect_err(failed).ok().flatten()?;
        self.start();
        Some(expedited)
    }

    /// Starts the process, unless it runs.
    fn start(&self) {
        let Some(lock) = &self.lock else { return };
        let mut running = self.at_exit.lock().unwrap_or_else(PoisonError::into_inner);
        running.take_if(|child| !matches!(child.try_wait(), Ok(None)));
        if running.is_some() {
            return;
        }
        match spawn(lock) {
            Ok(child) => *running = Some(child),
            Err(error) => tracing::warn!(
                "cannot start the process that speeds up the end of a killed netvmd ({error}): the next one may start some \
                 seconds later"
            ),
        }
    }
}

/// Starts the process, with a pidfd of this one on its standard input.
fn spawn(lock: &Path) -> io::Result<Child> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    // The same program even if its file was replaced. In a process group of its own, so that Ctrl-C does not end it.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("netvmd").arg("expedite-exit").arg(lock).process_group(0).current_dir("/");
    command.stdin(Stdio::from(this)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// While it exists, the kernel's grace periods are expedited.
#[derive(Debug)]
pub(crate) struct Expedited {
    switch: File,
    users: File,
}

impl Expedited {
    fn begin(switch: &str, users: &str) -> io::Result<Option<Self>> {
        let switch = OpenOptions::new().read(true).write(true).open(switch)?;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        let users = options.open(users)?;
        let is_first = match flock(&users, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => true,
            Err(Errno::WOULDBLOCK) => false,
            Err(error) => return Err(error.into()),
        };
        if is_first && users.metadata()?.len() == 0 && is_on(&switch)? {
            return Ok(None);
        }
        // The lock is exclusive only for the moments of `begin` and `drop`.
        retry_on_intr(|| flock(&users, FlockOperation::LockShared))?;
        // Also if it is not the first: the others may just have turned it off.
        users.write_all_at(b"1", 0)?;
        switch.write_all_at(b"1", 0)?;
        Ok(Some(Self { switch, users }))
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        let is_last = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_ok();
        let turn_off = || self.switch.write_all_at(b"0", 0).and_then(|()| self.users.set_len(0));
        if is_last && let Err(error) = turn_off() {
            tracing::warn!("cannot turn off {SWITCH}: {error}");
        }
    }
}

fn is_on(switch: &File) -> io::Result<bool> {
    let mut text = [0; 16];
    let length = switch.read_at(&mut text, 0)?;
    Ok(text[..length].trim_ascii() != b"0")
}

/// What the process does. `lock`: the file that a netvmd has locked, which has a pidfd of itself on this one's standard
/// input.
///
/// # Errors
/// The file cannot be locked, or grace periods cannot be expedited.
pub fn expedite_exit(lock: &Path) -> io::Result<()> {
    let file = File::open(lock)?;
    retry_on_intr(|| fcntl_lock(&file, FlockOperation::LockShared))?;
    // The next netvmd locks it, too.
    drop(file);
    let expedited = Expedited::begin(SWITCH, USERS)?;
    // Its threads have all ended, and its files are closed.
    retry_on_intr(|| poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], None))?;
    drop(expedited);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch with this value, and the file of its users.
    fn switch(folder: &Path, value: &str) -> [String; 2] {
        std::fs::write(folder.join("switch"), value).unwrap();
        ["switch", "users"].map(|name| folder.join(name).to_str().unwrap().to_owned())
    }

    #[test]
    fn the_last_one_turns_the_switch_off() {
        let folder = tempfile::tempdir().unwrap();
        let [path, users] = switch(folder.path(), "0\n");
        let value = || std::fs::read_to_string(&path).unwrap().trim().to_owned();
        let one = Expedited::begin(&path, &users).unwrap().unwrap();
        assert_eq!(value(), "1");
        let two = Expedited::begin(&path, &users).unwrap().unwrap();
        drop(one);
        assert_eq!(value(), "1");
        drop(two);
        assert_eq!(value(), "0");
        // Both processes of the last one were killed.
        std::fs::write(&path, "1\n").unwrap();
        std::fs::write(&users, "1").unwrap();
        drop(Expedited::begin(&path, &users).unwrap().unwrap());
        assert_eq!(value(), "0");
    }

    #[test]
    fn what_the_administrator_turned_on_stays_on() {
        let folder = tempfile::tempdir().unwrap();
        let [path, users] = switch(folder.path(), "1\n");
        assert!(Expedited::begin(&path, &users).unwrap().is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        std::fs::remove_file(&path).unwrap();
        assert!(Expedited::begin(&path, &users).is_err(), "a container may not have it");
    }
}
