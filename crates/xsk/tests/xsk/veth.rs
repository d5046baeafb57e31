// SPDX-License-Identifier: Apache-2.0
//! Checks the peculiarities of veth that the crate's documentation describes.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::common::{
    Bench, FAR, NEAR, PacketSocket, Region, frame, isolated, run, succeeds, udp_frame, until, veth,
};
use netvm_xsk::{Interface, Mode, RxFrame, XskOptions};

const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];

fn options(mode: Mode) -> XskOptions {
    XskOptions { mode, ..XskOptions::default() }
}

/// An ordinary socket on the far end that sends to a neighbour beyond the near end.
fn udp() -> UdpSocket {
    for command in [
        "ip link set lo up",
        "ip addr add 10.0.0.1/24 dev far",
        "ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev far nud permanent",
    ] {
        run(command);
    }
    let socket = UdpSocket::bind("10.0.0.1:1000").unwrap();
    socket.connect("10.0.0.2:2000").unwrap();
    socket
}

/// Whether the UDP checksum of an Ethernet frame is correct (RFC 768: pseudo header and datagram sum up to all ones).
fn checksum_is_correct(frame: &[u8]) -> bool {
    let datagram = &frame[34..14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))];
    let words = frame[26..34].chunks(2).chain(datagram.chunks(2));
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    let sum = sum + 17 + datagram.len() as u32;
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[test]
fn checksums_are_complete_only_without_the_peers_offload() {
    for mode in MODES {
        isolated(|| {
            let mut bench = Bench::new(Region::new(64, 2048), options(mode));
            let socket = udp();
            socket.send(&[7; 101]).unwrap();
            let partial = bench.receive(1).pop().unwrap();
            assert!(
                !checksum_is_correct(&partial),
                "{mode:?}: the kernel completes the checksum: the documentation is out of date"
            );
            run("ethtool -K far tx off");
            socket.send(&[7; 101]).unwrap();
            let complete = bench.receive(1).pop().unwrap();
            assert!(checksum_is_correct(&complete), "{mode:?}: {complete:02x?}");
            bench.close();
        });
    }
}

/// Sends one buffer that the kernel segments into datagrams of 1000 bytes as late as possible.
fn send_segmented(socket: &UdpSocket, bytes: usize) {
    let segment: libc::c_int = 1000;
    // SAFETY: four bytes are read.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const segment).cast(), 4)
    };
    assert_eq!(result, 0);
    assert_eq!(socket.send(&vec![7; bytes]).unwrap(), bytes);
}

#[test]
fn generic_mode_needs_segmentation_offload_turned_off() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(128, 2048), options(Mode::Native));
        send_segmented(&udp(), 20_000);
        let got = bench.receive(20);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1042; 20]);
        bench.close();
    });
    isolated(|| {
        let mut bench = Bench::new(Region::new(128, 2048), options(Mode::Generic));
        let socket = udp();
        send_segmented(&socket, 20_000);
        // One packet of 20,000 bytes.
        until(|| bench.xsk.stats().unwrap().rx_dropped == 1);
        // Turns segmentation offload off as well.
        run("ethtool -K far tx off");
        send_segmented(&socket, 20_000);
        assert_eq!(bench.receive(20).len(), 20);
        bench.close();
    });
}

/// The cores on which the calling thread may run.
fn cores() -> Vec<usize> {
    // SAFETY: zero bytes are an empty set of cores; the kernel gets its size, and writes it.
    let cores = unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cores), 0);
        cores
    };
    // SAFETY: numbers within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &cores) }).collect()
}

/// Runs the calling thread on one core only.
fn pin(core: usize) {
    // SAFETY: zero bytes are an empty set of cores; the kernel gets its size, and reads it.
    let result = unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut cores);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cores)
    };
    assert_eq!(result, 0, "core {core}: {}", std::io::Error::last_os_error());
}

#[test]
fn the_core_that_received_the_last_packet_is_known() {
    let cores = cores();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    for mode in MODES {
        isolated(|| {
            let mut bench = Bench::new(Region::new(64, 2048), options(mode));
            assert_eq!(bench.xsk.kernel_core(), None, "{mode:?}: nothing was received");
            for core in [first, last, first] {
                // The softirq that receives runs on the sender's core.
                pin(core);
                bench.wire.send(&frame(1, 100));
                assert_eq!(bench.receive(1).len(), 1);
                assert_eq!(bench.xsk.kernel_core(), Some(core as u32), "{mode:?}");
            }
            bench.close();
        });
    }
}

