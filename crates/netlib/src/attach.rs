//! Becoming an NF of a running engine.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netvm_attach::{AttachError, Fds, Hello, Ready};
use netvm_region::{
    Control, ControlError, LAYOUT_VERSION, MAX_THREADS, MapError, Region, RingRef, TableError, TableReader,
};
use netvm_ring::RingMemory;

use crate::eventfds::Eventfds;
use crate::ivshmem::{self, IvshmemError};
use crate::{Endpoint, Stop, Waiting};

/// Why an NF could not attach, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine could not be reached, or does not let the NF in.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The memory that the engine passed cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The next-hop table that the engine passed cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The memory that the engine passed cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The memory that a VM is to attach by is not there, or not as it should be.
    #[error(transparent)]
    Ivshmem(#[from] IvshmemError),
    /// A thread could not be started.
    #[error("thread {thread}: {source}")]
    Thread {
        /// Which one.
        thread: u16,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// One of the NF's threads ended by a panic; its message is on standard error.
    #[error("thread {thread} panicked")]
    Panicked {
        /// Which one.
        thread: u16,
    },
}

/// How an NF attaches and waits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program's name, for people.
    pub name: String,
    /// The role under which it answers.
    pub role: String,
    /// Threads that each take packets, at least 1. A program that serves fewer endpoints than it has threads loses the
    /// packets of the others: one with a single loop of its own sets 1.
    pub threads: u16,
    /// How they wait.
    pub waiting: Waiting,
    /// netvmd's socket; `None` for what the environment says.
    pub socket: Option<PathBuf>,
    /// Names of the counters that the NF keeps.
    pub counters: Vec<String>,
    /// Ends the NF from within the process.
    pub stop: Stop,
}

impl Options {
    /// Adaptive waiting, the threads and the role that the environment names (what netvmd sets for an NF that it starts), else
    /// one thread and the program's name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let role = std::env::var(crate::ROLE_VARIABLE).unwrap_or_else(|_| name.to_owned());
        Self {
            name: name.to_owned(),
            role,
            threads: configured_threads(std::env::var(crate::THREADS_VARIABLE).ok().as_deref()),
            waiting: Waiting::default(),
            socket: None,
            counters: Vec::new(),
            stop: Stop::default(),
        }
    }

    /// The same with these counters.
    #[must_use]
    pub fn with_counters(mut self, names: &[&str]) -> Self {
        self.counters = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }
}

/// The number of threads in the environment's words; 1 when it says none that an NF can have.
fn configured_threads(text: Option<&str>) -> u16 {
    let number = text.and_then(|text| text.parse().ok());
    number.filter(|threads| (1..=MAX_THREADS).contains(&usize::from(*threads))).unwrap_or(1)
}

/// What all threads of the NF share: the mappings and the descriptors that wake others.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Control,
    pub(crate) regions: Vec<Region>,
    pub(crate) eventfds: Eventfds,
    /// The connection; its end is the engine's end. `None` in the simulator, and in a VM, which ends with the engine.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) stop: Stop,
}

impl Shared {
    /// The region in which a worker's packets are; `None` for a worker that there is not.
    #[inline(always)]
    pub(crate) fn region_of(&self, worker: u8) -> Option<&Region> {
        let header = self.control.header();
        if u16::from(worker) >= header.workers {
            return None;
        }
        self.regions.get(usize::from(header.worker_regions[usize::from(worker)]))
    }

    pub(crate) fn direct_ring(&self, ring: RingRef) -> Option<RingMemory> {
        self.regions.get(usize::from(ring.region))?.ring(ring.index)
    }
}

/// An NF that has attached: an endpoint for each of its threads.
#[derive(Debug)]
pub struct Attachment {
    endpoints: Vec<Endpoint>,
}

impl Attachment {
    /// Takes the endpoints, one for each thread, to be moved to the threads.
    #[must_use]
    pub fn into_endpoints(self) -> Vec<Endpoint> {
        self.endpoints
    }

    /// Maps what the engine passed.
    pub(crate) fn from_fds(
        fds: Fds<OwnedFd>,
        socket: Option<OwnedFd>,
        waiting: Waiting,
        stop: Stop,
    ) -> Result<Self, Error> {
        let control = Control::open(fds.control)?;
        if fds.workers.len() != usize::from(control.header().workers) {
            return Err(ControlError::Unsound("numbers of descriptors").into());
        }
        let eventfds = Eventfds::Events { workers: fds.workers, nf_threads: fds.nf_threads };
        Self::over(control, &fds.table, fds.regions, eventfds, socket, waiting, stop)
    }

