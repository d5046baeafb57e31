// SPDX-License-Identifier: Apache-2.0
//! Arbitrary datagrams on the attach socket, with and without descriptors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_attach::{Answer, AttachError, Hello, Ready, handshake, pair, receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Serialize, de::DeserializeOwned};

use crate::input::Input;

/// The most descriptors that the kernel passes with one message.
const MAX_FDS: usize = 253;

/// Receives one datagram as each type of message, and as the answer to an NF's hello.
pub fn attach_message(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, count) = (input.u8(), usize::from(input.u8()));
    let body = input.rest();
    match kind % 4 {
        0 => as_message::<Hello>(body, count),
        1 => as_message::<Answer>(body, count),
        2 => as_message::<Ready>(body, count),
        _ => as_handshake(body, count),
    }
}

/// A pipe whose write ends are all closed except those sent in messages.
struct SentPipe {
    reader: OwnedFd,
}

impl SentPipe {
    /// Sends `body` with `count` copies of the pipe's write end.
    fn send(socket: &OwnedFd, body: &[u8], count: usize) -> Self {
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        let fds: Vec<BorrowedFd<'_>> = vec![writer.as_fd(); count.min(MAX_FDS)];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        sendmsg(socket, &[IoSlice::new(body)], &mut ancillary, SendFlags::NOSIGNAL).expect("sendmsg");
        Self { reader }
    }

    fn assert_all_closed(&self) {
        let mut fds = [PollFd::new(&self.reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll");
        assert!(fds[0].revents().contains(PollFlags::HUP), "a received descriptor stayed open");
    }
}

fn as_message<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8], count: usize) {
    let (here, there) = pair().expect("socketpair");
    let passed = SentPipe::send(&there, body, count);
    match receive::<M>(&here) {
        Ok((message, fds)) => {
            assert_eq!(fds.len(), count);
            match send(&here, &message, &[]) {
                Ok(()) => assert_eq!(receive::<M>(&there).expect("the message sent").0, message),
                Err(error) => assert!(matches!(error, AttachError::Protocol(_)), "{error}"),
            }
        }
        Err(AttachError::Closed) => assert!(body.is_empty()),
        Err(error) => assert!(matches!(error, AttachError::Protocol(_)), "{error}"),
    }
    passed.assert_all_closed();
}

fn as_handshake(body: &[u8], count: usize) {
    let (nf, engine) = pair().expect("socketpair");
    let passed = SentPipe::send(&engine, body, count);
    let (role, name) = ("fuzz".to_owned(), "fuzz".to_owned());
    let hello = Hello {
        layout: netvm_region::LAYOUT_VERSION,
        role,
        name,
        threads: 1,
        counters: Vec::new(),
        offloads: false,
    };
    match handshake(&nf, &hello) {
        Ok(fds) => assert_eq!(2 + fds.regions.len() + fds.workers.len() + fds.nf_threads.len(), count),
        Err(AttachError::Closed) => assert!(body.is_empty()),
        Err(error) => {
            assert!(matches!(error, AttachError::Protocol(_) | AttachError::Refused(_)), "{error}");
        }
    }
    assert_eq!(receive::<Hello>(&engine).expect("the hello").0, hello);
    passed.assert_all_closed();
}
