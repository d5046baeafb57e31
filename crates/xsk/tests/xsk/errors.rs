// SPDX-License-Identifier: Apache-2.0
//! Error messages: each names the problem, the place and the remedy.

use std::time::{Duration, Instant};

use crate::common::{Bench, FAR, NEAR, Region, frame, isolated, run, unshare_network, veth};
use netvm_xsk::{Attached, CopyMode, Interface, Mode, OpenError, QueueError, RingSizes, TxFrame, XskOptions};

fn open(options: XskOptions) -> OpenError {
    Interface::open(NEAR, options).unwrap_err()
}

#[track_caller]
fn assert_mentions(error: &impl std::error::Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn a_missing_interface_is_named() {
    isolated(|| {
        for name in ["nosuch0", "", "name-of-more-than-15-bytes", "a\0b"] {
            let error = Interface::open(name, XskOptions::default()).unwrap_err();
            assert!(matches!(error, OpenError::NoInterface { .. }), "{error}");
            assert_mentions(&error, &[&format!("{name:?}"), "ip link"]);
        }
    });
}

#[test]
fn contradictory_options_are_refused() {
    isolated(|| {
        veth(2);
        let defaults = XskOptions::default();
        assert_mentions(
            &open(XskOptions { queues: Some(3), ..defaults }),
            &[NEAR, "2 receive", "not 3", "ethtool -L"],
        );
        assert_mentions(&open(XskOptions { queues: Some(0), ..defaults }), &["not 0"]);
        let rings = RingSizes { rx: 1000, ..RingSizes::default() };
        assert_mentions(
            &open(XskOptions { rings, ..defaults }),
            &["rx ring cannot have 1000 entries", "power of two"],
        );
        let both = XskOptions { mode: Mode::Generic, copy: CopyMode::ForceZeroCopy, ..defaults };
        assert_mentions(&open(both), &["zero copy needs native mode"]);

        let interface = Interface::open(NEAR, XskOptions { queues: Some(1), ..defaults }).unwrap();
        let error = interface.queue(1, &Region::new(8, 2048).umem()).unwrap_err();
        assert!(matches!(error, QueueError::NoQueue { queue: 1, queues: 1, .. }), "{error}");
    });
}

#[test]
fn unsupported_zero_copy_is_refused() {
    isolated(|| {
        veth(1);
        let interface =
            Interface::open(NEAR, XskOptions { copy: CopyMode::ForceZeroCopy, ..XskOptions::default() })
                .unwrap();
        let error = interface.queue(0, &Region::new(8, 2048).umem()).unwrap_err();
        assert!(matches!(error, QueueError::ZeroCopyRefused { .. }), "{error}");
        assert_mentions(&error, &[NEAR, "set copy to auto"]);
    });
}

#[test]
fn auto_mode_falls_back_to_generic_mode() {
    let unequal: &[&str] = &["ip link add near type veth peer name far", "ethtool -L far rx 2 tx 2"];
    let jumbo: &[&str] = &["ip link add near mtu 1500 type veth peer name far mtu 9000"];
    for (make, remedy) in [(unequal, "ethtool -L"), (jumbo, "lower the MTU")] {
        isolated(|| {
            make.iter().for_each(|command| run(command));
            for end in [NEAR, FAR] {
                run(&format!("ip link set {end} up"));
            }
            let error = open(XskOptions { mode: Mode::Native, ..XskOptions::default() });
            assert!(matches!(error, OpenError::NativeRefused { .. }), "{error}");
            assert_mentions(&error, &[NEAR, remedy, "generic mode"]);

            let mut bench = Bench::on_veth(Region::new(32, 2048), XskOptions::default());
            assert_eq!(bench.interface.mode(), Attached::Generic);
            assert!(bench.interface.fallback().is_some());
            bench.wire.send(&frame(1, 1000));
            assert_eq!(bench.receive(1), [frame(1, 1000)]);
            bench.close();
        });
    }
}

#[test]
fn an_mtu_that_does_not_fit_the_buffers_is_refused() {
    isolated(|| {
        veth(1);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        let region = Region::new(32, 2048);
        run(&format!("ip link set {NEAR} mtu 1775"));
        let error = interface.queue(0, &region.umem()).unwrap_err();
        assert!(matches!(error, QueueError::Mtu { mtu: 1775, frame: 1793, room: 1792, .. }), "{error}");
        assert_mentions(&error, &[NEAR, "mtu 1774", "2048", "af_packet"]);
        drop(interface);

        // The longest frame of the largest MTU fits exactly, with its VLAN tag.
        for end in [NEAR, FAR] {
            run(&format!("ip link set {end} mtu 1774"));
        }
        let mut bench = Bench::on_veth(region, XskOptions::default());
        let mut longest = frame(1, 1774 + 18);
        longest[12..14].copy_from_slice(&[0x81, 0]);
        bench.wire.send(&longest);
        assert_eq!(bench.receive(1), [longest]);
        bench.close();
    });
}

#[test]
fn an_attached_program_and_a_bound_socket_are_reported_with_their_process() {
    isolated(|| {
        veth(1);
        let region = Region::new(32, 2048);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        let own = format!("(pid {}, this process)", std::process::id());
        for mode in [Mode::Auto, Mode::Native, Mode::Generic] {
            let error = open(XskOptions { mode, ..XskOptions::default() });
            assert!(matches!(error, OpenError::ProgramAttached { .. }), "{error}");
            assert_mentions(&error, &[NEAR, &own, "ip link set dev near xdp off"]);
        }
        let xsk = interface.queue(0, &region.umem()).unwrap();
        let start = Instant::now();
        let error = interface.queue(0, &region.umem()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(3));
        assert!(matches!(error, QueueError::Busy { queue: 0, .. }), "{error}");
        assert_mentions(&error, &["queue 0 of near", &own]);
        drop(xsk);
        interface.queue(0, &region.umem()).unwrap();
    });
}

#[test]
fn an_interface_of_another_namespace_is_refused() {
    isolated(|| {
        veth(1);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        unshare_network().unwrap();
        veth(1);
        let error = interface.queue(0, &Region::new(32, 2048).umem()).unwrap_err();
        assert!(matches!(error, QueueError::Namespace { .. }), "{error}");
    });
}

#[test]
fn unmapped_memory_is_refused() {
    isolated(|| {
        veth(1);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        // Nothing is mapped at the second page of the address space.
        let base = std::ptr::NonNull::new(std::ptr::without_provenance_mut(4096)).unwrap();
        let memory =
            netvm_xsk::Memory { base, len: 1 << 16, first_buffer: 0, stride: 2048, buffers: 32, headroom: 0 };
        // SAFETY: violated on purpose, but the kernel checks first and refuses.
        let umem = unsafe { netvm_xsk::Umem::new(&memory) }.unwrap();
        let error = interface.queue(0, &umem).unwrap_err();
        assert!(matches!(error, QueueError::NotMapped { .. }), "{error}");
    });
}

#[test]
fn missing_capabilities_are_named() {
    isolated(|| {
        veth(1);
        const NOBODY: libc::c_long = 65_534;
        // The raw system call changes the calling thread only, unlike libc's function.
        // SAFETY: takes numbers only.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(changed, 0, "setresuid: {}", std::io::Error::last_os_error());
        let error = open(XskOptions::default());
        assert!(matches!(error, OpenError::Permission { .. }), "{error}");
        assert_mentions(&error, &[NEAR, "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "root"]);
    });
}

/// Drops one capability of the calling thread.
fn drop_capability(capability: u32) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    // Effective, permitted, inheritable: capabilities 0 to 31, then 32 to 63.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: version 3 of the header implies two sets of three words.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()), 0);
        sets[0][0] &= !(1 << capability);
        assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()), 0);
    }
}

