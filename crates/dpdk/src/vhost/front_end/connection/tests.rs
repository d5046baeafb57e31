// SPDX-License-Identifier: Apache-2.0
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use netvm_vhost_user::Refusal;
use netvm_vhost_user::peer::{bytes, payload, send};
use netvm_vhost_user::request::{
    GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_STATUS, GET_VRING_BASE, SET_FEATURES,
    SET_MEM_TABLE, SET_PROTOCOL_FEATURES, SET_STATUS, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_CALL,
    SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM,
};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

use super::*;
use crate::vhost::{VhostMode, VhostStatus, calls};

const NEED_REPLY: u32 = 1 | 8;
const START: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 20;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;

/// A port without workers, and a front-end.
struct Line {
    connections: Arc<Connections>,
    guests: Arc<Guests>,
    guest: UnixStream,
    memory: OwnedFd,
    event: OwnedFd,
}

impl Line {
    fn new(name: &str) -> Self {
        let guests = Guests::register(PathBuf::from(name), VhostMode::Server, 1, None).unwrap().unwrap();
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, BYTES).unwrap();
        let event = netvm_notify::new_eventfd().unwrap();
        let connections = Arc::new(Connections::new(Arc::clone(&guests)));
        let guest = connect(&connections);
        Self { connections, guests, guest, memory, event }
    }

    fn send_with(&self, request: u32, words: &[u64], fds: &[BorrowedFd<'_>]) {
        send(&self.guest, &bytes(request, 1, &payload(words)), fds).unwrap();
    }

    fn send(&self, request: u32, words: &[u64]) {
        self.send_with(request, words, &[]);
    }

    /// Sends a request and returns the number in its reply.
    fn ask(&self, request: u32, words: &[u64]) -> u64 {
        send(&self.guest, &bytes(request, NEED_REPLY, &payload(words)), &[]).unwrap();
        let mut answer = [0; 20];
        (&self.guest).read_exact(&mut answer).unwrap();
        assert_eq!(answer[..12], bytes(request, 1 | 4, &[0; 8])[..12]);
        u64::from_ne_bytes(answer[12..].try_into().unwrap())
    }

    fn share(&self, bytes: u64) {
        self.send_with(SET_MEM_TABLE, &[1, 0, bytes, START, 0], &[self.memory.as_fd()]);
    }

    fn start(&self, ring: u64, base: u64) {
        let at = START + ring * 0x1_0000;
        self.send(SET_VRING_NUM, &[ring | 256 << 32]);
        self.send(SET_VRING_BASE, &[ring | base << 32]);
        self.send(SET_VRING_ADDR, &[ring, at, at + 0x8000, at + 0x4000, 0]);
        self.send_with(SET_VRING_KICK, &[ring], &[self.event.as_fd()]);
        self.send_with(SET_VRING_CALL, &[ring], &[self.event.as_fd()]);
    }

    /// After all messages.
    fn status(&self) -> VhostStatus {
        self.ask(GET_FEATURES, &[]);
        self.guests.status()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.connections.end_all();
        self.guests.unregister();
    }
}

/// The other end of a new connection.
fn connect(connections: &Arc<Connections>) -> UnixStream {
    let (guest, stream) = UnixStream::pair().unwrap();
    guest.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connections.begin(stream);
    guest
}

