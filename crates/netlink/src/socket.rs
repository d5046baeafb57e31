// SPDX-License-Identifier: Apache-2.0
//! rtnetlink(7) over plain sockets: requests, dumps and events.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use netlink_packet_core::{
    DecodeError, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// Longest datagram of the kernel (`NLMSG_GOODSIZE`, at most doubled in dumps).
const DATAGRAM: usize = 64 << 10;
/// Receive buffer for events: some 50,000 routes.
const EVENT_BUFFER_BYTES: usize = 16 << 20;
/// Receive timeout; the kernel normally answers at once.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// `RTM_NEWNEXTHOP` and `RTM_DELNEXTHOP`, which `netlink-packet-route` does not know.
const NEXTHOP_MESSAGES: std::ops::RangeInclusive<u16> = 104..=105;
/// `RTM_NEWNETCONF` and `RTM_DELNETCONF`, the same.
const NETCONF_MESSAGES: std::ops::RangeInclusive<u16> = 80..=81;
/// `NHA_ID`, and the bytes of `struct nhmsg` in front of the attributes (`linux/nexthop.h`).
const NHA_ID: u16 = 1;
const NHMSG: usize = 8;
/// Most attempts at a dump that concurrent changes interrupt; the last result is used as it is.
const ATTEMPTS: u32 = 4;

/// A socket for requests, in the namespace of the thread that opens it.
#[derive(Debug)]
pub struct Requests {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        let socket = socket(0, SocketFlags::CLOEXEC)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; DATAGRAM] })
    }

    /// Requests a change and waits for its acknowledgement.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, NLM_F_REQUEST | NLM_F_ACK | flags, &mut |_, _| ()).map(|_| ())
    }

    /// Requests a change, and returns what the kernel has made of it, if it says so.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn make(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut made = None;
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO | flags;
        self.ask(message, flags, &mut |_, message| made = Some(message))?;
        Ok(made)
    }

    /// Requests one object.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::NotFound`] or `ENODEV` if it does not exist.
    pub fn get(&mut self, message: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut found = None;
        self.ask(message, NLM_F_REQUEST | NLM_F_ACK, &mut |_, message| found = Some(message))?;
        Ok(found)
    }

    /// Dumps all objects of a kind, again if changes interrupt the dump; calls `begin` before each attempt.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn dump<S>(
        &mut self,
        message: &RouteNetlinkMessage,
        begin: impl Fn() -> S,
        each: impl Fn(&mut S, RouteNetlinkMessage),
    ) -> io::Result<S> {
        let mut attempt = 1;
        loop {
            let mut state = begin();
            let add = &mut |_, message| each(&mut state, message);
            let is_whole = self.ask(message.clone(), NLM_F_REQUEST | NLM_F_DUMP, add)?;
            // Changes during the last attempt also arrive as events.
            if is_whole || attempt == ATTEMPTS {
                return Ok(state);
            }
            attempt += 1;
        }
    }

    /// Sends a request and passes on each message of the answer; false if changes interrupted the dump.
    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(u16, RouteNetlinkMessage),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (flags, self.sequence);
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let (mut is_whole, mut outcome) = (true, None);
        while outcome.is_none() {
            let count = receive(&self.socket, &mut self.buffer, RecvFlags::empty())?;
            split(&self.buffer[..count], |header, payload| {
                // An answer to an earlier request that timed out.
                if header.sequence_number != self.sequence {
                    return;
                }
                is_whole &= header.flags & NLM_F_DUMP_INTR == 0;
                match payload {
                    Ok(NetlinkPayload::InnerMessage(message)) => each(header.flags, message),
                    Ok(NetlinkPayload::Error(error)) => {
                        outcome = Some(if error.code.is_none() { Ok(()) } else { Err(error.to_io()) });
                    }
                    Ok(NetlinkPayload::Done(done)) => {
                        outcome = Some(match done.code {
                            0 => Ok(()),
                            code => Err(io::Error::from_raw_os_error(-code)),
                        });
                    }
                    Ok(_) => {}
                    // A malformed message does not invalidate the others.
                    Err(error) => tracing::debug!("netlink: {error}"),
                }
            })?;
        }
        outcome.unwrap_or(Ok(())).map(|()| is_whole)
    }
}

/// Result of reading events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The queue is empty.
    All,
    /// More events may be queued.
    More,
    /// The kernel dropped events.
    Lost,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A message, with the flags of its netlink header.
    Message(u16, RouteNetlinkMessage),
    /// The nexthop object with this id was added, changed or removed (`ip nexthop`).
    Nexthop(u32),
    /// A setting of an interface has changed (`net.ipv4.conf`, `net.ipv6.conf`). Not all settings have events.
    Setting,
}

