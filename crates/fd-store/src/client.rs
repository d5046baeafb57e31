// SPDX-License-Identifier: Apache-2.0
//! The owner's side.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::message::{Message, receive, send};

/// Connections that wait for the store at a time.
const MAX_WAITING: i32 = 64;
/// How long to wait for a store that does not run, though it lives.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Starts of the store before an error counts: it may end at the same time.
const MAX_STARTS: usize = 3;

/// Where the store is, and how it is started.
#[derive(Debug)]
pub struct Store {
    socket: PathBuf,
    process: Mutex<Process>,
}

#[derive(Debug)]
struct Process {
    command: Command,
    /// The one that this process has started.
    child: Option<Child>,
}

/// The files under one name. They stay in the store when this is dropped.
#[derive(Debug)]
pub struct StoredFiles(OwnedFd);

impl Store {
    /// A store with this socket. `command` is to call [`crate::serve`] with its standard input.
    #[must_use]
    pub fn new(socket: PathBuf, mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        Self { socket, process: Mutex::new(Process { command, child: None }) }
    }

    /// Becomes the owner of a name, in place of a former owner. Returns the files that are kept under it.
    ///
    /// # Errors
    /// The store does not run and cannot be started.
    pub fn open(&self, name: &[u8]) -> io::Result<(StoredFiles, Vec<(u32, OwnedFd)>)> {
        self.started(|socket| opened(socket, name))
    }

    /// As [`Store::open`], for a name whose files this process forgets before it opens it again: it does not wait for a
    /// store that this process has started, as that one has none for it.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn take(&self, name: &[u8]) -> io::Result<(StoredFiles, Vec<(u32, OwnedFd)>)> {
        self.started(|socket| {
            if !self.is_own() {
                return opened(socket, name);
            }
            send(&socket, &Message::Open(name.to_vec()), None)?;
            Ok((StoredFiles(socket), Vec::new()))
        })
    }

    /// Closes the files of all names that begin like this and have no owner. Nothing is done if there is no store.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn close_left(&self, beginning: &[u8]) -> io::Result<()> {
        let socket = match self.connect() {
            Err(error) if is_gone(&error) => return Ok(()),
            outcome => outcome?,
        };
        send(&socket, &Message::CloseLeft(beginning.to_vec()), None)?;
        receive(&socket).map(drop)
    }

    /// Whether this process has started the store, which runs.
    fn is_own(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Does something with a connection to the store, which is started if it does not run.
    fn started<T>(&self, act: impl Fn(OwnedFd) -> io::Result<T>) -> io::Result<T> {
        let mut error = io::Error::from(Errno::CONNREFUSED);
        for _ in 0..MAX_STARTS {
            match self.connect().and_then(&act) {
                Ok(done) => return Ok(done),
                Err(gone) if is_gone(&gone) => match self.start() {
                    Ok(()) => {}
                    Err(failure) => error = failure,
                },
                Err(other) => return Err(other),
            }
        }
        Err(error)
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(START_TIMEOUT))?;
        }
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Ok(socket)
    }

    /// Starts the process, which finds its listening socket on its standard input.
    fn start(&self) -> io::Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // Takes the exit status of one that has ended.
        process.child.take_if(|child| !matches!(child.try_wait(), Ok(None)));
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = new_socket()?;
        bind(&listener, &SocketAddrUnix::new(&self.socket)?)?;
        // Nobody can connect before it listens.
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))?;
        listen(&listener, MAX_WAITING)?;
        let spawned = process.command.stdin(Stdio::from(listener)).spawn();
        // The command must not keep the socket open.
        process.command.stdin(Stdio::null());
        process.child = Some(spawned?);
        Ok(())
    }
}

/// Whether an error says that there is no store, or no longer.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::ConnectionReset)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn opened(socket: OwnedFd, name: &[u8]) -> io::Result<(StoredFiles, Vec<(u32, OwnedFd)>)> {
    send(&socket, &Message::Open(name.to_vec()), None)?;
    let mut files = Vec::new();
    loop {
        match receive(&socket)? {
            (Message::Opened, _) => return Ok((StoredFiles(socket), files)),
            (Message::Put(number), Some(file)) => files.push((number, file)),
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

impl StoredFiles {
    /// Keeps a file, in place of the one with this number.
    ///
    /// # Errors
    /// The store has gone.
    pub fn put(&self, number: u32, file: impl AsFd) -> io::Result<()> {
        send(&self.0, &Message::Put(number), Some(file.as_fd()))
    }

    /// Closes a file.
    ///
    /// # Errors
    /// The store has gone.
    pub fn remove(&self, number: u32) -> io::Result<()> {
        send(&self.0, &Message::Remove(number), None)
    }

    /// Closes all files of this name.
    ///
    /// # Errors
    /// The store has gone.
    pub fn forget(&self) -> io::Result<()> {
        send(&self.0, &Message::Forget, None)
    }

    /// Whether the files stay without an owner until there is one (`true`), or only for the time of [`crate::serve`].
    ///
    /// # Errors
    /// The store has gone.
    pub fn keep_on(&self, keeps_on: bool) -> io::Result<()> {
        send(&self.0, &Message::KeepOn(keeps_on), None)
    }

    /// Whether the store has gone, and with it what it had.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::RDHUP)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}
