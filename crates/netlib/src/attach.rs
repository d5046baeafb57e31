// SPDX-License-Identifier: Apache-2.0
//! Attaches to a running engine. In: [`Options`] and the environment. Out: an [`Endpoint`] for each thread of the NF.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netvm_attach::messages::Request;
use netvm_attach::{AttachError, Fds, Hello, Ready};
use netvm_region::{
    Control, ControlError, LAYOUT_VERSION, MAX_THREADS, MapError, Mapping, ReadyMessage, Region, TableError,
    TableReader,
};

use crate::endpoint::Endpoint;
use crate::ivshmem::{self, Devices, IvshmemError};
use crate::shared::messages::Transport;
use crate::shared::{Eventfds, Memories, Shared, Stop, Waiting};

/// Why an NF could not attach, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine did not answer, or refused the NF.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The control memory cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The next-hop table cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A shared memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The `ivshmem` devices of a VM are missing or unusable.
    #[error(transparent)]
    Ivshmem(#[from] IvshmemError),
    /// A thread could not be started.
    #[error("thread {thread}: {source}")]
    Thread {
        /// Its number.
        thread: u16,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// One of the NF's threads ended by a panic; its message is on standard error.
    #[error("thread {thread} panicked")]
    Panicked {
        /// Its number.
        thread: u16,
    },
}

/// How an NF attaches and waits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program's name, for people.
    pub name: String,
    /// The role that the NF serves.
    pub role: String,
    /// Threads that receive packets, at least 1. A program that serves fewer endpoints than threads loses the packets
    /// of the other endpoints. So a program with a single loop sets 1.
    pub threads: u16,
    /// How the threads wait.
    pub waiting: Waiting,
    /// netvmd's socket; `None` for the one in the environment.
    pub socket: Option<PathBuf>,
    /// Names of the NF's own counters.
    pub counters: Vec<String>,
    /// The NF takes offload work as it comes: TCP segments and UDP datagrams of up to 64 KB that are cut into packets
    /// behind the chain, and checksums of TCP and UDP that are not computed yet. It must not rely on the checksum field
    /// or on lengths within the MTU. It may change headers, as netvm looks at them again and computes the sum after it,
    /// but not put a packet into a tunnel. All NFs of a trust group must take offloads; otherwise each gets finished
    /// packets.
    pub offloads: bool,
    /// The NF takes messages of other NFs and of netvmd ([`Endpoint::next_message`]).
    pub messages: bool,
    /// Stops the NF from within its process.
    pub stop: Stop,
}

impl Options {
    /// Adaptive waiting. Role and number of threads come from the environment, which netvmd sets for an NF that it
    /// starts; the defaults are the program's name and one thread.
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
            offloads: false,
            messages: false,
            stop: Stop::default(),
        }
    }

    /// The same options for an NF that takes offload work as it comes: see [`Options::offloads`].
    #[must_use]
    pub const fn with_offloads(mut self) -> Self {
        self.offloads = true;
        self
    }

    /// The same options for an NF that takes messages.
    #[must_use]
    pub const fn with_messages(mut self) -> Self {
        self.messages = true;
        self
    }

    /// The same options with these counters.
    #[must_use]
    pub fn with_counters(mut self, names: &[&str]) -> Self {
        self.counters = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }
}

/// The number of threads in `text`; 1 if that is not a valid number.
fn configured_threads(text: Option<&str>) -> u16 {
    let number = text.and_then(|text| text.parse().ok());
    number.filter(|threads| (1..=MAX_THREADS).contains(&usize::from(*threads))).unwrap_or(1)
}

/// An attached NF: an endpoint for each of its threads.
#[derive(Debug)]
pub struct Attachment {
    endpoints: Vec<Endpoint>,
}

impl Attachment {
    /// The endpoints, to be moved to the NF's threads.
    #[must_use]
    pub fn into_endpoints(self) -> Vec<Endpoint> {
        self.endpoints
    }

    /// Maps the memories that the engine passed.
    pub(crate) fn from_fds(
        fds: Fds<OwnedFd>,
        transport: Transport,
        waiting: Waiting,
        stop: Stop,
    ) -> Result<Self, Error> {
        let control = Control::open(fds.control)?;
        if fds.workers.len() != usize::from(control.header().workers) {
            return Err(ControlError::Unsound("numbers of descriptors").into());
        }
        let eventfds = Eventfds::Events { workers: fds.workers, nf_threads: fds.nf_threads };
        Self::over(
            Memories { control, table: fds.table, regions: fds.regions, eventfds, transport },
            waiting,
            stop,
        )
    }