/// A socket for events.
#[derive(Debug)]
pub struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Events {
    /// Opens a socket in the calling thread's namespace. `groups`: `RTMGRP_*` bits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(groups: u32) -> io::Result<Self> {
        let socket = socket(groups, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        // Exceeds net.core.rmem_max if CAP_NET_ADMIN allows. A smaller buffer loses events sooner, which costs dumps.
        if sockopt::set_socket_recv_buffer_size_force(&socket, EVENT_BUFFER_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, EVENT_BUFFER_BYTES)?;
        }
        Ok(Self { socket, buffer: vec![0; DATAGRAM] })
    }

    /// Passes on the queued events, from at most `most` datagrams.
    ///
    /// # Errors
    /// The kernel's error, other than lost events.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(Event)) -> io::Result<ReadOutcome> {
        for _ in 0..most {
            match receive(&self.socket, &mut self.buffer, RecvFlags::DONTWAIT) {
                Ok(count) => {
                    let datagram = &self.buffer[..count];
                    raw(datagram).for_each(&mut each);
                    split(datagram, |header, payload| match payload {
                        Ok(NetlinkPayload::InnerMessage(message)) => {
                            each(Event::Message(header.flags, message));
                        }
                        Ok(_) => {}
                        Err(error) => tracing::debug!("netlink: {error}"),
                    })?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadOutcome::All),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(ReadOutcome::Lost),
                Err(error) => return Err(error),
            }
        }
        Ok(ReadOutcome::More)
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket(groups: u32, flags: SocketFlags) -> io::Result<OwnedFd> {
    // The protocol is NETLINK_ROUTE, which is 0.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match rustix::net::recv(socket, &mut *buffer, flags | RecvFlags::TRUNC) {
            Ok((_, length)) if length > buffer.len() => {
                return Err(io::Error::other(format!("netlink datagram of {length} bytes is too long")));
            }
            Ok((_, length)) => return Ok(length),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether `netlink-packet-route` does not know messages of this kind.
fn is_raw(kind: u16) -> bool {
    NEXTHOP_MESSAGES.contains(&kind) || NETCONF_MESSAGES.contains(&kind)
}

/// Splits a datagram into messages, without those that [`raw`] reads.
fn split(
    mut rest: &[u8],
    mut each: impl FnMut(NetlinkHeader, Result<NetlinkPayload<RouteNetlinkMessage>, DecodeError>),
) -> io::Result<()> {
    while !rest.is_empty() {
        let malformed = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        let head = NetlinkBuffer::new_checked(rest).map_err(malformed)?;
        let length = head.length() as usize;
        if is_raw(head.message_type()) {
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            continue;
        }
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (head.flags(), head.sequence_number());
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&rest[..length]);
        each(header, message.map(|message| message.payload));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

/// The events of a datagram that `netlink-packet-route` does not know.
fn raw(mut rest: &[u8]) -> impl Iterator<Item = Event> {
    std::iter::from_fn(move || {
        loop {
            let head = NetlinkBuffer::new_checked(rest).ok()?;
            let (kind, length, payload) = (head.message_type(), head.length() as usize, head.payload());
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if NETCONF_MESSAGES.contains(&kind) {
                return Some(Event::Setting);
            }
            if NEXTHOP_MESSAGES.contains(&kind)
                && let Some(id) = nexthop_id(payload.get(NHMSG..).unwrap_or_default())
            {
                return Some(Event::Nexthop(id));
            }
        }
    })
}

/// The id among a nexthop object's attributes.
fn nexthop_id(bytes: &[u8]) -> Option<u32> {
    let id = attribute(bytes, NHA_ID)?;
    id.first_chunk().map(|id| u32::from_ne_bytes(*id))
}

/// The value of the first attribute of this kind. What is behind a malformed attribute is not read.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(bytes).map_while(Result::ok).find(|attribute| attribute.kind() == kind)?;
    let value = NLA_HEADER_SIZE..found.length().into();
    found.into_inner().get(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An attribute, padded.
    pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = 16 + payload.len() as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn nexthop_objects_and_settings_are_found_between_other_messages() {
        let group =
            [&[0; NHMSG][..], &attribute(2, &[7; 5]), &attribute(NHA_ID, &9u32.to_ne_bytes())].concat();
        let plain = [&[0; NHMSG][..], &attribute(NHA_ID, &5u32.to_ne_bytes())].concat();
        let without = [&[0; NHMSG][..], &attribute(2, &[])].concat();
        let datagram = [
            message(16, &[0; 16]),
            message(104, &group),
            message(80, &[0; 12]),
            message(105, &without),
            message(105, &plain),
        ]
        .concat();
        let events = [Event::Nexthop(9), Event::Setting, Event::Nexthop(5)];
        assert_eq!(raw(&datagram).collect::<Vec<_>>(), events);
        let mut others = 0;
        split(&datagram, |_, _| others += 1).unwrap();
        assert_eq!(others, 1);
        // Cut anywhere, it neither panics nor runs for ever.
        for end in 0..datagram.len() {
            assert!(raw(&datagram[..end]).count() <= 3);
        }
        assert_eq!(nexthop_id(&[0, 0, 2, 0]), None);
    }
}
