// SPDX-License-Identifier: Apache-2.0
//! How card and driver announce packets: kicks of a worker that sleeps, and the communication status block with packets
//! without register accesses, interrupts on the driver's request, and malformed blocks.

use std::os::fd::OwnedFd;
use std::time::Duration;

use netvm_e1000::Model;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::card::*;
use super::client::{REGION_INFO, RESET};

const CSBAL: u32 = 0x2830;
const CSBAH: u32 = 0x2834;
/// Where the block is in guest memory.
const BLOCK: u64 = 0x1_0100;
const GUEST_TDT: u64 = 0x00;
const GUEST_NEED_TXKICK: u64 = 0x04;
const GUEST_NEED_RXKICK: u64 = 0x08;
const GUEST_CSB_ON: u64 = 0x0c;
const GUEST_RDT: u64 = 0x10;
const GUEST_TXKICK_AT: u64 = 0x14;
const HOST_TDH: u64 = 0x40;
const HOST_NEED_TXKICK: u64 = 0x44;
const HOST_RDH: u64 = 0x50;
const HOST_NEED_RXKICK: u64 = 0x54;
const NEVER: u32 = u32::MAX;
const ITR: u32 = 0xc4;
const ICS: u32 = 0xc8;

/// A driver that uses its block.
struct Driver {
    card: Card,
    line: OwnedFd,
    /// Descriptors sent.
    sent: u32,
}

impl Driver {
    fn new() -> Self {
        let mut card = Card::new();
        let line = netvm_notify::new_eventfd().unwrap();
        card.client.interrupt(&line).unwrap();
        // Causes of sent and received packets.
        card.client.set(IMS, 0x81);
        let mut driver = Self { card, line, sent: 0 };
        for (field, value) in [
            (GUEST_RDT, COUNT - 1),
            (GUEST_TXKICK_AT, NEVER),
            (HOST_NEED_TXKICK, 1),
            (HOST_NEED_RXKICK, 1),
            (GUEST_CSB_ON, 1),
        ] {
            driver.set(field, value);
        }
        driver.card.client.set(CSBAH, 0);
        driver.card.client.set(CSBAL, (FIRST + BLOCK) as u32);
        assert!(driver.card.queue.has_packets(), "the worker is to look at the block");
        drop(turn(&mut driver.card.queue));
        driver
    }

    fn set(&self, field: u64, value: u32) {
        self.card.write(BLOCK + field, &value.to_le_bytes());
    }

    fn get(&self, field: u64) -> u32 {
        u32::from_le_bytes(self.card.read(BLOCK + field, 4).try_into().unwrap())
    }

    /// Sends packets of one descriptor each, with a report; the worker takes them.
    fn send(&mut self, packets: u32) {
        for _ in 0..packets {
            let buffer = TX_BUFFERS + u64::from(self.sent % COUNT) * 4096;
            self.card.write(buffer, &frame([2; 6], 60));
            self.card.describe(FIRST + buffer, 60 | 9 << 24);
            self.sent += 1;
        }
        self.set(GUEST_TDT, self.sent % COUNT);
        assert!(self.card.queue.has_packets());
        assert_eq!(self.card.transmit(64).0.len() as u32, packets);
        assert!(!self.card.queue.has_packets());
    }

    /// Whether an interrupt came; the driver handles it.
    fn is_interrupted(&mut self) -> bool {
        let is_signalled = is_signalled(&self.line);
        assert_eq!(self.card.client.get(ICR) != 0, is_signalled);
        self.card.client.unmask();
        is_signalled
    }
}

/// Whether a worker that waits for the card was kicked, within 30 s if it `is_expected`.
fn is_kicked(card: &Card, is_expected: bool) -> bool {
    let limit = Timespec { tv_sec: if is_expected { 30 } else { 0 }, tv_nsec: 0 };
    let kick = card.queue.arrival().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(kick, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).unwrap() == 1
}

