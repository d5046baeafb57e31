// SPDX-License-Identifier: Apache-2.0
//! [`SavedConnection`]: a connection that can be written down. Version 1 of its record, all numbers little-endian,
//! addresses in the order of the network (IPv4 as `::ffff:a.b.c.d`), times in tenths of a second:
//!
//! ```text
//!    0  source of the original tuple        16      64  ports of the original tuple  2 × u16
//!   16  destination of the original tuple   16      68  ports of the reply tuple     2 × u16
//!   32  source of the reply tuple           16      72  protocols of the tuples       2 × u8
//!   48  destination of the reply tuple      16      74  kinds of ICMP queries         2 × u8
//!   76  zone                               u16     104  packets by direction, 48 bit 2 × u64
//!   78  port number                        u16     120  bytes by direction           2 × u64
//!   80  rule                               u32     136  state of TCP or SCTP, then zeros   48
//!   84  age                                u32     184  zeros                          8
//!   88  time until it ends                 u32     192
//!   92  flags: 1 answered, 2 its source is decided; bits 8 to 15: its mappings  u32
//!   96  numbers of the SYN proxy       2 × u32
//!
//!       TCP    136  20 for each end: last sequence number sent, offered, window, mark, acknowledged   5 × u32
//!              176  window scales, 2 × u8   178  what each has sent, 2 × u8   180  state   181  liberal
//!              182  SYN proxy: 0 none, 1 connecting, 2 connected   183  zero
//!       SCTP   136  verification tags, 2 × u32   144  offered tags, 2 × u32   152  state   153  has sent INIT, 2 × u8
//!              155  a HEARTBEAT with another tag: 0 none, 1 of the first end, 2 of the second one   156  zeros
//! ```

use netvm_wire::{Address, IpProto};

use crate::connection::{Connection, Origin, Status};
use crate::mapped::Mapped;
use crate::packet::tuple::{Tuple, Zone};
use crate::protocol::{ProxyPhase, SAVED_SCTP, SAVED_TCP, Sctp, Tcp, Transport};

/// A connection outside of a table.
#[derive(Clone, Copy, Debug)]
pub struct SavedConnection {
    /// At tick 0.
    connection: Connection,
}

const ADDRESSES: usize = 0;
const PORTS: usize = 64;
const PROTOCOLS: usize = 72;
const QUERIES: usize = 74;
const ZONE: usize = 76;
const PORT: usize = 78;
const RULE: usize = 80;
const AGE: usize = 84;
const LEFT: usize = 88;
const FLAGS: usize = 92;
const PROXIED: usize = 96;
const PACKETS: usize = 104;
const BYTES: usize = 120;
const TRANSPORT: usize = 136;

const ANSWERED: u32 = 1;
const SETTLED: u32 = 2;
const MAPPED: u32 = 8;

/// A record, and a place in it.
type Record = [u8; SavedConnection::SIZE];

