//! Takes a new guest's connection from the library and puts a relay in its place.
//!
//! The library does not say which descriptor a new connection has, so this module searches the process's descriptors.
//! If the library created the socket, the connection is the descriptor with the socket's address. If the guest created it,
//! the connection has a peer, no address, and no `O_CLOEXEC`, which only DPDK omits. The search does not compare names that
//! a guest may have chosen. One end of a socket pair then replaces the connection (`relay`), so that only the next guest's
//! connection matches again. If two descriptors match, because two threads of the library connected at the same time, this
//! module shuts down both, and the library connects again.

use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::socket_type;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, getpeername,
    getsockname, recv, shutdown, socketpair,
};

use super::super::VhostMode;
use super::relay::Relay;

/// Inodes of sockets that matched the search before the library had a connection.
static FOREIGN: OnceLock<Vec<u64>> = OnceLock::new();
/// Inodes of connections that were taken over.
static TAKEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<u64>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Excludes a connection from the search. Drop it after the connection's descriptors are closed.
#[derive(Debug)]
pub(in crate::vhost) struct Taken(u64);

impl Drop for Taken {
    fn drop(&mut self) {
        taken().retain(|inode| *inode != self.0);
    }
}

/// Call this before the first guest connects.
pub(in crate::vhost) fn prepare() {
    FOREIGN.get_or_init(|| descriptors().filter(|fd| is_made_by_dpdk(*fd)).filter_map(inode).collect());
}

/// Takes over the connection of a guest that has just connected, or shuts it down if that fails.
pub(in crate::vhost) fn take(path: &CStr, mode: VhostMode) -> Option<(Relay, Taken)> {
    let foreign = FOREIGN.get().map_or(&[][..], Vec::as_slice);
    let is_excluded = |inode| taken().contains(&inode) || foreign.contains(&inode);
    let is_it = |fd: &BorrowedFd<'_>| {
        let is_candidate = match mode {
            VhostMode::Server => is_accepted(*fd, path),
            VhostMode::Client => is_made_by_dpdk(*fd),
        };
        is_candidate && !inode(*fd).is_none_or(is_excluded)
    };
    let found: Vec<BorrowedFd<'_>> = descriptors().filter(is_it).collect();
    let relay = if let [fd] = found[..] { replace(fd) } else { None };
    if relay.is_none() {
        found.into_iter().for_each(hang_up);
    }
    relay
}