    /// Maps regions and tables, however they came.
    pub(crate) fn over(
        control: Control,
        table: &OwnedFd,
        regions: Vec<OwnedFd>,
        eventfds: Eventfds,
        socket: Option<OwnedFd>,
        waiting: Waiting,
        stop: Stop,
    ) -> Result<Self, Error> {
        let header = *control.header();
        if regions.len() != usize::from(header.regions) {
            return Err(ControlError::Unsound("number of regions").into());
        }
        let regions = regions.into_iter().zip(&header.geometries);
        let regions = regions.map(|(fd, geometry)| Region::open("region", fd, *geometry));
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared { control, regions, eventfds, socket, stop });
        let mut endpoints = Vec::new();
        for thread in 0..header.threads {
            let table = table.try_clone().map_err(AttachError::from)?;
            endpoints.push(Endpoint::new(Arc::clone(&shared), thread, TableReader::open(table)?, waiting));
        }
        Ok(Self { endpoints })
    }
}

/// Attaches to the engine: by the socket that netvmd left open for an NF that it started, by `options.socket`, by the
/// path in the environment, or by the default path. In a VM, where there is no socket, by the `ivshmem` devices that
/// netvmd gave it; `NETVM_ATTACH=ivshmem` forces this. The VM's configuration then determines role and number of threads, not the
/// options.
///
/// # Errors
/// [`Error`] says what was refused and by which side; [`AttachError::may_retry`] whether trying later may help.
pub fn attach(options: &Options) -> Result<Attachment, Error> {
    if is_in_vm(options) {
        return ivshmem::attach(options);
    }
    let socket = socket(options)?;
    // Other processes of the same user, NFs of other trust groups among them, are not to read this one's memory or reach
    // its descriptors through /proc. A kernel that refuses leaves that to its other means.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let hello = Hello {
        layout: LAYOUT_VERSION,
        role: options.role.clone(),
        name: options.name.clone(),
        threads: options.threads.max(1),
        counters: options.counters.clone(),
    };
    let fds = netvm_attach::handshake(&socket, &hello)?;
    let ready = socket.as_fd().try_clone_to_owned().map_err(AttachError::from)?;
    let attachment = Attachment::from_fds(fds, Some(socket), options.waiting, options.stop.clone())?;
    netvm_attach::send(&ready, &Ready { pid: std::process::id() }, &[])?;
    Ok(attachment)
}

/// Whether the memory of PCI devices is the way in.
fn is_in_vm(options: &Options) -> bool {
    if options.socket.is_some() || std::env::var_os(netvm_attach::FD_VARIABLE).is_some() {
        return false;
    }
    match std::env::var_os(netvm_attach::PATH_VARIABLE) {
        Some(path) => path == ivshmem::WORD,
        None => !Path::new(netvm_attach::DEFAULT_PATH).exists() && ivshmem::is_present(),
    }
}

fn socket(options: &Options) -> Result<OwnedFd, AttachError> {
    if options.socket.is_none()
        && let Ok(text) = std::env::var(netvm_attach::FD_VARIABLE)
    {
        let number = text.parse::<i32>().ok().filter(|number| *number > 2);
        let is_open = |number: &i32| {
            // SAFETY: only asks the kernel about the number; a number that is not open is an error there.
            rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok()
        };
        return match number.filter(is_open) {
            // SAFETY: open, above the standard three, and this process's to use: the variable is set only for a process
            // that was given it. A second call finds a socket that has already spoken, and fails cleanly.
            Some(number) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
            None => Err(AttachError::Variable(text)),
        };
    }
    let path =
        options.socket.clone().or_else(|| std::env::var_os(netvm_attach::PATH_VARIABLE).map(PathBuf::from));
    netvm_attach::connect(path.as_deref().unwrap_or(Path::new(netvm_attach::DEFAULT_PATH)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_environment_are_those_that_an_nf_can_have() {
        let threads =
            ["1", "3", "16", "0", "17", "70000", "-1", "two", ""].map(|text| configured_threads(Some(text)));
        assert_eq!((threads, configured_threads(None)), ([1, 3, 16, 1, 1, 1, 1, 1, 1], 1));
    }
}
