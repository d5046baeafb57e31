// SPDX-License-Identifier: Apache-2.0
//! The protocol by which an NF process attaches to the engine: JSON messages and the file descriptors of the shared
//! memory, over a Unix socket. The socket has type SOCK_SEQPACKET, so a message is one datagram and its descriptors
//! arrive with it.
//!
//! ```text
//!  NF                                   netvmd
//!   ── Hello {layout, role, ...} ──────▶  checks role, layout and permission
//!   ◀───── Welcome + descriptors ───────  or Refused {reason}
//!   ── Ready ──────────────────────────▶  starts to send packets
//!   ◀───── Message ───── Request ──────▶  while it is attached ([`messages`])
//!   ◀───── (socket closes) ─────────────  netvmd is gone: the NF ends
//!   ── (socket closes) ────────────────▶  the NF is gone: netvmd takes back its buffers
//! ```
//!
//! netvmd learns the peer's identity from the kernel (`SO_PEERCRED`), not from messages.
#![forbid(unsafe_code)]

pub mod messages;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Environment variable with the number of a connected socket that netvmd left open for an NF it starts.
pub const FD_VARIABLE: &str = "NETVM_ATTACH_FD";
/// Environment variable with the path of netvmd's socket, for an NF that netvmd did not start.
pub const PATH_VARIABLE: &str = "NETVM_ATTACH";
/// Default path of that socket.
pub const DEFAULT_PATH: &str = "/run/netvm/attach.sock";
/// Environment variable with the role of an NF that netvmd starts.
pub const ROLE_VARIABLE: &str = "NETVM_ROLE";
/// Environment variable with the number of threads of an NF that netvmd starts, from the configuration.
pub const THREADS_VARIABLE: &str = "NETVM_THREADS";

/// Longest message; both sides refuse a longer one.
const MAX_MESSAGE: usize = 16 * 1024;
/// Most characters of a name that is shown.
const PRINTABLE: usize = 64;
/// Most descriptors of a message (the kernel's limit is 253).
const MAX_FDS: usize = 128;

/// The first message, from the NF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`netvm_region::LAYOUT_VERSION`] that the NF was built with.
    pub layout: u32,
    /// The requested role.
    pub role: String,
    /// The program's name, for people.
    pub name: String,
    /// Number of threads that receive packets.
    pub threads: u16,
    /// Names of the NF's own counters, at most [`netvm_region::MAX_COUNTERS`].
    pub counters: Vec<String>,
    /// The NF takes segments of up to 64 KB, and packets whose TCP or UDP checksum is not computed yet.
    #[serde(default)]
    pub offloads: bool,
}

/// The engine's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The NF is admitted. The descriptors of [`Fds`] come with the message, in the order of its fields.
    Welcome {
        /// Number of regions.
        regions: u16,
        /// Number of eventfds that wake a worker.
        workers: u16,
        /// Number of eventfds that wake an NF thread, in the order of their numbers, the NF's own included.
        nf_threads: u16,
    },
    /// The NF is refused.
    Refused {
        /// The reason, and a remedy.
        reason: String,
    },
}

/// A peer's text, safe for a terminal and a log ([`netvm_text`]), and not too long.
#[must_use]
pub fn printable(text: &str) -> String {
    netvm_text::line(text).chars().take(PRINTABLE).collect()
}

/// The NF's last message before it receives packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Process id in the NF's PID namespace, for people.
    pub pid: u32,
}

/// The descriptors that an admitted NF receives.
#[derive(Debug)]
pub struct Fds<F> {
    /// Control memory of the NF.
    pub control: F,
    /// The group's next-hop table.
    pub table: F,
    /// The group's regions.
    pub regions: Vec<F>,
    /// For each worker, the eventfd by which NFs of this group wake it.
    pub workers: Vec<F>,
    /// For each NF thread number, the eventfd that wakes it.
    pub nf_threads: Vec<F>,
}

