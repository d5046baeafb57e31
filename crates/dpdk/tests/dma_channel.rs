// SPDX-License-Identifier: Apache-2.0
//! Packets whose DMA engine has too little room, refuses them, or never finishes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;
#[path = "../../engine/tests/support/guest.rs"]
mod guest;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{eal, packet, pool};
use dpdk::{Batch, DmaChannel, DmaChannelError, Pool, VhostMode, VhostOptions, VhostPort, VhostQueue};
use guest::{Guest, Running, turn};

const DEVICE: &str = "dma_skeleton0";
/// The device's number: it is the only one.
const NUMBER: i32 = 0;
const BUFFERS: u32 = 1024;
const TIMEOUT: Duration = Duration::from_secs(60);

fn wait_until(what: &str, done: impl FnMut() -> bool) {
    assert!(netvm_testing::within(TIMEOUT, done), "{what}");
}

/// A guest that sends a frame once it forwards, and records what it receives.
fn start(folder: &Path) -> Running {
    Guest::new(&guest::socket(folder, "guest"))
        .capture(&folder.join("hello.pcap"), &folder.join("got.pcap"))
        .start()
}

/// A port whose guest records what it receives.
struct Bench {
    pool: Arc<Pool>,
    port: VhostPort,
    queue: VhostQueue,
    guest: Running,
    folder: PathBuf,
    made: u32,
    _turn: std::sync::MutexGuard<'static, ()>,
}

impl Bench {
    fn new(name: &str) -> Option<Self> {
        let turn = turn()?;
        // A ring of which 31 descriptors can be used.
        let dma = match DmaChannel::open(eal(), DEVICE, Some(32)) {
            Ok(dma) => dma,
            Err(error @ DmaChannelError::Unknown { .. }) => {
                println!("SKIP: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let folder = std::env::temp_dir().join(format!("netvm-dma-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = guest::socket(&folder, "guest");
        let options = VhostOptions { path, mode: VhostMode::Server, queues: 1 };
        let (port, mut queues) = VhostPort::open(eal(), &options, Some(dma)).unwrap();
        // A capture of one Ethernet frame of 60 bytes (draft-ietf-opsawg-pcap, sections 4 and 5).
        let words: [u32; 10] = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65535, 1, 0, 0, 60, 60];
        let mut capture: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        capture.resize(capture.len() + 60, 1);
        std::fs::write(folder.join("hello.pcap"), capture).unwrap();
        let guest = start(&folder);
        let queue = queues.remove(0);
        let mut bench = Self { pool: pool(BUFFERS), port, queue, guest, folder, made: 0, _turn: turn };
        bench.wait_for_guest();
        Some(bench)
    }

    /// Waits until the guest forwards, so that it has set up its rings.
    fn wait_for_guest(&mut self) {
        let mut batch = Batch::new();
        wait_until("no guest", || {
            self.queue.receive(&self.pool, &mut batch, 32, |_, _| true);
            !batch.is_empty()
        });
    }

    fn frame(number: u32) -> Vec<u8> {
        let mut frame = vec![number as u8; 60 + (number as usize * 37) % 1400];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// Fills the batch with the next frames.
    fn make(&mut self, batch: &mut Batch, count: usize) {
        for _ in 0..count {
            batch.push(packet(&self.pool, &Self::frame(self.made))).unwrap();
            self.made += 1;
        }
    }

    /// Sends so many frames in bursts, however long it takes.
    fn send(&mut self, count: usize) {
        let mut batch = Batch::new();
        for _ in 0..count / 32 {
            self.make(&mut batch, 32);
            wait_until("a burst is not taken", || {
                self.queue.reap();
                self.queue.send(&mut batch);
                batch.is_empty()
            });
        }
    }

    /// Checks that the guest received the frames that were sent.
    fn check(self) {
        std::thread::sleep(Duration::from_millis(300));
        let Self { guest, folder, made, .. } = self;
        guest::quit(vec![guest]);
        let bytes = std::fs::read(folder.join("got.pcap")).unwrap();
        let mut rest = &bytes[24..];
        let mut got = 0u32;
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
            assert_eq!(&rest[30..34], &got.to_be_bytes(), "frame {got}");
            assert!(rest[16..16 + length] == Self::frame(got), "frame {got}");
            rest = &rest[16 + length..];
            got += 1;
        }
        assert_eq!(got, made);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_ring_shorter_than_a_burst_loses_nothing_and_keeps_the_order() {
    let Some(mut bench) = Bench::new("short") else { return };
    bench.send(3200);
    wait_until("copies do not end", || {
        bench.queue.reap();
        !bench.queue.is_copying()
    });
    assert_eq!(bench.pool.available(), BUFFERS);
    let dma = bench.port.dma().unwrap();
    assert!(dma.stats.completed > 1600 && dma.stats.completed == dma.stats.submitted, "{dma:?}");
    bench.check();
}

#[test]
fn the_processor_copies_what_a_device_refuses() {
    let Some(mut bench) = Bench::new("refuse") else { return };
    bench.send(320);
    wait_until("copies do not end", || {
        bench.queue.reap();
        !bench.queue.is_copying()
    });
    let before = bench.port.dma().unwrap().stats;
    // SAFETY: a device that is started, with nothing under way; it is not used from now on.
    unsafe { dpdk_sys::netvm_dma_close(NUMBER) };
    bench.send(320);
    assert_eq!(bench.port.dma().unwrap().stats, before);
    assert_eq!(bench.pool.available(), BUFFERS);
    bench.check();
}

#[test]
fn a_device_that_never_finishes_is_given_up_and_every_buffer_is_back() {
    let Some(mut bench) = Bench::new("stuck") else { return };
    bench.send(32);
    wait_until("copies do not end", || {
        bench.queue.reap();
        !bench.queue.is_copying()
    });
    // SAFETY: a device that is started.
    unsafe { dpdk_sys::netvm_dma_stop(NUMBER) };
    let mut batch = Batch::new();
    bench.make(&mut batch, 20);
    bench.queue.send(&mut batch);
    assert!(batch.is_empty() && bench.queue.is_copying());
    bench.queue.reap();
    assert_eq!(bench.pool.available(), BUFFERS - 20);
    bench.guest.kill();
    wait_until("buffers are kept", || bench.pool.available() == BUFFERS);
    assert!(bench.port.dma().unwrap().stuck);
    bench.queue.reap();
    assert!(!bench.queue.is_copying());
    // For the next guest, the processor copies.
    bench.guest = start(&bench.folder);
    bench.wait_for_guest();
    bench.made = 0;
    bench.send(320);
    assert_eq!(bench.pool.available(), BUFFERS);
    bench.check();
}
