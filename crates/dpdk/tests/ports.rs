//! Ports: errors, and frames through real interfaces in private network namespaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    bytes, eal, ip, layout, memory, null, packet, pool, private_namespace, root_or_skip, socket_on, veth,
};
use dpdk::{
    Batch, BufferLayout, Device, Mbuf, Pool, PoolOptions, PortBuilder, PortError, RxQueue, Started, TxQueue,
};

/// Local experimental EtherType 1 (IEEE 802): tells our frames from those of the kernel.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const PATIENCE: Duration = Duration::from_secs(5);

fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in frame[18..].iter_mut().enumerate() {
        *byte = (number as usize * 7 + i) as u8;
    }
    frame
}

fn is_ours(frame: &[u8]) -> bool {
    frame.len() >= 18 && frame[12..14] == ETHERTYPE
}

fn af_packet(interface: &str) -> PortBuilder {
    PortBuilder::new(Device::AfPacket { interface: interface.into() }).promiscuous(true)
}

fn pool_of(stride: u32, buffers: u32) -> Arc<Pool> {
    let layout = BufferLayout { stride, ..layout(buffers) };
    Arc::new(Pool::over_region(eal(), "ports", memory(layout), layout, PoolOptions::default()).unwrap())
}

fn send(tx: &mut TxQueue, packet: Mbuf) {
    let mut batch = Batch::new();
    batch.push(packet).unwrap();
    let start = Instant::now();
    while tx.burst(&mut batch) == 0 {
        assert!(start.elapsed() < PATIENCE, "not sent");
    }
}

/// The next `count` frames of ours from any of the queues.
fn receive(queues: &mut [RxQueue], count: usize) -> Vec<Vec<u8>> {
    let (mut frames, mut batch, start) = (Vec::new(), Batch::new(), Instant::now());
    while frames.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} frames came", frames.len());
        for queue in &mut *queues {
            queue.burst(&mut batch);
            for packet in batch.drain() {
                assert_eq!((packet.nb_segs(), packet.pkt_len()), (1, u32::from(packet.data_len())));
                frames.extend(Some(bytes(&packet)).filter(|frame| is_ours(frame)));
            }
        }
    }
    frames
}

#[test]
fn invalid_options_are_refused_with_a_reason() {
    let pool = pool(256);
    let refused = |builder: PortBuilder| builder.start(eal(), &pool).unwrap_err();
    let vdev = |driver: &str, arguments: &str| {
        PortBuilder::new(Device::Vdev { driver: driver.into(), arguments: arguments.into() })
    };
    let null = |packet_bytes| PortBuilder::new(Device::Null { packet_bytes, copy: true, receive: true });

    let error = refused(null(1921));
    assert!(matches!(error, PortError::FrameTooLong { frame: 1921, room: 1920, .. }), "{error}");
    assert!(matches!(refused(vdev("net_null", "size=9000")), PortError::FrameTooLong { .. }));
    assert!(matches!(refused(null(64).queues(0, 0)), PortError::Queues { .. }));
    assert!(matches!(refused(null(64).queues(60_000, 1)), PortError::Queues { .. }));
    assert!(matches!(refused(vdev("net_ring", "").mtu(9000)), PortError::FrameTooLong { .. }));

    let error = refused(vdev("net_no_such", ""));
    assert!(matches!(error, PortError::Attach { .. }), "{error}");
    assert!(error.to_string().contains("librte-net"), "{error}");
    let PortError::Attach { said, .. } = refused(vdev("net_null", "bogus=1")) else { panic!() };
    assert!(!said.is_empty());
    assert!(matches!(refused(vdev("net_null", "a\0b")), PortError::Name { .. }));

    let address = "0000:00:1f.7".parse().unwrap();
    let error = refused(PortBuilder::new(Device::Pci { address, arguments: String::new() }));
    assert!(matches!(error, PortError::PciOff { .. }), "{error}");

    let error = refused(af_packet("no-such-netvm"));
    assert!(matches!(error, PortError::Mtu { errno: libc::ENODEV, .. }), "{error}");
    assert!(matches!(refused(af_packet("lo,qpairs=7")), PortError::Name { .. }));
    assert!(matches!(refused(af_packet("lo").queues(1, 2)), PortError::Queues { .. }));
    // The loopback interface's MTU is 65,536.
    assert!(matches!(refused(af_packet("lo")), PortError::FrameTooLong { .. }));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn null_ports_have_queues_and_report_their_properties() {
    let pool = pool(1024);
    let device = Device::Null { packet_bytes: 1500, copy: true, receive: true };
    let builder = PortBuilder::new(device).queues(3, 2).symmetric_rss(true).promiscuous(true);
    let Started { port, mut rx, mut tx } = builder.start(eal(), &pool).unwrap();
    assert_eq!((rx.len(), tx.len(), rx[2].id().0), (3, 2, 2));
    let info = port.info().unwrap();
    assert!(info.driver.contains("null") && info.rss && info.max_rx_queues >= 3, "{info:?}");
    let link = port.link().unwrap();
    assert!(link.up && link.full_duplex && link.megabits == 10_000, "{link:?}");
    assert!(!port.is_removed());
    assert_eq!((port.device(), port.number(), tx[1].port()), ("null device", rx[0].port(), rx[0].port()));

    let mut batch = Batch::new();
    for rx in &mut rx {
        assert_eq!((rx.burst_of(&mut batch, 20), batch.len()), (20, 20));
        assert_eq!(tx[1].burst(&mut batch), 20);
    }
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (60, 60));

    let silent = Device::Null { packet_bytes: 64, copy: false, receive: false };
    let mut silent = PortBuilder::new(silent).queues(1, 0).start(eal(), &pool).unwrap();
    assert_eq!((silent.rx[0].burst(&mut batch), silent.tx.len()), (0, 0));
}

