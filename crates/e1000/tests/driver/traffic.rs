// SPDX-License-Identifier: Apache-2.0
//! Packets, interrupts, and registers as a driver reads them.

use std::os::fd::OwnedFd;

use netvm_e1000::{NotTaken, Request, Sum, finish_headers};
use netvm_vnet::{Pending, Segments};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

use super::card::*;
use super::client::*;

const BROADCAST: [u8; 6] = [255; 6];
/// Report status; extended.
const REPORT: u64 = 8;
const EXTENDED: u64 = 0x20;

#[test]
fn a_client_finds_a_card_and_its_doorbell_pages() {
    let mut card = Card::new();
    let client = &mut card.client;
    assert_eq!(client.call(DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), None).unwrap().0, words(&[16, 3, 9, 5]));
    let config = client.read_region(7, 0, 64);
    assert_eq!(config[16..20], [0x86, 0x80, 0x0e, 0x10]);
    // Without room for the mapped area, the answer says how much it takes.
    let (short, fd) = client.call(REGION_INFO, &region_info(0, 32), None).unwrap();
    assert_eq!((&short[..16], short.len(), fd.is_some()), (&words(&[64, 15, 0, 32])[..], 32, false));
    let (info, fd) = client.call(REGION_INFO, &region_info(0, 64), None).unwrap();
    assert_eq!(info[..16], words(&[64, 15, 0, 32]));
    assert_eq!(info[48..], [0x2000u64.to_ne_bytes(), 0x2000u64.to_ne_bytes()].concat());
    // A register written through memory is the one that messages read, and the other way round.
    let pages = std::fs::File::from(fd.unwrap());
    std::os::unix::fs::FileExt::write_all_at(&pages, &5u32.to_le_bytes(), u64::from(TX + TAIL)).unwrap();
    assert_eq!(client.get(TX + TAIL), 5);
    assert!(rustix::fs::ftruncate(&pages, 0).is_err(), "the pages cannot be taken away");
    let (irq, _) = client.call(IRQ_INFO, &words(&[16, 0, 0, 0]), None).unwrap();
    assert_eq!(irq, words(&[16, 7, 0, 1]));
    // The address by EERD, RAL and RAH; the PHY's identity; link up.
    client.set(0x14, 1);
    assert_eq!(client.get(0x14) >> 16, 0x0002);
    assert_eq!((client.get(0x5400), client.get(0x5404)), (0x0000_0002, 0x8000_0900));
    client.set(0x20, 0x0822_0000);
    assert_eq!(client.get(0x20), 0x1822_0141);
    assert_eq!(client.get(8) & 0x83, 0x83);
    // The window of BAR 1 resets the card.
    client.write_region(1, 0, &[0; 4]);
    client.write_region(1, 4, &(1u32 << 26).to_le_bytes());
    assert_eq!((client.get(RCTL), client.get(TX + TAIL)), (0, 0));
    // Bytes of a register.
    assert_eq!(client.read_region(0, 0x5401, 2)[16..], [0, 0]);
    assert_eq!(client.read_region(0, 0x5405, 3)[16..], [9, 0, 0x80]);
}

#[test]
fn posted_doorbells_are_not_mapped() {
    let mut card = Card::posted();
    let (info, fd) = card.client.call(REGION_INFO, &region_info(0, 64), None).unwrap();
    assert_eq!((&info[..16], info.len(), fd.is_some()), (&words(&[32, 3, 0, 0])[..], 32, false));
    sends_in_order(card);
}

#[test]
fn packets_of_one_and_several_descriptors_are_sent_in_order() {
    sends_in_order(Card::new());
}

fn sends_in_order(mut card: Card) {
    let packets: Vec<Vec<u8>> = [60, 1514, 9000].map(|length| frame(BROADCAST, length)).to_vec();
    for _ in 0..20 {
        card.send(&[&packets[0]], REPORT, 0, 0);
        card.send(&[&packets[1][..14], &packets[1][14..]], REPORT | EXTENDED, 0, 0);
        let long = &packets[2];
        card.send(&[&long[..4096], &long[4096..8192], &long[8192..]], EXTENDED, 0, 0);
        // Posted writes come before the answer to this one.
        card.client.get(TX + TAIL);
        let (sent, malformed) = card.transmit(64);
        assert_eq!(malformed, 0);
        assert_eq!(
            sent.iter().map(|packet| &packet.bytes).collect::<Vec<_>>(),
            packets.iter().collect::<Vec<_>>()
        );
        assert_eq!(card.client.get(TX + HEAD), card.client.get(TX + TAIL));
    }
    assert!(card.is_done(0) && !card.is_done(3), "only what is to be reported");
    assert_eq!((card.client.get(0x4080), card.client.get(0x4080)), (60, 0), "GPTC, cleared by reading");
    assert_eq!(card.client.get(0x40f4), 60, "BPTC");
    assert_eq!(u64::from(card.client.get(0x4090)), 20 * (60 + 1514 + 9000), "GOTCL");
}

