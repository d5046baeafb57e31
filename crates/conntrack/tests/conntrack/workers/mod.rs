// SPDX-License-Identifier: Apache-2.0
//! Connections of several workers: each has one owner, in both directions, however it is translated, also after the
//! number of workers has changed and after a restart.

mod traffic;

use std::collections::BTreeSet;
use std::sync::Arc;

use netvm_conntrack::{Config, Connection, Connections, FlowOwners, Origin, Refusal, Shared, Tracked};
use netvm_wire::IpProto;
use proptest::prelude::*;

use crate::nat::{OUTSIDE, address, pool};
use crate::rig::error_about;
use traffic::{Ends, First, PROTOCOLS, Rule, begin, fragments_of, frame_of, key, packet};

/// Workers at most.
const MAX_WORKERS: usize = 8;

fn config() -> Config {
    Config { sessions: 512, mappings: 4096, blocks: 256, mapping_key: Some(1), ..Config::default() }
}

/// All workers.
struct Workers {
    tables: Vec<Connections>,
    shared: Arc<Shared>,
    owners: Arc<FlowOwners>,
    count: usize,
}

impl Workers {
    fn new(count: usize) -> Self {
        let shared = Shared::new(&config()).unwrap();
        shared.allow_workers(MAX_WORKERS).unwrap();
        let table = |worker: usize| Connections::of_worker(&config(), &shared, worker as u8).unwrap();
        let tables = (0..MAX_WORKERS).map(table).collect();
        let mut workers = Self { tables, shared, owners: Arc::default(), count };
        workers.set_owners(FlowOwners::new(count));
        workers
    }

    fn set_owners(&mut self, owners: FlowOwners) {
        self.owners = Arc::new(owners);
        self.tables.iter_mut().for_each(|table| table.set_owners(&self.owners));
    }

    /// Changes the number of workers, as the manager of an engine does.
    fn resize(&mut self, count: usize) {
        self.set_owners(self.owners.among(count));
        self.count = count;
        let mut moved = Vec::new();
        for (worker, table) in self.tables.iter_mut().enumerate() {
            for slot in 0..table.capacity() {
                let found = table.page(slot, 1, 0).next().map(|(id, it)| (id, it.owner(&self.owners)));
                match found {
                    Some((id, owner)) if usize::from(owner) == worker => table.claim_again(id),
                    Some((id, owner)) => moved.push((owner, table.take(id).unwrap())),
                    None => {}
                }
            }
        }
        for (owner, connection) in moved {
            assert!(self.tables[usize::from(owner)].adopt(&connection));
        }
    }

    /// Saves all connections, and restores them with another number of workers.
    fn restart(&self, count: usize) -> Self {
        let mut new = Self::new(count);
        for table in &self.tables {
            for saved in table.save(0, table.capacity(), 0) {
                let owner = saved.connection().owner(&new.owners);
                new.tables[usize::from(owner)].restore(&saved, 0).unwrap();
            }
        }
        new
    }

    /// The worker to which a packet goes that another one has received.
    fn owner(&mut self, received_by: usize, frame: &[u8]) -> Option<usize> {
        self.tables[received_by].owner_of(&packet(&key(frame), frame), 0).map(usize::from)
    }

    /// Passes the first packet of a connection, or another one.
    fn begin(&mut self, received_by: usize, frame: &[u8], rule: Rule) -> Result<Connection, Refusal> {
        let owner = self.owner(received_by, frame).unwrap();
        let table = &mut self.tables[owner];
        let mut tracked = [Tracked::default()];
        table.track(&[packet(&key(frame), frame)], 0, &mut tracked);
        let id = match tracked[0].connection {
            Some(id) => id,
            None => begin(table, frame, rule)?,
        };
        Ok(*table.get(id).unwrap())
    }

