// SPDX-License-Identifier: Apache-2.0
//! Peers that break rules: a word for each, and nothing else happens.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use netvm_memif::{Options, Role};
use proptest::prelude::*;
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::raw::{
    BUFFER, BUFFERS, HELLO, Raw, RawClient, add_region, add_ring, connect_message, descriptor, eventfd, init,
    memory, message,
};
use crate::support::{connected, fault, folder, open, options, receive, send, until};

/// What a client sends after the server's hello, of which the last message is wrong.
type Steps<'a> = Vec<(Vec<u8>, Option<BorrowedFd<'a>>)>;

#[test]
fn each_broken_rule_of_the_socket_is_named() {
    let (_folder, socket) = folder();
    let (server, mut queue) = open(&options(&socket, Role::Server));
    let (sealed, short) = (memory(1 << 16, SealFlags::SHRINK), memory(4096, SealFlags::SHRINK));
    let (open_file, event) = (memory(1 << 16, SealFlags::empty()), eventfd());
    let no_file = File::open("/dev/null").unwrap();
    let (sealed, event) = (Some(sealed.as_fd()), Some(event.as_fd()));
    let hi = (init(0x200, 3, 0), None);
    let region = (add_region(0, 1 << 16), sealed);
    let ring = |at, log2| (add_ring(0, at, log2), event);
    let cases: [(&str, Steps<'_>); 21] = [
        ("it speaks memif 3.0 to 3.0, netvm speaks 2.0", vec![(init(0x300, 3, 0), None)]),
        ("asks for interface 9, and the port is interface 3", vec![(init(0x200, 9, 0), None)]),
        ("set its mode to ethernet", vec![(init(0x200, 3, 1), None)]),
        ("not of 128 bytes", vec![(vec![3; 127], None)]),
        ("not of 128 bytes", vec![(vec![3; 129], None)]),
        ("of an unknown type", vec![(message(9, &[]), None)]),
        ("out of turn", vec![(add_region(0, 1), sealed)]),
        ("out of turn", vec![hi.clone(), hi.clone()]),
        ("a region without a file", vec![hi.clone(), (add_region(0, 1), None)]),
        ("not in order", vec![hi.clone(), (add_region(1, 1), sealed)]),
        ("DPDK: zero-copy=no", vec![hi.clone(), (add_region(0, 1), Some(open_file.as_fd()))]),
        ("DPDK: zero-copy=no", vec![hi.clone(), (add_region(0, 1), Some(no_file.as_fd()))]),
        ("shorter than it says", vec![hi.clone(), (add_region(0, 1 << 16), Some(short.as_fd()))]),
        ("shorter than it says", vec![hi.clone(), (add_region(0, 0), sealed)]),
        ("raise `ring_size`", vec![hi.clone(), region.clone(), ring(0, 7)]),
        ("not an eventfd", vec![hi.clone(), region.clone(), (ring(0, 3).0, Some(no_file.as_fd()))]),
        ("a ring without an eventfd", vec![hi.clone(), region.clone(), (ring(0, 3).0, None)]),
        ("raise `queues`", vec![hi.clone(), region.clone(), ring(0, 3), (add_ring(1, 0, 3), event)]),
        ("without rings", vec![hi.clone(), region.clone(), (connect_message(), None)]),
        (
            "outside its region",
            vec![hi.clone(), region.clone(), ring(65_536 - 128, 3), (connect_message(), None)],
        ),
        ("without its cookie", vec![hi.clone(), region.clone(), ring(0, 3), (connect_message(), None)]),
    ];
    for (text, steps) in cases {
        let raw = Raw::connect(&socket);
        assert_eq!(raw.kind(), Some(HELLO));
        let (last, before) = steps.split_last().unwrap();
        before.iter().for_each(|(bytes, fd)| raw.agreed(bytes, *fd));
        assert!(raw.send(&last.0, last.1.as_slice()));
        let end = raw.end();
        assert!(fault(&server, text).fault.is_some(), "{text}");
        // The peer is told, too, as much as a message holds.
        assert!(!end.is_empty(), "{text}");
        assert!(!queue.is_connected());
    }
    for (text, bytes, fds) in [
        ("several descriptors", init(0x200, 3, 0), vec![no_file.as_fd(), no_file.as_fd()]),
        ("it ended the connection: \"I?[1m go\"", message(8, &[&[0; 4], b"I\x1b[1m go"]), vec![]),
    ] {
        let raw = Raw::connect(&socket);
        assert!(raw.send(&bytes, &fds));
        fault(&server, text);
    }
    // An honest one is served after all of them.
    let client = RawClient::connect(&socket);
    connected(&server);
    assert_eq!(server.status().fault, None);
    client.set_head(1, 8);
    assert_eq!(send(&mut queue, &[1; 60]), Ok(()));
    assert_eq!(client.tail(1), 1);
}

#[test]
fn a_silent_peer_keeps_nobody_out() {
    let (_folder, socket) = folder();
    let (server, _queue) = open(&options(&socket, Role::Server));
    let silent = Raw::connect(&socket);
    assert!(silent.end().contains("silent"));
    fault(&server, "silent");
    RawClient::connect(&socket);
    // And one that closes at once, or in the middle.
    for _ in 0..20 {
        drop(Raw::connect(&socket));
    }
    RawClient::connect(&socket);
}

#[test]
fn an_index_or_a_descriptor_that_leads_astray_ends_the_connection() {
    let far = descriptor(0, 0, 64, (BUFFERS + 16 * BUFFER) as u32 - 63);
    let wrapped = descriptor(0, 0, u32::MAX, u32::MAX);
    let nowhere = descriptor(0, 1, 64, 0);
    type Act<'a> = Box<dyn Fn(&RawClient) + 'a>;
    let received = |bytes: &'static [u8]| -> Act<'static> {
        Box::new(move |client: &RawClient| {
            client.set_descriptor(0, 0, bytes);
            client.set_head(0, 1);
        })
    };
    let to_fill = |bytes: &'static [u8]| -> Act<'static> {
        Box::new(move |client: &RawClient| {
            client.set_descriptor(1, 0, bytes);
            client.set_head(1, 1);
        })
    };
    let [far, wrapped, nowhere] = [far, wrapped, nowhere].map(|bytes| &*bytes.leak());
    let empty = &*descriptor(0, 0, 0, BUFFERS as u32).leak();
    let acts: [Act<'_>; 9] = [
        Box::new(|client| client.set_head(0, 9)),
        Box::new(|client| client.set_head(0, u16::MAX)),
        Box::new(|client| client.set_head(1, 9)),
        received(far),
        received(wrapped),
        received(nowhere),
        to_fill(far),
        to_fill(nowhere),
        to_fill(empty),
    ];
    let (_folder, socket) = folder();
    let (server, mut queue) = open(&options(&socket, Role::Server));
    for (n, act) in acts.iter().enumerate() {
        let client = RawClient::connect(&socket);
        until("connected", || queue.is_connected());
        act(&client);
        assert_eq!(receive(&mut queue, 8), (vec![], 0), "{n}");
        if let Some(mut sending) = queue.send() {
            let packet = [7u8; 60];
            #[allow(unsafe_code, reason = "the bytes of an array")]
            // SAFETY: the bytes of the array.
            let _ = unsafe { sending.put(&[(packet.as_ptr(), packet.len())]) };
        }
        assert!(!queue.is_connected(), "{n}");
        assert!(client.raw.end().contains("leads out of the memory"), "{n}");
        fault(&server, "leads out of the memory");
    }
}

#[test]
fn packets_that_break_a_rule_are_counted_and_others_pass() {
    let (_folder, socket) = folder();
    let (_server, mut queue) = open(&options(&socket, Role::Server));
    let client = RawClient::connect(&socket);
    until("connected", || queue.is_connected());
    let at = |slot: u64| (BUFFERS + slot * BUFFER) as u32;
    // Too short; whole; a packet that never ends.
    client.set_descriptor(0, 0, &descriptor(0, 0, 13, at(0)));
    client.set_descriptor(0, 1, &descriptor(0, 0, 14, at(1)));
    client.set_head(0, 2);
    assert_eq!(receive(&mut queue, 8), (vec![vec![0; 14]], 1));
    (0..8).for_each(|slot| client.set_descriptor(0, slot, &descriptor(1, 0, 100, at(slot))));
    client.set_head(0, 10);
    assert_eq!(receive(&mut queue, 8), (vec![], 1));
    // All of it was the ring's: the descriptors are free again, and none is said to go on.
    assert_eq!(client.tail(0), 10);
    (0..8).for_each(|slot| assert_eq!(client.descriptor(0, slot), descriptor(0, 0, 100, at(slot))));
    // Longer than any packet.
    for slot in 0..8 {
        client.set_descriptor(0, slot, &descriptor(u16::from(slot != 1), 0, 10_000, at(0)));
    }
    client.set_head(0, 18);
    assert_eq!(receive(&mut queue, 8), (vec![], 1));
    // A client that says that buffers are larger than its memory allows is stopped, whatever else it wrote.
    client.set_descriptor(0, 2, &descriptor(0, 0, 60, at(3)));
    client.set_head(0, 19);
    assert_eq!(receive(&mut queue, 8), (vec![vec![0; 60]], 0));
}

/// A server of raw bytes, for ports that are clients.
fn raw_server(path: &std::path::Path) -> rustix::fd::OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 4).unwrap();
    socket
}