#[test]
fn a_packet_waits_for_its_end_and_for_a_buffer() {
    let mut card = Card::new();
    let packet = frame(BROADCAST, 100);
    card.write(TX_BUFFERS, &packet);
    card.describe(FIRST + TX_BUFFERS, 50);
    card.client.set(TX + TAIL, 1);
    assert_eq!(card.transmit(8), (vec![], 0));
    card.describe(FIRST + TX_BUFFERS + 50, 50 | 1 << 24);
    card.client.set(TX + TAIL, 2);
    assert_eq!(turn(&mut card.queue).transmit(8, |_| None), 0);
    assert_eq!(card.client.get(TX + HEAD), 0, "nothing was taken");
    assert_eq!(card.transmit(8).0[0].bytes, packet);
}

#[test]
fn tags_are_inserted_and_stripped() {
    let mut card = Card::new();
    let packet = frame(BROADCAST, 200);
    const INSERT: u64 = 0x40;
    card.send(&[&packet], INSERT, 0, 0x2005);
    assert_eq!(card.transmit(8).0[0].tag, None, "only with CTRL.VME");
    let tagged = [&packet[..12], &[0x81, 0, 0x20, 5], &packet[12..]].concat();
    card.put(&tagged).unwrap();
    let fcs = [&tagged[..], &[0; 4]].concat();
    assert_eq!(card.received(), Some((fcs, None)));
    let control = card.client.get(0);
    card.client.set(0, control | 1 << 30);
    card.send(&[&packet], INSERT, 0, 0x2005);
    assert_eq!(card.transmit(8).0[0].tag, Some([0x81, 0, 0x20, 5]));
    card.put(&tagged).unwrap();
    assert_eq!(card.received(), Some(([&packet[..], &[0; 4]].concat(), Some(0x2005))));
    // The filter of VLANs: 5 is in the table, 6 is not.
    card.client.set(RCTL, 0x8002 | 1 << 18);
    assert_eq!(card.put(&tagged), Err(NotTaken::Filtered));
    card.client.set(0x5600, 1 << 5);
    card.put(&tagged).unwrap();
    card.received().unwrap();
}

#[test]
fn received_packets_span_buffers_and_are_filtered_by_address() {
    let mut card = Card::new();
    // FCS stripped.
    const SECRC: u32 = 1 << 26;
    card.client.set(RCTL, 0x8002 | SECRC | 1 << 5);
    for length in [60, 2048, 2049, 9000, 42] {
        let packet = frame(MAC, length);
        card.put(&packet).unwrap();
        let mut expected = packet;
        expected.resize(length.max(60), 0);
        assert_eq!(card.received(), Some((expected, None)), "{length}");
    }
    let multicast = [1, 0, 0x5e, 0, 0, 0xfb];
    assert_eq!(card.put(&frame([2, 0, 0, 0, 0, 8], 60)), Err(NotTaken::Filtered));
    assert_eq!(card.put(&frame(multicast, 60)), Err(NotTaken::Filtered));
    // The multicast table: bits 47 to 36 of the address.
    card.client.set(0x5200 + 4 * (0xfb0 >> 5), 1 << (0xfb0 & 31));
    card.put(&frame(multicast, 60)).unwrap();
    card.client.set(RCTL, 0x8002 | SECRC | 1 << 3);
    card.put(&frame([2, 0, 0, 0, 0, 8], 60)).unwrap();
    assert_eq!(card.put(&frame(MAC, 1600)), Err(NotTaken::TooLong), "without RCTL.LPE");
    while card.received().is_some() {}
    let taken = (0..64).take_while(|_| card.put(&frame(MAC, 60)).is_ok()).count();
    assert_eq!(taken, 31, "what the ring holds");
    assert_eq!(card.put(&frame(MAC, 60)), Err(NotTaken::Full));
    card.client.set(RCTL, 0);
    card.client.set(TCTL, 2);
    assert_eq!(card.put(&frame(MAC, 60)), Err(NotTaken::Down));
}

