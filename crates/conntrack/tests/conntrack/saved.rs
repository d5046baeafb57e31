// SPDX-License-Identifier: Apache-2.0
//! Saved connections and their files. The model's test and those of translation restart with restored connections, too.

use netvm_conntrack::{
    Config, LoadError, Origin, Pool, Quotas, Refusal, SaveReader, SaveWriter, SavedConnection, Target,
    Translation,
};
use netvm_wire::{ConnState, PortRange, TcpFlags};
use proptest::prelude::*;

use super::rig::{Rig, between, from, segment, udp};

/// Some connections, of all kinds.
fn some() -> Rig {
    let mut rig = Rig::new(&Config { sessions: 16, mappings: 16, ..Config::default() });
    (rig.now, rig.port, rig.rule) = (1000, 5, 77);
    let outside = "203.0.113.1".parse::<std::net::IpAddr>().unwrap().into();
    let pool = [Pool::new(outside, outside, PortRange::new(1, 9).unwrap())];
    for port in 1..=3 {
        rig.pass(&segment(false, TcpFlags::SYN, 1, 0).frame_at(port));
        rig.pass(&segment(true, TcpFlags::SYN | TcpFlags::ACK, 1, 2).frame_at(port));
        rig.pass(&from(false).udp(port, 53).to_vec().unwrap());
        let echo = from(false).echo(false, port, 1).to_vec().unwrap();
        let id = rig.confirm(&echo).unwrap();
        rig.table.settle_source(id, &pool).unwrap();
    }
    rig.pass(&between("2001:db8::1", "2001:db8::2").udp(7, 7).to_vec().unwrap());
    rig
}

fn records(rig: &Rig) -> Vec<[u8; SavedConnection::SIZE]> {
    let mut records: Vec<_> = rig.saved().iter().map(SavedConnection::to_bytes).collect();
    records.sort_unstable();
    records
}

/// A file of the connections of a table, in pages of four.
fn file_of(rig: &Rig) -> Vec<u8> {
    let mut file = SaveWriter::new(Vec::new(), 1_796_000_000).unwrap();
    rig.saved().chunks(4).for_each(|page| file.write(page).unwrap());
    file.finish().unwrap()
}

/// How many connections of a file are read, and what ends it.
fn read(file: &[u8]) -> (usize, Result<(), LoadError>) {
    let (mut count, mut page) = (0, Vec::new());
    let mut reader = match SaveReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (0, Err(error)),
    };
    loop {
        match reader.read(&mut page) {
            Ok(true) => count += page.len(),
            Ok(false) => return (count, Ok(())),
            Err(error) => return (count, Err(error)),
        }
    }
}

#[test]
fn a_restored_connection_is_the_saved_one() {
    let mut rig = some();
    let before = records(&rig);
    assert_eq!(before.len(), 10);
    for record in &before {
        assert_eq!(SavedConnection::from_bytes(record).unwrap().to_bytes(), *record);
    }
    rig.restart(&Config { sessions: 16, mappings: 16, ..Config::default() }, 77);
    assert_eq!(records(&rig), before);
    let restored = rig.table.page(0, 16, rig.now).next().unwrap().1;
    assert_eq!((restored.from, restored.rule, restored.age(rig.now)), (5, 77, 0));
}

#[test]
fn a_saved_connection_grows_older_and_ends() {
    let mut rig = Rig::new(&Config::default());
    rig.pass(&udp(false));
    rig.wait(10);
    let [mut saved] = rig.saved().try_into().unwrap();
    let record = saved.to_bytes();
    assert!(saved.grow_older(150));
    saved.set_origin(Origin { port: 9, rule: 8 });
    let other = &mut Rig::new(&Config::default());
    other.table.restore(&saved, 7).unwrap();
    other.now = 7;
    let it = other.only();
    assert_eq!((it.age(7), it.left(7), it.from, it.rule), (250, 50, 9, 8));
    assert!(saved.grow_older(50) && !saved.grow_older(1));
    assert_eq!(SavedConnection::from_bytes(&record).unwrap().connection().left(0), 200);
}

