// SPDX-License-Identifier: Apache-2.0
//! Sends frames over a veth pair in both directions and in every mode.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::common::{
    Bench, FAR, NEAR, PacketSocket, Region, frame, isolated, length, readable, run, until, veth,
};
use netvm_xsk::{Attached, CopyMode, Interface, Mode, RingSizes, RxFrame, XskOptions, XskStats};

/// Sends frames of many lengths in both directions and compares every byte.
fn both_ways(mut bench: Bench) {
    let sent: Vec<_> = (0..500).map(|n| frame(n, length(n))).collect();
    for burst in sent.chunks(20) {
        burst.iter().for_each(|bytes| bench.wire.send(bytes));
        assert_eq!(bench.receive(burst.len()), burst);
    }
    for burst in sent.chunks(60) {
        bench.send(burst);
        for expected in burst {
            assert_eq!(bench.wire.receive(Duration::from_secs(1)).as_ref(), Some(expected));
        }
    }
    assert_eq!(bench.wire.receive(Duration::ZERO), None);
    let XskStats { rx_dropped, rx_ring_full, rx_invalid, tx_invalid, rx_unknown, completed_unknown, .. } =
        bench.xsk.stats().unwrap();
    assert_eq!(
        (rx_dropped, rx_ring_full, rx_invalid, tx_invalid, rx_unknown, completed_unknown),
        (0, 0, 0, 0, 0, 0)
    );
    bench.close();
}

#[test]
fn frames_pass_byte_for_byte_in_native_mode() {
    isolated(|| {
        let bench =
            Bench::new(Region::new(256, 2048), XskOptions { mode: Mode::Native, ..XskOptions::default() });
        assert_eq!(bench.interface.mode(), Attached::Native);
        both_ways(bench);
    });
}

#[test]
fn frames_pass_byte_for_byte_in_generic_mode() {
    isolated(|| {
        let bench =
            Bench::new(Region::new(256, 2048), XskOptions { mode: Mode::Generic, ..XskOptions::default() });
        assert_eq!(bench.interface.mode(), Attached::Generic);
        assert!(bench.interface.fallback().is_none());
        assert!(!bench.xsk.zero_copy());
        both_ways(bench);
    });
}

#[test]
fn frames_pass_byte_for_byte_with_forced_copies() {
    isolated(|| {
        let options = XskOptions { copy: CopyMode::ForceCopy, ..XskOptions::default() };
        let bench = Bench::new(Region::new(256, 4096), options);
        assert!(!bench.xsk.zero_copy());
        both_ways(bench);
    });
}

#[test]
fn unaligned_mode_supports_any_buffer_size_and_offset() {
    for (stride, first) in [(2304, 4096), (3072, 64), (2048, 64), (4096, 2048), (2112, 4160)] {
        isolated(move || {
            let region = Region::at(200, stride, first);
            assert!(region.umem().is_unaligned());
            both_ways(Bench::new(region, XskOptions::default()));
        });
    }
}

#[test]
fn packets_start_after_the_headroom() {
    isolated(|| {
        veth(1);
        let region = Region::new(64, 2048);
        for (asked, expected) in [(0, 256), (200, 256), (320, 320)] {
            let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
            let memory = netvm_xsk::Memory { headroom: asked, ..region.memory() };
            // SAFETY: as in `Region::umem`.
            let umem = unsafe { netvm_xsk::Umem::new(&memory) }.unwrap();
            let mut xsk = interface.queue(0, &umem).unwrap();
            xsk.fill(&[5]);
            PacketSocket::new(FAR).send(&frame(1, 100));
            assert!(readable(&xsk, Duration::from_secs(2)));
            let mut out = [RxFrame::default(); 4];
            assert_eq!(xsk.rx(&mut out), 1);
            assert_eq!(out[0], RxFrame { buffer: 5, offset: expected, len: 100 });
            assert!(xsk.close().unwrap().is_empty());
        }
    });
}

#[test]
fn busy_polling_delivers_frames() {
    isolated(|| {
        let busy_poll = Some(netvm_xsk::BusyPoll { micros: 20, budget: 64 });
        both_ways(Bench::new(Region::new(256, 2048), XskOptions { busy_poll, ..XskOptions::default() }));
    });
}

