// SPDX-License-Identifier: Apache-2.0
//! The store's process.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, getsockname};
use rustix::process::setsid;

use crate::message::{MAX_FILES, Message, receive, send};

/// Between attempts to accept a connection that the kernel refuses.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Between looks at files without an owner.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Files of one name.
#[derive(Debug)]
struct Bundle {
    name: Vec<u8>,
    files: BTreeMap<u32, OwnedFd>,
    owner: Result<OwnedFd, Instant>,
    /// The files stay until there is an owner.
    keeps_on: bool,
}

#[derive(Debug)]
struct Server {
    /// Connections that have not opened a name.
    new: Vec<OwnedFd>,
    bundles: Vec<Bundle>,
    /// How long it keeps files without an owner.
    keep_time: Duration,
    /// Until when it waits for its first owner.
    first: Option<Instant>,
    /// The file of its socket, by which owners find it.
    socket: Option<PathBuf>,
}

/// Keeps files, without an owner for as long as `keep_time`, and ends when it has nothing to keep.
///
/// # Errors
/// `listener` is not a listening socket, or the kernel has no memory.
pub fn serve(listener: impl AsFd, keep_time: Duration) -> Result<(), Errno> {
    // A terminal's signals are for its owner. An error means that it leads a session already.
    let _ = setsid();
    let address = getsockname(&listener).ok().and_then(|address| SocketAddrUnix::try_from(address).ok());
    let path = address.as_ref().and_then(|address| address.path_bytes());
    let socket = path.map(|path| PathBuf::from(OsStr::from_bytes(path))).filter(|path| path.is_absolute());
    let first = Some(Instant::now() + keep_time);
    let mut server = Server { new: Vec::new(), bundles: Vec::new(), keep_time, first, socket };
    while server.turn(&listener)? {}
    Ok(())
}

impl Server {
    /// Waits for an event, and handles all that there are. Returns whether to go on.
    fn turn(&mut self, listener: &impl AsFd) -> Result<bool, Errno> {
        let (comes, new, bundles) = self.wait(listener)?;
        for (bundle, _) in self.bundles.iter_mut().zip(bundles).filter(|(_, is_ready)| *is_ready) {
            bundle.handle();
        }
        for (socket, is_ready) in std::mem::take(&mut self.new).into_iter().zip(new) {
            if !is_ready {
                self.new.push(socket);
                continue;
            }
            match receive(&socket) {
                Ok((Message::Open(name), _)) => self.open(name, socket),
                Ok((Message::CloseLeft(beginning), _)) => {
                    let is_left = |one: &Bundle| one.owner.is_err() && one.name.starts_with(&beginning);
                    self.bundles.retain(|bundle| !is_left(bundle));
                    let _ = send(&socket, &Message::Opened, None);
                }
                _ => {}
            }
        }
        self.close_old();
        if comes {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.new.push(socket),
                Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => {}
                // Such as EMFILE: the connection waits in the queue, of which poll would tell again at once.
                Err(_) => std::thread::sleep(ACCEPT_RETRY_INTERVAL),
            }
        }
        if !self.bundles.is_empty() {
            self.first = None;
        }
        let waits = !self.new.is_empty() || self.first.is_some_and(|first| Instant::now() < first);
        Ok(waits || !self.bundles.is_empty())
    }

    /// Closes the files that nobody has come for, or can come for.
    fn close_old(&mut self) {
        if self.bundles.iter().all(|bundle| bundle.owner.is_ok()) {
            return;
        }
        let can_be_found = self.socket.as_ref().is_none_or(|path| path.exists());
        let now = Instant::now();
        self.bundles.retain(|bundle| match bundle.owner {
            Ok(_) => true,
            Err(since) => {
                let is_young = bundle.keeps_on || now.duration_since(since) < self.keep_time;
                can_be_found && is_young && !bundle.files.is_empty()
            }
        });
    }

    /// Whether a connection comes, and which connections and bundles have an event.
    fn wait(&self, listener: &impl AsFd) -> Result<(bool, Vec<bool>, Vec<bool>), Errno> {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(self.new.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.bundles.iter().map(|bundle| match &bundle.owner {
            Ok(owner) => PollFd::new(owner, PollFlags::IN),
            // Data from its peer is for the next owner.
            Err(_) => PollFd::from_borrowed_fd(
                bundle.files.get(&0).map_or_else(|| listener.as_fd(), AsFd::as_fd),
                PollFlags::RDHUP,
            ),
        }));
        let waits = self.bundles.iter().any(|bundle| bundle.owner.is_err()) || fds.len() == 1;
        match poll(&mut fds, waits.then_some(&CHECK_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let comes = ready.next().unwrap_or_default();
        let new = ready.by_ref().take(self.new.len()).collect();
        Ok((comes, new, ready.collect()))
    }

    /// `socket` owns a name from now on.
    fn open(&mut self, name: Vec<u8>, socket: OwnedFd) {
        let place = self.bundles.iter().position(|bundle| bundle.name == name).unwrap_or_else(|| {
            let owner = Err(Instant::now());
            self.bundles.push(Bundle { name, files: BTreeMap::new(), owner, keeps_on: false });
            self.bundles.len() - 1
        });
        let Some(bundle) = self.bundles.get_mut(place) else { return };
        // What the owner before has sent, which may be dead.
        bundle.handle_messages();
        let put =
            |(number, file): (&u32, &OwnedFd)| send(&socket, &Message::Put(*number), Some(file.as_fd()));
        let sent = bundle.files.iter().try_for_each(put).and_then(|()| send(&socket, &Message::Opened, None));
        if sent.is_ok() {
            bundle.owner = Ok(socket);
        } else if bundle.owner.is_err() {
            // It has gone already, but may have sent files.
            bundle.owner = Ok(socket);
            bundle.handle_messages();
        }
    }
}

impl Bundle {
    /// An event came: from the owner, or from the other end of file 0, which is closed.
    fn handle(&mut self) {
        if self.owner.is_ok() { self.handle_messages() } else { self.files.clear() }
    }

    /// Handles what the owner has sent.
    fn handle_messages(&mut self) {
        while let Ok(owner) = &self.owner
            && is_readable(owner)
        {
            match receive(owner) {
                Ok((Message::Put(number), Some(file)))
                    if self.files.len() < MAX_FILES || self.files.contains_key(&number) =>
                {
                    self.files.insert(number, file);
                }
                Ok((Message::Remove(number), _)) => drop(self.files.remove(&number)),
                Ok((Message::Forget, _)) => self.files.clear(),
                Ok((Message::KeepOn(keeps_on), _)) => self.keeps_on = keeps_on,
                Ok(_) => {}
                Err(_) => self.owner = Err(Instant::now()),
            }
        }
    }
}

/// Whether there is a message, or the end.
fn is_readable(socket: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