fn hello(min: u16, max: u16) -> Vec<u8> {
    let words = [min, max, 3, 0, 0].map(u16::to_ne_bytes).concat();
    message(HELLO, &[&[b'x'; 32], &words, &[3]])
}

#[test]
fn a_client_refuses_a_server_that_breaks_rules() {
    let (_folder, socket) = folder();
    let listener = raw_server(&socket);
    let (client, mut queue) = open(&Options { log2_ring_size: 3, ..options(&socket, Role::Client) });
    let accept = || Raw(rustix::net::accept(&listener).unwrap());
    let raw = accept();
    assert!(raw.send(&hello(0x300, 0x301), &[]));
    fault(&client, "it speaks memif 3.0 to 3.1, netvm speaks 2.0");
    let raw = accept();
    assert!(raw.send(&message(7, &[]), &[]));
    fault(&client, "out of turn");
    let raw = accept();
    assert!(raw.send(&hello(0x200, 0x200), &[]));
    assert!(raw.receive().is_some());
    assert!(raw.send(&message(8, &[&[0; 4], b"ID not found"]), &[]));
    fault(&client, "it ended the connection: \"ID not found\"");
    // One that behaves, until it is connected.
    for bad in [9u16, 0x8000] {
        for ring in [0u64, 1] {
            let raw = accept();
            assert!(raw.send(&hello(0x200, 0x200), &[]));
            let mut memory = None;
            loop {
                let (bytes, fd) = raw.receive().unwrap();
                match u16::from_ne_bytes([bytes[0], bytes[1]]) {
                    4 => memory = fd.map(File::from),
                    6 => break,
                    _ => {}
                }
                assert!(raw.send(&message(1, &[]), &[]));
            }
            let memory = memory.unwrap();
            // Servers of DPDK set the rings back before they answer: what was offered before would be lost.
            for at in [0, 256] {
                memory.write_all_at(&[0; 2], at + 6).unwrap();
                memory.write_all_at(&[0; 2], at + 64).unwrap();
            }
            assert!(raw.send(&message(7, &[]), &[]));
            connected(&client);
            until("connected", || queue.is_connected());
            let mut head = [0; 2];
            memory.read_exact_at(&mut head, 256 + 6).unwrap();
            assert_eq!(u16::from_ne_bytes(head), 8, "all buffers are the server's");
            // Another tail than there can be; and in the end a packet that is longer than its buffer.
            memory.write_all_at(&bad.to_ne_bytes(), 256 * ring + 64).unwrap();
            assert_eq!(receive(&mut queue, 8), (vec![], 0));
            drop(queue.send());
            assert!(!queue.is_connected());
            fault(&client, "leads out of the memory");
            assert!(raw.end().contains("leads out"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever a client writes into rings and descriptors while the worker reads and fills them: packets are within
    /// bounds, and it is disconnected or goes on.
    #[test]
    fn any_content_of_rings_is_harmless(
        writes in proptest::collection::vec((0u64..600, any::<u16>(), any::<bool>()), 1..60)
    ) {
        thread_local! {
            static SERVER: (tempfile::TempDir, netvm_memif::Port, std::cell::RefCell<netvm_memif::Queue>) = {
                let (folder, socket) = folder();
                let (port, queue) = open(&options(&socket, Role::Server));
                (folder, port, std::cell::RefCell::new(queue))
            };
        }
        SERVER.with(|(folder, _, queue)| {
            let queue = &mut *queue.borrow_mut();
            let client = RawClient::connect(&folder.path().join("memif.sock"));
            until("connected", || queue.is_connected());
            for (at, value, is_small) in writes {
                let value = if is_small { value % 12 } else { value };
                client.memory.write_all_at(&value.to_ne_bytes(), at & !1).unwrap();
                let (packets, _) = receive(queue, 32);
                assert!(packets.iter().all(|packet| (14..=65_535).contains(&packet.len())));
                if let Some(mut sending) = queue.send() {
                    let packet = [7u8; 3000];
                    #[allow(unsafe_code, reason = "the bytes of an array")]
                    // SAFETY: the bytes of the array.
                    let _ = unsafe { sending.put(&[(packet.as_ptr(), packet.len())]) };
                }
                let _ = queue.begin_wait();
                if !queue.is_connected() {
                    break;
                }
            }
        });
    }
}

/// Mappings of clients' memory in this process, by the name that the file has here.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn connections_that_end_leave_no_memory_and_no_descriptors() {
    let (_folder, socket) = folder();
    let (_server, mut queue) = open(&options(&socket, Role::Server));
    let name = "memfd:counted";
    for n in 0..200 {
        let client = RawClient::connect_as(&socket, "counted");
        until("connected", || queue.is_connected());
        if n % 2 == 0 {
            // It breaks a rule; or it just goes.
            client.set_head(0, 100);
            receive(&mut queue, 8);
        }
    }
    until("the last one has gone", || !queue.is_connected());
    let descriptors = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
        entries
            .filter(|entry| {
                std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains(name))
            })
            .count()
    };
    until("all memory is unmapped", || mappings(name) == 0 && descriptors() == 0);
}