/// A TAP device: another driver, which does not report its number of queues.
#[test]
fn frames_pass_byte_for_byte_over_tap() {
    isolated(|| {
        let Ok(mut tap) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") else {
            println!("SKIP: no /dev/net/tun here");
            return;
        };
        // SAFETY: zero bytes are a valid ifreq; TUNSETIFF reads and writes one.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(NEAR.bytes()) {
                *to = from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
            assert_eq!(libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request), 0);
        }
        run(&format!("ip link set {NEAR} up"));
        let region = Region::new(64, 2048);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        assert_eq!((interface.mode(), interface.queues()), (Attached::Native, 1));
        let mut xsk = interface.queue(0, &region.umem()).unwrap();
        xsk.fill(&[0, 1, 2, 3]);
        for n in 0..4 {
            tap.write_all(&frame(n, length(n))).unwrap();
        }
        let mut out = [RxFrame::default(); 4];
        let mut got = 0;
        until(|| {
            got += xsk.rx(&mut out[got..]);
            got == 4
        });
        for (n, received) in out.iter().enumerate() {
            assert_eq!(region.read(*received), frame(n as u64, length(n as u64)));
        }
        // Sends the frames back from the buffers that received them.
        assert_eq!(xsk.tx(&out), 4);
        xsk.kick().unwrap();
        let mut bytes = [0; 2048];
        for n in 0..4 {
            assert!(readable(&tap, Duration::from_secs(2)));
            let len = tap.read(&mut bytes).unwrap();
            assert_eq!(bytes[..len], frame(n, length(n)));
        }
        let mut buffers = [0; 4];
        assert_eq!(xsk.completed(&mut buffers), 4);
        assert!(xsk.close().unwrap().is_empty());
    });
}

#[test]
fn a_socket_with_memory_of_its_own_passes_more_frames_than_it_has_buffers() {
    isolated(|| {
        veth(1);
        let rings = RingSizes { fill: 64, rx: 64, tx: 64, completion: 64 };
        let options = XskOptions { rings, promiscuous: false, ..XskOptions::default() };
        let interface = Interface::open(NEAR, options).unwrap();
        let mut xsk = interface.private_queue(0).unwrap();
        let wire = PacketSocket::new(FAR);
        let sent: Vec<_> = (0..500).map(|n| frame(n, length(n))).collect();
        for burst in sent.chunks(50) {
            burst.iter().for_each(|bytes| wire.send(bytes));
            let mut got = Vec::new();
            until(|| {
                xsk.receive(7, |bytes| got.push(bytes.to_vec()));
                xsk.kick().unwrap();
                got.len() >= burst.len()
            });
            assert_eq!(got, burst);
        }
        for burst in sent.chunks(60) {
            for bytes in burst {
                until(|| {
                    let is_taken = xsk.stage(bytes.len(), |room| room.copy_from_slice(bytes));
                    xsk.flush();
                    xsk.kick().unwrap();
                    is_taken
                });
            }
            until(|| {
                xsk.flush();
                xsk.kick().unwrap();
                xsk.is_flushed()
            });
            for expected in burst {
                assert_eq!(wire.receive(Duration::from_secs(1)).as_ref(), Some(expected));
            }
        }
        assert!(!xsk.stage(0, |_| ()) && !xsk.stage(xsk.room() + 1, |_| ()));
        // A frame of any length that is announced fits.
        let longest = frame(7, 1514);
        assert!(xsk.room() >= longest.len());
        // While it is not flushed, a burst waits; the next one does not fit.
        let taken = (0..1000).take_while(|_| xsk.stage(1514, |room| room.copy_from_slice(&longest))).count();
        assert!((64..200).contains(&taken), "{taken}");
        // Those that the kernel does not have are given up, and there is room again.
        assert_eq!((xsk.discard_staged(), xsk.discard_staged()), (64, 0));
        assert!(xsk.is_flushed() && xsk.stage(1514, |room| room.copy_from_slice(&longest)));
    });
}