    /// Maps the regions and the next-hop table, from a socket or from PCI devices.
    pub(crate) fn over(memories: Memories, waiting: Waiting, stop: Stop) -> Result<Self, Error> {
        let Memories { control, table, regions, eventfds, transport } = memories;
        let header = *control.header();
        if regions.len() != usize::from(header.regions) {
            return Err(ControlError::Unsound("number of regions").into());
        }
        let regions = regions.into_iter().zip(&header.geometries);
        let regions = regions.map(|(fd, geometry)| Region::open("region", fd, *geometry));
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared { control, regions, eventfds, transport, stop });
        let mut endpoints = Vec::new();
        for thread in 0..header.threads {
            let table = table.try_clone().map_err(AttachError::from)?;
            endpoints.push(Endpoint::new(Arc::clone(&shared), thread, TableReader::open(table)?, waiting));
        }
        Ok(Self { endpoints })
    }
}

/// Attaches to the engine. Uses `options.socket`, else the socket that netvmd left open for an NF that it started, else
/// the path in the environment, else the default path. A VM has no socket: there the NF attaches through the `ivshmem`
/// devices that netvmd gave to the VM, and `NETVM_ATTACH=ivshmem` forces this. Role and number of threads then come
/// from the VM's configuration, not from the options.
///
/// # Errors
/// [`Error`] says what failed and on which side. [`AttachError::may_retry`] says whether a later retry may succeed.
pub fn attach(options: &Options) -> Result<Attachment, Error> {
    if is_in_vm(options) {
        return attach_in_vm(options);
    }
    let socket = socket(options)?;
    // Prevents other processes of the same user, such as NFs of other trust groups, from reading this process's memory
    // or its descriptors through /proc. If the kernel refuses, its other protections must do.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let hello = Hello {
        layout: LAYOUT_VERSION,
        role: options.role.clone(),
        name: options.name.clone(),
        threads: options.threads.max(1),
        counters: options.counters.clone(),
        offloads: options.offloads,
    };
    let fds = netvm_attach::handshake(&socket, &hello)?;
    let ready = socket.as_fd().try_clone_to_owned().map_err(AttachError::from)?;
    let attachment =
        Attachment::from_fds(fds, Transport::Socket(socket), options.waiting, options.stop.clone())?;
    netvm_attach::send(&ready, &Ready { pid: std::process::id() }, &[])?;
    if options.messages {
        netvm_attach::send(&ready, &Request::Subscribe, &[])?;
    }
    Ok(attachment)
}

/// Attaches through the devices of this VM, and reports the result to the engine.
fn attach_in_vm(options: &Options) -> Result<Attachment, Error> {
    let mut devices = Devices::search()?;
    let control = devices.take_control()?;
    // Holds the ready message, whose offset is the same in every layout.
    let page = Mapping::open("control", control.try_clone().map_err(AttachError::from)?, 4096, true)?;
    if ReadyMessage::is_present(&page) {
        return Err(IvshmemError::Again.into());
    }
    let map = || {
        ivshmem::check_processors()?;
        let memories = devices.into_memories(Control::open(control)?)?;
        if options.messages {
            // Without a mailbox, there are none.
            let _ = memories.transport.send(&memories.control, &Request::Subscribe);
        }
        Attachment::over(memories, options.waiting, options.stop.clone())
    };
    let outcome = map();
    match &outcome {
        Ok(_) => ReadyMessage::Ready { name: options.name.clone(), counters: options.counters.clone() },
        Err(error) => ReadyMessage::Failed { reason: error.to_string() },
    }
    .write(&page);
    outcome
}

/// Whether to attach through PCI devices.
fn is_in_vm(options: &Options) -> bool {
    if options.socket.is_some() || std::env::var_os(netvm_attach::FD_VARIABLE).is_some() {
        return false;
    }
    match std::env::var_os(netvm_attach::PATH_VARIABLE) {
        Some(path) => path == ivshmem::KEYWORD,
        None => !Path::new(netvm_attach::DEFAULT_PATH).exists() && ivshmem::is_present(),
    }
}

fn socket(options: &Options) -> Result<OwnedFd, AttachError> {
    if options.socket.is_none()
        && let Ok(text) = std::env::var(netvm_attach::FD_VARIABLE)
    {
        let number = text.parse::<i32>().ok().filter(|number| *number > 2);
        let is_open = |number: &i32| {
            // SAFETY: the call only asks the kernel about the number, and fails if it is not open.
            rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok()
        };
        return match number.filter(is_open) {
            // SAFETY: the descriptor is open, is none of the standard three, and belongs to this process: netvmd sets
            // the variable only for a process that inherits it. A second call finds a used socket, and fails cleanly.
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
    fn an_invalid_number_of_threads_in_the_environment_means_one() {
        let threads =
            ["1", "3", "16", "0", "17", "70000", "-1", "two", ""].map(|text| configured_threads(Some(text)));
        assert_eq!((threads, configured_threads(None)), ([1, 3, 16, 1, 1, 1, 1, 1, 1], 1));
    }
}