#[test]
fn interrupts_are_masked_until_the_client_unmasks_them() {
    let mut card = Card::new();
    let line: OwnedFd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    card.client.interrupt(&line).unwrap();
    card.client.set(IMS, 0x80);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(is_signalled(&line));
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!is_signalled(&line), "masked");
    card.client.unmask();
    assert!(is_signalled(&line), "the cause is still there");
    assert_eq!(card.client.get(ICR), 0x8000_0080, "received");
    assert_eq!(card.client.get(ICR), 0, "cleared by reading");
    card.client.unmask();
    assert!(!is_signalled(&line));
    // Disabled causes are noted.
    card.client.set(IMC, u32::MAX);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!is_signalled(&line));
    card.client.set(IMS, 0x80);
    assert!(is_signalled(&line), "enabled");
    card.client.get(ICR);
    card.client.unmask();
    // Moderated: 0xffff * 256 ns.
    card.client.set(0xc4, 0xffff);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!is_signalled(&line) && card.queue.is_pending());
    std::thread::sleep(std::time::Duration::from_millis(25));
    drop(turn(&mut card.queue));
    assert!(is_signalled(&line));
}

#[test]
fn an_interrupt_that_waits_for_its_line_or_its_time_is_not_lost() {
    let mut card = Card::new();
    let line = netvm_notify::new_eventfd().unwrap();
    card.client.set(IMS, 0x80);
    card.put(&frame(MAC, 60)).unwrap();
    assert!(!card.queue.is_pending(), "nothing can be signalled");
    card.client.interrupt(&line).unwrap();
    assert!(is_signalled(&line), "the cause was enabled before");
    card.client.get(ICR);
    card.client.unmask();
    // A cause that comes from a register while the interval of 0xffff * 256 ns is not over: no packet will tell the
    // worker.
    card.client.set(0xc4, 0xffff);
    card.client.set(0xc8, 0x80);
    assert!(is_signalled(&line) || card.queue.is_pending());
    std::thread::sleep(std::time::Duration::from_millis(25));
    if card.queue.is_pending() {
        drop(turn(&mut card.queue));
        assert!(is_signalled(&line) && !card.queue.is_pending());
    }
    assert_eq!(card.client.get(ICR), 0x8000_0080);
}

/// Handles an interrupt as a driver that takes some time.
fn serve(card: &mut Card) {
    card.client.set(IMC, u32::MAX);
    card.client.get(ICR);
    std::thread::sleep(std::time::Duration::from_micros(200));
    while card.received().is_some() {}
    card.client.unmask();
    card.client.set(IMS, 0x81);
}

/// Whether an interrupt was delayed; the worker takes turns until it comes.
fn was_delayed(card: &mut Card, line: &OwnedFd) -> bool {
    let (start, at_once) = (std::time::Instant::now(), is_signalled(line));
    while !at_once && !is_signalled(line) {
        assert!(start.elapsed().as_secs() < 60, "the interrupt is lost");
        drop(turn(&mut card.queue));
    }
    !at_once
}

/// Two packets in one burst.
fn put_two(card: &mut Card, packet: &[u8]) {
    let mut turn = turn(&mut card.queue);
    let mut receiving = turn.receive();
    for _ in 0..2 {
        // SAFETY: the bytes of the packet.
        unsafe { receiving.put(netvm_e1000::Pieces(&[(packet.as_ptr(), packet.len())])) }.unwrap();
    }
}

#[test]
fn interrupts_leave_a_busy_guest_half_of_its_time() {
    let mut card = Card::new();
    let line = netvm_notify::new_eventfd().unwrap();
    card.client.interrupt(&line).unwrap();
    card.client.set(IMS, 0x81);
    let packet = frame(MAC, 60);
    let [mut alone, mut several, mut sent] = [0; 3];
    for _ in 0..200 {
        card.put(&packet).unwrap();
        alone += u32::from(was_delayed(&mut card, &line));
        serve(&mut card);
        put_two(&mut card, &packet);
        several += u32::from(was_delayed(&mut card, &line));
        serve(&mut card);
        card.send(&[&packet], 8, 0, 0);
        card.transmit(8);
        sent += u32::from(was_delayed(&mut card, &line));
        serve(&mut card);
    }
    assert_eq!(alone, 0, "packets that came alone were delayed");
    assert!(several > 0 && sent > 0, "{several} times for several packets, {sent} for sent ones");
}