#[test]
fn restoring_respects_room_quotas_and_ends() {
    let saved = some().saved();
    let restore = |config: Config| {
        let mut rig = Rig::new(&config);
        let all: Vec<_> = saved.iter().map(|saved| rig.table.restore(saved, 0)).collect();
        let count = |refusal| all.iter().filter(|it| **it == Err(refusal)).count();
        let counts =
            [Refusal::SourceQuota, Refusal::PortQuota, Refusal::ZoneQuota, Refusal::NoPort].map(count);
        (rig.table.len(), counts)
    };
    let all = Config { sessions: 16, mappings: 16, ..Config::default() };
    let with = |quotas| Config { quotas, ..all.clone() };
    assert_eq!(restore(all.clone()), (10, [0; 4]));
    assert_eq!(restore(with(Quotas { per_source: 4, ..Quotas::default() })), (5, [5, 0, 0, 0]));
    assert_eq!(restore(with(Quotas { per_port: 4, ..Quotas::default() })), (4, [0, 6, 0, 0]));
    assert_eq!(restore(with(Quotas { per_zone: 4, ..Quotas::default() })), (4, [0, 0, 6, 0]));
    assert_eq!(restore(Config { mappings: 1, ..all.clone() }), (8, [0, 0, 0, 2]), "no room for mappings");
    assert_eq!(restore(Config { sessions: 3, ..all.clone() }), (3, [0; 4]), "unanswered ones replace others");
    let mut rig = Rig::new(&all);
    assert!(saved.iter().all(|saved| rig.table.restore(saved, 0).is_ok()));
    for saved in &saved {
        assert_eq!(rig.table.restore(saved, 0), Err(Refusal::NoPort));
    }
    let mut full = Rig::new(&Config { sessions: 1, ..all });
    full.pass(&udp(false));
    full.pass(&udp(true));
    assert_eq!(full.table.restore(&saved[0], 0), Err(Refusal::Full));
}

#[test]
fn a_published_port_and_a_download_go_on_after_a_restart() {
    let config = Config { sessions: 16, mappings: 16, pick_up: false, ..Config::default() };
    let mut rig = Rig::new(&config);
    let syn = segment(false, TcpFlags::SYN, 100, 0).frame();
    let key = *netvm_wire::parse(&syn).unwrap().key();
    let packet = netvm_conntrack::Packet { key: &key, zone: rig.zone, front: &syn, length: syn.len() };
    let address = "10.9.9.9".parse::<std::net::IpAddr>().unwrap().into();
    let destination = Some(Target { address, port: Some(8080) });
    let translation = Translation { sources: &[], destination };
    rig.table.confirm_translated(&packet, rig.origin(), 0, translation).unwrap();
    let reply = |flags, sequence, acknowledgment, data: &'static [u8]| {
        let tcp = between("10.9.9.9", "10.0.0.1").tcp(8080, 1000, flags).numbers(sequence, acknowledgment);
        tcp.payload(data).to_vec().unwrap()
    };
    rig.pass(&reply(TcpFlags::SYN | TcpFlags::ACK, 500, 101, &[]));
    rig.pass(&segment(false, TcpFlags::ACK, 101, 501).frame());
    rig.pass(&reply(TcpFlags::ACK, 501, 101, &[7; 900]));
    rig.restart(&config, 5);
    let next = reply(TcpFlags::ACK, 1401, 101, &[7; 100]);
    let tracked = rig.look(&next);
    assert_eq!(
        (tracked.state, tracked.is_reply, tracked.is_translated),
        (ConnState::Established, true, true)
    );
    assert_eq!(
        rig.look(&reply(TcpFlags::ACK, 9_000, 101, &[7; 900])).state,
        ConnState::Invalid,
        "not in the window"
    );
    assert_eq!(rig.look(&segment(false, TcpFlags::ACK, 101, 1501).frame()).state, ConnState::Established);
}

