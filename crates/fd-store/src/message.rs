//! Messages between an owner and the store: one packet each on a `SOCK_SEQPACKET` socket, with at most one file.
//!
//! ```text
//!  0          4          8
//!  │ kind     │ number   │ name (OPEN only)
//! ```

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most files under one name.
pub const MOST_FILES: usize = 1024;

const HEADER: usize = 8;
/// Longest name, which is a path.
const MOST_NAME: usize = 4096;

/// What a message asks for, or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sender owns the files of a name from now on. They are sent to it as `Put`, and then `Opened`.
    Open = 1,
    Opened = 2,
    /// A file with its number, in place of one that had this number.
    Put = 3,
    Remove = 4,
    /// All files of the name.
    Forget = 5,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Open, Self::Opened, Self::Put, Self::Remove, Self::Forget];
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) name: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

/// Sends a message. Waits for room.
pub(crate) fn send(
    socket: impl AsFd,
    (kind, number): (Kind, u32),
    name: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    if name.len() > MOST_NAME {
        return Err(Errno::NAMETOOLONG);
    }
    let header = [(kind as u32).to_ne_bytes(), number.to_ne_bytes()].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let parts = [IoSlice::new(&header), IoSlice::new(name)];
    retry_on_intr(|| sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)).map(drop)
}

/// The next message.
///
/// # Errors
/// `CONNRESET` once the other side has closed the connection, `PROTO` for what is no message; with `DONTWAIT`, `AGAIN`.
pub(crate) fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<Message, Errno> {
    let mut bytes = [0; HEADER + MOST_NAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags))?;
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::PROTO);
    }
    let words = bytes.get(..received.bytes).and_then(|bytes| {
        let (kind, rest) = bytes.split_first_chunk::<4>()?;
        let (number, name) = rest.split_first_chunk::<4>()?;
        let kind = u32::from_ne_bytes(*kind);
        let kind = Kind::ALL.into_iter().find(|known| *known as u32 == kind)?;
        Some((kind, u32::from_ne_bytes(*number), name.to_vec()))
    });
    let (kind, number, name) = words.ok_or(Errno::PROTO)?;
    Ok(Message { kind, number, name, file })
}
