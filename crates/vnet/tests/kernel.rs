// SPDX-License-Identifier: Apache-2.0
//! Segments and checksums as the kernel finishes them: the test writes them to a TAP device that is bridged to one
//! without offloads, and compares the result with that of `netvm_wire`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use netvm_vnet::{
    Header, Pending, Queue, ReceiveBurst, ReceiveError, Received, Segments, SendBurst, SendError,
    SocketOptions, TapOptions, header_of, packet_socket, tap,
};
use netvm_wire::segment::{GsoType, HeaderLengths, SegmentHeaders, Segmenter};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags, checksum, parse};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn run(command: &str) {
    let mut words = command.split(' ');
    assert!(Command::new(words.next().unwrap()).args(words).status().unwrap().success(), "{command}");
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn send(queue: &mut Queue, pending: Pending, frame: &mut [u8]) {
    let mut burst = SendBurst::default();
    burst.push(header_of(pending), [part(frame)].into_iter());
    // SAFETY: the frame outlives the call.
    unsafe { burst.send(queue, |sent| assert_eq!(sent, Ok(()))) };
}

/// The next `count` frames with this source.
fn receive(queue: &mut Queue, source: MacAddr, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, begin) = (Vec::new(), Instant::now());
    while frames.len() < count && begin.elapsed() < Duration::from_secs(5) {
        let (mut header, mut bytes) = (Header::default(), vec![0; 70_000]);
        let mut burst = ReceiveBurst::default();
        burst.push([part(&mut bytes)].into_iter());
        let mut length = 0;
        let each = |read: &Header, received: Result<Received, ReceiveError>| {
            (header, length) = (*read, received.unwrap().length);
        };
        // SAFETY: the bytes outlive the call.
        if unsafe { burst.receive(queue, each) } == 0 {
            continue;
        }
        bytes.truncate(length);
        if bytes[6..12] == source.0 {
            assert_eq!(netvm_vnet::pending(&header, &bytes, bytes.len()), Ok(Pending::Nothing));
            frames.push(bytes);
        }
    }
    frames
}

/// A packet of one flow.
#[derive(Clone, Debug)]
struct Sample {
    v6: bool,
    udp: bool,
    flags: u8,
    number: u32,
    size: u16,
    payload: Vec<u8>,
}

fn samples() -> impl Strategy<Value = Sample> {
    let payload = (any::<u8>(), 1usize..60_000).prop_map(|(seed, length)| {
        (0..length).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    });
    (any::<bool>(), any::<bool>(), 0u8..=255, any::<u32>(), 500u16..1400, payload)
        .prop_map(|(v6, udp, flags, number, size, payload)| Sample { v6, udp, flags, number, size, payload })
}

impl Sample {
    /// Its frame, with a finished checksum.
    fn frame(&self) -> Vec<u8> {
        let (a, b) = if self.v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let frame = FrameBuilder::new(A, B).ip(a.parse().unwrap(), b.parse().unwrap());
        let flags = TcpFlags::from_bits_retain(self.flags) | TcpFlags::ACK;
        let frame = if self.udp { frame.udp(7, 8) } else { frame.tcp(7, 8, flags).numbers(self.number, 9) };
        frame.payload(&self.payload).to_vec().unwrap()
    }

