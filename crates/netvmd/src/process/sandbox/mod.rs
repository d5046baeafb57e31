// SPDX-License-Identifier: Apache-2.0
//! The sandbox of an NF or a QEMU, entered between fork and exec, in an order in which each step is still permitted.
//!
//! ```text
//!  cgroup        limits on memory, tasks and its share of cores; first, while it still is netvmd's user
//!  descriptors   all but stdio and the attach socket close at exec
//!  cores         CPU affinity; cannot be changed from within
//!  limits        no core dumps (they hold packets), few open files; memory and tasks where no cgroup limits them
//!  namespace     the network namespace of a program with two ports, which keeps root's rights there
//!  user          groups, gid, uid; empties the bounding set and all capabilities
//!  parent        SIGKILL when netvmd dies, except for guests that keep running; after the user, whose change clears it
//!  privileges    no_new_privs: setuid programs give none back
//!  Landlock      a new domain, if the kernel has Landlock: no tracing of others, no signals to them, no file changes
//!  seccomp       last, as it forbids the steps before; QEMU installs its own filter
//! ```
//!
//! Everything is prepared before the fork: the child of a multi-threaded process may only make async-signal-safe calls
//! and must not allocate.

mod landlock;
mod rights;
mod seccomp;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::cgroup::Cgroups;
use crate::account::Account;
use seccomp::Filters;

pub(super) use self::landlock::Domain;
pub(crate) use rights::Rights;
pub use seccomp::FilterError;

/// Limit of an NF's open files: enough for netlib and the NF.
const OPEN_FILES: libc::rlim_t = 1024;
/// Upper bound of capability numbers.
const CAPABILITIES: libc::c_ulong = 64;

/// A step of entering the sandbox, for messages.
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
    Cgroup,
    Namespace,
}

impl Step {
    pub(super) const fn from_byte(byte: u8) -> Option<&'static str> {
        const NAMES: [&str; 11] = [
            "closing descriptors",
            "choosing its cores",
            "setting its limits",
            "changing to its user",
            "dropping capabilities",
            "tying it to netvmd",
            "giving up privileges",
            "entering its Landlock domain",
            "filtering system calls",
            "entering its cgroup",
            "entering its network namespace",
        ];
        if byte == 0 || byte as usize > NAMES.len() { None } else { Some(NAMES[byte as usize - 1]) }
    }
}

/// The parts that all NFs' sandboxes share.
#[derive(Debug)]
pub struct Confinement {
    filters: Filters,
    domain: Option<Arc<Domain>>,
    cgroups: Cgroups,
    /// Why cgroups do not set some limits.
    without_cgroups: Vec<String>,
}

impl Confinement {
    /// Compiles the filters, creates the Landlock ruleset, if the kernel has Landlock, and finds the cgroups.
    ///
    /// # Errors
    /// [`FilterError`] on an architecture that the filter compiler does not support.
    pub fn prepare() -> Result<Self, FilterError> {
        let (cgroups, without_cgroups) = Cgroups::find();
        let domain = Domain::new().map(Arc::new);
        Ok(Self { filters: Filters::compile()?, domain, cgroups, without_cgroups })
    }

    pub(crate) const fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// The domain of a QEMU.
    pub(crate) fn domain(&self) -> Option<Arc<Domain>> {
        self.domain.clone()
    }

    /// Logs what isolates NFs less than it could.
    pub(crate) fn warn(&self) {
        if !rustix::process::geteuid().is_root() {
            tracing::warn!("netvmd is not root: it ignores `user` and runs NFs as its own user");
        }
        if !self.without_cgroups.is_empty() {
            let why = self.without_cgroups.join("; ");
            tracing::info!("cannot limit NFs by cgroups, so weaker resource limits (setrlimit) apply: {why}");
        }
        if self.domain.is_none() {
            tracing::info!(
                "this kernel has no Landlock: run NFs of different trust groups as different users"
            );
        }
    }
}

/// A prepared sandbox.
pub(crate) struct Sandbox {
    /// The descriptors that the process inherits besides stdio.
    pub(crate) keep: Vec<RawFd>,
    /// Pipe for the byte of the step that failed.
    pub(crate) failed_step: OwnedFd,
    pub(crate) cores: libc::cpu_set_t,
    /// The user; `None`: netvmd's user, because netvmd is not root.
    pub(crate) account: Option<Account>,
    /// Supplementary groups.
    pub(crate) groups: Vec<libc::gid_t>,
    /// netvmd's process, whose death kills this process; `None` if this process survives it.
    pub(crate) parent: Option<libc::pid_t>,
    pub(crate) confinement: Arc<Confinement>,
    /// Whether to install the NF filter; if not, the program installs its own.
    pub(crate) is_nf: bool,
    pub(crate) domain: Option<Arc<Domain>>,
    /// `cgroup.procs` of the cgroups to enter.
    pub(crate) cgroups: Vec<RawFd>,
    pub(crate) fallback: Fallback,
    /// The network namespace that it enters, and its rights there; `None`: it stays in netvmd's, without rights.
    pub(crate) rights: Option<Rights>,
}

