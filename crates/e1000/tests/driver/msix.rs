// SPDX-License-Identifier: Apache-2.0
//! The 82574: identity, EEPROM and PHY as its driver reads them, MSI-X vectors, and extended receive descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netvm_e1000::Model;

use super::card::{Card, ICR, IMS, MAC, RX_BUFFERS, RX_RING, frame, is_signalled, region_info, turn};
use super::client::{IRQ_INFO, REGION_INFO, SET_IRQS, words};

const EERD: u32 = 0x14;
const CTRL_EXT: u32 = 0x18;
const MDIC: u32 = 0x20;
const ICS: u32 = 0xc8;
const EIAC: u32 = 0xdc;
const IAM: u32 = 0xe0;
const IVAR: u32 = 0xe4;
const RFCTL: u32 = 0x5008;
const RXQ0: u32 = 1 << 20;
const TXQ0: u32 = 1 << 22;
const OTHER: u32 = 1 << 24;
const LSC: u32 = 4;
const MSIX: u32 = 2;
const TRIGGER_EVENTFD: u32 = 0x24;
const TRIGGER_NONE: u32 = 0x21;

/// Connects a vector.
fn connect(card: &mut Card, vector: u32) -> OwnedFd {
    let eventfd = netvm_notify::new_eventfd().unwrap();
    let body = words(&[20, TRIGGER_EVENTFD, MSIX, vector, 1]);
    card.client.call(SET_IRQS, &body, Some(eventfd.as_fd())).unwrap();
    eventfd
}

/// Vectors for received packets, sent ones, and the rest, as Linux sets them up.
fn with_vectors() -> (Card, [OwnedFd; 3]) {
    let mut card = Card::of(Model::I82574);
    let eventfds = [0, 1, 2].map(|vector| connect(&mut card, vector));
    card.client.set(IVAR, 1 << 31 | 0xa << 16 | 0x9 << 8 | 0x8);
    card.client.set(EIAC, 0x01f0_0000);
    card.client.set(IAM, u32::MAX);
    card.client.set(CTRL_EXT, 1 << 24);
    card.client.set(IMS, RXQ0 | TXQ0 | OTHER | LSC);
    (card, eventfds)
}

#[test]
fn an_82574_is_what_its_driver_looks_for() {
    let mut card = Card::of(Model::I82574);
    let config = card.client.read_region(7, 0, 64).split_off(16);
    assert_eq!(config[..4], [0x86, 0x80, 0xd3, 0x10]);
    // It has capabilities; the first is MSI-X, with five vectors in BAR 3.
    assert_eq!((config[6] & 0x10, config[0x34]), (0x10, 0x40));
    let msix = card.client.read_region(7, 0x40, 12).split_off(16);
    assert_eq!(msix, [0x11, 0, 4, 0, 3, 0, 0, 0, 3, 0x20, 0, 0]);
    let info = card.client.call(IRQ_INFO, &words(&[16, 0, MSIX, 0]), None).unwrap().0;
    assert_eq!(info[12..16], 5u32.to_ne_bytes());
    let table = card.client.call(REGION_INFO, &region_info(3, 32), None).unwrap().0;
    assert_eq!(table[16..24], (16u64 << 10).to_ne_bytes());
    // The EEPROM's words add up; the first hold the MAC address.
    let word = |card: &mut Card, at: u32| {
        card.client.set(EERD, 1 | at << 2);
        let read = card.client.get(EERD);
        assert_eq!(read & 2, 2);
        (read >> 16) as u16
    };
    assert_eq!(word(&mut card, 0).to_le_bytes(), MAC[..2]);
    assert_eq!((0..64).fold(0u16, |sum, at| sum.wrapping_add(word(&mut card, at))), 0xbaba);
    // Its PHY, of which other pages than the first are empty.
    let phy = |card: &mut Card, number: u32| {
        card.client.set(MDIC, 2 << 26 | 1 << 21 | number << 16);
        card.client.get(MDIC) as u16
    };
    assert_eq!([phy(&mut card, 2), phy(&mut card, 3)], [0x0141, 0x0cb1]);
    card.client.set(MDIC, 1 << 26 | 1 << 21 | 22 << 16 | 3);
    assert_eq!([phy(&mut card, 2), phy(&mut card, 22)], [0, 3]);
}

