//! A relay between a guest's front-end and the library.
//!
//! ```text
//!   front-end ══ socket ══▶ relay ══ pair ══▶ library
//!             ◀════════════       ◀══════════
//! ```
//!
//! The library serves all guests in one thread, and a guest could block it. The library reads a message in two parts, and
//! blocks on the second. It blocks until there is room for an answer, for some messages with all rings locked. It leaks the
//! descriptors of messages that it does not handle. It queries the size of files and closes them, which may take
//! arbitrarily long for a file on FUSE. The relay therefore passes on only complete and valid messages (`protocol`) with
//! descriptors that cannot block (`descriptors`). Each connection has a relay thread, which waits only for its own guest.
//!
//! The relay passes answers on as they come, and disconnects a front-end that does not read them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, send, sendmsg, shutdown,
};

use super::super::Refusal;
use super::super::calls::PendingCalls;
use super::descriptors;
use super::protocol::{MOST_BYTES, Protocol, REGIONS, locks_vrings};
use crate::vhost_user::SET_VRING_CALL;

/// Time limit for the rest of a message.
const REST_TIMEOUT: Duration = Duration::from_millis(200);
/// Request, flags and bytes of payload (vhost-user, "Message Specification").
const HEADER: usize = 12;
/// Descriptors that a message can have: one for each region of memory.
const MOST_FDS: usize = REGIONS;

/// Why a relay ends.
#[derive(Debug)]
enum End {
    /// One side has closed the connection or does not read.
    Closed,
    Refused(Refusal),
}

impl From<Errno> for End {
    fn from(_: Errno) -> Self {
        Self::Closed
    }
}

/// A connection.
#[derive(Debug)]
pub(in crate::vhost) struct Relay {
    /// The socket of the guest.
    pub(in crate::vhost) front: OwnedFd,
    /// The socket of the library.
    pub(in crate::vhost) back: OwnedFd,
    /// Call descriptors, which the library does not get.
    pub(in crate::vhost) pending_calls: Arc<PendingCalls>,
}

impl Relay {
    /// Runs until one side closes the connection or breaks the protocol. Calls `pause_device` before the library gets a
    /// message about memory or rings.
    ///
    /// Calls `refuse` once the library has handled the earlier messages and closed its end. The descriptors of the last
    /// message are closed last: closing a file may block on its server, and no thread waits for this one.
    pub(in crate::vhost) fn run(
        self,
        pause_device: impl Fn(&Arc<PendingCalls>),
        refuse: impl FnOnce(Refusal),
    ) {
        let mut message = Message::new();
        let end = self.pass_on(&mut message, pause_device);
        if let Err(End::Refused(why)) = end {
            let _ = shutdown(&self.back, Shutdown::Write);
            while recv(&self.back, &mut [0; 512], RecvFlags::empty()).is_ok_and(|(bytes, _)| bytes > 0) {}
            refuse(why);
        }
        drop(self);
        drop(message);
    }

    fn pass_on(&self, message: &mut Message, pause_device: impl Fn(&Arc<PendingCalls>)) -> Result<(), End> {
        let mut protocol = Protocol::new();
        loop {
            let is_whole = message.is_whole();
            let to_library = if is_whole { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut both = [PollFd::new(&self.back, to_library), PollFd::new(&self.front, PollFlags::IN)];
            // While a complete message waits for room, the relay reads nothing from the guest.
            let polled = if is_whole { &mut both[..1] } else { &mut both[..] };
            if !wait(polled, message.end)? {
                return Err(End::Closed);
            }
            let [back, front] = both.map(|one| one.revents());
            if back.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.answer()?;
            }
            if is_whole {
                if back.contains(PollFlags::OUT) {
                    message.send(&self.back)?;
                    message.clear();
                }
            } else if !front.is_empty() && message.read(&self.front)? {
                let fits = protocol.allows(message.request(), message.payload()).is_some();
                fits.then_some(()).ok_or(End::Refused(Refusal::Protocol))?;
                descriptors::check(message.request(), message.payload(), &message.fds)
                    .map_err(End::Refused)?;
                if message.request() == SET_VRING_CALL {
                    self.keep_call(message)?;
                }
                if locks_vrings(message.request()) {
                    pause_device(&self.pending_calls);
                }
            }
        }
    }

