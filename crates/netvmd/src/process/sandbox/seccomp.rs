// SPDX-License-Identifier: Apache-2.0
//! The system call filter of NFs. It allows memory management, waiting, the NF's own descriptors and threads, and files
//! that its user may access. Everything else fails with EPERM, such as sockets, access to other processes and rarely
//! used kernel interfaces.

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// System calls allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads and futexes; `clone` is below.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Signals within the process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Descriptors, and the attach socket.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_getsockopt,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_write,
    libc::SYS_writev,
    // Files.
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readlinkat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // Identity.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // The NF's own exec, and a second one if the program is a launcher. The sandbox persists.
    libc::SYS_execve,
];

/// Old variants of allowed system calls, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
/// Newer architectures lack the old variants.
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Allowed `prctl` operations: names and dumpability of the process. PR_SET_PDEATHSIG is not allowed: it must stay set.
const PRCTLS: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_DUMPABLE as u64,
    libc::PR_GET_DUMPABLE as u64,
    libc::PR_GET_NO_NEW_PRIVS as u64,
    libc::PR_GET_SECCOMP as u64,
    // PR_SET_VMA: glibc names its memory.
    0x5356_4d41,
];

/// `fcntl` commands that libc does not name (`asm-generic/fcntl.h`).
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

/// Allowed `ioctl` requests: terminal test, readable bytes, blocking mode, close-on-exec.
const IOCTLS: &[u64] = &[libc::TCGETS, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX];

/// The filters cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[error("cannot compile the system call filter of NFs: {0}")]
pub struct FilterError(#[from] BackendError);

/// The filters in the order of their installation.
#[derive(Debug)]
pub struct Filters {
    /// Filters that are the same for every process.
    common: [BpfProgram; 2],
    /// The filter that contains the process id, with [`OWN_PID`] in its place.
    own: BpfProgram,
}

/// Placeholder for the id of the process that installs the filter. The filter has no other number with this value.
const OWN_PID: u32 = 0x7ead_beef;
/// Most instructions of the filter with the placeholder.
const OWN_LENGTH: usize = 64;

impl Filters {
    /// Compiles the filters for this machine.
    ///
    /// # Errors
    /// [`FilterError`] on an architecture that the compiler does not support.
    pub fn compile() -> Result<Self, FilterError> {
        let arch: TargetArch = std::env::consts::ARCH.try_into()?;
        Ok(Self { common: [refuse_clone3(arch)?, allow_list(arch)?], own: own_process(arch)? })
    }

    /// Installs the filters in the calling thread, irrevocably. Async-signal-safe.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn install(&self) -> std::io::Result<()> {
        // On the stack: no allocation is allowed between fork and exec.
        let mut own: [sock_filter; OWN_LENGTH] =
            std::array::from_fn(|_| sock_filter { code: 0, jt: 0, jf: 0, k: 0 });
        let length = self.own.len().min(own.len());
        for (to, from) in own.iter_mut().zip(&self.own) {
            *to = from.clone();
            if to.k == OWN_PID {
                to.k = std::process::id();
            }
        }
        for filter in [&own[..length], &self.common[0], &self.common[1]] {
            match seccompiler::apply_filter(filter) {
                Ok(()) => {}
                Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error)) => {
                    return Err(error);
                }
                Err(_) => return Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
            }
        }
        Ok(())
    }
}

/// Refuses `clone3`, whose flags are in memory that a filter cannot read. ENOSYS makes C libraries fall back to
/// `clone`.
fn refuse_clone3(arch: TargetArch) -> Result<BpfProgram, FilterError> {
    let rules = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
    let enosys = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, enosys, arch)?.try_into()?)
}

/// Lets the process signal only itself: `tgkill` must name it, and F_SETOWN is refused. (Landlock does the same from
/// ABI 6 on.) Also refuses to remove pages of shared memory (MADV_REMOVE, and `fallocate` that punches holes).
fn own_process(arch: TargetArch) -> Result<BpfProgram, FilterError> {
    let other = |argument, op, value: u64| -> Result<SeccompRule, BackendError> {
        SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?])
    };
    let is = |command: i32| other(1, SeccompCmpOp::Eq, command as u64);
    let removes = other(2, SeccompCmpOp::Eq, libc::MADV_REMOVE as u64)?;
    let punches = other(1, SeccompCmpOp::Ne, 0)?;
    let rules = [
        (libc::SYS_tgkill, vec![other(0, SeccompCmpOp::Ne, OWN_PID.into())?]),
        (libc::SYS_madvise, vec![removes]),
        (libc::SYS_fallocate, vec![punches]),
        (libc::SYS_fcntl, vec![is(libc::F_SETOWN)?, is(F_SETSIG)?, is(F_SETOWN_EX)?]),
    ];
    let eperm = SeccompAction::Errno(libc::EPERM as u32);
    let filter: BpfProgram =
        SeccompFilter::new(rules.into_iter().collect(), SeccompAction::Allow, eperm, arch)?.try_into()?;
    Ok(filter)
}