/// Why an NF could not attach, or a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no socket, or netvmd does not answer.
    #[error("cannot connect to {path}: {source} (is netvmd running, and may this user use its socket?)")]
    Connect {
        /// The socket's path.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The peer is gone.
    #[error("netvmd closed the connection")]
    Closed,
    /// The engine refused the NF.
    #[error("netvmd refused this NF: {0}")]
    Refused(String),
    /// The peer does not follow this protocol.
    #[error("an unexpected message on the attach socket: {0}")]
    Protocol(String),
    /// The environment variable does not hold an open descriptor.
    #[error("{FD_VARIABLE}={0:?} is not an open descriptor")]
    Variable(String),
    /// The socket failed.
    #[error("attach socket: {0}")]
    Socket(#[from] io::Error),
}

impl AttachError {
    /// Whether a later retry may succeed: netvmd may be restarting.
    #[must_use]
    pub const fn may_retry(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Closed)
    }
}

impl From<rustix::io::Errno> for AttachError {
    fn from(error: rustix::io::Errno) -> Self {
        match error {
            rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE => Self::Closed,
            other => Self::Socket(other.into()),
        }
    }
}

/// A pair of connected sockets: one for netvmd, one for the NF that it starts.
///
/// # Errors
/// The kernel's error, if the process is out of descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Creates the socket on which netvmd listens for NFs that it did not start.
///
/// # Errors
/// The kernel's error: the path exists already, or its folder does not.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// Connects to netvmd's socket.
///
/// # Errors
/// [`AttachError::Connect`] with the path and the probable cause.
pub fn connect(path: &Path) -> Result<OwnedFd, AttachError> {
    let fail = |source: rustix::io::Errno| AttachError::Connect {
        path: path.display().to_string(),
        source: source.into(),
    };
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(fail)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).map_err(fail)?).map_err(fail)?;
    Ok(socket)
}

/// Sends one message, with descriptors.
///
/// # Errors
/// [`AttachError::Closed`] if the peer is gone, [`AttachError::Protocol`] if the message is too long, else
/// [`AttachError::Socket`].
pub fn send<M: Serialize>(socket: impl AsFd, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), AttachError> {
    let body = serde_json::to_vec(message).map_err(|e| AttachError::Protocol(e.to_string()))?;
    if body.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
        let text = format!("a message of {} bytes and {} descriptors is too long", body.len(), fds.len());
        return Err(AttachError::Protocol(text));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(AttachError::Protocol("too many descriptors".into()));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&body)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message, with its descriptors (close-on-exec).
///
/// # Errors
/// [`AttachError::Closed`] if the peer is gone, [`AttachError::Protocol`] if the message is not the expected one.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, Vec<OwnedFd>), AttachError> {
    let mut body = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut body)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(AttachError::Protocol("a message or its descriptors were truncated".into()));
    }
    if received.bytes == 0 {
        return Err(AttachError::Closed);
    }
    let message = serde_json::from_slice(body.get(..received.bytes).unwrap_or_default())
        .map_err(|e| AttachError::Protocol(e.to_string()))?;
    Ok((message, fds))
}

/// Receives one message without its descriptors: the kernel closes them, before this returns.
///
/// # Errors
/// As for [`receive`].
pub fn receive_bare<M: DeserializeOwned>(socket: impl AsFd) -> Result<M, AttachError> {
    let mut body = vec![0; MAX_MESSAGE];
    // With TRUNC, the length of the whole message.
    let (_, length) = rustix::net::recv(socket, body.as_mut_slice(), RecvFlags::TRUNC)?;
    match body.get(..length) {
        Some([]) => Err(AttachError::Closed),
        Some(body) => serde_json::from_slice(body).map_err(|e| AttachError::Protocol(e.to_string())),
        None => Err(AttachError::Protocol(format!("a message of {length} bytes is too long"))),
    }
}

