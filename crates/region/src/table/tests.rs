// SPDX-License-Identifier: Apache-2.0
use super::*;

fn reader_of(publisher: &TablePublisher) -> TableReader {
    TableReader::open(publisher.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn readers_see_whole_tables_while_the_engine_publishes() {
    let mut publisher = TablePublisher::create("table-test").unwrap();
    let mut reader = reader_of(&publisher);
    assert!(!reader.is_stale() && !reader.refresh());
    let writer = std::thread::spawn(move || {
        let mut table = Table::new_boxed();
        for round in 1..=200u16 {
            table.hop_roles = [[round; MAX_HOPS]; MAX_CHAINS];
            table.roles = [Destination::engine(round as u8); MAX_ROLES];
            publisher.publish(&table);
        }
        publisher
    });
    let mut last = 0;
    while last < 200 {
        if reader.refresh() {
            let round = reader.table().hop_roles[0][0];
            assert!(round > last, "{round} after {last}");
            assert_eq!(reader.table().hop_roles, [[round; MAX_HOPS]; MAX_CHAINS]);
            assert_eq!(reader.table().roles[MAX_ROLES - 1].hop, round as u8);
            last = round;
        }
    }
    assert_eq!(reader.epoch(), writer.join().unwrap().epoch());
}

#[test]
fn nfs_cannot_map_it_writable() {
    let publisher = TablePublisher::create("table-test").unwrap();
    let fd = publisher.as_fd().try_clone_to_owned().unwrap();
    assert!(Mapping::open("table", fd, BYTES, true).is_err());
}

#[test]
fn a_copy_is_updated_and_its_owners_writes_stay_local() {
    let mut publisher = TablePublisher::create("table-test").unwrap();
    let mut table = Table::new_boxed();
    let copies = [publisher.copy("table-test").unwrap(), {
        table.hop_roles[1][1] = 7;
        publisher.publish(&table);
        publisher.copy("table-test").unwrap()
    }];
    let open = |copy: &TableCopy| TableReader::open(copy.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let mut readers = copies.each_ref().map(|copy| open(copy));
    for reader in &mut readers {
        assert!(reader.refresh() && reader.table() == &*table);
    }
    let spoiled = Mapping::open("table", copies[0].as_fd().try_clone_to_owned().unwrap(), BYTES, true);
    let spoiled = spoiled.unwrap();
    words(&spoiled).iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    epoch(&spoiled).store(u64::MAX, Ordering::Relaxed);
    let mut others = reader_of(&publisher);
    assert!(others.refresh() && others.table() == &*table && !readers[1].is_stale());
    table.hop_roles[1][1] = 8;
    assert_eq!(publisher.publish(&table), 4);
    assert!(readers[0].refresh() && readers[0].table() == &*table && readers[0].epoch() == 4);
    drop(copies);
    publisher.publish(&table);
    assert!(publisher.copies.is_empty());
}

#[test]
fn memory_without_a_table_of_this_layout_is_refused() {
    let passed = |begins: [u64; 2], bytes| {
        let memory = Mapping::create("table-test", bytes, Pages::Normal, None).unwrap();
        // SAFETY: the first words of a mapping that is not shared.
        unsafe { memory.at::<[u64; 2]>(0).write(begins) };
        TableReader::open(memory.as_fd().try_clone_to_owned().unwrap())
    };
    let layout = u64::from(crate::GROUP_LAYOUT);
    const MAGIC: u64 = u64::from_le_bytes(*b"netvmTBL");
    assert!(passed([MAGIC, layout], BYTES).is_ok());
    assert!(matches!(passed([0, layout], BYTES), Err(TableError::NotATable)));
    assert!(
        matches!(passed([MAGIC, layout + 1], BYTES), Err(TableError::Layout { found }) if found == layout + 1)
    );
    assert!(matches!(passed([MAGIC, layout], 4096), Err(TableError::Map(MapError::Size { .. }))));
}

#[test]
fn packets_go_to_the_next_hop_or_the_role() {
    let mut table = Table::new_boxed();
    assert_eq!(table.hop(9, 3), Destination { hop: 0, ..Destination::engine(3) });
    table.hops[2][1] = Destination::nf_threads(1, Balance::FlowHash, &[4, 5]);
    table.hops[2][3] = Destination::nf_threads(3, Balance::LeastOccupied, &[6]);
    table.hop_roles[2][1] = 10;
    table.hop_roles[2][3] = 9;
    table.roles[9] = Destination::nf_threads(0, Balance::LeastOccupied, &[7]);
    assert_eq!((table.hop(2, 1).replicas(), table.hop(2, 1).balance()), (&[4, 5][..], Balance::FlowHash));
    assert_eq!(table.role(2, 0, 9), table.hop(2, 1), "a role later in the chain is a jump to it");
    assert_eq!(
        table.role(2, 1, 9),
        Destination::nf_threads(1, Balance::LeastOccupied, &[7]),
        "a detour keeps the hop"
    );
    assert!(table.role(2, 0, u16::MAX).replicas().is_empty());
    assert!(table.hop(u16::MAX, u8::MAX).replicas().is_empty());
}

#[test]
fn names_are_found_by_text() {
    let mut table = Table::new_boxed();
    table.ports[3] = Name::new("server").unwrap();
    table.role_names[5] = Name::new("firewall").unwrap();
    assert_eq!((table.port_number("server"), table.port_number("")), (Some(3), None));
    assert_eq!((table.role_number("firewall"), table.role_names[5].as_str()), (Some(5), "firewall"));
    assert!(Name::new(&"x".repeat(33)).is_none() && Name::new("a\0").is_none());
}