#[test]
fn a_file_is_not_taken_for_what_it_is_not() {
    let file = file_of(&some());
    assert!(matches!(read(&file), (10, Ok(()))));
    assert!(matches!(read(b""), (0, Err(LoadError::OtherFile))));
    assert!(matches!(read(b"[engine]\ncores = \"1\""), (0, Err(LoadError::OtherFile))));
    let mut other = file.clone();
    other[8] = 2;
    assert!(matches!(read(&other), (0, Err(LoadError::OtherVersion { found: 2 }))));
    let empty = SaveWriter::new(Vec::new(), 0).unwrap().finish().unwrap();
    assert!(matches!(read(&empty), (0, Ok(()))));
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }
    assert!(matches!(SaveReader::new(Broken), Err(LoadError::Read(_))));
}

#[test]
fn a_file_that_was_cut_loads_whole_pages_only() {
    let file = file_of(&some());
    let page = 8 + 4 * SavedConnection::SIZE;
    let all = 28 + 2 * page + 8 + 2 * SavedConnection::SIZE;
    for length in 1..file.len() {
        let pages = length.saturating_sub(28) / page;
        let (count, end) = read(&file[..length]);
        let expected = if length < all { 4 * pages } else { 10 };
        assert_eq!(count, expected, "{length} bytes");
        assert!(
            matches!(end, Err(LoadError::Cut { whole }) if whole == count as u64),
            "{length} bytes: {end:?}"
        );
    }
}

proptest! {
    #[test]
    fn damage_is_found_before_a_page_is_used(at: prop::sample::Index, flip in 1u8..=255) {
        let mut file = file_of(&some());
        let at = at.index(file.len());
        file[at] ^= flip;
        let (count, end) = read(&file);
        prop_assert!(end.is_err());
        prop_assert!(count == at.saturating_sub(28) / (8 + 4 * SavedConnection::SIZE) * 4 || count == 10);
    }

    #[test]
    fn no_record_does_harm(
        changes in prop::collection::vec((0..SavedConnection::SIZE, any::<u8>()), 0..6), number in 0usize..10,
    ) {
        let mut record = records(&some())[number];
        for (at, byte) in changes {
            record[at] = byte;
        }
        let Some(saved) = SavedConnection::from_bytes(&record) else { return Ok(()) };
        prop_assert_eq!(saved.to_bytes(), record, "one record, one connection");
        let mut rig = some();
        rig.now = 2000;
        let _ = rig.table.restore(&saved, rig.now);
        for port in 1..=3 {
            rig.pass(&segment(true, TcpFlags::SYN | TcpFlags::ACK, 1, 2).frame_at(port));
            rig.pass(&segment(false, TcpFlags::ACK, 2, 2).frame_at(port));
        }
        rig.table.end_slots(0, 16);
        prop_assert_eq!((rig.table.len(), rig.table.incomplete()), (0, 0));
    }
}

#[test]
fn a_liberal_connection_goes_on_wherever_its_windows_are_by_now() {
    let goes_on = |is_liberal: bool| {
        let mut rig = Rig::new(&Config::default());
        rig.pass(&segment(false, TcpFlags::SYN, 1, 0).frame());
        rig.pass(&segment(true, TcpFlags::SYN | TcpFlags::ACK, 1, 2).frame());
        rig.pass(&segment(false, TcpFlags::ACK, 2, 2).frame());
        let [mut saved] = rig.saved().try_into().unwrap();
        if is_liberal {
            saved.be_liberal();
        }
        let mut other = Rig::new(&Config { pick_up: false, ..Config::default() });
        let id = other.table.restore(&saved, 0).unwrap();
        let ends = other.table.get(id).unwrap().tcp_ends().unwrap();
        assert_eq!((ends[0].sent, ends[1].acknowledged, ends[1].has_sent_fin), (2, 2, false));
        // A megabyte later.
        let later = [segment(false, TcpFlags::ACK, 2, 1_000_002), segment(true, TcpFlags::ACK, 1_000_002, 2)];
        later.map(|segment| other.pass(&segment.frame()) == ConnState::Established)
    };
    assert_eq!((goes_on(true), goes_on(false)), ([true; 2], [false; 2]));
}
