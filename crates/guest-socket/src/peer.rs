// SPDX-License-Identifier: Apache-2.0
//! The process at the other end of a connection.

use std::fmt::{self, Display};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;

/// Longest name of a program (proc(5), "comm"), with room for replaced characters.
const MAX_NAME_CHARS: usize = 32;

/// A process that has connected, as the kernel says (`SO_PEERCRED`). It may have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number here; 0 if it is not visible here, or unknown.
    pub pid: u32,
    /// Its user.
    pub uid: Option<u32>,
    /// Its name, without control characters; empty if unknown. The process chooses it.
    pub program: String,
}

impl Peer {
    /// That of a connection.
    #[must_use]
    pub fn of(socket: impl AsFd) -> Self {
        let Ok(credentials) = socket_peercred(socket) else {
            return Self { pid: 0, uid: None, program: String::new() };
        };
        let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or(0);
        let program = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, uid: Some(credentials.uid.as_raw()), program: printable(&program) }
    }
}

/// For a log or a terminal: visible ASCII only.
fn printable(name: &[u8]) -> String {
    let visible = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
    name.trim_ascii_end().iter().take(MAX_NAME_CHARS).map(visible).collect()
}

impl Display for Peer {
    /// As `process 42 (qemu-system-x86, uid 1000)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => f.write_str("an unknown process")?,
            pid => write!(f, "process {pid}")?,
        }
        match (self.program.as_str(), self.uid) {
            ("", Some(uid)) => write!(f, " (uid {uid})"),
            (program, Some(uid)) => write!(f, " ({program}, uid {uid})"),
            (_, None) => Ok(()),
        }
    }
}

/// Whether the other end of a connection is closed: its process has closed it or has ended. It may have sent more
/// before.
#[must_use]
pub fn is_gone(socket: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    // An error means that nobody can use the connection.
    poll(&mut fds, Some(&at_once)).is_err() || !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_is_named_by_the_kernel() {
        let (one, other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one);
        assert_eq!((peer.pid, peer.uid), (std::process::id(), Some(rustix::process::getuid().as_raw())));
        assert!(peer.to_string().starts_with(&format!("process {} (", std::process::id())), "{peer}");
        assert_eq!(printable(b"qemu\x1b[31m system\n"), "qemu?[31m?system");
        assert!(!is_gone(&one));
        drop(other);
        assert!(is_gone(&one));
    }
}