/// The NF's side of the handshake: sends `hello` and receives the descriptors.
///
/// # Errors
/// [`AttachError::Refused`] with the engine's reason, else as for [`send`] and [`receive`].
pub fn handshake(socket: impl AsFd, hello: &Hello) -> Result<Fds<OwnedFd>, AttachError> {
    send(&socket, hello, &[])?;
    let (answer, fds) = receive::<Answer>(&socket)?;
    match answer {
        Answer::Refused { reason } => Err(AttachError::Refused(reason)),
        Answer::Welcome { regions, workers, nf_threads } => {
            let wanted = 2 + usize::from(regions) + usize::from(workers) + usize::from(nf_threads);
            let count = fds.len();
            let short =
                || AttachError::Protocol(format!("received {count} descriptors, {wanted} were announced"));
            if count != wanted {
                return Err(short());
            }
            let mut fds = fds.into_iter();
            let (control, table) = (fds.next().ok_or_else(short)?, fds.next().ok_or_else(short)?);
            let mut take = |n: u16| fds.by_ref().take(usize::from(n)).collect();
            Ok(Fds {
                control,
                table,
                regions: take(regions),
                workers: take(workers),
                nf_threads: take(nf_threads),
            })
        }
    }
}

/// The engine's side of the handshake: admits the NF and sends the descriptors.
///
/// # Errors
/// As for [`send`].
pub fn welcome(socket: impl AsFd, fds: &Fds<BorrowedFd<'_>>) -> Result<(), AttachError> {
    let answer = Answer::Welcome {
        regions: fds.regions.len() as u16,
        workers: fds.workers.len() as u16,
        nf_threads: fds.nf_threads.len() as u16,
    };
    let mut all = vec![fds.control, fds.table];
    all.extend(fds.regions.iter().chain(&fds.workers).chain(&fds.nf_threads));
    send(socket, &answer, &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let counters = vec!["allowed".into()];
        Hello { layout: 1, role: "firewall".into(), name: "fw".into(), threads: 2, counters, offloads: true }
    }

    #[test]
    fn a_handshake_passes_every_descriptor_in_order() {
        let (engine, nf) = pair().unwrap();
        let server = std::thread::spawn(move || {
            let (got, _) = receive::<Hello>(&engine).unwrap();
            let files: Vec<_> = (0..8)
                .map(|n| rustix::event::eventfd(n, rustix::event::EventfdFlags::empty()).unwrap())
                .collect();
            let fd = |n: usize| files[n].as_fd();
            let fds = Fds {
                control: fd(0),
                table: fd(1),
                regions: vec![fd(2)],
                workers: vec![fd(3), fd(4)],
                nf_threads: vec![fd(5), fd(6), fd(7)],
            };
            welcome(&engine, &fds).unwrap();
            got
        });
        let fds = handshake(&nf, &hello()).unwrap();
        assert_eq!(server.join().unwrap(), hello());
        let value = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).unwrap();
            u64::from_ne_bytes(count)
        };
        assert_eq!((value(&fds.table), value(&fds.regions[0])), (1, 2));
        assert_eq!((value(&fds.workers[1]), value(&fds.nf_threads[2]), fds.nf_threads.len()), (4, 7, 3));
    }

    #[test]
    fn a_refusal_carries_the_reason() {
        let (engine, nf) = pair().unwrap();
        send(&engine, &Answer::Refused { reason: "no role `x`".into() }, &[]).unwrap();
        let error = handshake(&nf, &hello()).unwrap_err();
        assert_eq!(error.to_string(), "netvmd refused this NF: no role `x`");
    }

    #[test]
    fn garbage_and_a_closed_socket_are_distinct_errors() {
        let (engine, nf) = pair().unwrap();
        rustix::net::send(&engine, b"\xff{", SendFlags::empty()).unwrap();
        assert!(matches!(receive::<Answer>(&nf), Err(AttachError::Protocol(_))));
        drop(engine);
        assert!(matches!(receive::<Answer>(&nf), Err(AttachError::Closed)));
        let error = connect(Path::new("/nonexistent/attach.sock")).unwrap_err();
        assert!(error.may_retry() && error.to_string().contains("/nonexistent/attach.sock"), "{error}");
    }
}
