// SPDX-License-Identifier: Apache-2.0
//! The card's process is killed, at any time, and another one goes on with the same client.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netvm_e1000::{Doorbells, Model, NotTaken, Options, Pieces, Port, Queue, keep_cards_in};
use netvm_fd_store::Store;
use netvm_testing::until;

use super::card::*;
use super::client::*;

/// The folder of a card and its store, for its process.
const FOLDER: &str = "NETVM_TEST_CARD_FOLDER";
const MODEL: &str = "NETVM_TEST_CARD_MODEL";
const BROADCAST: [u8; 6] = [255; 6];
/// Where a frame has its number.
const NUMBER: usize = 14;
/// Report status.
const REPORT: u64 = 8;

fn this_program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Not a test: the store's process.
#[test]
fn be_the_store() {
    if std::env::var_os(FOLDER).is_some() {
        netvm_fd_store::serve(std::io::stdin(), Duration::from_secs(10)).unwrap();
    }
}

/// Not a test: the card's process, which gives the guest the packets back that it sends.
#[test]
fn be_the_card() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let command = this_program("restart::be_the_store");
    keep_cards_in(Arc::new(Store::new(folder.join("store.sock"), command)));
    let model = if std::env::var_os(MODEL).is_some() { Model::I82574 } else { Model::I82540 };
    let options = Options { path: folder.join("card.sock"), model, mac: MAC, doorbells: Doorbells::Mapped };
    let (_port, mut queue) = Port::open(&options).unwrap();
    let (mut waiting, parent) = (Vec::new(), rustix::process::getppid());
    while rustix::process::getppid() == parent {
        if !reflect(&mut queue, &mut waiting) {
            std::thread::yield_now();
        }
    }
}

/// Not a test by itself: a process without a store.
#[test]
fn be_without_a_store() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    keep_cards_in(Arc::new(Store::new(folder.join("none/store.sock"), Command::new("/nowhere"))));
    let options = Options {
        path: folder.join("card.sock"),
        model: Model::I82540,
        mac: MAC,
        doorbells: Doorbells::Mapped,
    };
    let (port, _queue) = Port::open(&options).unwrap();
    assert_eq!(port.unkept().map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    let mut driver = Driver::new(Client::connect(&options.path));
    assert_eq!(driver.client.get(RCTL), 0x8002, "it works all the same");
}

#[test]
fn without_a_store_a_card_works_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = this_program("restart::be_without_a_store");
    assert!(process.env(FOLDER, folder.path()).status().unwrap().success());
}

/// A turn: gives the guest what it has sent. Returns whether there was anything to do.
fn reflect(queue: &mut Queue, waiting: &mut Vec<Vec<u8>>) -> bool {
    if !queue.has_packets() && !queue.is_pending() && waiting.is_empty() {
        return false;
    }
    let Some(mut turn) = queue.turn() else { return false };
    if waiting.is_empty() {
        turn.transmit(16, |sent| {
            let mut bytes = vec![0; sent.length];
            // SAFETY: the vector has this length.
            let is_whole = unsafe { sent.copy(std::iter::once((bytes.as_mut_ptr(), bytes.len()))) };
            waiting.push(bytes);
            Some(is_whole)
        });
    }
    let mut receiving = turn.receive();
    while let Some(packet) = waiting.first() {
        // SAFETY: the piece is the packet.
        match unsafe { receiving.put(Pieces(&[(packet.as_ptr(), packet.len())])) } {
            Err(NotTaken::Full) => return false,
            outcome => outcome.unwrap(),
        }
        waiting.remove(0);
    }
    true
}

/// The card's process; killed on drop.
struct Process(Child);

