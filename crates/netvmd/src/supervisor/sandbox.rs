//! What an NF, or a QEMU, may not: entered between fork and exec, in an order in which each step is still allowed.
//!
//! ```text
//!  descriptors   all but stdio and the attach socket close at exec
//!  cores         where it may run; cannot be changed from within
//!  limits        no core dumps (they hold packets), few open files
//!  user          groups, gid, uid; the bounding set and all capabilities are emptied
//!  parent        SIGKILL when netvmd dies; not for guests that live on. After the user, whose change would clear it
//!  privileges    no setuid program gives any back
//!  Landlock      a domain of its own: no tracing, no signals to others, where the kernel has it
//!  seccomp       last, as it forbids what came before; QEMU has a filter of its own
//! ```
//!
//! Everything is prepared before the fork: in the child of a process with several threads only async-signal-safe calls
//! are allowed, and nothing may allocate.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::account::Account;
use super::landlock::Domain;
use super::seccomp::{FilterError, Filters};

/// Open files that an NF may have: what netlib needs, and room for its own.
const OPEN_FILES: libc::rlim_t = 1024;
/// Capability numbers that the kernel may know.
const CAPABILITIES: libc::c_ulong = 64;

/// A step into the sandbox, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    Descriptors = 1,
    Cores,
    Limits,
    User,
    Capabilities,
    Parent,
    Privileges,
    Landlock,
    SystemCalls,
}

impl Step {
    pub(super) const fn from_byte(byte: u8) -> Option<&'static str> {
        const NAMES: [&str; 9] = [
            "closing descriptors",
            "choosing its cores",
            "setting its limits",
            "changing to its user",
            "dropping capabilities",
            "tying it to netvmd",
            "giving up privileges",
            "entering its Landlock domain",
            "filtering system calls",
        ];
        if byte == 0 || byte as usize > NAMES.len() { None } else { Some(NAMES[byte as usize - 1]) }
    }
}

/// What the sandboxes of all NFs share.
#[derive(Debug)]
pub struct Confinement {
    filters: Filters,
    domain: Option<Domain>,
}

impl Confinement {
    /// Prepares the filters, and Landlock where the kernel has it.
    ///
    /// # Errors
    /// [`FilterError`] on an architecture that the compiler of filters does not know.
    pub fn prepare() -> Result<Self, FilterError> {
        Ok(Self { filters: Filters::compile()?, domain: Domain::new() })
    }

    /// Whether NFs of one user are kept from each other by Landlock.
    #[must_use]
    pub const fn has_landlock(&self) -> bool {
        self.domain.is_some()
    }
}

/// A sandbox that is ready to be entered.
pub(crate) struct Sandbox {
    /// The descriptors, besides stdio, that the process keeps.
    pub(crate) keep: Vec<RawFd>,
    /// Where to write the byte of the step that failed.
    pub(crate) failed_step: OwnedFd,
    pub(crate) cores: libc::cpu_set_t,
    /// `None`: netvmd is not root, the process has the same user.
    pub(crate) account: Option<Account>,
    /// Groups that its user has besides.
    pub(crate) groups: Vec<libc::gid_t>,
    /// netvmd's own process, with which it ends; `None`: it lives on.
    pub(crate) parent: Option<libc::pid_t>,
    pub(crate) confinement: Arc<Confinement>,
    /// Whether system calls are those of an NF; else the program filters its own.
    pub(crate) is_nf: bool,
}

impl Sandbox {
    /// Enters the sandbox, for good.
    ///
    /// Async-signal-safe: makes system calls, and touches no memory but its own.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.step(Step::Descriptors, || keep_only(&self.keep))?;
        self.step(Step::Cores, || self.choose_cores())?;
        self.step(Step::Limits, limit)?;
        if let Some(account) = self.account {
            self.step(Step::Capabilities, empty_bounding_set)?;
            self.step(Step::User, || become_user(account, &self.groups))?;
        }
        self.step(Step::Capabilities, drop_capabilities)?;
        if let Some(parent) = self.parent {
            self.step(Step::Parent, || die_with(parent))?;
        }
        // SAFETY: takes numbers only.
        self.step(Step::Privileges, || check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
        if let Some(domain) = &self.confinement.domain {
            self.step(Step::Landlock, || domain.enter())?;
        }
        if self.is_nf {
            self.step(Step::SystemCalls, || self.confinement.filters.install())?;
        }
        Ok(())
    }

    fn step(&self, step: Step, action: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        action().inspect_err(|_| {
            let byte = step as u8;
            // SAFETY: one byte of ours; that it may fail only costs the message its detail.
            unsafe { libc::write(self.failed_step.as_raw_fd(), (&raw const byte).cast(), 1) };
        })
    }

    fn choose_cores(&self) -> io::Result<()> {
        // SAFETY: reads a set of that size.
        check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.cores) })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn keep_only(fds: &[RawFd]) -> io::Result<()> {
    // By the kernel, as libraries may have opened descriptors that do not close by themselves.
    // SAFETY: takes numbers only; changes a flag of descriptors.
    let closed =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if closed < 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in fds {
        // SAFETY: takes numbers only; the descriptor was open in the parent and is, therefore, here.
        check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    // What it makes is nobody else's to read.
    // SAFETY: takes a number, never fails.
    unsafe { libc::umask(0o077) };
    Ok(())
}

fn limit() -> io::Result<()> {
    let set = |resource, most: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads a limit of ours.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })
    };
    set(libc::RLIMIT_CORE, 0)?;
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a limit of ours.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) })?;
    set(libc::RLIMIT_NOFILE, OPEN_FILES.min(files.rlim_max))
}

fn empty_bounding_set() -> io::Result<()> {
    for capability in 0..CAPABILITIES {
        // SAFETY: takes numbers only.
        let dropped = check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) });
        match dropped {
            // The kernel knows no more.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            // Not netvmd's to give, as in a container: the NF cannot have it either.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => break,
            other => other?,
        }
    }
    Ok(())
}

fn become_user(account: Account, groups: &[libc::gid_t]) -> io::Result<()> {
    // The system calls themselves: the C library's functions would have other threads follow, and there are none here.
    // SAFETY: reads as many numbers as there are.
    raw(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: take numbers only.
    raw(unsafe { libc::syscall(libc::SYS_setresgid, account.gid, account.gid, account.gid) })?;
    // SAFETY: as above.
    raw(unsafe { libc::syscall(libc::SYS_setresuid, account.uid, account.uid, account.uid) })
}

fn raw(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn drop_capabilities() -> io::Result<()> {
    // SAFETY: takes numbers only. An old kernel without ambient capabilities has none to clear.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    // _LINUX_CAPABILITY_VERSION_3, this thread; two words of three empty sets each.
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets = [0u32; 6];
    // SAFETY: the kernel reads 8 and 24 bytes, which is what these are.
    raw(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })
}

fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // It may have died before: then this process has another parent already.
    // SAFETY: takes nothing, never fails.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}
