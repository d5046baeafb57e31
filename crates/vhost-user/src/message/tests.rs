// SPDX-License-Identifier: Apache-2.0
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::peer::{bytes, send};
use crate::request::{SET_FEATURES, SET_VRING_ERR};

fn numbered(n: u64) -> OwnedFd {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&event, &n.to_ne_bytes()).unwrap();
    event
}

fn number_of(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

#[test]
fn messages_are_whole_with_what_belongs_to_them() {
    let (mut guest, stream) = UnixStream::pair().unwrap();
    let mut message = Message::new();
    for byte in bytes(SET_FEATURES, 1 | 8, &7u64.to_ne_bytes()) {
        assert_eq!(message.read(&stream), Ok(false));
        guest.write_all(&[byte]).unwrap();
    }
    assert_eq!(message.receive(&stream), Ok(()));
    assert_eq!((message.request(), message.payload()), (SET_FEATURES, &7u64.to_ne_bytes()[..]));
    assert!(message.needs_reply());
    // Many at once stay in order and apart.
    for ring in 0..100u64 {
        let events = [ring + 1, ring + 1001].map(numbered);
        let message = bytes(SET_VRING_ERR, 1, &ring.to_ne_bytes());
        send(&guest, &message, &[events[0].as_fd(), events[1].as_fd()]).unwrap();
    }
    for ring in 0..100u64 {
        message.clear();
        message.receive(&stream).unwrap();
        assert_eq!((message.request(), message.payload()), (SET_VRING_ERR, &ring.to_ne_bytes()[..]));
        assert_eq!(message.fds.iter().map(number_of).collect::<Vec<_>>(), [ring + 1, ring + 1001]);
        assert!(!message.needs_reply());
    }
    message.clear();
    drop(guest);
    assert_eq!(message.receive(&stream), Err(End::Closed));
}

#[test]
fn what_is_longer_than_any_message_is_refused() {
    let header = |bytes: u32| [SET_FEATURES, 1, bytes].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let event = numbered(1);
    let fds = vec![event.as_fd(); MAX_FDS + 1];
    let messages: [(Vec<u8>, &[BorrowedFd<'_>]); 3] = [
        (header(u32::MAX), &[]),
        (header(MAX_BYTES as u32 + 1), &[]),
        (bytes(SET_FEATURES, 1, &[0; 8]), &fds),
    ];
    for (bytes, fds) in messages {
        let (guest, stream) = UnixStream::pair().unwrap();
        send(&guest, &bytes, fds).unwrap();
        assert_eq!(Message::new().receive(&stream), Err(End::Refused(Refusal::Protocol)));
    }
}

#[test]
fn half_a_message_is_waited_for_in_vain_and_not_for_long() {
    let (mut guest, stream) = UnixStream::pair().unwrap();
    let waiting = std::thread::spawn(move || Message::new().receive(&stream));
    std::thread::sleep(2 * REST_TIMEOUT);
    assert!(!waiting.is_finished());
    let start = Instant::now();
    guest.write_all(&bytes(SET_FEATURES, 1, &[0; 8])[..13]).unwrap();
    assert_eq!(waiting.join().unwrap(), Err(End::Closed));
    assert!(start.elapsed() >= REST_TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn replies_are_whole_or_end_the_connection() {
    let (mut guest, stream) = UnixStream::pair().unwrap();
    while reply(&stream, SET_FEATURES, &Reply::from(1)).is_ok() {}
    drop(stream);
    let mut replies = Vec::new();
    guest.read_to_end(&mut replies).unwrap();
    assert!(replies.len() > 200 && replies.len().is_multiple_of(20), "{}", replies.len());
    assert!(replies.chunks(20).all(|reply| reply == bytes(SET_FEATURES, 1 | 4, &1u64.to_ne_bytes())));
}
