// SPDX-License-Identifier: Apache-2.0
//! Ports with sockets in a folder of their own, and what passes through them.
#![allow(unsafe_code, reason = "hands the bytes of vectors to queues")]

use std::path::{Path, PathBuf};

use netvm_memif::{NotTaken, Options, Port, Queue, Role, Status};
use tempfile::TempDir;

pub use netvm_testing::until;

pub fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock");
    (folder, socket)
}

pub fn options(path: &Path, role: Role) -> Options {
    let (path, secret, name) = (path.to_owned(), None, "port".to_owned());
    Options { path, role, id: 3, secret, log2_ring_size: 6, buffer_size: 2048, queues: 1, name }
}

/// An open port with one queue.
pub fn open(options: &Options) -> (Port, Queue) {
    let (port, mut queues) = Port::open(options).unwrap();
    (port, queues.remove(0))
}

pub fn connected(port: &Port) {
    until("connected", || port.status().is_connected);
}

/// A server and a client that are connected.
pub fn pair(change: impl Fn(&mut Options)) -> (TempDir, (Port, Queue), (Port, Queue)) {
    let (folder, socket) = folder();
    let [server, client] = [Role::Server, Role::Client].map(|role| {
        let mut options = options(&socket, role);
        change(&mut options);
        open(&options)
    });
    connected(&server.0);
    connected(&client.0);
    (folder, server, client)
}

/// Sends a packet in pieces of these lengths.
pub fn send_in(queue: &mut Queue, packet: &[u8], lengths: &[usize]) -> Result<(), NotTaken> {
    let mut rest = packet;
    let mut pieces = Vec::new();
    for length in lengths {
        let (piece, after) = rest.split_at((*length).min(rest.len()));
        pieces.push((piece.as_ptr(), piece.len()));
        rest = after;
    }
    pieces.push((rest.as_ptr(), rest.len()));
    // SAFETY: parts of the packet.
    unsafe { queue.send().unwrap().put(&pieces) }
}

pub fn send(queue: &mut Queue, packet: &[u8]) -> Result<(), NotTaken> {
    send_in(queue, packet, &[])
}

/// What has arrived, and how many of it were malformed.
pub fn receive(queue: &mut Queue, most: usize) -> (Vec<Vec<u8>>, u64) {
    let mut packets = Vec::new();
    let malformed = queue.receive(most, |received| {
        let mut bytes = vec![0; received.length];
        let (front, back) = bytes.split_at_mut(received.length / 3);
        let pieces = [front, back].map(|part| (part.as_mut_ptr(), part.len()));
        // SAFETY: both parts of the vector.
        let is_whole = unsafe { received.copy(pieces.into_iter()) };
        assert!(is_whole);
        packets.push(bytes);
        Some(true)
    });
    (packets, malformed)
}

/// The next packets, as many as these.
pub fn expect(queue: &mut Queue, packets: &[Vec<u8>]) {
    let mut got = Vec::new();
    until("packets", || {
        got.extend(receive(queue, 32).0);
        got.len() >= packets.len()
    });
    assert_eq!(got, packets);
}

/// Packets of many lengths.
pub fn packets(count: usize, longest: usize) -> Vec<Vec<u8>> {
    let length = |n: usize| 14 + (n * n * 131) % (longest - 13);
    (0..count).map(|n| (0..length(n)).map(|at| (n * 31 + at) as u8).collect()).collect()
}

/// Waits for a fault with this text.
pub fn fault(port: &Port, text: &str) -> Status {
    let says = || port.status().fault.is_some_and(|fault| fault.to_string().contains(text));
    until(&format!("{text}: {:?}", port.status()), says);
    port.status()
}

/// Does something with one side as the sender, then with the other one.
pub fn both_ways(one: &mut Queue, other: &mut Queue, mut each: impl FnMut(&mut Queue, &mut Queue)) {
    each(one, other);
    each(other, one);
}
