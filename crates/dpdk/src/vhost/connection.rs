//! The connections by which guests speak to the library, which waits for them.
//!
//! It reads a message in two parts, and waits for the second; it waits for room to answer, for some messages with the locks of
//! all rings, so that workers wait, too. Whoever says half a message, or reads no answers, would keep it for ever. So a
//! connection gets a limit of time to read by, and one with little room for answers is shut down before another message is
//! handled: a guest that reads its answers leaves the room empty.
//!
//! The library does not tell which descriptor a connection has. When a guest has just been met, it is the one of the process
//! that is not known yet and has the socket's address; or, if the guest made the socket, no address but a peer, and is open to
//! programs that are started, as none but DPDK's are. A name that the guest chose is not asked for.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{fs, mem, ptr};

use super::VhostMode;

/// For how long the rest of a message is waited for.
const PATIENCE: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 200_000 };

/// A descriptor of our own for a guest's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) device: i32,
    pub(super) inode: u64,
    fd: OwnedFd,
}

impl Connection {
    /// Finds the connection by which a guest has come just now, and sets its limit.
    pub(super) fn find(device: i32, path: &CStr, mode: VhostMode, known: &[u64]) -> Option<Self> {
        let numbers = fs::read_dir("/proc/self/fd").ok()?.flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_it = |fd: &RawFd| match mode {
            VhostMode::Server => *fd > 2 && is_accepted(*fd, path),
            VhostMode::Client => *fd > 2 && is_made_by_dpdk(*fd),
        };
        let fd = numbers.filter(is_it).find(|fd| inode(*fd).is_some_and(|inode| !known.contains(&inode)))?;
        // SAFETY: takes no pointer; a number without a descriptor gives an error.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: a new descriptor, which nobody else has.
        let own = (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })?;
        let size = mem::size_of::<libc::timeval>() as u32;
        // SAFETY: a timeval, as this option takes.
        let set = unsafe {
            libc::setsockopt(
                own.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                ptr::from_ref(&PATIENCE).cast(),
                size,
            )
        };
        (set == 0).then_some(Self { device, inode: inode(own.as_raw_fd())?, fd: own })
    }

    /// Ends it unless there is room for an answer.
    pub(super) fn shut_if_full(&self) {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, as is said.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } == 0 {
            // SAFETY: takes no pointer.
            unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }
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

/// It came by a socket that the library made.
fn is_accepted(fd: RawFd, path: &CStr) -> bool {
    address(fd, libc::getpeername).is_some()
        && address(fd, libc::getsockname).is_some_and(|own| own == path.to_bytes())
}

/// It went to a socket that somebody else made.
fn is_made_by_dpdk(fd: RawFd) -> bool {
    address(fd, libc::getpeername).is_some()
        && address(fd, libc::getsockname).is_some_and(|own| own.is_empty())
        // SAFETY: takes no pointer.
        && unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC == 0
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::{Duration, Instant};

    use super::*;

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

    #[test]
    fn a_new_connection_is_found_from_either_side() {
        let (path, there, here) = pair("found");
        let inode_of = |fd: &UnixStream| inode(fd.as_raw_fd()).unwrap();
        let find = |mode, known: &[u64]| Connection::find(7, &path, mode, known).map(|found| found.inode);
        assert_eq!(find(VhostMode::Server, &[]), Some(inode_of(&here)));
        assert_eq!(find(VhostMode::Server, &[inode_of(&here)]), None);
        assert_eq!(Connection::find(7, c"/elsewhere", VhostMode::Server, &[]).map(|found| found.inode), None);
        assert_eq!(find(VhostMode::Client, &[]), None);
        // SAFETY: takes no pointer.
        assert_eq!(unsafe { libc::fcntl(there.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        assert_eq!(find(VhostMode::Client, &[]), Some(inode_of(&there)));
        assert_eq!(find(VhostMode::Client, &[inode_of(&there)]), None);
    }

    #[test]
    fn half_a_message_is_waited_for_in_vain_and_not_for_long() {
        let (path, mut there, mut here) = pair("half");
        let _found = Connection::find(7, &path, VhostMode::Server, &[]).unwrap();
        there.write_all(&[1; 12]).unwrap();
        here.read_exact(&mut [0; 12]).unwrap();
        let start = Instant::now();
        assert_eq!(here.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert!(start.elapsed() > Duration::from_millis(100), "{:?}", start.elapsed());
    }

    #[test]
    fn who_reads_no_answers_gets_no_more() {
        let (path, mut there, mut here) = pair("answers");
        let found = Connection::find(7, &path, VhostMode::Server, &[]).unwrap();
        for _ in 0..1000 {
            found.shut_if_full();
            here.write_all(&[0; 20]).unwrap();
            there.read_exact(&mut [0; 20]).unwrap();
        }
        let mut answers = 0;
        loop {
            found.shut_if_full();
            // It would block if there was no room.
            if here.write(&[0; 20]).is_err() {
                break;
            }
            answers += 1;
        }
        assert!(answers > 10, "{answers}");
        let mut all = Vec::new();
        assert_eq!(there.read_to_end(&mut all).unwrap(), answers * 20);
    }
}