impl Process {
    fn start(folder: &Path, model: Model) -> Self {
        let mut command = this_program("restart::be_the_card");
        command.env(FOLDER, folder).stdout(Stdio::null());
        if model == Model::I82574 {
            command.env(MODEL, "");
        }
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A card of a process, and its driver.
fn start(folder: &Path, model: Model) -> (Process, Driver) {
    let process = Process::start(folder, model);
    let path = folder.join("card.sock");
    let mut socket = None;
    until("the card's process listens", || {
        socket = UnixStream::connect(&path).ok();
        socket.is_some()
    });
    (process, Driver::new(Client::over(socket.unwrap())))
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

#[test]
fn all_state_of_a_card_outlives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let (process, mut driver) = start(folder.path(), Model::I82540);
    let (line, unmask, more) = (eventfd(), eventfd(), sealed(8192));
    let client = &mut driver.client;
    client.interrupt(&line).unwrap();
    client.call(SET_IRQS, &words(&[20, 0x14, 0, 0, 1]), Some(unmask.as_fd())).unwrap();
    client.map(FIRST + BYTES, 8192, &more).unwrap();
    client.map(FIRST + BYTES + 8192, 4096, &more).unwrap();
    client.call(DMA_UNMAP, &unmap(FIRST + BYTES, 8192), None).unwrap();
    // A register, the multicast table, ITR, the PHY, an EEPROM that is being read bit by bit, the I/O window, an
    // enabled cause.
    client.set(0x5200, 0x1234_5678);
    client.set(0xc4, 1000);
    client.set(0x20, 0x0424_0d11);
    for value in [0x40, 0x42, 0x46, 0x47, 0x46] {
        client.set(0x10, value);
    }
    client.write_region(1, 0, &0x5200u32.to_le_bytes());
    client.write_region(7, 0x3c, &[11]);
    client.set(IMS, 4);
    let control = client.get(0x10);
    drop(process);

    let _process = Process::start(folder.path(), Model::I82540);
    let client = &mut driver.client;
    assert_eq!(client.get(0x5200), 0x1234_5678);
    assert_eq!((client.get(0xc4), client.get(IMS), client.get(0x10)), (1000, 4, control));
    client.set(0x20, 0x0824_0000);
    assert_eq!(client.get(0x20) & 0xffff, 0x0d11);
    assert_eq!(client.read_region(1, 4, 4)[16..], 0x1234_5678u32.to_le_bytes());
    assert_eq!(client.read_region(7, 0x3c, 1)[16..], [11]);
    assert_eq!((client.get(TX), client.get(RCTL)), ((FIRST + TX_RING) as u32, 0x8002));
    client.set(0xc8, 4);
    assert!(is_signalled(&line), "LSC is still enabled");
    assert_eq!(client.get(ICR) & 4, 4);
    // A range that was unmapped can be mapped, and others are there.
    client.map(FIRST + BYTES, 8192, &more).unwrap();
    assert_eq!(client.map(FIRST + BYTES + 8192, 8192, sealed(8192)), Err(22), "it overlaps");
}

fn unmap(first: u64, bytes: u64) -> Vec<u8> {
    let mut body = words(&[24, 0]);
    [first, bytes].iter().for_each(|long| body.extend(long.to_ne_bytes()));
    body
}

#[test]
fn vectors_and_extended_descriptors_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (process, mut driver) = start(folder.path(), Model::I82574);
    let vector = eventfd();
    let client = &mut driver.client;
    client.call(SET_IRQS, &words(&[20, 0x24, 2, 1, 1]), Some(vector.as_fd())).unwrap();
    // Received packets have vector 1.
    client.set(0xe4, 0x9);
    client.set(IMS, 1 << 20);
    drop(process);
    let _process = Process::start(folder.path(), Model::I82574);
    driver.send(&[&frame(BROADCAST, 60)], REPORT, 0, 0);
    until("the packet", || driver.received().is_some());
    until("the interrupt", || is_signalled(&vector));
}

/// What a driver has sent and received.
#[derive(Default)]
struct Traffic {
    sent: u32,
    /// Transmit descriptors that were not done when last looked at, oldest first.
    open: std::collections::VecDeque<u32>,
    /// How often each packet came back.
    received: Vec<u32>,
}

impl Traffic {
    /// Sends packets as long as there is room, and takes what has come.
    fn turn(&mut self, driver: &mut Driver, sends: bool) {
        while self.open.front().is_some_and(|place| driver.is_done(*place)) {
            self.open.pop_front();
        }
        if sends && self.open.len() < COUNT as usize - 2 {
            let mut packet = frame(BROADCAST, 60 + self.sent as usize % 1400);
            packet[NUMBER..NUMBER + 4].copy_from_slice(&self.sent.to_le_bytes());
            self.open.push_back(driver.tx);
            driver.send(&[&packet], REPORT, 0, 0);
            self.sent += 1;
            self.received.push(0);
        }
        while let Some((packet, _)) = driver.received() {
            let number = u32::from_le_bytes(packet[NUMBER..NUMBER + 4].try_into().unwrap());
            let mut expected = frame(BROADCAST, 60 + number as usize % 1400);
            expected[NUMBER..NUMBER + 4].copy_from_slice(&number.to_le_bytes());
            assert_eq!(packet[..packet.len() - 4], expected, "a packet of right content");
            self.received[number as usize] += 1;
        }
    }
}

#[test]
fn rings_go_on_wherever_the_process_is_killed() {
    let seconds = std::env::var("NETVM_TEST_SECONDS").map_or(4, |seconds| seconds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (process, mut driver) = start(folder.path(), Model::I82540);
    let end = Instant::now() + Duration::from_secs(seconds);
    let path = folder.path().to_owned();
    let received = Arc::new(AtomicU32::new(0));
    let progress = Arc::clone(&received);
    let killer = std::thread::spawn(move || {
        let (mut process, mut kills, mut delay) = (process, 0u32, 1u64);
        while Instant::now() < end {
            // Three of four serve the client first; the others are killed while they start, or soon after.
            let before = progress.load(Ordering::Relaxed);
            if kills % 4 > 0 {
                until("packets come back", || progress.load(Ordering::Relaxed) > before);
            }
            delay = delay.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros((delay >> 33) % 30_000));
            drop(process);
            kills += 1;
            process = Process::start(&path, Model::I82540);
        }
        (process, kills)
    });
    driver.client.ignores_late = true;
    let mut traffic = Traffic::default();
    while !killer.is_finished() {
        traffic.turn(&mut driver, true);
        received.store(traffic.received.iter().sum(), Ordering::Relaxed);
    }
    let (_process, kills) = killer.join().unwrap();
    // What the last process has taken comes back, and all is as if nothing had happened.
    until("all is sent", || {
        traffic.turn(&mut driver, false);
        traffic.open.is_empty()
    });
    let before = traffic.received.len();
    while traffic.received.len() < before + 1000 {
        traffic.turn(&mut driver, true);
    }
    until("the rest comes back", || {
        traffic.turn(&mut driver, false);
        traffic.received[before..].iter().all(|count| *count == 1)
    });
    let (lost, twice) = (
        traffic.received.iter().filter(|count| **count == 0).count(),
        traffic.received.iter().filter(|count| **count > 1).count(),
    );
    let late = driver.client.late;
    println!(
        "{kills} kills, {} packets, {lost} lost, {twice} twice; {late} replies twice",
        traffic.received.len()
    );
    assert!(late <= 1 + kills / 10, "{kills} kills, {late} replies twice");
    assert!(traffic.received.iter().all(|count| *count <= 2));
    // A process has 16 packets at a time.
    assert!(lost <= 16 * kills as usize && twice <= kills as usize, "{kills}: {lost}, {twice}");
}