    /// Checks that packets of a connection reach it, whichever worker receives them.
    fn check(&mut self, connection: &Connection) {
        let tuples = [connection.original(), connection.reply()];
        let is_it = |it: &Connection| [it.original(), it.reply()] == tuples;
        let has = |table: &Connections| table.page(0, table.capacity(), 0).any(|(_, it)| is_it(it));
        let holders: Vec<usize> = (0..MAX_WORKERS).filter(|worker| has(&self.tables[*worker])).collect();
        assert_eq!(holders.len(), 1, "{tuples:?}: {holders:?}");
        let holder = holders[0];
        for received_by in 0..self.count {
            for (tuple, is_reply) in [(tuples[0], false), (tuples[1], true)] {
                let (ends, frame) = (Ends::of(tuple), frame_of(&Ends::of(tuple), is_reply));
                let mut frames = vec![frame.clone()];
                if ends.source.is_v4() && ends.protocol != IpProto::SCTP {
                    // Of a router on the way.
                    frames.push(error_about(&frame, "192.0.2.9", &ends.source.to_ip().to_string()));
                }
                if ends.source.is_v4() && ends.protocol == IpProto::UDP {
                    frames.extend(fragments_of(&ends));
                }
                for (n, frame) in frames.iter().enumerate() {
                    let owner = self.owner(received_by, frame);
                    assert_eq!(owner, Some(holder), "frame {n} of {tuples:?}, received by {received_by}");
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.tables.iter().map(|table| table.len() as usize).sum()
    }

    /// Ends all connections.
    fn end(&mut self) {
        self.tables.iter_mut().for_each(|table| table.end_slots(0, table.capacity()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_connection_has_one_owner_in_both_directions(
        counts in (1..=MAX_WORKERS, 1..=MAX_WORKERS, 1..=MAX_WORKERS), firsts in prop::collection::vec(First::any(), 1..60),
    ) {
        let mut workers = Workers::new(counts.0);
        let mut begun: Vec<Connection> = Vec::new();
        for (n, first) in firsts.iter().enumerate() {
            let outside = begun.iter().rev().find(|it| it.is_translated() && it.reply().protocol == IpProto::UDP);
            let frame = first.frame(outside.map(Connection::reply));
            let before = workers.len();
            match workers.begin(n % workers.count, &frame, first.rule) {
                Ok(connection) if workers.len() > before => begun.push(connection),
                // It belongs to another one, or its ends, or all of its ports, are taken.
                Ok(_) | Err(Refusal::NoPort | Refusal::NotTranslatable) => {}
                Err(refusal) => panic!("{first:?}: {refusal:?}"),
            }
            prop_assert_eq!(workers.len(), begun.len());
        }
        begun.iter().for_each(|it| workers.check(it));
        workers.resize(counts.1);
        prop_assert_eq!(workers.len(), begun.len());
        begun.iter().for_each(|it| workers.check(it));
        let mut restarted = workers.restart(counts.2);
        begun.iter().for_each(|it| restarted.check(it));
        prop_assert_eq!(restarted.len(), begun.len());
        for workers in [&mut workers, &mut restarted] {
            workers.end();
            prop_assert_eq!(workers.shared.exceptions(), 0);
        }
    }
}

#[test]
fn answers_of_masqueraded_connections_come_back_by_themselves() {
    for count in 1..=MAX_WORKERS {
        let mut workers = Workers::new(count);
        let mut of_worker = [0; MAX_WORKERS];
        for port in 0..400 {
            let protocol = PROTOCOLS[usize::from(port % 3)];
            let first = First {
                rule: Rule::Masquerade,
                protocol,
                host: 1,
                port: 40_000 + port,
                remote: 1,
                remote_port: 443,
                is_inwards: false,
            };
            let connection = workers.begin(0, &first.frame(None), Rule::Masquerade).unwrap();
            assert_eq!(connection.reply().destination, address(OUTSIDE));
            workers.check(&connection);
            of_worker[usize::from(connection.owner(&workers.owners))] += 1;
        }
        assert_eq!(workers.shared.exceptions(), 0, "{count} workers");
        let (least, most) = (of_worker[..count].iter().min(), of_worker[..count].iter().max());
        assert!(least.unwrap() * 2 >= *most.unwrap(), "{of_worker:?}");
    }
}

#[test]
fn an_end_inside_has_one_end_outside_with_all_workers() {
    let mut workers = Workers::new(4);
    let mut owners = BTreeSet::new();
    let mut outside = BTreeSet::new();
    for remote in 0..64 {
        let first = First {
            rule: Rule::Masquerade,
            protocol: IpProto::UDP,
            host: 1,
            port: 5000,
            remote,
            remote_port: 53,
            is_inwards: false,
        };
        let connection = workers.begin(0, &first.frame(None), Rule::Masquerade).unwrap();
        owners.insert(connection.owner(&workers.owners));
        outside.insert(connection.reply().destination_port);
    }
    assert_eq!((owners.len(), outside.len()), (4, 1));
}

#[test]
fn a_subscriber_has_its_blocks_with_all_workers_together() {
    let mut workers = Workers::new(4);
    let mut outside = BTreeSet::new();
    for port in 1000..1400 {
        let first = First {
            rule: Rule::Blocks,
            protocol: IpProto::UDP,
            host: 1,
            port,
            remote: 1,
            remote_port: 53,
            is_inwards: false,
        };
        match workers.begin(0, &first.frame(None), Rule::Blocks) {
            Ok(connection) => {
                workers.check(&connection);
                outside.insert((connection.reply().destination, connection.reply().destination_port));
            }
            Err(refusal) => assert_eq!(refusal, Refusal::NoPort),
        }
    }
    let blocks: BTreeSet<_> = outside.iter().map(|(address, port)| (*address, port / 16)).collect();
    assert_eq!((outside.len(), blocks.len()), (8 * 16, 8));
}

#[test]
fn two_workers_that_begin_and_end_connections_at_once_give_no_port_twice() {
    let shared = Shared::new(&config()).unwrap();
    shared.allow_workers(2).unwrap();
    let owners = Arc::new(FlowOwners::new(2));
    // One host for each worker, which both want the same few ports, in turn.
    let rounds = |worker: u8| {
        let mut table = Connections::of_worker(&config(), &shared, worker).unwrap();
        table.set_owners(&owners);
        let pools = [pool(OUTSIDE, OUTSIDE, [4000, 4015])];
        let mut taken = Vec::new();
        for n in 0..20_000u16 {
            let first = First {
                rule: Rule::None,
                protocol: IpProto::UDP,
                host: worker,
                port: 1000 + n % 24,
                remote: 1,
                remote_port: 53,
                is_inwards: false,
            };
            let frame = first.frame(None);
            let key = key(&frame);
            let packet = packet(&key, &frame);
            let Ok(id) = table.confirm(&packet, Origin::default(), 0) else { continue };
            if table.settle_source(id, &pools).is_err() {
                assert!(table.end(id));
                continue;
            }
            taken.push(id);
            if taken.len() > 6 {
                assert!(table.end(taken.remove(0)));
            }
        }
        let ports =
            taken.iter().map(|id| table.get(*id).unwrap().reply().destination_port).collect::<Vec<_>>();
        (table, ports)
    };
    let [(_one, mut ports), (_other, others)] = std::thread::scope(|scope| {
        [0, 1].map(|worker| scope.spawn(move || rounds(worker))).map(|thread| thread.join().unwrap())
    });
    ports.extend(others);
    let count = ports.len();
    assert!(count >= 12, "{ports:?}");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), count, "{ports:?}");
}