#[test]
fn ports_can_be_reopened() {
    let pool = pool(256);
    let numbers: Vec<_> = (0..40)
        .map(|_| {
            let port = null(&pool);
            port.port.number()
        })
        .collect();
    // Closing a port frees its number; there are 32.
    assert!(numbers.iter().all(|number| number.0 < 32));
    let open: Vec<_> = (0..4).map(|_| null(&pool)).collect();
    let mut distinct: Vec<_> = open.iter().map(|port| port.port.number()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn queues_work_on_other_threads() {
    let pool = pool(1024);
    let Started { port, rx, tx } =
        PortBuilder::new(Device::Null { packet_bytes: 64, copy: false, receive: true })
            .queues(2, 2)
            .start(eal(), &pool)
            .unwrap();
    std::thread::scope(|scope| {
        for (mut rx, mut tx) in rx.into_iter().zip(tx) {
            scope.spawn(move || {
                let _registered = eal().register_thread().unwrap();
                let mut batch = Batch::new();
                for _ in 0..1000 {
                    assert_eq!((rx.burst_of(&mut batch, 32), tx.burst(&mut batch)), (32, 32));
                }
            });
        }
    });
    // Not the packets sent: net_null of DPDK 25.11 reports the last queue's number only.
    assert_eq!((port.stats().unwrap().rx_packets, pool.in_use()), (64_000, 0));
}

#[test]
fn af_packet_moves_frames_whole_and_in_order() {
    if !root_or_skip("AF_PACKET") {
        return;
    }
    private_namespace();
    veth(1500);
    let pool = pool_of(2048, 2048);
    let (mut a, mut b) =
        (af_packet("va").start(eal(), &pool).unwrap(), af_packet("vb").start(eal(), &pool).unwrap());
    assert!(a.port.link().unwrap().up);
    for (from, to) in [(0, 1), (1, 0)] {
        let ports = &mut [&mut a, &mut b];
        for start in (0..1000).step_by(50) {
            let sent: Vec<_> = (start..start + 50).map(|n| frame(n, 60 + n as usize * 31 % 1455)).collect();
            for frame in &sent {
                send(&mut ports[from].tx[0], packet(&pool, frame));
            }
            assert_eq!(receive(&mut ports[to].rx, 50), sent);
        }
    }
    assert!(b.port.stats().unwrap().rx_packets >= 1000);
    drop((a, b));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn af_packet_spreads_flows_over_queues_and_loses_none() {
    if !root_or_skip("AF_PACKET") {
        return;
    }
    private_namespace();
    veth(1500);
    let pool = pool_of(2048, 2048);
    let mut a = af_packet("va").start(eal(), &pool).unwrap();
    let mut b = af_packet("vb").queues(2, 2).start(eal(), &pool).unwrap();
    for n in 0..200 {
        send(&mut a.tx[0], packet(&pool, &frame(n, 100)));
    }
    let mut numbers: Vec<_> = receive(&mut b.rx, 200).iter().map(|frame| frame[14..18].to_vec()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200_u32).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
}

/// Whether a queue signals packets within a moment.
fn has_arrivals(queue: &RxQueue) -> bool {
    let fd = queue.arrival().unwrap().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    while unsafe { libc::poll(&raw mut poll, 1, 20) } < 0 {
        // DPDK's driver for TAP has the kernel send signals, in another test.
        assert_eq!(std::io::Error::last_os_error().kind(), ErrorKind::Interrupted);
    }
    poll.revents & libc::POLLIN != 0
}

#[test]
fn af_packet_can_be_waited_for_queue_by_queue() {
    if !root_or_skip("AF_PACKET") {
        return;
    }
    private_namespace();
    // Neighbour discovery would be traffic. A kernel without IPv6 has no such file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    veth(1500);
    let pool = pool_of(2048, 2048);
    let mut a = af_packet("va").start(eal(), &pool).unwrap();
    let mut b = af_packet("vb").queues(2, 2).start(eal(), &pool).unwrap();
    assert!(b.rx.iter().all(|queue| !has_arrivals(queue)));
    for n in 0..50 {
        send(&mut a.tx[0], packet(&pool, &frame(n, 100)));
        let signalled = [has_arrivals(&b.rx[0]), has_arrivals(&b.rx[1])];
        for (queue, is_signalled) in b.rx.iter_mut().zip(signalled) {
            let count = queue.burst(&mut Batch::new());
            assert_eq!(is_signalled, count > 0, "frame {n}, queue {}", queue.id());
        }
    }
    assert!(b.rx.iter().all(|queue| !has_arrivals(queue)));
    // The interface is free for others at once, as the duplicates go with the queues.
    drop((a, b));
    ip("link del va");
    let null = null(&pool_of(2048, 1024));
    assert!(null.rx[0].arrival().is_none(), "others can only be asked");
}

#[test]
fn af_packet_moves_jumbo_frames_that_fit_the_buffers() {
    if !root_or_skip("AF_PACKET") {
        return;
    }
    private_namespace();
    veth(9000);
    let error = af_packet("va").start(eal(), &pool_of(2048, 512)).unwrap_err();
    assert!(matches!(error, PortError::FrameTooLong { frame: 9018, .. }), "{error}");
    let pool = pool_of(9344, 512);
    let (mut a, mut b) =
        (af_packet("va").start(eal(), &pool).unwrap(), af_packet("vb").start(eal(), &pool).unwrap());
    let sent: Vec<_> = (0..20).map(|n| frame(n, 9014)).collect();
    for frame in &sent {
        send(&mut a.tx[0], packet(&pool, frame));
    }
    assert_eq!(receive(&mut b.rx, 20), sent);
}

fn tap(interface: &str) -> PortBuilder {
    PortBuilder::new(Device::Tap { interface: interface.into() })
}

/// Frames both ways between a TAP port and a packet socket.
fn talk(port: &mut Started, pool: &Pool, interface: &str, length: usize) {
    let mut kernel = socket_on(interface);
    let sent: Vec<_> = (0..50).map(|n| frame(n, length)).collect();
    for frame in &sent {
        kernel.write_all(frame).unwrap();
    }
    assert_eq!(receive(&mut port.rx, 50), sent);

    // One at a time: the socket holds some 200 KB.
    for sent in (100..150).map(|n| frame(n, length)) {
        send(&mut port.tx[0], packet(pool, &sent));
        while next_frame(&mut kernel) != sent {}
    }
}

/// The next frame of ours on a packet socket, which also receives its own frames.
fn next_frame(socket: &mut File) -> Vec<u8> {
    let mut buffer = vec![0; 10_000];
    loop {
        match socket.read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return buffer;
            }
            // By the TAP driver's signals.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A process that another test has just started may have a driver's descriptor until it calls exec.
fn assert_goes(interface: &str) {
    let start = Instant::now();
    while ip("-o link").contains(interface) {
        assert!(start.elapsed() < PATIENCE, "{interface} stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tap_moves_frames_both_ways() {
    if !root_or_skip("TAP") {
        return;
    }
    private_namespace();
    let pool = pool_of(2048, 1024);
    let mut port = tap("nvtap").start(eal(), &pool).unwrap();
    talk(&mut port, &pool, "nvtap", 60);
    talk(&mut port, &pool, "nvtap", 1514);
    assert!(port.port.info().unwrap().driver.contains("tap"));
    // A queue of 8 descriptors, and its spare mbufs.
    assert!(pool.in_use() <= 9, "{}", pool.in_use());
    drop(port);
    assert_eq!(pool.in_use(), 0);
    assert_goes("nvtap");
}

/// Descriptors that a program started now would inherit.
fn inherited() -> Vec<String> {
    let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    list.lines()
        .filter(|line| {
            ["/dev/net/tun", "socket:", "memfd", "eventpoll"].iter().any(|kind| line.contains(kind))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn drivers_descriptors_are_not_inherited() {
    if !root_or_skip("TAP and AF_PACKET") {
        return;
    }
    private_namespace();
    let pool = pool_of(2048, 1024);
    let before = inherited();
    let _tap = tap("nvtap").start(eal(), &pool).unwrap();
    veth(1500);
    let _af_packet = af_packet("va").start(eal(), &pool).unwrap();
    let start = Instant::now();
    // Other tests open ports meanwhile.
    while inherited().len() > before.len() {
        assert!(start.elapsed() < PATIENCE, "{:?}", inherited());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tap_moves_jumbo_frames_with_a_larger_mtu() {
    if !root_or_skip("TAP") {
        return;
    }
    private_namespace();
    let pool = pool_of(9344, 512);
    match tap("nvtap").mtu(9000).start(eal(), &pool) {
        Ok(mut port) => {
            assert!(ip("-o link show dev nvtap").contains("mtu 9000"));
            talk(&mut port, &pool, "nvtap", 9014);
        }
        Err(error) => {
            assert!(dpdk::version() < "DPDK 24.11", "{error}");
            assert!(error.to_string().contains("max frame size"), "{error}");
        }
    }
    let error = tap("second").mtu(9000).start(eal(), &pool_of(2048, 512)).unwrap_err();
    assert!(matches!(error, PortError::FrameTooLong { .. }), "{error}");
    assert_goes("second");
}
