//! The connections by which guests come to the library, which are taken from it.
//!
//! The library does not tell which descriptor a connection has. When a guest has just been met, it is the one of the process
//! that has the socket's address; or, if the guest made the socket, no address but a peer, and is open to programs that are
//! started, as none but DPDK's are. A name that the guest chose is not asked for. One end of a pair takes its place (`relay`),
//! so that the next guest's is the only one again. If there are two, as two threads of the library have connected at the same
//! time, nobody can tell whose they are: both are shut down, and the library connects again.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fs, mem};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::VhostMode;
use super::relay::Relay;

/// What looked like a connection of the library's before it had any: somebody else's, by inode.
static FOREIGN: OnceLock<Vec<u64>> = OnceLock::new();
/// Connections that were taken, by inode.
static TAKEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<u64>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until this is dropped, which is after its descriptors are closed, a connection is known not to be the library's.
#[derive(Debug)]
pub(super) struct Taken(u64);

impl Drop for Taken {
    fn drop(&mut self) {
        taken().retain(|inode| *inode != self.0);
    }
}

/// To be called before guests come.
pub(super) fn prepare() {
    FOREIGN.get_or_init(|| numbers().filter(|fd| is_made_by_dpdk(*fd)).filter_map(inode).collect());
}

/// Takes the connection by which a guest has come just now.
pub(super) fn take(path: &CStr, mode: VhostMode) -> Option<(Relay, Taken)> {
    let foreign = FOREIGN.get().map_or(&[][..], Vec::as_slice);
    let is_others = |inode| taken().contains(&inode) || foreign.contains(&inode);
    let is_it = |fd: &RawFd| {
        let is_like_it = match mode {
            VhostMode::Server => is_accepted(*fd, path),
            VhostMode::Client => is_made_by_dpdk(*fd),
        };
        is_like_it && !inode(*fd).is_none_or(is_others)
    };
    let found: Vec<RawFd> = numbers().filter(is_it).collect();
    let relay = if let [fd] = found[..] { replace(fd) } else { None };
    if relay.is_none() {
        for fd in found {
            // SAFETY: takes no pointer.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
    }
    relay
}

/// Puts one end of a pair in the place of a connection.
fn replace(fd: RawFd) -> Option<(Relay, Taken)> {
    let inode = inode(fd)?;
    // SAFETY: takes no pointer; a number without a descriptor gives an error.
    let front = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: a new descriptor, which nobody else has.
    let front = (front >= 0).then(|| unsafe { OwnedFd::from_raw_fd(front) })?;
    let (back, library) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    // SAFETY: takes no pointer. The number stays the library's, which does not know that it stands for something else.
    let done = unsafe { libc::dup3(library.as_raw_fd(), fd, libc::O_CLOEXEC) };
    (done == fd).then(|| {
        taken().push(inode);
        (Relay { front, back }, Taken(inode))
    })
}

/// Descriptors of the process.
fn numbers() -> impl Iterator<Item = RawFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2)
}

fn inode(fd: RawFd) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes a stat if it succeeds.
    let known = unsafe { libc::fstat(fd, stat.as_mut_ptr()) } == 0;
    // SAFETY: all zeroes is a stat, too.
    known.then(|| unsafe { stat.assume_init() }.st_ino)
}

/// The address of a socket, without its family: empty if it has none. `None` for others than Unix sockets.
fn address(
    fd: RawFd,
    of: unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut u32) -> i32,
) -> Option<Vec<u8>> {
    let mut address = MaybeUninit::<libc::sockaddr_un>::zeroed();
    let mut size = mem::size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: writes as many bytes of the address as it is said to have room for.
    if unsafe { of(fd, address.as_mut_ptr().cast(), &raw mut size) } != 0 {
        return None;
    }
    // SAFETY: all zeroes is an address, too.
    let address = unsafe { address.assume_init() };
    let bytes = address.sun_path.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
    (i32::from(address.sun_family) == libc::AF_UNIX).then(|| bytes.collect())
}

fn is_stream(fd: RawFd) -> bool {
    let mut kind = 0i32;
    let mut size = mem::size_of_val(&kind) as u32;
    let place = (&raw mut kind).cast();
    // SAFETY: writes a number, for which there is room.
    let error = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, place, &raw mut size) };
    error == 0 && kind == libc::SOCK_STREAM
}

/// It came by a socket that the library made.
fn is_accepted(fd: RawFd, path: &CStr) -> bool {
    address(fd, libc::getpeername).is_some()
        && address(fd, libc::getsockname).is_some_and(|own| own == path.to_bytes())
}

/// It went to a socket that somebody else made.
fn is_made_by_dpdk(fd: RawFd) -> bool {
    address(fd, libc::getpeername).is_some()
        && address(fd, libc::getsockname).is_some_and(|own| own.is_empty())
        && is_stream(fd)
        // SAFETY: takes no pointer.
        && unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC == 0
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Mutex;

    use super::*;

    /// Descriptors are all of the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    /// As the library has them.
    fn open_to_programs(fd: &UnixStream) {
        // SAFETY: takes no pointer.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    }

    /// Both ends of a connection by a socket: who went to it, and who was.
    fn pair(name: &str) -> (CString, UnixStream, UnixStream) {
        let path = std::env::temp_dir().join(format!("netvm-{name}-{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let there = UnixStream::connect(&path).unwrap();
        let here = listener.accept().unwrap().0;
        fs::remove_file(&path).unwrap();
        (CString::new(path.to_str().unwrap()).unwrap(), there, here)
    }

    /// What is written at one end is read at the other.
    fn leads(from: &OwnedFd, mut to: &UnixStream) -> bool {
        let mut byte = [0];
        rustix::io::write(from, &[7]).is_ok() && to.read_exact(&mut byte).is_ok() && byte == [7]
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
            // It is nobody's any more.
            assert!(take(&path, mode).is_none());
            (&library).write_all(&[1]).unwrap();
        }
    }

    #[test]
    fn nobody_gets_one_of_two_that_cannot_be_told_apart() {
        let _alone = ALONE.lock();
        let (path, first, _first) = pair("first");
        let (_, second, _second) = pair("second");
        open_to_programs(&first);
        open_to_programs(&second);
        assert!(take(&path, VhostMode::Client).is_none());
        assert_eq!((&first).read(&mut [0]).unwrap(), 0);
        assert_eq!((&second).read(&mut [0]).unwrap(), 0);
    }
}