#[test]
fn a_doorbell_that_comes_as_a_request_kicks_a_worker_that_waits() {
    let mut card = Card::posted();
    let packet = frame([255; 6], 60);
    for _ in 0..3 {
        card.queue.begin_wait();
        assert!(!card.queue.has_packets() && !is_kicked(&card, false));
        card.send(&[&packet], 8, 0, 0);
        assert!(is_kicked(&card, true));
        assert_eq!(card.transmit(8).0[0].bytes, packet);
        // It did not wait for this one.
        card.send(&[&packet], 8, 0, 0);
        card.client.get(TX + TAIL);
        assert_eq!(card.transmit(8).0[0].bytes, packet);
    }
}

#[test]
fn a_client_that_has_the_doorbells_mapped_kicks_nobody() {
    let mut card = Card::new();
    card.queue.begin_wait();
    assert!(!is_kicked(&card, false));
    let (_, pages) = card.client.call(REGION_INFO, &region_info(0, 64), None).unwrap();
    assert!(pages.is_some() && card.queue.arrival().is_none(), "the worker polls");
    // Another client does not have the pages.
    card.reconnect();
    assert!(card.queue.arrival().is_some());
}

#[test]
fn a_worker_that_waits_knows_when_an_interrupt_is_due() {
    let mut card = Card::posted();
    let line = netvm_notify::new_eventfd().unwrap();
    card.client.interrupt(&line).unwrap();
    // The longest interval, 17 ms.
    card.client.set(ITR, 0xffff);
    card.client.set(IMS, 0x80);
    card.client.get(IMS);
    card.put(&frame([255; 6], 60)).unwrap();
    assert!(is_signalled(&line) && card.queue.time_to_interrupt().is_none());
    card.queue.begin_wait();
    // The driver has seen to it; the next one has to wait.
    card.client.get(ICR);
    card.client.unmask();
    card.put(&frame([255; 6], 60)).unwrap();
    let interval = Duration::from_millis(17);
    if !is_signalled(&line) {
        let left = card.queue.time_to_interrupt().unwrap();
        assert!(left <= interval, "{left:?}");
        std::thread::sleep(left);
        drop(turn(&mut card.queue));
        assert!(is_signalled(&line) && card.queue.time_to_interrupt().is_none());
    }
    // One that becomes due while the worker waits kicks it.
    card.queue.begin_wait();
    card.client.get(ICR);
    card.client.unmask();
    card.client.set(ICS, 0x80);
    card.client.get(IMS);
    assert!(is_signalled(&line) || is_kicked(&card, true));
}

#[test]
fn packets_need_no_register() {
    let mut driver = Driver::new();
    assert_eq!([driver.get(HOST_NEED_TXKICK), driver.get(HOST_NEED_RXKICK)], [0, 0], "kicks are not needed");
    let packet = frame(MAC, 60);
    for n in 1..=100 {
        driver.send(1);
        assert_eq!(driver.get(HOST_TDH), n % COUNT);
        driver.card.put(&packet).unwrap();
        assert_eq!(driver.get(HOST_RDH), n % COUNT);
        driver.set(GUEST_RDT, (n + COUNT - 1) % COUNT);
    }
    assert_eq!([driver.card.client.get(TX + TAIL), driver.card.client.get(RX + TAIL)], [0, COUNT - 1]);
    assert_eq!(driver.card.client.get(TX + HEAD), 100 % COUNT);
    // No more than the driver gives.
    let taken = (0..2 * COUNT).take_while(|_| driver.card.put(&packet).is_ok()).count();
    assert_eq!(taken as u32, COUNT - 1);
}

#[test]
fn interrupts_come_where_they_are_asked_for() {
    let mut driver = Driver::new();
    let packet = frame(MAC, 60);
    driver.send(4);
    driver.card.put(&packet).unwrap();
    assert!(!driver.is_interrupted(), "the driver polls");
    driver.set(GUEST_NEED_RXKICK, 1);
    driver.send(4);
    assert!(!driver.is_interrupted());
    driver.card.put(&packet).unwrap();
    assert!(driver.is_interrupted());
    driver.set(GUEST_NEED_RXKICK, 0);
    driver.set(GUEST_NEED_TXKICK, 1);
    driver.card.put(&packet).unwrap();
    assert!(!driver.is_interrupted());
    driver.send(1);
    assert!(driver.is_interrupted());
    driver.set(GUEST_NEED_TXKICK, 0);
    // When the head passes a place, across the end of the ring too.
    for round in 0..8 {
        let at = (driver.sent + 3) % COUNT;
        driver.set(GUEST_TXKICK_AT, at);
        driver.send(3);
        assert!(!driver.is_interrupted(), "round {round}: the head is there, and not past it");
        driver.send(2);
        assert!(driver.is_interrupted(), "round {round}");
        driver.send(2);
        assert!(!driver.is_interrupted(), "round {round}: once");
    }
}