    /// Stores the guest's call descriptor, and replaces it by another one for the library.
    fn keep_call(&self, message: &mut Message) -> Result<(), End> {
        let vring = message.payload().first().copied().unwrap_or(0);
        let own = netvm_notify::new_eventfd()?;
        let fd = if let Some(fd) = message.fds.first_mut() { std::mem::replace(fd, own) } else { own };
        self.pending_calls.add(vring.into(), fd);
        Ok(())
    }

    /// Passes an answer of the library on, if there is room for it.
    fn answer(&self) -> Result<(), End> {
        let mut answer = [0; 512];
        let (bytes, _) = recv(&self.back, &mut answer, RecvFlags::DONTWAIT)?;
        let answer = answer.get(..bytes).filter(|answer| !answer.is_empty()).ok_or(End::Closed)?;
        let sent = send(&self.front, answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        (sent == bytes).then_some(()).ok_or(End::Closed)
    }
}

/// Waits until a descriptor is ready; returns `false` on timeout.
fn wait(fds: &mut [PollFd<'_>], end: Option<Instant>) -> Result<bool, End> {
    loop {
        let left = end.map(|end| Timespec::try_from(end.saturating_duration_since(Instant::now())));
        match poll(fds, left.transpose().map_err(|_| End::Closed)?.as_ref()) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A message being read, or complete.
#[derive(Debug)]
struct Message {
    bytes: [u8; HEADER + MOST_BYTES],
    have: usize,
    fds: Vec<OwnedFd>,
    /// Deadline for the rest of the message.
    end: Option<Instant>,
}

impl Message {
    const fn new() -> Self {
        Self { bytes: [0; HEADER + MOST_BYTES], have: 0, fds: Vec::new(), end: None }
    }

    fn clear(&mut self) {
        self.have = 0;
        self.fds.clear();
    }

    fn word(&self, n: usize) -> u32 {
        let bytes = self.bytes.get(4 * n..4 * n + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    fn request(&self) -> u32 {
        self.word(0)
    }

    fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER..self.have).unwrap_or_default()
    }

    /// Bytes of the header, or of the message once its header is complete.
    fn expected(&self) -> usize {
        if self.have < HEADER { HEADER } else { HEADER.saturating_add(self.word(2) as usize) }
    }

    fn is_whole(&self) -> bool {
        self.have >= HEADER && self.have == self.expected()
    }

    /// Reads more of this message; returns whether it is complete.
    fn read(&mut self, from: impl AsFd) -> Result<bool, End> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let expected = self.expected();
            // Longer than any valid message.
            let Some(rest) = self.bytes.get_mut(self.have..expected) else {
                return Err(End::Refused(Refusal::Protocol));
            };
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&from, &mut [IoSliceMut::new(rest)], &mut control, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = part {
                    self.fds.extend(fds);
                }
            }
            if received.bytes == 0 {
                return Err(End::Closed);
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MOST_FDS {
                return Err(End::Refused(Refusal::Protocol));
            }
            self.have += received.bytes;
            self.end = if self.is_whole() { None } else { self.end.or(Some(Instant::now() + REST_TIMEOUT)) };
            if self.is_whole() {
                return Ok(true);
            }
        }
    }

    /// Sends it; the socket must have room.
    fn send(&self, to: impl AsFd) -> Result<(), End> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(End::Closed);
        }
        let bytes = self.bytes.get(..self.have).unwrap_or_default();
        let sent =
            sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        (sent == bytes.len()).then_some(()).ok_or(End::Closed)
    }
}

#[cfg(test)]
mod tests;