#[test]
fn vlan_tags_arrive_only_without_the_peers_offload() {
    for mode in MODES {
        isolated(|| {
            let mut bench = Bench::new(Region::new(64, 2048), options(mode));
            // A bridge that tags what leaves through the far end.
            if !succeeds("ip link add br type bridge vlan_filtering 1 vlan_default_pvid 0") {
                println!("SKIP: no bridge with VLAN filtering");
                return;
            }
            for command in [
                "ip link add in type veth peer name out",
                "ip link set out master br",
                "ip link set far master br",
                "bridge vlan add dev out vid 10 pvid untagged",
                "bridge vlan add dev far vid 10",
                "ip link set in up",
                "ip link set out up",
                "ip link set br up",
            ] {
                run(command);
            }
            let wire = PacketSocket::new("in");
            let plain = frame(1, 100);
            wire.send(&plain);
            assert_eq!(
                bench.receive(1),
                std::slice::from_ref(&plain),
                "{mode:?}: the tag is not in the packet"
            );
            run("ethtool -K far txvlan off");
            wire.send(&plain);
            let mut tagged = plain.clone();
            tagged.splice(12..12, [0x81, 0, 0, 10]);
            assert_eq!(bench.receive(1), [tagged], "{mode:?}");
            bench.close();
        });
    }
}

#[test]
fn frames_of_queues_without_a_socket_go_to_the_kernel() {
    isolated(|| {
        veth(2);
        let mut bench =
            Bench::on_veth(Region::new(64, 2048), XskOptions { queues: Some(1), ..options(Mode::Native) });
        // Frames that the program passes on reach a packet socket on the same interface.
        let kernel = PacketSocket::new(NEAR);
        let (mut to_us, mut to_kernel) = (0, 0);
        // The kernel's per-boot hash may send all frames to the socket, so send no more at once than it has buffers.
        const AT_ONCE: u16 = 16;
        for flows in (0..4).map(|n| n * AT_ONCE..(n + 1) * AT_ONCE) {
            let sent = usize::from(flows.end);
            flows.for_each(|flow| bench.wire.send(&udp_frame(flow)));
            until(|| {
                to_us += bench.receive_now();
                to_kernel += std::iter::from_fn(|| kernel.receive(Duration::ZERO)).count();
                to_us + to_kernel == sent
            });
        }
        assert!(to_us > 0 && to_kernel > 0, "{to_us} and {to_kernel}");
        bench.close();
    });
}

#[test]
fn generic_mode_shifts_the_queues_of_a_veth_by_one() {
    for mode in MODES {
        isolated(|| {
            veth(3);
            let region = Region::new(3 * 64, 2048);
            let interface = Interface::open(NEAR, options(mode)).unwrap();
            let mut sockets: Vec<_> = (0..3)
                .map(|queue| {
                    let mut xsk = interface.queue(queue, &region.umem()).unwrap();
                    xsk.fill(&(queue * 64..queue * 64 + 64).collect::<Vec<_>>());
                    xsk
                })
                .collect();
            let wire = PacketSocket::new(FAR);
            (0..64).for_each(|flow| wire.send(&udp_frame(flow)));
            let mut out = [RxFrame::default(); 64];
            let mut got = [0; 3];
            until(|| {
                got.iter_mut().zip(&mut sockets).for_each(|(n, xsk)| *n += xsk.rx(&mut out));
                got.iter().sum::<usize>() == 64
            });
            assert!(got[0] > 0 && got[1] > 0, "{mode:?}: {got:?}");
            assert_eq!(got[2] == 0, mode == Mode::Generic, "{mode:?}: {got:?}");
        });
    }
}

#[test]
fn the_far_end_receives_without_a_program_or_gro() {
    for mode in MODES {
        isolated(|| {
            let mut bench = Bench::new(Region::new(64, 2048), options(mode));
            let socket = udp();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            // Echoes by swapping addresses and ports; the checksum stays correct.
            run("ethtool -K far tx off");
            socket.send(b"hello").unwrap();
            let mut echo = bench.receive(1).pop().unwrap();
            let (to, from) = echo.split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
            let (source, destination) = echo[26..34].split_at_mut(4);
            source.swap_with_slice(destination);
            let (source, destination) = echo[34..38].split_at_mut(2);
            source.swap_with_slice(destination);
            bench.send(&[echo]);
            let mut answer = [0; 10];
            assert_eq!(socket.recv(&mut answer).unwrap(), 5);
            assert_eq!(&answer[..5], b"hello");
            bench.close();
        });
    }
}
