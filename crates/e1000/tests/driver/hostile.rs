// SPDX-License-Identifier: Apache-2.0
//! Clients and drivers that break the protocol.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use netvm_e1000::{Doorbells, Fault, Options, Port};
use netvm_guest_socket::{BindError, ServeError};
use netvm_testing::until;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::card::*;
use super::client::*;

/// Waits until the port has disconnected its client; returns the reason.
fn disconnected(port: &Port) -> Option<Fault> {
    until("it is disconnected", || !port.status().is_connected);
    port.status().fault
}

/// Checks that a card serves the next client normally.
fn serves_the_next(mut card: Card) {
    card.reconnect();
    assert_eq!(card.client.get(RCTL), 0, "reset");
    card.start();
    card.put(&frame(MAC, 60)).unwrap();
    assert!(card.received().is_some());
}

#[test]
fn memory_must_be_sealed_and_interrupts_eventfds() {
    let mut card = Card::new();
    let unsealed = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, BYTES).unwrap();
    assert!(card.client.map(FIRST + BYTES, BYTES, &unsealed).is_err());
    let fault = disconnected(&card.port).unwrap();
    assert!(fault.to_string().contains("memory-backend-memfd"), "{fault}");
    let mut card = Card::new();
    assert!(card.client.interrupt(&unsealed).is_err());
    assert_eq!(disconnected(&card.port), Some(Fault::NotAnEventfd));
}

#[test]
fn messages_that_are_too_long_or_no_requests_end_the_connection() {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    let two: [BorrowedFd<'_>; 2] = [fd.as_fd(), fd.as_fd()];
    for (header, fds) in [
        ([READ, 0, 0xffff, 0xffff, 0, 0], &[][..]),
        ([READ, 0, 15, 0, 0, 0], &[]),
        ([READ, 0, 32, 0, 1, 0], &[]),
        ([DMA_MAP, 0, 48, 0, 0, 0], &two),
    ] {
        let card = Card::new();
        let mut client = Client::raw(&card.path);
        assert!(matches!(client.socket.read(&mut [0; 16]), Ok(0) | Err(_)), "one client at a time");
        let mut card = card;
        let [command, rest @ ..] = header;
        let mut bytes =
            [1u16, command].iter().chain(&rest[1..]).flat_map(|half| half.to_ne_bytes()).collect::<Vec<_>>();
        bytes.extend([0; 4]);
        card.client.send_raw(&bytes, fds);
        assert_eq!(disconnected(&card.port), Some(Fault::Protocol));
        serves_the_next(card);
    }
}

#[test]
fn accesses_outside_regions_are_refused() {
    let mut card = Card::new();
    for (region, at, count) in [
        (0u32, 131_072u64, 4u32),
        (0, 131_070, 4),
        (0, u64::MAX, 4),
        (7, 254, 4),
        (3, 0, 4),
        (0, 0, 4097),
        (99, 0, 0),
    ] {
        let body = [&at.to_ne_bytes()[..], &words(&[region, count])].concat();
        let expected = if count == 0 { Ok(16) } else { Err(22) };
        assert_eq!(card.client.call(READ, &body, None).map(|reply| reply.0.len()), expected, "{region} {at}");
    }
    assert_eq!(card.client.call(99, &[], None).unwrap_err(), 95);
    assert_eq!(card.client.call(WRITE, &[0; 15], None).unwrap_err(), 22);
    assert_eq!(card.client.call(DMA_MAP, &[0; 31], None).unwrap_err(), 22);
    assert_eq!(card.client.get(0x1_0000), 0, "an unknown register");
    serves_the_next(card);
}

#[test]
fn a_ring_outside_memory_is_reported_and_a_full_one_without_end_is_emptied() {
    let mut card = Card::new();
    for n in 0..COUNT - 1 {
        card.describe(FIRST + TX_BUFFERS, 10 | if n == 3 { 0 } else { 8 << 24 });
    }
    card.client.set(TX + TAIL, COUNT - 1);
    assert_eq!(card.transmit(8), (vec![], 1));
    assert_eq!(card.client.get(TX + HEAD), COUNT - 1);
    card.client.set(TX, (FIRST + BYTES - 64) as u32);
    card.client.set(TX + HEAD, 0);
    assert_eq!(card.transmit(8).0, vec![]);
    card.client.set(TX + HEAD, 8);
    assert_eq!(card.transmit(8).0, vec![]);
    card.client.get(0);
    assert_eq!(card.port.status().fault, Some(Fault::Ring));
    // Heads and tails outside the ring.
    card.client.set(TX + HEAD, 0xffff);
    assert_eq!(card.transmit(8), (vec![], 0));
    card.client.call(RESET, &[], None).unwrap();
    serves_the_next(card);
}

/// Files with this name that the process has open.
fn open_files(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().contains(name)))
        .count()
}