    /// Checks that the kernel finishes the packet as netvm does.
    fn check(&self, [a, b]: &mut [Queue; 2]) {
        let whole = self.frame();
        let headers = parse(&whole).unwrap();
        let (l2, from, payload) =
            (headers.l3_offset(), headers.l4_offset().unwrap(), headers.payload_offset());
        let at = from + if self.udp { 6 } else { 16 };
        let mut unfinished = whole.clone();
        // The sum of the pseudo header alone: that of the packet less that of its bytes.
        unfinished[at..at + 2].copy_from_slice(&[0; 2]);
        let rest = u32::from(checksum::internet_checksum(&unfinished[from..headers.payload_end()]));
        let sum = u32::from(!u16::from_be_bytes([whole[at], whole[at + 1]])) + rest;
        let pseudo = (sum & 0xffff) + (sum >> 16);
        let pseudo = ((pseudo & 0xffff) + (pseudo >> 16)) as u16;
        unfinished[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());

        if self.payload.len() <= 1400 {
            send(a, Pending::Checksum { from: from as u16, at: at as u16 }, &mut unfinished.clone());
            assert_eq!(receive(b, A, 1), std::slice::from_ref(&whole), "{self:?}");
        }
        let lengths = [l2 as u16, (from - l2) as u16, (payload - from) as u16];
        let (v6, udp, size) = (self.v6, self.udp, self.size);
        send(
            a,
            Pending::Segments(Segments { lengths, size, v6, udp, ecn: false, tunnel: 0 }),
            &mut unfinished,
        );
        let lengths = HeaderLengths { l2, l3: from - l2, l4: payload - from };
        let headers = SegmentHeaders { bytes: &whole[..payload], lengths, gso_type: GsoType { v6, udp } };
        let cut = Segmenter::new(headers, self.payload.len(), size);
        let cut = cut.unwrap();
        let expected: Vec<Vec<u8>> = (0..cut.count())
            .map(|n| {
                let (start, length) = cut.span(n);
                let part = &self.payload[start..start + length];
                let (headers, bytes) = cut.headers(n, !checksum::internet_checksum(part));
                [&headers[..bytes], part].concat()
            })
            .collect();
        let received = receive(b, A, expected.len());
        assert_eq!(received.len(), expected.len(), "{v6} {udp} {size} {}", self.payload.len());
        for (n, (ours, kernels)) in expected.iter().zip(&received).enumerate() {
            assert_eq!(ours, kernels, "packet {n}: v6 {v6}, UDP {udp}, {size} bytes, {}", self.payload.len());
        }
    }
}

/// The queue that receives a frame from this source port.
fn receives(queues: &mut [Queue], port: u16) -> usize {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        for (n, queue) in queues.iter_mut().enumerate() {
            let mut bytes = vec![0; 2000];
            let mut burst = ReceiveBurst::default();
            burst.push([part(&mut bytes)].into_iter());
            // SAFETY: the bytes outlive the call.
            let received = unsafe { burst.receive(queue, |_, _| ()) };
            if received == 1 && bytes[12..14] == [8, 0] && bytes[34..36] == port.to_be_bytes() {
                return n;
            }
        }
    }
    panic!("no frame from port {port} in 5 s");
}

#[test]
fn a_flow_keeps_its_queue_of_a_tap_device_whoever_answers() {
    in_own_namespace(|| {
        let tap = TapOptions { interface: "steered".to_owned(), queues: 4, mtu: None, offloads: true };
        let mut tap = tap::open(&tap).unwrap();
        let options = SocketOptions { interface: "steered".to_owned(), queues: 1 };
        let mut kernel = packet_socket::open(&options).unwrap().queues.remove(0);
        let mut used = BTreeSet::new();
        for client in 1000..1032 {
            let ends = ["10.0.0.1", "10.0.0.2"].map(|end| end.parse().unwrap());
            let request = FrameBuilder::new(A, B).ip(ends[0], ends[1]).udp(client, 80).to_vec().unwrap();
            let answer = FrameBuilder::new(B, A).ip(ends[1], ends[0]).udp(80, client).to_vec().unwrap();
            send(&mut kernel, Pending::Nothing, &mut request.clone());
            let queue = receives(&mut tap.queues, client);
            // The answer leaves by another queue.
            send(&mut tap.queues[(queue + 1) % 4], Pending::Nothing, &mut answer.clone());
            send(&mut kernel, Pending::Nothing, &mut request.clone());
            assert_eq!(receives(&mut tap.queues, client), queue, "port {client}");
            send(&mut kernel, Pending::Nothing, &mut answer.clone());
            assert_eq!(receives(&mut tap.queues, 80), queue, "the other direction, port {client}");
            used.insert(queue);
        }
        assert!(used.len() > 2, "{used:?}");
    });
}

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Runs a test in a network namespace of its own, if this is possible.
fn in_own_namespace(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can make interfaces");
        return;
    }
    std::thread::spawn(|| {
        // SAFETY: this thread's network namespace only.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        test();
    })
    .join()
    .unwrap();
}

/// Source address and source port of the UDP frames that are there now.
fn datagrams(queue: &mut Queue) -> Vec<([u8; 6], u16)> {
    let mut found = Vec::new();
    loop {
        let mut bytes = vec![0; 70_000];
        let mut burst = ReceiveBurst::default();
        burst.push([part(&mut bytes)].into_iter());
        // SAFETY: the bytes outlive the call.
        if unsafe { burst.receive(queue, |_, received| assert!(received.is_ok())) } == 0 {
            return found;
        }
        if bytes[12..14] == [8, 0] && bytes[23] == 17 {
            found.push((bytes[6..12].try_into().unwrap(), u16::from_be_bytes([bytes[34], bytes[35]])));
        }
    }
}