#[test]
fn a_driver_that_gives_its_block_up_uses_registers() {
    let mut driver = Driver::new();
    driver.send(3);
    driver.set(GUEST_CSB_ON, 0);
    driver.card.client.set(TX + TAIL, 3);
    driver.card.send(&[&frame([2; 6], 60)], 8, 0, 0);
    assert_eq!(driver.card.transmit(8).0.len(), 1);
    // A reset forgets the address.
    driver.set(GUEST_CSB_ON, 1);
    driver.card.client.set(0, 1 << 26);
    assert_eq!(driver.card.client.get(CSBAL), 0);
    driver.card.start_rings();
    driver.card.send(&[&frame([2; 6], 60)], 8, 0, 0);
    assert_eq!(driver.card.transmit(8).0.len(), 1);
    // So does another guest.
    driver.card.reconnect();
    assert_eq!(driver.card.client.get(CSBAL), 0);
    driver.card.queue.forget_inactive();
    driver.card.start();
    driver.card.put(&frame(MAC, 60)).unwrap();
    driver.card.client.call(RESET, &[], None).unwrap();
}

#[test]
fn blocks_that_cannot_be_are_not_used() {
    let mut driver = Driver::new();
    // Places outside the ring.
    driver.set(GUEST_TDT, COUNT);
    driver.set(GUEST_RDT, NEVER);
    driver.set(GUEST_TXKICK_AT, COUNT + 1);
    assert_eq!(driver.card.transmit(8), (vec![], 0));
    driver.card.put(&frame(MAC, 60)).unwrap_err();
    let aligned = FIRST + BLOCK;
    for address in [8, FIRST + BYTES, u64::MAX - 0xfff, aligned + 1, aligned | 0xfa4] {
        driver.card.client.set(CSBAL, address as u32);
        driver.card.client.set(CSBAH, (address >> 32) as u32);
        drop(turn(&mut driver.card.queue));
        // The registers still announce packets.
        driver.card.send(&[&frame([2; 6], 60)], 8, 0, 0);
        assert_eq!(driver.card.transmit(8).0.len(), 1, "{address:#x}");
        driver.card.put(&frame(MAC, 60)).unwrap();
    }
    assert!(driver.card.port.status().fault.is_some(), "blocks outside memory are reported");
    // One that the client unmaps while the card uses it. Blocks are not mapped more than once a millisecond.
    std::thread::sleep(std::time::Duration::from_millis(5));
    driver.card.client.set(CSBAL, (FIRST + BLOCK) as u32);
    driver.card.client.set(CSBAH, 0);
    drop(turn(&mut driver.card.queue));
    let mut unmapped = 24u32.to_ne_bytes().to_vec();
    unmapped.extend(2u32.to_ne_bytes());
    unmapped.extend([0; 16]);
    driver.card.client.call(3, &unmapped, None).unwrap();
    driver.set(GUEST_TDT, 1);
    assert_eq!(driver.card.transmit(8), (vec![], 0));
}

#[test]
fn only_a_card_that_says_so_has_one() {
    for (model, subsystem) in [(Model::I82540, [0x01, 0x11]), (Model::I82574, [0x1f, 0xa0])] {
        let mut card = Card::of(model);
        assert_eq!(card.client.read_region(7, 0x2e, 2)[16..], subsystem);
        let block = [&[0; 12][..], &[1], &[0; 0x50]].concat();
        card.write(BLOCK, &block);
        card.client.write_region(0, CSBAL.into(), &((FIRST + BLOCK) as u32).to_le_bytes());
        drop(turn(&mut card.queue));
        let mut after = vec![0; block.len()];
        after.copy_from_slice(&card.read(BLOCK, block.len()));
        assert_eq!(after != block, model == Model::I82540, "host_rxkick_at is never");
    }
}