/// What is left of a packet for the next one, after the headers were finished.
fn finished(packet: &Packet) -> (Vec<u8>, Option<Pending>) {
    let mut bytes = packet.bytes.clone();
    let (length, front) = (bytes.len(), packet.bytes.len().min(256));
    let pending = finish_headers(&mut bytes[..front], length, &packet.request);
    (bytes, pending)
}

#[test]
fn segments_get_whole_headers() {
    for (v6, from, to) in [(false, "10.0.0.1", "10.0.0.2"), (true, "2001:db8::1", "2001:db8::2")] {
        let mut card = Card::new();
        let builder = FrameBuilder::new(MacAddr(MAC), MacAddr([2, 0, 0, 0, 0, 1]));
        let builder = builder.ip(from.parse().unwrap(), to.parse().unwrap());
        let whole = builder.tcp(1, 2, TcpFlags::ACK).payload(&[7; 8000]).to_vec().unwrap();
        let l3 = if v6 { 40 } else { 20 };
        // As Linux leaves it: no length, no header checksum, and a pseudo header without length.
        let mut left = whole.clone();
        let length_at = if v6 { 18 } else { 16 };
        left[length_at..length_at + 2].fill(0);
        if !v6 {
            left[24..26].fill(0);
        }
        left[14 + l3 + 16..14 + l3 + 18].fill(0x11);
        let [ip_end, from, at] = [14 + l3 as u64 - 1, 14 + l3 as u64, 14 + l3 as u64 + 16];
        let low = 14 | 24 << 8 | ip_end << 16 | (from | at << 8) << 32;
        // TCP, IPv4, segment; MSS 1000; headers.
        let command = EXTENDED | 4 | 1 | if v6 { 0 } else { 2 };
        card.describe(low, 8000 | command << 24 | (from + 20) << 40 | 1000 << 48);
        card.send(
            &[&left[..54 + l3 - 20], &left[54 + l3 - 20..4096], &left[4096..]],
            EXTENDED | 4 | REPORT,
            3,
            0,
        );
        let (sent, malformed) = card.transmit(8);
        assert_eq!((sent.len(), malformed), (1, 0));
        let (bytes, pending) = finished(&sent[0]);
        let lengths = [14, l3 as u16, 20];
        let expected = Segments { lengths, size: 1000, v6, udp: false, ecn: false, tunnel: 0 };
        assert_eq!(pending, Some(Pending::Segments(expected)));
        let found = netvm_wire::partial::transport(&bytes).unwrap();
        assert_eq!(usize::from(found.length), 8020);
        let sum_at = 14 + l3 + 16;
        assert_eq!(bytes[sum_at..sum_at + 2], found.pseudo_sum.to_be_bytes());
        assert_eq!(bytes[..14 + l3], whole[..14 + l3], "length and checksum of the IP header");
    }
}

#[test]
fn requests_that_contradict_the_packet_are_refused() {
    let mut card = Card::new();
    let packet = frame(BROADCAST, 100);
    // A checksum behind the packet; one before its header.
    for (from, at) in [(34u64, 120u64), (4, 20)] {
        card.describe((from | at << 8) << 32, EXTENDED << 24);
        card.send(&[&packet], EXTENDED, 2, 0);
        assert_eq!(finished(&card.transmit(8).0[0]).1, None);
    }
    card.describe((34 | 50 << 8) << 32, EXTENDED << 24);
    card.send(&[&packet], EXTENDED, 2, 0);
    assert_eq!(finished(&card.transmit(8).0[0]).1, Some(Pending::Checksum { from: 34, at: 50 }));
    // A legacy descriptor with a checksum.
    card.describe(FIRST + TX_BUFFERS, 100 | 50 << 16 | 5 << 24 | 34 << 40);
    card.write(TX_BUFFERS, &packet);
    let tail = card.client.get(TX + TAIL);
    card.client.set(TX + TAIL, tail + 1);
    let sum = Sum { from: 34, at: 50, end: None };
    assert_eq!(card.transmit(8).0[0].request, Request { ip: Some(sum), ..Request::default() });
}