#[test]
fn flows_are_spread_over_the_queues_of_packet_sockets_without_what_the_host_sends() {
    in_own_namespace(|| {
        run("ip link add nva type veth peer name nvb");
        run("ip link set nva address 02:00:00:00:00:0a up");
        run("ip link set nvb up");
        run("ip address add 10.9.0.1/24 dev nva");
        run("ip neighbour add 10.9.0.2 lladdr 02:00:00:00:00:02 dev nva");
        let open = |interface: &str, queues| {
            packet_socket::open(&SocketOptions { interface: interface.to_owned(), queues }).unwrap().queues
        };
        // Two ports with several queues are two groups, and so is one on the same interface in another program.
        let (several, others, mut far) = (open("nva", 3), open("nva", 2), open("nvb", 1));
        const FLOWS: u16 = 60;
        for _ in 0..2 {
            for port in 1..=FLOWS {
                let frame =
                    FrameBuilder::new(A, B).ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
                send(
                    &mut far[0],
                    Pending::Nothing,
                    &mut frame.udp(port, 9).payload(&[7; 30]).to_vec().unwrap(),
                );
            }
        }
        // By the host itself.
        let host = UdpSocket::bind("10.9.0.1:0").unwrap();
        (0..20).for_each(|_| assert_eq!(host.send_to(&[1; 30], "10.9.0.2:9").unwrap(), 30));
        std::thread::sleep(Duration::from_millis(200));
        let left = datagrams(&mut far[0]);
        assert!(
            left.len() == 20 && left.iter().all(|(source, _)| *source == [2, 0, 0, 0, 0, 10]),
            "{left:?}"
        );
        for mut group in [several, others] {
            let each: Vec<Vec<([u8; 6], u16)>> = group.iter_mut().map(datagrams).collect();
            assert!(each.iter().flatten().all(|(source, _)| *source == A.0), "{each:?}");
            assert!(each.iter().all(|queue| !queue.is_empty()), "{each:?}");
            assert_eq!(each.iter().map(Vec::len).sum::<usize>(), 2 * usize::from(FLOWS));
            let flows = each.iter().map(|queue| queue.iter().collect::<BTreeSet<_>>().len());
            assert_eq!(flows.sum::<usize>(), usize::from(FLOWS), "a flow has one queue");
        }
    });
}

/// Reads a burst; the payload byte of each packet, by place.
fn read_burst(queue: &mut Queue, places: usize) -> Vec<Result<u8, ReceiveError>> {
    let mut bytes = vec![vec![0; 2000]; places];
    let mut burst = ReceiveBurst::default();
    bytes.iter_mut().for_each(|bytes| burst.push([part(bytes)].into_iter()));
    let mut outcomes = Vec::new();
    // SAFETY: the bytes outlive the call.
    let used =
        unsafe { burst.receive(queue, |_, received| outcomes.push(received.map(|packet| packet.length))) };
    assert_eq!(used, outcomes.len());
    bytes.iter().zip(outcomes).map(|(bytes, outcome)| outcome.map(|length| bytes[length - 1])).collect()
}

/// Writes a burst of packets that are finished; the outcome of each.
fn send_burst(queue: &mut Queue, frames: &mut [Vec<u8>]) -> Vec<Result<(), SendError>> {
    let mut burst = SendBurst::default();
    frames.iter_mut().for_each(|frame| burst.push(header_of(Pending::Nothing), [part(frame)].into_iter()));
    let mut sent = Vec::new();
    // SAFETY: the frames outlive the call.
    unsafe { burst.send(queue, |outcome| sent.push(outcome)) };
    sent
}