#[test]
fn the_lock_limit_applies_only_without_cap_ipc_lock() {
    isolated(|| {
        const CAP_IPC_LOCK: u32 = 14;
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: one rlimit is read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        veth(1);
        let region = Region::new(4096, 2048);
        let interface = Interface::open(NEAR, XskOptions::default()).unwrap();
        let xsk = interface.queue(0, &region.umem()).expect("8 MiB with CAP_IPC_LOCK and a limit of 1 MiB");
        xsk.close().unwrap();

        drop_capability(CAP_IPC_LOCK);
        let error = interface.queue(0, &region.umem()).unwrap_err();
        assert!(matches!(error, QueueError::Locked { mib: 8, limit_kib: 1024, .. }), "{error}");
        assert_mentions(&error, &[NEAR, "8 MiB", "1024 KiB", "CAP_IPC_LOCK", "ulimit -l"]);
        interface.queue(0, &Region::new(256, 2048).umem()).expect("half a MiB within the limit");
    });
}

#[test]
fn invalid_buffers_and_frames_are_counted_and_ignored() {
    isolated(|| {
        let mut bench = Bench::new(Region::new(16, 2048), XskOptions::default());
        // The kernel has buffers 0 to 7.
        assert_eq!(bench.xsk.held(), 8);
        assert_eq!(bench.xsk.fill(&[16, u32::MAX, 3, 3]), 4);
        assert_eq!(bench.xsk.stats().unwrap().fill_refused, 4);
        assert_eq!(bench.xsk.held(), 8);

        let good = TxFrame { buffer: 8, offset: 256, len: 60 };
        bench.region.write(8, 256, &frame(8, 60));
        let bad = [
            TxFrame { buffer: 9, offset: 2000, len: 60 },
            TxFrame { buffer: 10, offset: 0, len: 0 },
            good,
            TxFrame { buffer: 8, offset: 0, len: 60 },
            TxFrame { buffer: 2, offset: 0, len: 60 },
            TxFrame { buffer: 1 << 31, offset: 0, len: 60 },
            TxFrame { buffer: 99, offset: 0, len: 0 },
        ];
        assert_eq!(bench.xsk.tx(&bad), bad.len());
        assert_eq!(bench.xsk.stats().unwrap().tx_refused, 6);
        assert_eq!((bench.xsk.in_flight(), bench.xsk.held()), (1, 11));
        bench.xsk.kick().unwrap();
        assert_eq!(bench.wire.receive(Duration::from_secs(1)), Some(frame(8, 60)));
        assert_eq!(bench.wire.receive(Duration::from_millis(20)), None);
        let mut back = [0; 8];
        assert_eq!(bench.xsk.completed(&mut back), 3, "the buffers of refused frames return too");
        back[..3].sort_unstable();
        assert_eq!(back[..3], [8, 9, 10]);
        bench.close();
    });
}