fn put(record: &mut Record, at: usize, bytes: &[u8]) {
    record[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get<const N: usize>(record: &Record, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}

fn u16_at(record: &Record, at: usize) -> u16 {
    u16::from_le_bytes(get(record, at))
}

fn u32_at(record: &Record, at: usize) -> u32 {
    u32::from_le_bytes(get(record, at))
}

fn pair_at(record: &Record, at: usize) -> [u64; 2] {
    [at, at + 8].map(|at| u64::from_le_bytes(get(record, at)))
}

impl SavedConnection {
    /// Bytes of a record.
    pub const SIZE: usize = 192;

    /// A connection of a table at this tick.
    pub(crate) fn new(connection: &Connection, now: u32) -> Self {
        let (created, deadline) = (0u32.wrapping_sub(connection.age(now)), connection.left(now));
        Self { connection: Connection { created, deadline, ..*connection } }
    }

    /// The connection as a table has it at this tick.
    pub(crate) fn at(&self, now: u32) -> Connection {
        let Connection { created, deadline, .. } = self.connection;
        let (created, deadline) = (now.wrapping_add(created), now.wrapping_add(deadline));
        Connection { created, deadline, ..self.connection }
    }

    /// The connection, as if it was at tick 0.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Says what began it: port numbers and rules may have others after a restart.
    pub const fn set_origin(&mut self, origin: Origin) {
        (self.connection.from, self.connection.rule) = (origin.port, origin.rule);
    }

    /// Accepts TCP segments outside of its windows, which may have moved on since it was saved.
    pub const fn be_liberal(&mut self) {
        if let Transport::Tcp(tcp) = &mut self.connection.transport {
            tcp.be_liberal();
        }
    }

    /// Lets it grow older. Returns false if its time is over.
    #[must_use]
    pub const fn grow_older(&mut self, ticks: u32) -> bool {
        self.connection.created = self.connection.created.wrapping_sub(ticks);
        let lives = self.connection.deadline >= ticks;
        self.connection.deadline = self.connection.deadline.saturating_sub(ticks);
        lives
    }

    /// Its record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let (it, packets) = (&self.connection, self.connection.packets());
        let mut record = [0; Self::SIZE];
        for (n, tuple) in it.tuples().iter().enumerate() {
            let Tuple { source, destination, source_port, destination_port, protocol, query, .. } = *tuple;
            put(&mut record, ADDRESSES + 32 * n, &source.v6_bits().to_be_bytes());
            put(&mut record, ADDRESSES + 32 * n + 16, &destination.v6_bits().to_be_bytes());
            put(&mut record, PORTS + 4 * n, &source_port.to_le_bytes());
            put(&mut record, PORTS + 4 * n + 2, &destination_port.to_le_bytes());
            record[PROTOCOLS + n] = protocol.0;
            record[QUERIES + n] = query;
            put(&mut record, PACKETS + 8 * n, &packets[n].to_le_bytes());
            put(&mut record, BYTES + 8 * n, &it.bytes[n].to_le_bytes());
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(it.is_answered(), ANSWERED)
            | flag(it.is_settled(), SETTLED)
            | u32::from(it.mapped.byte()) << MAPPED;
        let words = [(RULE, it.rule), (AGE, it.age(0)), (LEFT, it.deadline), (FLAGS, flags)];
        for (at, word) in words {
            put(&mut record, at, &word.to_le_bytes());
        }
        put(&mut record, ZONE, &it.original().zone.0.to_le_bytes());
        put(&mut record, PORT, &it.from.to_le_bytes());
        match it.transport {
            Transport::Tcp(tcp) => put(&mut record, TRANSPORT, &tcp.to_bytes()),
            Transport::Sctp(sctp) => put(&mut record, TRANSPORT, &sctp.to_bytes()),
            Transport::Other => {}
        }
        if it.transport().proxy() != ProxyPhase::None {
            put(&mut record, PROXIED, &it.older.to_le_bytes());
            put(&mut record, PROXIED + 4, &it.newer.to_le_bytes());
        }
        record
    }

    /// The connection of a record; `None` for one that no connection has.
    #[must_use]
    pub fn from_bytes(record: &[u8; Self::SIZE]) -> Option<Self> {
        let tuples = [tuple_at(record, 0), tuple_at(record, 1)];
        let [original, reply] = &tuples;
        let (flags, left) = (u32_at(record, FLAGS), u32_at(record, LEFT));
        let one_family = tuples.iter().all(|it| it.source.is_v4() == it.destination.is_v4());
        let (transport, size) = match original.protocol {
            IpProto::TCP => (Transport::Tcp(Tcp::from_bytes(&get(record, TRANSPORT))?), SAVED_TCP),
            IpProto::SCTP => (Transport::Sctp(Sctp::from_bytes(&get(record, TRANSPORT))?), SAVED_SCTP),
            _ => (Transport::Other, 0),
        };
        let [older, newer] = [PROXIED, PROXIED + 4].map(|at| u32_at(record, at));
        let is_sound = one_family
            && (transport.proxy() != ProxyPhase::None || (older, newer) == (0, 0))
            && record[TRANSPORT + size..].iter().all(|byte| *byte == 0)
            && flags & !(ANSWERED | SETTLED | 0xff << MAPPED) == 0
            && has_query(original, 0)
            && has_query(reply, 1)
            && original.reversed().query == reply.query
            && left <= i32::MAX.cast_unsigned();
        let begun = Connection::of(tuples, transport);
        let status = begun.status.with(Status::ANSWERED, flags & ANSWERED != 0);
        let mut connection = Connection {
            created: 0u32.wrapping_sub(u32_at(record, AGE)),
            deadline: left,
            older,
            newer,
            rule: u32_at(record, RULE),
            from: u16_at(record, PORT),
            mapped: Mapped::of_byte((flags >> MAPPED) as u8)?,
            status: status.with(Status::SETTLED, flags & SETTLED != 0),
            ..begun
        };
        connection.set_reply(*reply);
        let packets = pair_at(record, PACKETS);
        connection.set_counts(packets, pair_at(record, BYTES));
        let is_sound = is_sound && connection.packets() == packets;
        is_sound.then_some(Self { connection })
    }
}

fn tuple_at(record: &Record, n: usize) -> Tuple {
    let address = |at| Address::from_v6_bits(u128::from_be_bytes(get(record, at)));
    Tuple {
        source: address(ADDRESSES + 32 * n),
        destination: address(ADDRESSES + 32 * n + 16),
        source_port: u16_at(record, PORTS + 4 * n),
        destination_port: u16_at(record, PORTS + 4 * n + 2),
        protocol: IpProto(record[PROTOCOLS + n]),
        query: record[QUERIES + n],
        zone: Zone(u16_at(record, ZONE)),
    }
}

/// Whether a tuple is that of ICMP queries if it has to be, and of this direction.
const fn has_query(tuple: &Tuple, direction: u8) -> bool {
    match tuple.protocol {
        IpProto::ICMP | IpProto::ICMPV6 => tuple.query > 1 && tuple.query & 1 == direction,
        _ => tuple.query == 0,
    }
}
