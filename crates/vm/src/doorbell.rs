//! The server of an `ivshmem-doorbell` device (QEMU's `docs/specs/ivshmem-spec`, "Inter-VM shared memory server protocol"),
//! reduced to what it would say: as there is one VM, and the descriptors are all there before it starts, everything is
//! written to the socket beforehand, and nobody needs to serve it.
//!
//! ```text
//!  version 0 │ the VM is peer 1 │ -1 + shared memory │ 0 + eventfd of vector 0 │ 0 + eventfd of vector 1 │ …
//! ```
//!
//! Each message is a little-endian number of eight bytes, with at most one descriptor. Peer 0 is netvm.

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

/// A connection on which all has been said.
#[derive(Debug)]
pub(crate) struct Server {
    /// QEMU's end.
    pub(crate) client: OwnedFd,
    /// The server's end: QEMU reads nothing more once it is closed, so that it is best left open in QEMU itself.
    pub(crate) server: OwnedFd,
    /// How many vectors there are.
    pub(crate) vectors: usize,
}

/// Says all that there is to say.
pub(crate) fn serve(memory: BorrowedFd<'_>, vectors: &[BorrowedFd<'_>]) -> io::Result<Server> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (server, client) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    tell(server.as_fd(), memory, vectors)?;
    Ok(Server { client, server, vectors: vectors.len() })
}

/// Says all that there is to say on a connection.
pub(crate) fn tell(
    server: BorrowedFd<'_>,
    memory: BorrowedFd<'_>,
    vectors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    say(server, VERSION, None)?;
    say(server, GUEST, None)?;
    say(server, MEMORY, Some(memory))?;
    vectors.iter().try_for_each(|vector| say(server, NETVM, Some(*vector)))
}

/// Sends a QEMU away: by a version that there is not, as it would wait for ever at the end of a connection on which nothing
/// was said.
pub(crate) fn refuse(server: BorrowedFd<'_>) -> io::Result<()> {
    say(server, REFUSED, None)
}

fn say(socket: BorrowedFd<'_>, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
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

    fn hear(socket: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
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
    fn everything_is_there_to_be_read_before_anybody_serves() {
        let events: Vec<OwnedFd> = (0..96).map(|n| eventfd(n, EventfdFlags::empty()).unwrap()).collect();
        let vectors: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
        let Server { client: theirs, server, .. } = serve(events[95].as_fd(), &vectors).unwrap();
        drop(server);
        assert!(matches!(hear(&theirs), Some((0, None))));
        assert!(matches!(hear(&theirs), Some((1, None))));
        assert!(matches!(hear(&theirs), Some((-1, Some(_)))));
        for (n, ours) in events.iter().enumerate() {
            let Some((0, Some(event))) = hear(&theirs) else { panic!("vector {n}") };
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            let mut count = [0; 8];
            rustix::io::read(ours, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), n as u64 + 1);
        }
        assert!(hear(&theirs).is_none());
    }
}
