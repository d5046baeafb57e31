// SPDX-License-Identifier: Apache-2.0
//! DPDK's environment abstraction layer (EAL): started once per process, and threads that are registered with it.
//!
//! The EAL makes the thread that starts it the main lcore, and pins it. So that the caller's affinity does not change,
//! this module starts the EAL on a new thread, which then sleeps. Packet threads are ordinary threads that call
//! [`Eal::register_thread`].
//!
//! Without free huge pages (or with [`HugePages::Off`]) the EAL's memory, which holds mbuf headers and driver state but
//! no packets, is ordinary memory, and nothing needs privileges. In both cases no files remain.
//!
//! Starting takes about 140 ms on processors that do not report their TSC frequency: DPDK measures it for 100 ms and
//! loads all driver plug-ins of a Debian system in 30 ms. The plug-in directory is fixed when DPDK is built, and DPDK
//! always loads all of it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::{fs, io, ptr, thread};

use netvm_cpu::Level;

use crate::inherit::Opened;
use crate::log::{Control, LogLevel, c_string, quoted, reason, set_level};

/// Pages of the EAL's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages when enough of them are free for [`EalOptions::memory_mib`], else ordinary ones.
    #[default]
    Auto,
    /// Ordinary pages.
    Off,
}

/// How the EAL is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalOptions {
    /// Pages of its memory.
    pub huge_pages: HugePages,
    /// Memory limit for mbuf headers and drivers, in MiB; see [`crate::Pool::eal_bytes`]. Ordinary memory is reserved,
    /// but allocated only when used.
    pub memory_mib: u32,
    /// Distinguishes this program from other DPDK programs; the process id is appended.
    pub file_prefix: String,
    /// Enables PCI, so that ports can be opened on PCI devices; no device is touched before.
    pub pci: bool,
    /// How much of DPDK's log goes to standard error.
    pub log_level: LogLevel,
    /// Further arguments, as DPDK documents them (`--force-max-simd-bitwidth=512`). DPDK 25.11 ends the process for an
    /// unknown or repeated one.
    pub arguments: Vec<String>,
}

impl Default for EalOptions {
    fn default() -> Self {
        Self {
            huge_pages: HugePages::Auto,
            memory_mib: 256,
            file_prefix: "netvm".to_owned(),
            pci: false,
            log_level: LogLevel::Error,
            arguments: Vec::new(),
        }
    }
}

/// The EAL could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EalError {
    /// The process has already started the EAL, with other options.
    #[error(
        "this process has already started DPDK with other options: start it once, with options that suit all users"
    )]
    OtherOptions,
    /// An argument contains a NUL byte.
    #[error("a DPDK argument contains a NUL byte: {0:?}")]
    Nul(String),
    /// The thread cannot be started.
    #[error("cannot start DPDK's main thread: {}", reason(*.0))]
    Thread(i32),
    /// DPDK cannot start. This process cannot try again.
    #[error("DPDK cannot start: {}{}; {}", reason(*.errno), quoted(.log), remedy(*.errno))]
    Refused {
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
}

fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => "run as root, or turn huge pages off for DPDK",
        libc::ENOMEM => "give DPDK less memory, or turn huge pages off for DPDK",
        libc::ENOTSUP => "this processor lacks instructions that DPDK was built for",
        _ => "check the arguments given to DPDK",
    }
}

/// A thread could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadError {
    /// The thread is already registered, and its guard is alive.
    #[error("this thread is registered with DPDK already")]
    Registered,
    /// DPDK has no free lcore id; most builds have 128.
    #[error("DPDK cannot register another thread: {}", reason(*.0))]
    Refused(i32),
}

type Outcome = Result<(), EalError>;

static STARTED: Mutex<Option<(EalOptions, Outcome)>> = Mutex::new(None);

/// Proof that the EAL runs; it does so until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _started: (),
}

