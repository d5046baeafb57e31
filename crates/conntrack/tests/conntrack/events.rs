// SPDX-License-Identifier: Apache-2.0
//! The queue of events.

use netvm_conntrack::{Cause, Config, Event, Happened, Pool, Tuple};
use netvm_wire::{IpProto, PortRange, TcpFlags};

use super::rig::{CLIENT, Rig, from, segment, udp};
use Happened::{Closed, Opened, SourceTranslated};

fn rig(sessions: u32, events: u32) -> Rig {
    Rig::new(&Config { sessions, events, mappings: 16, ..Config::default() })
}

fn all(rig: &mut Rig) -> Vec<Event> {
    std::iter::from_fn(|| rig.table.take_event()).collect()
}

fn what(rig: &mut Rig) -> Vec<Happened> {
    all(rig).iter().map(|event| event.happened).collect()
}

#[test]
fn a_connection_opens_and_closes_with_what_it_was() {
    let mut rig = rig(4, 4);
    (rig.now, rig.port, rig.rule) = (7, 3, 9);
    rig.pass(&udp(false));
    rig.wait(1);
    rig.pass(&udp(true));
    rig.pass(&udp(true));
    rig.wait(100);
    rig.table.expire(rig.now, 4);
    let [opened, closed] = all(&mut rig).try_into().unwrap();
    let length = udp(true).len() as u64;
    assert_eq!((opened.happened, opened.at, opened.begun), (Opened, 7, 7));
    assert_eq!((closed.happened, closed.at, closed.begun), (Closed(Cause::Expired), 1017, 7));
    assert_eq!((opened.packets, opened.bytes), ([1, 0], [length, 0]));
    assert_eq!((closed.packets, closed.bytes), ([1, 2], [length, 2 * length]));
    for event in [opened, closed] {
        let Tuple { source, source_port, destination_port, protocol, .. } = event.original;
        assert_eq!((source.to_string().as_str(), source_port, destination_port), (CLIENT, 1000, 53));
        assert_eq!(
            (protocol, event.reply, event.from, event.rule),
            (IpProto::UDP, event.original.reversed(), 3, 9)
        );
    }
}

#[test]
fn an_event_says_why_a_connection_ended() {
    let mut rig = rig(2, 16);
    let datagram = |port| from(false).udp(port, 53).to_vec().unwrap();
    rig.confirm(&datagram(1)).unwrap();
    let flushed = rig.confirm(&datagram(2)).unwrap();
    rig.confirm(&datagram(3)).unwrap();
    assert_eq!(what(&mut rig), [Opened, Opened, Closed(Cause::Evicted), Opened]);
    assert!(rig.table.end(flushed) && !rig.table.end(flushed));
    // Only looked at, after its time.
    rig.wait(31);
    rig.look(&datagram(3));
    assert_eq!(what(&mut rig), [Closed(Cause::Flushed), Closed(Cause::Expired)]);
    rig.pass(&segment(false, TcpFlags::SYN, 1, 0).frame());
    rig.pass(&segment(true, TcpFlags::RST | TcpFlags::ACK, 0, 2).frame());
    rig.pass(&segment(false, TcpFlags::SYN, 900, 0).frame());
    assert_eq!(what(&mut rig), [Opened, Closed(Cause::Replaced), Opened]);
    rig.table.end_slots(0, 2);
    assert_eq!((what(&mut rig), rig.table.len()), (vec![Closed(Cause::TableEnded)], 0));
    let refused = rig.confirm(&datagram(4)).unwrap();
    assert!(rig.table.refuse(refused) && !rig.table.refuse(refused));
    assert_eq!(what(&mut rig), [Opened, Closed(Cause::Refused)]);
    let ended = rig.table.ended();
    assert_eq!((ended.expired, ended.evicted, ended.replaced), (1, 1, 1));
    assert_eq!((ended.flushed, ended.refused), (1, 1));
}

#[test]
fn a_source_that_is_translated_later_has_an_event() {
    let mut rig = rig(4, 4);
    let outside = "203.0.113.1".parse::<std::net::IpAddr>().unwrap().into();
    let pool = Pool::new(outside, outside, PortRange::new(1, 9).unwrap());
    let id = rig.confirm(&udp(false)).unwrap();
    rig.table.settle_source(id, &[pool]).unwrap();
    rig.table.settle_source(id, &[pool]).unwrap();
    let [opened, translated] = all(&mut rig).try_into().unwrap();
    assert_eq!((opened.happened, translated.happened), (Opened, SourceTranslated));
    assert_eq!((opened.reply, translated.original), (opened.original.reversed(), opened.original));
    assert_eq!(translated.reply.destination, outside);
    let other = rig.confirm(&from(false).udp(7, 7).to_vec().unwrap()).unwrap();
    rig.table.settle_source(other, &[]).unwrap();
    assert_eq!(what(&mut rig), [Opened], "nothing stands for it");
}

#[test]
fn a_refused_or_moved_connection_has_no_event() {
    let (mut old, mut new) = (rig(1, 8), rig(1, 8));
    let id = old.confirm(&udp(false)).unwrap();
    old.pass(&udp(true));
    assert!(old.confirm(&from(false).udp(7, 7).to_vec().unwrap()).is_err());
    let moved = old.table.take(id).unwrap();
    assert!(new.table.adopt(&moved));
    assert_eq!((what(&mut old), what(&mut new)), (vec![Opened], vec![]));
}

#[test]
fn a_full_queue_loses_events_and_counts_them() {
    let mut rig = rig(16, 3);
    let datagram = |port| from(false).udp(port, 53).to_vec().unwrap();
    for round in 0..10 {
        for port in 1..=5 {
            rig.confirm(&datagram(port)).unwrap();
        }
        let ports: Vec<_> = all(&mut rig).iter().map(|event| event.original.source_port).collect();
        assert_eq!((ports, rig.table.events_lost()), (vec![1, 2, 3], 4 * round + 2));
        rig.wait(31);
        rig.table.expire(rig.now, 16);
        assert_eq!((what(&mut rig).len(), rig.table.events_lost()), (3, 4 * round + 4));
    }
    let mut without = Rig::new(&Config::default());
    without.confirm(&datagram(1)).unwrap();
    assert_eq!((without.table.take_event(), without.table.events_lost()), (None, 0));
}

#[test]
fn events_that_nobody_wants_are_neither_queued_nor_lost() {
    let mut rig = rig(8, 1);
    let datagram = |port| from(false).udp(port, 53).to_vec().unwrap();
    rig.table.want_events(false);
    for port in 1..=3 {
        rig.confirm(&datagram(port)).unwrap();
    }
    rig.table.want_events(true);
    rig.confirm(&datagram(4)).unwrap();
    let [event] = all(&mut rig).try_into().unwrap();
    assert_eq!((event.original.source_port, rig.table.events_lost()), (4, 0));
}
