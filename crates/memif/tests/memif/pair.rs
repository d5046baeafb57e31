// SPDX-License-Identifier: Apache-2.0
//! Server and client against each other.

use std::os::fd::AsFd;
use std::time::Duration;

use netvm_memif::{NotTaken, OpenError, Options, Port, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{
    both_ways, connected, expect, fault, folder, open, options, packets, pair, receive, send, send_in, until,
};

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn packets_pass_both_ways_whole_and_in_order() {
    for (log2_ring_size, buffer_size, longest) in
        [(1, 2048, 4096), (6, 2048, 1514), (6, 256, 9000), (10, 1000, 60_000)]
    {
        let (_folder, (_a, mut server), (_b, mut client)) =
            pair(|options| (options.log2_ring_size, options.buffer_size) = (log2_ring_size, buffer_size));
        for packet in packets(300, longest) {
            both_ways(&mut server, &mut client, |from, to| {
                let outcome = send_in(from, &packet, &[1, 100, 7]);
                assert_eq!(outcome, Ok(()), "{} bytes, rings of 2^{log2_ring_size}", packet.len());
                expect(to, std::slice::from_ref(&packet));
            });
        }
        // As many as the ring holds, several times round.
        let burst = packets(1 << log2_ring_size, 250);
        for _ in 0..70 {
            both_ways(&mut server, &mut client, |from, to| {
                burst.iter().for_each(|packet| assert_eq!(send(from, packet), Ok(())));
                assert_eq!(send(from, &burst[0]), Err(NotTaken::Full));
                expect(to, &burst);
            });
        }
    }
}

#[test]
fn a_packet_stays_until_it_is_taken_and_one_that_never_fits_is_told_from_a_full_ring() {
    let (_folder, (_a, mut server), (_b, mut client)) = pair(|options| options.log2_ring_size = 2);
    let all = packets(4, 100);
    both_ways(&mut server, &mut client, |from, to| {
        assert_eq!(send(from, &vec![1; 4 * 2048 + 1]), Err(NotTaken::TooLong));
        all.iter().for_each(|packet| assert_eq!(send(from, packet), Ok(())));
        assert_eq!(send(from, &all[0]), Err(NotTaken::Full));
        assert_eq!(to.receive(8, |_| None), 0);
        assert_eq!(receive(to, 1).0, all[..1]);
        assert_eq!(send(from, &vec![1; 2 * 2048]), Err(NotTaken::Full), "it needs two buffers");
        expect(to, &all[1..]);
        let long = vec![7; 4 * 2048];
        assert_eq!(send(from, &long), Ok(()));
        expect(to, &[long]);
    });
}

#[test]
fn a_sleeping_side_is_interrupted_and_a_polling_one_is_not() {
    let (_folder, (_a, mut server), (_b, mut client)) = pair(|_| ());
    both_ways(&mut server, &mut client, |from, to| {
        let packet = vec![5; 60];
        // The connection itself is a reason to wake.
        until("no packet", || !to.begin_wait() && !is_readable(to.arrival()));
        assert_eq!(send(from, &packet), Ok(()));
        assert!(is_readable(to.arrival()));
        expect(to, std::slice::from_ref(&packet));
        assert!(!to.begin_wait() && !is_readable(to.arrival()));
        assert_eq!(send(from, &packet), Ok(()));
        expect(to, std::slice::from_ref(&packet));
        // From here on it polls.
        to.begin_wait();
        assert_eq!(send(from, &packet), Ok(()));
        expect(to, std::slice::from_ref(&packet));
        let _ = to.arrival();
        for _ in 0..3 {
            assert_eq!(send(from, &packet), Ok(()));
        }
        assert!(to.begin_wait(), "packets wait");
        assert!(!is_readable(to.arrival()), "a side that polls was interrupted");
        assert_eq!(receive(to, 8).0.len(), 3);
    });
}

#[test]
fn either_side_may_go_and_come_back() {
    let (_folder, socket) = folder();
    let client_options = options(&socket, Role::Client);
    let (client_port, mut client) = open(&client_options);
    until("the client says why", || {
        client_port.status().unreachable.is_some_and(|why| why.contains("does not exist"))
    });
    for round in 0..3 {
        let (server_port, mut server) = open(&options(&socket, Role::Server));
        connected(&server_port);
        connected(&client_port);
        let packet = vec![round; 100];
        both_ways(&mut server, &mut client, |from, to| {
            assert_eq!(send(from, &packet), Ok(()));
            expect(to, std::slice::from_ref(&packet));
        });
        drop(server_port);
        until("the server's end is seen", || !client_port.status().is_connected && !client.is_connected());
        assert!(client.send().is_none() && !server.is_connected());
    }
    let (server_port, mut server) = open(&options(&socket, Role::Server));
    let mut client = Some((client_port, client));
    for round in 0..3 {
        connected(&server_port);
        drop(client.take());
        until("the client's end is seen", || !server_port.status().is_connected && !server.is_connected());
        let (port, mut queue) = open(&client_options);
        connected(&port);
        connected(&server_port);
        assert_eq!(send(&mut queue, &[round; 64]), Ok(()));
        expect(&mut server, &[vec![round; 64]]);
        client = Some((port, queue));
    }
    // One that says good-bye is no problem.
    assert_eq!(server_port.status().fault, None);
}

#[test]
fn a_second_client_is_refused_until_the_first_has_gone() {
    let (_folder, (server, _queue), first) = pair(|_| ());
    let socket = _folder.path().join("memif.sock");
    let (second, _second_queue) = open(&options(&socket, Role::Client));
    fault(&second, "another peer is connected");
    assert!(server.refused().0 > 0 && server.refused_peer().is_some());
    assert!(!second.status().is_connected && server.status().is_connected);
    drop(first);
    connected(&second);
    assert_eq!(second.status().fault, None);
}

#[test]
fn a_wrong_number_or_secret_is_refused_with_a_remedy_on_both_sides() {
    let with_secret = |secret: &str| {
        let secret = Some(secret.to_owned());
        move |options: &mut Options| options.secret.clone_from(&secret)
    };
    type Change = Box<dyn Fn(&mut Options)>;
    let cases: [(&str, Change); 3] = [
        ("asks for interface 4, and the port is interface 3", Box::new(|options| options.id = 4)),
        ("its secret is missing or wrong", Box::new(|options| options.secret = None)),
        ("its secret is missing or wrong", Box::new(with_secret("x"))),
    ];
    for (text, change) in cases {
        let (_folder, socket) = folder();
        let mut right = options(&socket, Role::Server);
        with_secret("right")(&mut right);
        let (server, _queue) = open(&right);
        let mut wrong = options(&socket, Role::Client);
        with_secret("right")(&mut wrong);
        change(&mut wrong);
        let (client, _client_queue) = open(&wrong);
        fault(&server, text);
        // The client shows what the server says.
        fault(&client, text);
        assert!(!client.status().is_connected);
        // It tries again and again, which is one fault.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((client.status().faults, server.status().faults), (1, 1));
    }
    let (_folder, server, client) = pair(|options| options.secret = Some("both know it".to_owned()));
    assert!(server.0.status().is_connected && client.0.status().is_connected);
}

#[test]
fn sides_with_different_queues_and_rings_agree() {
    let (_folder, socket) = folder();
    let mut options_of_server = options(&socket, Role::Server);
    (options_of_server.queues, options_of_server.log2_ring_size) = (3, 4);
    let (server, mut queues) = Port::open(&options_of_server).unwrap();
    let (client, mut queue) = open(&Options { log2_ring_size: 10, ..options(&socket, Role::Client) });
    connected(&client);
    // The ring is as small as the server wants it.
    for n in 0..16 {
        assert_eq!(send(&mut queue, &[n; 60]), Ok(()));
    }
    assert_eq!(send(&mut queue, &[0; 60]), Err(NotTaken::Full));
    expect(&mut queues[0], &(0..16).map(|n| vec![n; 60]).collect::<Vec<_>>());
    // All queues of the server can send, by the one ring to the client.
    for (n, from) in (0..).zip(&mut queues) {
        assert_eq!(send(from, &[n; 60]), Ok(()));
    }
    expect(&mut queue, &(0..3).map(|n| vec![n; 60]).collect::<Vec<_>>());
    drop((server, queues, client, queue));
    // And the other way round.
    let (_server, mut server_queue) = open(&options(&socket, Role::Server));
    let (client, mut queues) = Port::open(&Options { queues: 4, ..options(&socket, Role::Client) }).unwrap();
    connected(&client);
    for (n, from) in (0..).zip(&mut queues) {
        assert_eq!(send(from, &[n; 60]), Ok(()));
    }
    expect(&mut server_queue, &(0..4).map(|n| vec![n; 60]).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_served_is_said_at_once() {
    let (_folder, socket) = folder();
    let (_server, _queue) = open(&options(&socket, Role::Server));
    let error = Port::open(&options(&socket, Role::Server)).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("another port or program serves this socket: stop that one"),
        "{error}"
    );
    let large =
        Options { log2_ring_size: 14, buffer_size: 32_768, queues: 16, ..options(&socket, Role::Client) };
    let error = Port::open(&large).map(drop).unwrap_err();
    assert!(
        matches!(error, OpenError::Memory { .. }) && error.to_string().contains("lower `ring_size`"),
        "{error}"
    );
}