impl Eal {
    /// Starts the EAL, or returns it if it was started with the same options before.
    ///
    /// ```
    /// use dpdk::{Eal, EalOptions, HugePages};
    ///
    /// let options = EalOptions { huge_pages: HugePages::Off, ..EalOptions::default() };
    /// let eal = Eal::init(&options)?;
    /// println!("{}, {} cycles per second", dpdk::version(), dpdk::tsc_hz(eal));
    /// # Ok::<(), dpdk::EalError>(())
    /// ```
    ///
    /// # Errors
    /// [`EalError`]; after [`EalError::Refused`] every later call gives the same error, as DPDK cannot start twice.
    pub fn init(options: &EalOptions) -> Result<Self, EalError> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, outcome)) = started.as_ref() {
            outcome.clone()?;
            return if before == options { Ok(Self { _started: () }) } else { Err(EalError::OtherOptions) };
        }
        let arguments = arguments(options, free_huge_bytes())
            .into_iter()
            .map(|argument| c_string(&argument).map_err(|_| EalError::Nul(argument)))
            .collect::<Result<Vec<_>, _>>()?;
        set_level(options.log_level);
        let outcome = start(arguments)?;
        *started = Some((options.clone(), outcome.clone()));
        outcome.map(|()| Self { _started: () })
    }

    /// The EAL if it has been started.
    #[must_use]
    pub fn get() -> Option<Self> {
        let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(started.as_ref(), Some((_, Ok(())))).then_some(Self { _started: () })
    }

    /// Whether the EAL's memory is in huge pages.
    #[must_use]
    pub fn huge_pages(self) -> bool {
        // SAFETY: reads the EAL's configuration, which does not change after the start that `self` proves.
        unsafe { dpdk_sys::rte_eal_has_hugepages() != 0 }
    }

    /// Whether ports can be opened on PCI devices.
    #[must_use]
    pub fn pci(self) -> bool {
        let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.as_ref().is_some_and(|(options, _)| options.pci)
    }

    /// Gives this thread its own cache in each pool. Without a cache, every burst uses the pool's shared store.
    ///
    /// # Errors
    /// [`ThreadError`] if it is registered already or DPDK has no more ids.
    pub fn register_thread(self) -> Result<ThreadGuard, ThreadError> {
        // SAFETY: the EAL is initialised; the function is thread-safe.
        match unsafe { dpdk_sys::netvm_thread_register() } {
            0 => Ok(ThreadGuard { _this_thread: PhantomData }),
            error if error == -libc::EALREADY => Err(ThreadError::Registered),
            error => Err(ThreadError::Refused(-error)),
        }
    }
}

/// A thread's registration. Dropping it ends the registration and returns the contents of its caches to the pools.
#[derive(Debug)]
pub struct ThreadGuard {
    /// Raw pointers are not Send: the guard must be dropped by the thread that it is for.
    _this_thread: PhantomData<*mut ()>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        crate::pool::flush_this_thread();
        // SAFETY: this thread registered itself, as the guard is made nowhere else and cannot leave the thread.
        unsafe { dpdk_sys::rte_thread_unregister() };
    }
}

/// The DPDK release that is linked, as it names itself: `DPDK 22.11.11`.
#[must_use]
pub fn version() -> &'static str {
    // SAFETY: returns a pointer to a static, NUL-terminated string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_str().unwrap_or("DPDK")
}

/// The processor's time stamp counter; takes some ten to thirty cycles and does not wait for earlier instructions.
#[inline(always)]
#[must_use]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux leaves it enabled for user space.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: reads a counter; no arguments.
        unsafe { dpdk_sys::netvm_cycles() }
    }
}

/// The frequency of [`cycles`], as DPDK measured it when the EAL started.
#[must_use]
pub fn tsc_hz(_eal: Eal) -> u64 {
    // SAFETY: the EAL is initialised, as the argument proves, and with it the value that this reads.
    unsafe { dpdk_sys::rte_get_tsc_hz() }
}