#[test]
fn a_guests_memory_is_let_go_when_it_unmaps_it_and_when_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        path: folder.path().join("card.sock"),
        model: netvm_e1000::Model::I82540,
        mac: MAC,
        doorbells: Doorbells::Mapped,
    };
    let (port, _queue) = Port::open(&options).unwrap();
    let mut client = Client::connect(&options.path);
    for n in 0..3 {
        client.map(FIRST + n * BYTES, BYTES, sealed_as("a-guest-that-goes", BYTES)).unwrap();
    }
    assert_eq!(open_files("a-guest-that-goes"), 3);
    client.unmap(FIRST, BYTES).unwrap();
    assert_eq!(open_files("a-guest-that-goes"), 2);
    drop(client);
    assert_eq!(disconnected(&port), None);
    assert_eq!(open_files("a-guest-that-goes"), 0);
}

#[test]
fn a_second_client_is_refused_by_name_while_the_first_one_lives() {
    let mut card = Card::new();
    let mut second = Client::raw(&card.path);
    assert!(matches!(second.socket.read(&mut [0; 16]), Ok(0) | Err(_)));
    let (count, refused_peer) = card.port.refused();
    let refused_peer = refused_peer.filter(|_| count == 1).unwrap();
    assert_eq!([refused_peer.who.pid, refused_peer.holder.pid], [std::process::id(); 2]);
    assert_eq!(card.port.refused_peer(), Some(refused_peer));
    assert_eq!(card.client.get(RCTL), 0x8002, "the first goes on");
    // One that connects at the moment of the first one's end is served.
    for _ in 0..20 {
        let path = card.path.clone();
        drop(std::mem::replace(&mut card.client.socket, std::os::unix::net::UnixStream::pair().unwrap().0));
        card.client = Client::connect(&path);
    }
    assert_eq!(card.port.refused().0, 1);
    serves_the_next(card);
}

#[test]
fn a_client_that_says_nothing_keeps_the_next_one_out_only_for_a_moment() {
    let mut card = Card::new();
    let path = card.path.clone();
    // In place of the driver.
    drop(std::mem::replace(&mut card.client.socket, std::os::unix::net::UnixStream::pair().unwrap().0));
    disconnected(&card.port);
    let silent = Client::raw(&path);
    until("another client is served", || Client::raw(&path).call(VERSION, b"\0\0\0\0{}\0", None).is_ok());
    drop(silent);
}

#[test]
fn a_socket_belongs_to_one_port() {
    let card = Card::new();
    let options = Options {
        path: card.path.clone(),
        model: netvm_e1000::Model::I82540,
        mac: MAC,
        doorbells: Doorbells::Mapped,
    };
    assert!(matches!(Port::open(&options), Err(ServeError::Socket { problem: BindError::InUse, .. })));
    let Card { port, path, .. } = card;
    drop(port);
    assert!(!path.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_registers_and_rings_stay_within_bounds(
        registers in prop::collection::vec((0u32..0x6000, any::<u32>()), 0..40),
        small in prop::collection::vec((prop::sample::select(vec![TX, RX]), 0u32..0x30, 0u32..0x400), 0..20),
        ring in prop::collection::vec(any::<u8>(), 512),
        near in any::<bool>(),
    ) {
        let mut card = Card::new();
        for (n, words) in ring.chunks_exact(16).enumerate() {
            let mut words = words.to_vec();
            if near {
                // Buffers that are there.
                let buffer = FIRST + u64::from(u16::from_le_bytes([words[0], words[1]]));
                words[..8].copy_from_slice(&buffer.to_le_bytes());
                words[9] &= 7;
                words[10] &= 0x10;
            }
            card.write(TX_RING + n as u64 * 16, &words);
        }
        card.client.set(TX + TAIL, COUNT - 1);
        let (packets, malformed) = card.transmit(64);
        prop_assert!(packets.len() as u64 + malformed <= COUNT.into());
        for packet in &packets {
            prop_assert!((14..=netvm_e1000::MAX_PACKET).contains(&packet.bytes.len()));
            let mut front = packet.bytes.clone();
            front.truncate(256);
            let _ = netvm_e1000::finish_headers(&mut front, packet.bytes.len(), &packet.request);
        }
        for (register, value) in registers {
            card.client.set(register & !3, value);
        }
        for (ring, register, value) in small {
            card.client.set(ring + (register & !3), value);
        }
        for _ in 0..4 {
            if card.queue.is_active()
                && let Some(mut turn) = card.queue.turn()
            {
                turn.transmit(64, |sent| {
                    let mut bytes = vec![0; sent.length];
                    // SAFETY: the vector has as many bytes.
                    Some(unsafe { sent.copy(std::iter::once((bytes.as_mut_ptr(), sent.length))) })
                });
                let bytes = frame(MAC, 1500);
                for _ in 0..40 {
                    // SAFETY: the bytes of the vector.
                    let _ = unsafe { turn.receive().put(netvm_e1000::Pieces(&[(bytes.as_ptr(), bytes.len())])) };
                }
            }
        }
        card.client.get(0);
        serves_the_next(card);
    }
}
