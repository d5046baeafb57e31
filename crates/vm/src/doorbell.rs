// SPDX-License-Identifier: Apache-2.0
//! Server side of the `ivshmem-doorbell` protocol (QEMU's `docs/specs/ivshmem-spec`, "Inter-VM shared memory server
//! protocol").
//!
//! There is one VM, and all descriptors exist before it starts. So netvm writes the whole exchange to the socket in
//! advance and no server needs to run:
//!
//! ```text
//!  version 0 │ the VM is peer 1 │ -1 + shared memory │ 0 + eventfd of vector 0 │ 0 + eventfd of vector 1 │ …
//! ```
//!
//! Each message is a little-endian 64-bit integer with at most one descriptor. Peer 0 is netvm.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};

const VERSION: i64 = 0;
const REFUSED: i64 = -1;
const NETVM: i64 = 0;
const GUEST: i64 = 1;
const MEMORY: i64 = -1;

/// A connection with all messages written.
#[derive(Debug)]
pub(crate) struct DoorbellServer {
    /// QEMU's end.
    pub(crate) client: OwnedFd,
    /// The server's end. QEMU reads nothing more once it is closed, so QEMU itself should inherit and hold it.
    pub(crate) server: OwnedFd,
    /// Number of interrupt vectors.
    pub(crate) vectors: usize,
}

/// Creates a connection and writes all messages to it.
pub(crate) fn serve(memory: BorrowedFd<'_>, vectors: &[BorrowedFd<'_>]) -> io::Result<DoorbellServer> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (server, client) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    send_messages(server.as_fd(), memory, vectors)?;
    Ok(DoorbellServer { client, server, vectors: vectors.len() })
}

/// Writes all messages to a connection.
pub(crate) fn send_messages(
    server: BorrowedFd<'_>,
    memory: BorrowedFd<'_>,
    vectors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(server, VERSION, None)?;
    send(server, GUEST, None)?;
    send(server, MEMORY, Some(memory))?;
    vectors.iter().try_for_each(|vector| send(server, NETVM, Some(*vector)))
}

/// Refuses a QEMU with an invalid protocol version. If the connection ended without a message, QEMU would wait forever.
pub(crate) fn refuse(server: BorrowedFd<'_>) -> io::Result<()> {
    send(server, REFUSED, None)
}

fn send(socket: BorrowedFd<'_>, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = number.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSliceMut;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    fn receive(socket: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap();
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        (received.bytes == 8).then(|| (i64::from_le_bytes(bytes), fd))
    }

    #[test]
    fn all_messages_are_readable_without_a_server() {
        let events: Vec<OwnedFd> = (0..96).map(|n| eventfd(n, EventfdFlags::empty()).unwrap()).collect();
        let vectors: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
        let DoorbellServer { client, server, .. } = serve(events[95].as_fd(), &vectors).unwrap();
        drop(server);
        assert!(matches!(receive(&client), Some((0, None))));
        assert!(matches!(receive(&client), Some((1, None))));
        assert!(matches!(receive(&client), Some((-1, Some(_)))));
        for (n, original) in events.iter().enumerate() {
            let Some((0, Some(event))) = receive(&client) else { panic!("vector {n}") };
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            let mut count = [0; 8];
            rustix::io::read(original, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), n as u64 + 1);
        }
        assert!(receive(&client).is_none());
    }
}