/// Replaces a connection by one end of a socket pair.
fn replace(fd: BorrowedFd<'_>) -> Option<(Relay, Taken)> {
    let inode = inode(fd)?;
    let front = fcntl_dupfd_cloexec(fd, 3).ok()?;
    let (back, library) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    // SAFETY: takes no pointer. The number stays the library's; it now refers to the socket pair.
    let done = unsafe { libc::dup3(library.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    (done == fd.as_raw_fd()).then(|| {
        taken().push(inode);
        (Relay { front, back, pending_calls: Arc::default() }, Taken(inode))
    })
}

/// Shuts a connection down and discards its queued data. The kernel closes descriptors that `recv` does not request.
fn hang_up(fd: BorrowedFd<'_>) {
    let _ = shutdown(fd, Shutdown::Both);
    while recv(fd, &mut [0; 512], RecvFlags::DONTWAIT).is_ok_and(|(bytes, _)| bytes > 0) {}
}

/// Descriptors of the process.
fn descriptors() -> impl Iterator<Item = BorrowedFd<'static>> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // SAFETY: not -1. Another thread may close its descriptor meanwhile and reuse the number; callers only query them,
    // which is harmless. The library does not close a connection during the callback for a new guest.
    numbers.filter(|number| *number > 2).map(|number| unsafe { BorrowedFd::borrow_raw(number) })
}

fn inode(fd: BorrowedFd<'_>) -> Option<u64> {
    fstat(fd).ok().map(|stat| stat.st_ino)
}

/// Whether a socket has this address and a peer. Only the family of the peer's address counts; a guest may have chosen
/// the rest.
fn is_connected(fd: BorrowedFd<'_>, own: &SocketAddrUnix) -> bool {
    let is_unix =
        |peer: Option<SocketAddrAny>| peer.is_some_and(|it| it.address_family() == AddressFamily::UNIX);
    getpeername(fd).is_ok_and(is_unix) && getsockname(fd) == Ok(own.as_any())
}

/// Whether the library accepted it on its own socket.
fn is_accepted(fd: BorrowedFd<'_>, path: &CStr) -> bool {
    SocketAddrUnix::new(path).is_ok_and(|own| is_connected(fd, &own))
}

/// Whether the library connected it to a guest's socket.
fn is_made_by_dpdk(fd: BorrowedFd<'_>) -> bool {
    is_connected(fd, &SocketAddrUnix::new_unnamed())
        && socket_type(fd) == Ok(SocketType::STREAM)
        && fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

#[cfg(test)]
pub(in crate::vhost) mod tests {
    use std::ffi::CString;
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Mutex;
    use std::time::Duration;

    use rustix::io::fcntl_setfd;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Descriptors are all of the process's.
    pub(in crate::vhost) static ALONE: Mutex<()> = Mutex::new(());

    /// As the library has them.
    pub(in crate::vhost) fn open_to_programs(fd: &UnixStream) {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
    }

    /// A connection by a socket: the end that connected, and the end that accepted.
    pub(in crate::vhost) fn pair(name: &str) -> (CString, UnixStream, UnixStream) {
        let path = std::env::temp_dir().join(format!("netvm-{name}-{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let there = UnixStream::connect(&path).unwrap();
        let here = listener.accept().unwrap().0;
        fs::remove_file(&path).unwrap();
        for end in [&there, &here] {
            end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        (CString::new(path.to_str().unwrap()).unwrap(), there, here)
    }

    /// What is written at one end is read at the other.
    fn leads(from: &OwnedFd, mut to: &UnixStream) -> bool {
        let mut byte = [0];
        rustix::io::write(from, &[7]).is_ok() && to.read_exact(&mut byte).is_ok() && byte == [7]
    }

    fn write_with(to: &UnixStream, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        assert_eq!(sendmsg(to, &[IoSlice::new(&[1; 600])], &mut control, SendFlags::empty()), Ok(600));
    }

    #[test]
    fn a_new_connection_is_taken_from_either_side() {
        let _alone = ALONE.lock();
        for mode in [VhostMode::Server, VhostMode::Client] {
            let (path, there, here) = pair("taken");
            let (guest, library) = if mode == VhostMode::Server { (there, here) } else { (here, there) };
            if mode == VhostMode::Server {
                assert!(take(c"/elsewhere", mode).is_none());
            } else {
                // Descriptors that programs do not get are others'.
                assert!(take(&path, mode).is_none());
                open_to_programs(&library);
            }
            let (relay, _taken) = take(&path, mode).unwrap();
            assert!(leads(&relay.front, &guest) && leads(&relay.back, &library));
            // The connection was given up.
            assert!(take(&path, mode).is_none());
            (&library).write_all(&[1]).unwrap();
        }
    }

    #[test]
    fn two_matching_connections_are_both_shut_down() {
        let _alone = ALONE.lock();
        let (path, first, guest) = pair("first");
        let (_, second, _guest) = pair("second");
        open_to_programs(&first);
        open_to_programs(&second);
        // The messages are lost, and their descriptors are closed.
        let (end, given) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        write_with(&guest, &[given.as_fd()]);
        drop(given);
        assert!(rustix::io::read(&end, &mut [0]).is_err());
        assert!(take(&path, VhostMode::Client).is_none());
        assert_eq!((&first).read(&mut [0]).unwrap(), 0);
        assert_eq!((&second).read(&mut [0]).unwrap(), 0);
        assert_eq!(rustix::io::read(&end, &mut [0]), Ok(0));
    }
}
