// SPDX-License-Identifier: Apache-2.0
//! The thread of a port that accepts guests, or connects to the guest that created the socket.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_guest_socket::{Accepted, BindError, Listener as Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::super::VhostMode;
use super::super::guests::Guests;
use super::connection::Connections;

/// Between attempts to connect, and after a failed one to accept.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a socket until it is dropped.
#[derive(Debug)]
pub(in crate::vhost) struct Listener {
    /// Readable when the thread is to end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    connections: Arc<Connections>,
}

/// A socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub(in crate::vhost) enum StartError {
    #[error(transparent)]
    Socket(#[from] BindError),
    /// No descriptor or thread.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for StartError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl Listener {
    /// Begins to serve the socket.
    ///
    /// # Errors
    /// The socket, a descriptor or the thread cannot be created.
    pub(in crate::vhost) fn start(guests: &Arc<Guests>) -> Result<Self, StartError> {
        let stop = Arc::new(netvm_notify::new_eventfd()?);
        let connections = Arc::new(Connections::new(Arc::clone(guests)));
        let (own_stop, own_connections) = (Arc::clone(&stop), Arc::clone(&connections));
        let mut listener = Self { stop, thread: None, connections };
        let thread = std::thread::Builder::new().name("vhost-listener".to_owned());
        listener.thread = Some(match guests.mode {
            VhostMode::Server => {
                let socket = Socket::bind(&guests.path)?;
                thread.spawn(move || accept(&socket, &own_connections, &own_stop))?
            }
            VhostMode::Client => thread.spawn(move || connect_again(&own_connections, &own_stop))?,
        });
        Ok(listener)
    }
}

impl Drop for Listener {
    /// No thread uses the guests' devices afterwards.
    fn drop(&mut self) {
        netvm_notify::write(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.connections.end_all();
    }
}

/// Waits for one of the descriptors, or for some time; `true` if the first is ready.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => fds.first().is_some_and(|stop| !stop.revents().is_empty()),
        Err(_) => true,
    }
}

fn accept(socket: &Socket, connections: &Arc<Connections>, stop: &OwnedFd) {
    loop {
        if wait(&mut [PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)], None) {
            return;
        }
        match socket.accept() {
            Accepted::Connection(stream) => connections.begin(stream),
            Accepted::Nothing | Accepted::Refused => {}
            Accepted::Failed => {
                if wait(&mut [PollFd::new(stop, PollFlags::IN)], Some(RETRY_INTERVAL)) {
                    return;
                }
            }
        }
    }
}

fn connect_again(connections: &Arc<Connections>, stop: &OwnedFd) {
    loop {
        if connections.is_empty() {
            let connected = connect_to(&connections.guests.path);
            connections.guests.is_absent.store(connected.is_err(), Ordering::Relaxed);
            if let Ok(stream) = connected {
                connections.begin(stream);
            }
        }
        if wait(&mut [PollFd::new(stop, PollFlags::IN)], Some(RETRY_INTERVAL)) {
            return;
        }
    }
}

/// Connects without waiting for the other side to accept.
fn connect_to(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::super::connection::MAX_THREADS;
    use super::super::connection::tests::within_timeout;
    use super::*;

    fn guests(name: &str, mode: VhostMode) -> Arc<Guests> {
        let path = std::env::temp_dir().join(format!("netvm-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Guests::register(path, mode, 1, None).unwrap().unwrap()
    }

    #[test]
    fn a_connection_beyond_the_limit_is_closed() {
        let guests = guests("many", VhostMode::Server);
        let listener = Listener::start(&guests).unwrap();
        let connections = Arc::clone(&listener.connections);
        let connect = || UnixStream::connect(&guests.path).unwrap();
        let mut open: Vec<UnixStream> = Vec::new();
        for number in 0..MAX_THREADS {
            open.push(connect());
            assert!(within_timeout(|| connections.threads() == number + 1));
        }
        assert_eq!(connect().read(&mut [0]).unwrap(), 0);
        // One goes, and there is room for another.
        open.pop();
        assert!(within_timeout(|| connections.threads() < MAX_THREADS));
        open.push(connect());
        assert!(within_timeout(|| connections.threads() == MAX_THREADS));
        drop(listener);
        assert!(!guests.path.exists() && connections.is_empty());
        assert!(within_timeout(|| connections.threads() == 0));
        guests.unregister();
    }

    #[test]
    fn the_guest_is_connected_to_again() {
        let guests = guests("again", VhostMode::Client);
        let listener = Listener::start(&guests).unwrap();
        let socket = UnixListener::bind(&guests.path).unwrap();
        for _ in 0..2 {
            drop(socket.accept().unwrap());
            assert!(within_timeout(|| listener.connections.is_empty()));
        }
        drop(listener);
        assert!(guests.path.exists());
        std::fs::remove_file(&guests.path).unwrap();
        guests.unregister();
    }
}