/// Runs rte_eal_init on a thread that never ends. After the outer error another attempt may succeed.
fn start(arguments: Vec<CString>) -> Result<Outcome, EalError> {
    let (done, outcome) = mpsc::sync_channel(1);
    let main = move || {
        let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
        let count = pointers.len() as c_int;
        pointers.push(ptr::null_mut());
        // The strings and the vector are never freed: DPDK may keep pointers to them.
        let pointers = Vec::leak(pointers);
        let result = {
            let control = Control::enter();
            let _opened = Opened::from_here();
            // SAFETY: `pointers` holds `count` NUL-terminated strings and a null pointer, all valid for ever; STARTED
            // keeps this from being called twice.
            match unsafe { dpdk_sys::netvm_eal_init(count, pointers.as_mut_ptr()) } {
                0 => Ok(()),
                error => Err(EalError::Refused { errno: -error, log: control.log() }),
            }
        };
        remove_runtime_directory();
        let started = result.is_ok();
        // The receiver waits for this.
        let _ = done.send(result);
        if started {
            loop {
                thread::park();
            }
        }
    };
    let spawned = thread::Builder::new().name("dpdk-main".to_owned()).spawn(main);
    spawned.map_err(|error| EalError::Thread(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    // A thread that panicked sends nothing.
    Ok(outcome.recv().unwrap_or(Err(EalError::Thread(libc::EAGAIN))))
}

/// DPDK creates a directory for this process, and its parent, even if it keeps nothing there.
fn remove_runtime_directory() {
    // SAFETY: returns a pointer to a static buffer, written by rte_eal_init only, which has returned.
    let path = unsafe { dpdk_sys::rte_eal_get_runtime_dir() };
    if path.is_null() {
        return;
    }
    // SAFETY: DPDK keeps the buffer NUL-terminated.
    let path = unsafe { CStr::from_ptr(path) };
    if let Some(path) = path.to_str().ok().filter(|path| !path.is_empty()).map(Path::new) {
        // Both calls fail if the directory is not empty, as intended.
        let _ = fs::remove_dir(path);
        let _ = path.parent().map(fs::remove_dir);
    }
}

fn arguments(options: &EalOptions, free_huge_bytes: u64) -> Vec<String> {
    let memory = options.memory_mib;
    let mut list: Vec<String> = vec![
        "netvm".into(),
        format!("--lcores=0@{}", first_allowed_cpu()),
        format!("--file-prefix={}-{}", options.file_prefix, std::process::id()),
        // At least warnings: some drivers log the reason of an error at this level.
        format!("--log-level=*:{}", options.log_level.max(LogLevel::Warning).name()),
        "--no-telemetry".into(),
    ];
    if options.huge_pages == HugePages::Auto
        && free_huge_bytes > 0
        && free_huge_bytes >= u64::from(memory) << 20
    {
        list.push("--in-memory".into());
    } else {
        list.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), memory.to_string()]);
    }
    if options.pci {
        // An allow-list with a single device that does not exist: DPDK probes a device only when a port opens it.
        list.push("--allow=pci:0000:00:00.0".into());
    } else {
        list.extend(["--no-pci".into(), "--iova-mode=va".into()]);
    }
    let limit = "--force-max-simd-bitwidth";
    if Level::current() < Level::of_processor()
        && !options.arguments.iter().any(|argument| argument.starts_with(limit))
    {
        list.push(format!("{limit}={}", Level::current().vector_bits()));
    }
    list.extend(options.arguments.iter().cloned());
    list
}

/// The core of DPDK's main thread, which sleeps there.
fn first_allowed_cpu() -> usize {
    // SAFETY: a cpu_set_t is a bit mask, for which all zeroes is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` has the size given.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return 0;
    }
    // SAFETY: the index is below CPU_SETSIZE, the number of bits in the set.
    (0..libc::CPU_SETSIZE as usize).find(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).unwrap_or(0)
}

/// Bytes in free huge pages of all sizes.
fn free_huge_bytes() -> u64 {
    let sizes = || -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir("/sys/kernel/mm/hugepages")? {
            bytes += free_bytes(&entry?.path()).unwrap_or(0);
        }
        Ok(bytes)
    };
    sizes().unwrap_or(0)
}

/// Free bytes by a directory of /sys/kernel/mm/hugepages such as `hugepages-2048kB`.
fn free_bytes(directory: &Path) -> Option<u64> {
    let name = directory.file_name()?.to_str()?;
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let pages: u64 = fs::read_to_string(directory.join("free_hugepages")).ok()?.trim().parse().ok()?;
    Some(pages * kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(list: &[String], argument: &str) -> bool {
        list.iter().any(|a| a == argument)
    }

    #[test]
    fn huge_pages_are_used_when_there_are_enough() {
        let options = EalOptions { memory_mib: 64, ..EalOptions::default() };
        let enough = arguments(&options, 64 << 20);
        assert!(has(&enough, "--in-memory") && !has(&enough, "--no-huge"));
        let short = arguments(&options, (64 << 20) - 1);
        assert!(has(&short, "--no-huge") && has(&short, "--no-shconf") && !has(&short, "--in-memory"));
        let off = arguments(&EalOptions { huge_pages: HugePages::Off, ..options }, 64 << 20);
        assert!(has(&off, "--no-huge") && !has(&off, "--in-memory"));
    }

    #[test]
    fn pci_is_off_unless_asked_for() {
        let off = arguments(&EalOptions::default(), 0);
        assert!(has(&off, "--no-pci") && has(&off, "--iova-mode=va"));
        let on = arguments(&EalOptions { pci: true, ..EalOptions::default() }, 0);
        assert!(!has(&on, "--no-pci") && has(&on, "--allow=pci:0000:00:00.0"));
    }

    #[test]
    fn free_huge_pages_are_read_from_sysfs() {
        let directory = std::env::temp_dir().join(format!("netvm-eal-{}", std::process::id()));
        let size = directory.join("hugepages-2048kB");
        fs::create_dir_all(&size).unwrap();
        fs::write(size.join("free_hugepages"), "3\n").unwrap();
        assert_eq!(free_bytes(&size), Some(6 << 20));
        assert_eq!(free_bytes(&directory), None);
        fs::remove_dir_all(&directory).unwrap();
    }
}