/// Resource limits (setrlimit(2)) for an NF that cgroups or Landlock do not limit; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fallback {
    /// Bytes of private memory.
    pub(crate) data: Option<u64>,
    /// Tasks of its user, over all of its processes.
    pub(crate) tasks: Option<u64>,
    /// Size of a file that it writes, in bytes.
    pub(crate) file: Option<u64>,
}

impl Sandbox {
    /// Enters the sandbox, irrevocably.
    ///
    /// Async-signal-safe: only system calls and its own memory.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.step(Step::Cgroup, || enter_cgroups(&self.cgroups))?;
        self.step(Step::Descriptors, || keep_only(&self.keep))?;
        self.step(Step::Cores, || self.choose_cores())?;
        self.step(Step::Limits, || limit(self.fallback))?;
        if let Some(rights) = self.rights {
            self.step(Step::Namespace, || rights.enter())?;
        }
        if let Some(account) = self.account {
            self.step(Step::Capabilities, || self.empty_bounding_set())?;
            self.step(Step::User, || become_user(account, &self.groups))?;
        }
        self.step(Step::Capabilities, || keep_capabilities(self.rights.map_or([0; 2], Rights::set)))?;
        if let Some(parent) = self.parent {
            self.step(Step::Parent, || die_with(parent))?;
        }
        // SAFETY: the call takes integers only.
        self.step(Step::Privileges, || check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
        if let Some(domain) = &self.domain {
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
            // SAFETY: the byte lives until the call returns. If it fails, the message only lacks the step.
            unsafe { libc::write(self.failed_step.as_raw_fd(), (&raw const byte).cast(), 1) };
        })
    }

    fn choose_cores(&self) -> io::Result<()> {
        // SAFETY: the call reads a set of that size.
        check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.cores) })
    }
}

impl Sandbox {
    /// Removes all capabilities from the bounding set but those that the process keeps.
    fn empty_bounding_set(&self) -> io::Result<()> {
        for capability in 0..CAPABILITIES {
            if self.rights.is_some_and(|rights| rights.keeps(capability)) {
                continue;
            }
            // SAFETY: the call takes integers only.
            let dropped = check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) });
            match dropped {
                // The kernel knows no further capabilities.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                // netvmd lacks CAP_SETPCAP, as in a container, so it has no capabilities to give.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => break,
                other => other?,
            }
        }
        Ok(())
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn keep_only(fds: &[RawFd]) -> io::Result<()> {
    // Covers descriptors that libraries opened without close-on-exec.
    // SAFETY: the call takes integers only and sets a flag of descriptors.
    let closed =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if closed < 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in fds {
        // SAFETY: the call takes integers only; the descriptor, open in the parent, is open here.
        check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    // Files that it creates are private.
    // SAFETY: the call takes an integer and cannot fail.
    unsafe { libc::umask(0o077) };
    Ok(())
}

fn enter_cgroups(entries: &[RawFd]) -> io::Result<()> {
    for entry in entries {
        // SAFETY: the call reads one byte. 0 is the process that writes.
        raw(unsafe { libc::write(*entry, b"0".as_ptr().cast(), 1) } as libc::c_long)?;
    }
    Ok(())
}

fn limit(fallback: Fallback) -> io::Result<()> {
    let set = |resource, most: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the call reads a local limit.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })
    };
    set(libc::RLIMIT_CORE, 0)?;
    let wanted = [
        (libc::RLIMIT_DATA, fallback.data),
        (libc::RLIMIT_NPROC, fallback.tasks),
        (libc::RLIMIT_FSIZE, fallback.file),
    ];
    for (resource, most) in wanted {
        if let Some(most) = most {
            set(resource, most)?;
        }
    }
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes a local limit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) })?;
    set(libc::RLIMIT_NOFILE, OPEN_FILES.min(files.rlim_max))
}

fn become_user(account: Account, groups: &[libc::gid_t]) -> io::Result<()> {
    // Raw system calls, as the C library's functions would synchronise with threads that do not exist here.
    // SAFETY: the call reads `groups.len()` group ids.
    raw(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: the call takes integers only.
    raw(unsafe { libc::syscall(libc::SYS_setresgid, account.gid, account.gid, account.gid) })?;
    // SAFETY: as above.
    raw(unsafe { libc::syscall(libc::SYS_setresuid, account.uid, account.uid, account.uid) })
}

fn raw(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn keep_capabilities(kept: [u32; 2]) -> io::Result<()> {
    // SAFETY: the call takes integers only. It fails only on old kernels without ambient capabilities.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    // _LINUX_CAPABILITY_VERSION_3, this thread; two words of three sets each: effective, permitted, inheritable.
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets = [kept[0], kept[0], 0, kept[1], kept[1], 0];
    // SAFETY: the kernel reads 8 and 24 bytes, the sizes of these arrays.
    raw(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })
}

fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: the call takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // If netvmd died before the prctl, the parent has changed already.
    // SAFETY: the call takes no arguments and cannot fail.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}