/// Sends bursts from one TAP device to another; returns whether they used io_uring. `change` is applied to the queues.
fn check_bursts(change: fn(Queue) -> Queue) -> bool {
    let open = |interface: &str| {
        let interface = interface.to_owned();
        let options = TapOptions { interface, queues: 1, mtu: None, offloads: false };
        change(tap::open(&options).unwrap().queues.remove(0))
    };
    let (mut a, mut b) = (open("nva"), open("nvb"));
    let uses_io_uring = a.uses_io_uring();
    run("ip link add br0 type bridge");
    run("ip link set dev nva master br0");
    run("ip link set dev nvb master br0");
    run("ip link set br0 up");
    let frame = |number: u8| {
        let frame = FrameBuilder::new(A, B).ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        frame.udp(7, 9).payload(&[number; 60]).to_vec().unwrap()
    };
    // Until the bridge forwards.
    let begin = Instant::now();
    while read_burst(&mut b, 1) != [Ok(0)] && begin.elapsed() < Duration::from_secs(5) {
        send(&mut a, Pending::Nothing, &mut frame(0));
    }
    while !read_burst(&mut b, 8).is_empty() {}
    for count in [1, 2, 5, 8, 30, 64] {
        let mut frames: Vec<Vec<u8>> = (1..=count).map(frame).collect();
        assert_eq!(send_burst(&mut a, &mut frames), vec![Ok(()); usize::from(count)]);
        let mut received = Vec::new();
        let begin = Instant::now();
        while received.len() < usize::from(count) && begin.elapsed() < Duration::from_secs(5) {
            received.extend(read_burst(&mut b, 8).into_iter().filter_map(Result::ok));
        }
        assert_eq!(received, (1..=count).collect::<Vec<u8>>());
        assert!(read_burst(&mut b, 8).is_empty());
    }
    // A packet without room for it is lost, and the next ones are not.
    for number in 1..=3 {
        let length = if number == 2 { 1400 } else { 60 };
        let long = FrameBuilder::new(A, B).ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        send(&mut a, Pending::Nothing, &mut long.udp(7, 9).payload(&vec![number; length]).to_vec().unwrap());
    }
    let mut bytes = vec![vec![0; 200]; 3];
    let mut burst = ReceiveBurst::default();
    bytes.iter_mut().for_each(|bytes| burst.push([part(bytes)].into_iter()));
    let mut outcomes = Vec::new();
    // SAFETY: the bytes outlive the call.
    unsafe { burst.receive(&mut b, |_, received| outcomes.push(received.map(|packet| packet.length))) };
    assert_eq!(outcomes, [Ok(102), Err(ReceiveError::TooLong), Ok(102)]);
    // Without the device there is nothing, and no packet is sent.
    run("ip link delete nvb");
    assert!(read_burst(&mut b, 8).is_empty());
    let sent = send_burst(&mut b, &mut [frame(1), frame(2)]);
    assert_eq!(sent, [Err(SendError::Down); 2]);
    uses_io_uring
}

#[test]
fn a_burst_of_a_tap_device_is_read_and_written_in_order() {
    in_own_namespace(|| {
        // It is used wherever the kernel lets this process have it.
        let is_allowed = io_uring::IoUring::new(1).is_ok();
        assert_eq!(check_bursts(|queue| queue), is_allowed);
        let probed = tap::probe().unwrap();
        assert_eq!((probed.has_io_uring, probed.allows_io_uring), (is_allowed, is_allowed));
    });
    in_own_namespace(|| assert!(!check_bursts(Queue::without_io_uring)));
}

/// Makes the kernel refuse io_uring to this thread, as the seccomp profiles of container engines do.
fn refuse_io_uring() {
    let refused = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refuse, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

#[test]
fn without_io_uring_a_burst_is_the_same() {
    in_own_namespace(|| {
        refuse_io_uring();
        assert!(!check_bursts(|queue| queue));
        assert!(!tap::probe().unwrap().allows_io_uring);
    });
}

#[test]
fn the_kernel_finishes_packets_as_netvm_does() {
    in_own_namespace(|| {
        let open = |interface: &str, offloads| {
            let interface = interface.to_owned();
            tap::open(&TapOptions { interface, queues: 1, mtu: None, offloads }).unwrap()
        };
        let (mut a, mut b) = (open("nva", true), open("nvb", false));
        run("ip link add br0 type bridge");
        run("ip link set dev nva master br0");
        run("ip link set dev nvb master br0");
        run("ip link set br0 up");
        let queues = RefCell::new([a.queues.remove(0), b.queues.remove(0)]);
        let mut runner =
            TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
        let check = |sample: Sample| {
            if a.offloads.udp || !sample.udp {
                sample.check(&mut queues.borrow_mut());
            }
            Ok(())
        };
        runner.run(&samples(), check).unwrap();
    });
}