fn allow_list(arch: TargetArch) -> Result<BpfProgram, FilterError> {
    let always = ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new()));
    let one_of = |argument: u8, values: &[u64]| -> Result<Vec<SeccompRule>, BackendError> {
        let rule = |value: &u64| {
            let equal = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)?;
            SeccompRule::new(vec![equal])
        };
        values.iter().map(rule).collect()
    };
    let threads = {
        let flag = libc::CLONE_THREAD as u64;
        let set = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        vec![SeccompRule::new(vec![set])?]
    };
    let some = [
        (libc::SYS_clone, threads),
        // The filter of `clone3` decides.
        (libc::SYS_clone3, Vec::new()),
        (libc::SYS_prctl, one_of(0, PRCTLS)?),
        (libc::SYS_ioctl, one_of(1, IOCTLS)?),
        // A process may change only its own limits.
        (libc::SYS_prlimit64, one_of(0, &[0])?),
    ];
    let rules = always.chain(some).collect();
    let eperm = SeccompAction::Errno(libc::EPERM as u32);
    Ok(SeccompFilter::new(rules, eperm, SeccompAction::Allow, arch)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Runs `body` under the filters on a new thread.
    fn filtered<T: Send + 'static>(body: fn() -> T) -> T {
        let filters = Filters::compile().unwrap();
        let sandboxed = move || {
            filters.install().unwrap();
            body()
        };
        std::thread::spawn(sandboxed).join().unwrap()
    }

    fn outcome(result: libc::c_long) -> Result<(), i32> {
        if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap()) }
    }

    #[test]
    fn system_calls_of_nfs_are_allowed() {
        filtered(|| {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            assert!(text.contains("Seccomp:"));
            let thread = std::thread::Builder::new().name("another".to_owned());
            assert_eq!(thread.spawn(|| 7).unwrap().join().unwrap(), 7);
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(!std::io::IsTerminal::is_terminal(&std::fs::File::open("/dev/null").unwrap()));
        });
    }

    #[test]
    fn signals_reach_only_the_process_itself_and_no_pages_are_removed() {
        filtered(|| {
            let me = std::process::id();
            // SAFETY: signal 0 is none.
            let to = |pid: u32, tid: i32| outcome(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) });
            assert_eq!(to(me, rustix::thread::gettid().as_raw_nonzero().get()), Ok(()));
            assert_eq!(to(1, 1), Err(libc::EPERM));
            // SAFETY: the call takes integers only.
            let fcntl = |command: i32| outcome(unsafe { libc::fcntl(0, command, 1) }.into());
            for command in [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX] {
                assert_eq!(fcntl(command), Err(libc::EPERM), "{command}");
            }
            assert_eq!(fcntl(libc::F_GETFD).map(|()| 0), Ok(0));
        });
        filtered(|| {
            // SAFETY: no mapping, and a descriptor that is none: refused before the kernel looks at them.
            let remove = outcome(unsafe { libc::syscall(libc::SYS_madvise, 0, 4096, libc::MADV_REMOVE) });
            // SAFETY: as above.
            let punch = |mode: i32| outcome(unsafe { libc::syscall(libc::SYS_fallocate, -1, mode, 0, 4096) });
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(
                (remove, punch(hole), punch(0)),
                (Err(libc::EPERM), Err(libc::EPERM), Err(libc::EBADF))
            );
        });
        // The number must be patched, and the filter must fit.
        let own = Filters::compile().unwrap().own;
        assert_eq!(own.iter().filter(|instruction| instruction.k == OWN_PID).count(), 1);
        assert!(own.len() <= OWN_LENGTH, "{}", own.len());
    }

    #[test]
    fn sockets_and_other_processes_are_refused() {
        type Call = fn() -> libc::c_long;
        let calls: [(&str, Call); 12] = [
            // SAFETY: the call takes integers only, and the filter refuses it.
            ("socket", || unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0) }),
            // SAFETY: as above.
            ("unix socket", || unsafe {
                libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)
            }),
            // SAFETY: as above.
            ("ptrace", || unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) }),
            // SAFETY: as above.
            ("bpf", || unsafe { libc::syscall(libc::SYS_bpf, 0, 0, 0) }),
            // SAFETY: as above.
            ("keyctl", || unsafe { libc::syscall(libc::SYS_keyctl, 0, 0, 0, 0, 0) }),
            // SAFETY: as above.
            ("userfaultfd", || unsafe { libc::syscall(libc::SYS_userfaultfd, 0) }),
            // SAFETY: as above.
            ("io_uring_setup", || unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) }),
            // SAFETY: as above.
            ("process_vm_readv", || unsafe { libc::syscall(libc::SYS_process_vm_readv, 1, 0, 0, 0, 0, 0) }),
            // SAFETY: as above.
            ("kill", || unsafe { libc::syscall(libc::SYS_kill, 1, 0) }),
            // SAFETY: as above; pid 1 is another process.
            ("prlimit", || unsafe { libc::syscall(libc::SYS_prlimit64, 1, 0, 0, 0) }),
            // SAFETY: as above.
            ("pdeathsig", || unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) }),
            // SAFETY: as above; without CLONE_THREAD, clone is a fork.
            ("fork", || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }),
        ];
        for (name, call) in calls {
            let thread = move || {
                Filters::compile().unwrap().install().unwrap();
                outcome(call())
            };
            assert_eq!(std::thread::spawn(thread).join().unwrap(), Err(libc::EPERM), "{name}");
        }
        // SAFETY: as above.
        let clone3 = filtered(|| outcome(unsafe { libc::syscall(libc::SYS_clone3, 0, 0) }));
        assert_eq!(clone3, Err(libc::ENOSYS));
    }
}
