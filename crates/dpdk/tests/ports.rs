// SPDX-License-Identifier: Apache-2.0
//! Ports: errors, and frames through real interfaces in private network namespaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{
    bytes, eal, layout, memory, null, packet, pool, pool_over, private_namespace, root_or_skip, veth,
};
use dpdk::{
    Batch, BufferLayout, Device, Mbuf, Pool, PoolOptions, PortBuilder, PortError, RxQueue, Started, TxQueue,
};

/// Local experimental EtherType 1 (IEEE 802): separates our frames from those of the kernel.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const TIMEOUT: Duration = Duration::from_secs(5);

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
    let device = Device::Vdev { driver: "net_af_packet".into(), arguments: format!("iface={interface}") };
    PortBuilder::new(device).promiscuous(true)
}

fn pool_of(stride: u32, buffers: u32) -> Arc<Pool> {
    let layout = BufferLayout { stride, ..layout(buffers) };
    Arc::new(pool_over("ports", memory(layout), layout, PoolOptions::default()).unwrap())
}

fn send(tx: &mut TxQueue, packet: Mbuf) {
    let mut batch = Batch::new();
    batch.push(packet).unwrap();
    assert!(netvm_testing::within(TIMEOUT, || tx.burst(&mut batch) == 1), "not sent");
}

/// The next `count` of our frames from any of the queues.
fn receive(queues: &mut [RxQueue], count: usize) -> Vec<Vec<u8>> {
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    netvm_testing::within(TIMEOUT, || {
        for queue in &mut *queues {
            queue.burst(&mut batch);
            for packet in batch.drain() {
                assert_eq!((packet.nb_segs(), packet.pkt_len()), (1, u32::from(packet.data_len())));
                frames.extend(Some(bytes(&packet)).filter(|frame| is_ours(frame)));
            }
        }
        frames.len() >= count
    });
    assert!(frames.len() >= count, "{} of {count} frames came", frames.len());
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
    let PortError::Attach { log, .. } = refused(vdev("net_null", "bogus=1")) else { panic!() };
    assert!(!log.is_empty());
    assert!(matches!(refused(vdev("net_null", "a\0b")), PortError::Name { .. }));

    let address = "0000:00:1f.7".parse().unwrap();
    let error = refused(PortBuilder::new(Device::Pci { address, arguments: String::new() }));
    assert!(matches!(error, PortError::PciOff { .. }), "{error}");

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
    let pool = pool_of(4096, 2048);
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
    let pool = pool_of(4096, 1024);
    let before = inherited();
    let tap = Device::Vdev { driver: "net_tap".into(), arguments: "iface=nvtap".into() };
    let _tap = PortBuilder::new(tap).descriptors(8, 8).start(eal(), &pool).unwrap();
    veth(1500);
    let _af_packet = af_packet("va").start(eal(), &pool).unwrap();
    // Other tests open ports meanwhile.
    let are_gone = || inherited().len() <= before.len();
    assert!(netvm_testing::within(TIMEOUT, are_gone), "{:?}", inherited());
}