#[test]
fn a_vector_is_signalled_once_and_disabled_until_its_driver_enables_it() {
    let (mut card, [rx, tx, other]) = with_vectors();
    card.put(&frame(MAC, 60)).unwrap();
    assert!(is_signalled(&rx) && !is_signalled(&tx) && !is_signalled(&other));
    // The driver has not handled it yet.
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!is_signalled(&rx));
    assert_eq!(card.client.get(IMS) & (RXQ0 | TXQ0), TXQ0);
    card.client.set(IMS, RXQ0);
    assert!(is_signalled(&rx));
    // A sent packet, with a report.
    card.send(&[&frame([2; 6], 60)], 8, 0, 0);
    assert_eq!(card.transmit(32).0.len(), 1);
    assert!(is_signalled(&tx) && !is_signalled(&rx));
    // The link.
    card.client.set(ICS, LSC);
    assert!(is_signalled(&other));
    // Another vector for received packets, then none.
    card.client.set(IVAR, 0xc);
    card.client.set(IMS, RXQ0);
    let fourth = connect(&mut card, 4);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(is_signalled(&fourth) && !is_signalled(&rx));
    card.client.call(SET_IRQS, &words(&[20, TRIGGER_NONE, MSIX, 0, 0]), None).unwrap();
    card.client.set(IMS, RXQ0);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!is_signalled(&fourth));
}

#[test]
fn an_interrupt_that_is_enabled_before_its_eventfd_is_signalled_with_it() {
    let mut card = Card::of(Model::I82574);
    // QEMU connects a vector when the driver has unmasked it in the MSI-X table, which may come last.
    card.client.set(IVAR, 1 << 31 | 0xa << 16 | 0x9 << 8 | 0x8);
    card.client.set(IMS, RXQ0 | TXQ0 | OTHER | LSC);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!card.queue.is_pending(), "nothing can be signalled");
    let other = connect(&mut card, 2);
    let rx = connect(&mut card, 0);
    assert!(is_signalled(&rx) && !is_signalled(&other));
    card.client.set(ICS, LSC);
    assert!(is_signalled(&other));
}

#[test]
fn lost_packets_are_all_counted_and_announced_ten_times_a_second() {
    const RXO: u32 = 1 << 6;
    const MPC: u32 = 0x4010;
    const RNBC: u32 = 0x40a0;
    const LOST: u32 = 2000;
    let (mut card, [.., other]) = with_vectors();
    let (start, mut announced) = (Instant::now(), 0);
    for _ in 0..LOST {
        turn(&mut card.queue).receive().count_lost(1);
        if is_signalled(&other) {
            announced += 1;
            assert_eq!(card.client.get(ICR) & RXO, RXO);
        }
        card.client.set(IMS, OTHER);
    }
    let tenths = start.elapsed().as_millis() / 100;
    assert!((1..=tenths + 1).contains(&announced), "{announced} times in {tenths} tenths of a second");
    assert_eq!([card.client.get(MPC), card.client.get(RNBC)], [LOST; 2]);
    // Those of later are announced, too.
    std::thread::sleep(Duration::from_millis(110));
    turn(&mut card.queue).receive().count_lost(1);
    assert!(is_signalled(&other));
}

#[test]
fn vectors_that_do_not_exist_are_refused() {
    let mut card = Card::of(Model::I82574);
    let eventfd = netvm_notify::new_eventfd().unwrap();
    for (start, count) in [(5, 1), (u32::MAX, 1), (0, 6), (0, 2)] {
        let body = words(&[20, TRIGGER_EVENTFD, MSIX, start, count]);
        assert_eq!(card.client.call(SET_IRQS, &body, Some(eventfd.as_fd())).unwrap_err(), 22);
    }
    // Vectors without an eventfd, several at once.
    card.client.call(SET_IRQS, &words(&[20, TRIGGER_EVENTFD, MSIX, 0, 5]), None).unwrap();
    // A card without MSI-X.
    let mut old = Card::new();
    let body = words(&[20, TRIGGER_EVENTFD, MSIX, 0, 1]);
    assert_eq!(old.client.call(SET_IRQS, &body, Some(eventfd.as_fd())).unwrap_err(), 22);
}

#[test]
fn extended_descriptors_hold_length_and_tag() {
    const CTRL: u32 = 0;
    const VLAN_MODE: u32 = 1 << 30;
    let mut card = Card::of(Model::I82574);
    card.client.set(RFCTL, 1 << 15);
    card.client.set(CTRL, VLAN_MODE);
    let mut packet = frame(MAC, 100);
    packet[12..16].copy_from_slice(&[0x81, 0, 0x20, 5]);
    card.put(&packet).unwrap();
    let words: Vec<u8> = card.read(RX_RING, 16);
    let [first, second] = [0, 8].map(|at| u64::from_le_bytes(words[at..at + 8].try_into().unwrap()));
    // 96 bytes and 4 of FCS; done, end of packet, checksums not checked, tag stripped.
    assert_eq!((first, second), (0, 0x2005 << 48 | 100 << 32 | 0xf));
    assert_eq!(card.read(RX_BUFFERS, 12), packet[..12]);
    assert_eq!(card.read(RX_BUFFERS + 12, 84), packet[16..]);
}