fn is_over(mut end: &UnixStream) -> bool {
    match end.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        // It was closed before everything was read.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Waits until it is so; `false` if that takes too long.
pub(in super::super) fn within_timeout(is_so: impl FnMut() -> bool) -> bool {
    netvm_testing::within(netvm_testing::LIMIT, is_so)
}

#[test]
fn a_guest_is_connected_while_both_rings_of_its_first_pair_run() {
    let line = Line::new("/connected");
    assert_eq!(line.ask(GET_QUEUE_NUM, &[]), 64);
    assert_ne!(line.ask(GET_FEATURES, &[]) & PROTOCOL, 0);
    // It accepts TSO over IPv4.
    assert_eq!(line.ask(SET_FEATURES, &[VERSION_1 | 1 << 1 | 1 << 7]), 0);
    line.share(BYTES);
    line.start(0, 7);
    assert!(!line.status().connected);
    line.start(1, 0);
    let status = line.status();
    assert!(status.connected && status.queue_pairs == 1);
    assert!(status.accepts.checksum && status.accepts.tso4 && !status.accepts.tso6);
    // Its memory moves.
    line.share(BYTES / 2);
    assert!(line.status().connected);
    // The used index is where it stops: the memory is empty.
    assert_eq!(line.ask(GET_VRING_BASE, &[0]), 0);
    assert!(!line.status().connected);
    line.start(0, 0);
    assert!(line.status().connected);
    let (guests, connections) = (Arc::clone(&line.guests), Arc::clone(&line.connections));
    drop(line);
    assert!(!guests.status().connected && within_timeout(|| connections.threads() == 0));
}

#[test]
fn with_protocol_features_rings_are_enabled_and_drivers_are_ready() {
    let line = Line::new("/enabled");
    let features = line.ask(GET_PROTOCOL_FEATURES, &[]);
    line.send(SET_PROTOCOL_FEATURES, &[features]);
    line.send(SET_FEATURES, &[VERSION_1 | PROTOCOL | 1 << 34 | 1 << 22]);
    line.share(BYTES);
    (0..4).for_each(|ring| line.start(ring, 1 << 15 | 5));
    assert!(!line.status().connected);
    line.send(SET_STATUS, &[15]);
    assert_eq!(line.ask(GET_STATUS, &[]), 15);
    assert!(!line.status().connected);
    (0..4).for_each(|ring| line.send(SET_VRING_ENABLE, &[ring | 1 << 32]));
    assert_eq!(line.status().queue_pairs, 2);
    line.send(SET_VRING_ENABLE, &[2]);
    line.send(SET_VRING_ENABLE, &[3]);
    let status = line.status();
    assert!(status.connected && status.queue_pairs == 1);
    let position = 1 << 15 | 5;
    assert_eq!(line.ask(GET_VRING_BASE, &[1]), 1 | (position | position << 16) << 32);
    assert!(!line.status().connected);
}

#[test]
fn calls_go_to_the_guests_descriptor() {
    let line = Line::new("/calls");
    line.send_with(SET_VRING_CALL, &[3], &[line.event.as_fd()]);
    line.send(SET_VRING_CALL, &[4 | 1 << 8]);
    line.ask(GET_FEATURES, &[]);
    let connection = Arc::clone(&lock(&line.connections.list)[0]);
    let device = lock(&connection.device).as_ref().unwrap().number;
    for vring in [3, 4] {
        calls::signal(&netvm_notify::Signaller::new(), device, vring);
    }
    let mut count = [0; 8];
    rustix::io::read(&line.event, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn a_refused_message_ends_the_connection_after_the_earlier_ones() {
    let line = Line::new("/refused");
    let call = bytes(SET_VRING_CALL, 1, &0u64.to_ne_bytes());
    let region = payload(&[1, 0, BYTES, START, 0]);
    let many = vec![line.event.as_fd(); 9];
    let wrong: [(Vec<u8>, &[BorrowedFd<'_>], Refusal); 8] = [
        (bytes(SET_FEATURES, 1, &[0; 7]), &[], Refusal::Protocol),
        (bytes(99, 1, &[0; 8]), &[], Refusal::Protocol),
        // Not offered.
        (bytes(SET_FEATURES, 1, &[0xff; 8]), &[], Refusal::Protocol),
        (bytes(SET_PROTOCOL_FEATURES, 1, &[0xff; 8]), &[], Refusal::Protocol),
        (bytes(SET_FEATURES, 1, &[0; 8]), &[line.event.as_fd()], Refusal::Protocol),
        (call.clone(), &many, Refusal::Protocol),
        (call, &[line.memory.as_fd()], Refusal::NotAnEventfd),
        (
            bytes(SET_MEM_TABLE, 1, &region),
            &[line.event.as_fd()],
            Refusal::ServedMemory { file_system: None },
        ),
    ];
    for (message, fds, why) in wrong {
        let mut guest = connect(&line.connections);
        guest.write_all(&bytes(GET_FEATURES, 1, &[])).unwrap();
        send(&guest, &message, fds).unwrap();
        guest.read_exact(&mut [0; 20]).unwrap();
        assert!(is_over(&guest), "{why:?}");
        let refused = lock(&line.guests.refused);
        assert_eq!((refused.last.as_ref(), refused.count), (Some(&why), 1));
    }
    // The first front-end is still there.
    assert!(!line.status().connected);
}

#[test]
fn a_guest_that_reads_no_replies_is_disconnected() {
    let mut line = Line::new("/silent");
    line.guest.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    while line.guest.write_all(&bytes(GET_FEATURES, 1, &[])).is_ok() {}
    assert!(within_timeout(|| line.connections.is_empty()));
}

/// Descriptors that no message needs are closed.
#[test]
fn descriptors_that_go_no_further_are_closed() {
    let line = Line::new("/closed");
    let inode = fstat(&line.memory).unwrap().st_ino;
    let open = || {
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let stats = numbers.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        stats.filter(|stat| std::os::unix::fs::MetadataExt::ino(stat) == inode).count()
    };
    let other = std::fs::File::open(format!("/proc/self/fd/{}", line.memory.as_raw_fd())).unwrap();
    for request in [SET_FEATURES, SET_VRING_CALL, 99] {
        let guest = connect(&line.connections);
        send(&guest, &bytes(request, 1, &[0; 8]), &[other.as_fd(); 8]).unwrap();
        assert!(is_over(&guest));
        assert!(within_timeout(|| open() == 2), "{}", open());
    }
    // Mapped memory keeps its file, until it is replaced or the connection ends.
    line.share(BYTES);
    line.share(BYTES / 2);
    assert!(!line.status().connected && open() == 3);
    line.guest.shutdown(Shutdown::Both).unwrap();
    assert!(within_timeout(|| open() == 2), "{}", open());
}

#[test]
fn a_second_guest_is_refused_while_the_first_one_lives() {
    let mut line = Line::new("/second");
    // One that only connects keeps nobody out.
    let silent = connect(&line.connections);
    line.send(SET_FEATURES, &[VERSION_1]);
    line.share(BYTES);
    (0..2).for_each(|ring| line.start(ring, 0));
    assert!(line.status().connected);
    for n in 1..=3 {
        let mut second = connect(&line.connections);
        second.write_all(&bytes(GET_FEATURES, 1, &[])).unwrap();
        assert!(is_over(&second));
        let (count, refused_peer) = line.guests.refused_peers.last();
        assert_eq!(
            (count, refused_peer.map(|refused_peer| refused_peer.who.pid)),
            (n, Some(std::process::id()))
        );
        assert!(line.status().connected, "the first guest stays");
    }
    (&silent).write_all(&bytes(GET_FEATURES, 1, &[])).unwrap();
    assert!(is_over(&silent));
    // The first one ends, and the next one comes at once.
    for _ in 0..50 {
        line.guest = connect(&line.connections);
        line.send(SET_FEATURES, &[VERSION_1]);
        line.share(BYTES);
        (0..2).for_each(|ring| line.start(ring, 0));
        assert!(line.status().connected);
    }
    assert_eq!(line.guests.refused_peers.last().0, 4);
}

#[test]
fn a_guest_without_shared_memory_is_noticed_once_its_driver_begins() {
    let line = Line::new("/unshared");
    line.ask(GET_FEATURES, &[]);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(!line.status().unshared, "no driver yet");
    line.send(SET_FEATURES, &[VERSION_1]);
    assert!(!line.status().unshared, "the memory may come");
    assert!(within_timeout(|| line.guests.status().unshared));
    line.share(BYTES);
    assert!(!line.status().unshared);
    // It shares a copy: what the driver writes does not arrive.
    (0..2).for_each(|ring| line.start(ring, 0));
    assert!(line.status().connected);
    assert!(within_timeout(|| line.guests.status().unshared));
    // A driver that starts again and writes to the memory.
    rustix::io::pwrite(&line.memory, &[1; 16], 0).unwrap();
    line.ask(GET_VRING_BASE, &[0]);
    line.start(0, 0);
    let status = line.status();
    assert!(status.connected && !status.unshared);
    std::thread::sleep(OFFER_TIME + Duration::from_millis(200));
    assert!(!line.guests.status().unshared);
}
