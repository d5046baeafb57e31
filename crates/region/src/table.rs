//! The next-hop table: what an NF must know to hand a packet straight to the next NF.
//!
//! The engine publishes it, NFs map it for reading only (the memfd is sealed against any writable mapping but the
//! engine's). A sequence count guards it: an NF looks at one word per turn of its loop, and copies the table into
//! private memory when that word has moved. What it then tells the engine ([`crate::Control`]: its epoch) means "I
//! work by this table from here on", so that the engine knows when nobody uses a ring any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::kind::{self, Kind};
use crate::{MapError, Mapping, Pages};

/// Chains that a host can have.
pub const MAX_CHAINS: usize = 256;
/// Hops that a chain can have.
pub const MAX_HOPS: usize = 16;
/// NF threads that a trust group can have, and one more: NF thread 0 is the engine.
pub const MAX_STATIONS: usize = 64;
/// Replicas that a hop chooses from.
pub const MAX_REPLICAS: usize = 8;
/// Roles that a host can have.
pub const MAX_ROLES: usize = 128;
/// Ports that a host can have.
pub const MAX_PORTS: usize = 256;
/// Bytes that a name can have.
pub const NAME_BYTES: usize = 32;

/// What is to be done with a packet that enters a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DestinationKind {
    /// Give it to the engine: end of the chain, another trust group, or a case that the engine settles.
    Engine = 0,
    /// Give it to one of the NF threads.
    NfThreads = 1,
}

/// How one of several replicas is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Balance {
    /// The NF thread whose ring from here holds the fewest packets.
    #[default]
    LeastOccupied = 0,
    /// By the flow's hash: a flow stays with its replica while the set of replicas stays.
    FlowHash = 1,
    /// As [`Balance::LeastOccupied`] at a flow's first packet; the flow stays with its replica while that is there.
    Sticky = 2,
}

/// Where packets go that enter a hop, or that are sent to a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Destination {
    kind: u8,
    /// The hop at which they then are. Differs from the hop asked for where a hop is bypassed.
    pub hop: u8,
    balance: u8,
    count: u8,
    nf_threads: [u8; MAX_REPLICAS],
}

impl Destination {
    /// To the engine, as of `hop`.
    #[must_use]
    pub const fn engine(hop: u8) -> Self {
        Self { kind: DestinationKind::Engine as u8, hop, balance: 0, count: 0, nf_threads: [0; MAX_REPLICAS] }
    }

    /// To one of `nf_threads` (at most [`MAX_REPLICAS`] are used), which are at `hop`; to the engine when there are none.
    #[must_use]
    pub fn nf_threads(hop: u8, balance: Balance, nf_threads: &[u8]) -> Self {
        let mut this = Self::engine(hop);
        for (slot, nf_thread) in this.nf_threads.iter_mut().zip(nf_threads) {
            *slot = *nf_thread % MAX_STATIONS as u8;
            this.count += 1;
        }
        if this.count > 0 {
            (this.kind, this.balance) = (DestinationKind::NfThreads as u8, balance as u8);
        }
        this
    }

    /// The NF threads to choose from; empty means the engine.
    #[inline]
    #[must_use]
    pub fn replicas(&self) -> &[u8] {
        if self.kind == DestinationKind::NfThreads as u8 {
            self.nf_threads.get(..usize::from(self.count)).unwrap_or(&[])
        } else {
            &[]
        }
    }

    /// How to choose.
    #[inline]
    #[must_use]
    pub const fn balance(&self) -> Balance {
        match self.balance {
            1 => Balance::FlowHash,
            2 => Balance::Sticky,
            _ => Balance::LeastOccupied,
        }
    }
}

/// Which direct ring leads from one NF thread to another; `PRESENT` is zero where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingRef {
    present: u8,
    /// The region (NUMA node of the group) that holds the ring.
    pub region: u8,
    /// Its index there.
    pub index: u16,
}

impl RingRef {
    /// Direct ring `index` of region `region`.
    #[must_use]
    pub const fn new(region: u8, index: u16) -> Self {
        Self { present: 1, region, index }
    }

    /// The ring, if there is one.
    #[must_use]
    pub const fn get(self) -> Option<Self> {
        if self.present == 1 { Some(self) } else { None }
    }
}

/// A name of at most [`NAME_BYTES`] bytes, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// The name, or `None` when it is too long, empty, or has a zero in it.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// The name as text; empty for a number that is not in use.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

/// The table's content. All zeros is a table that sends everything to the engine.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Table {
    /// For each chain, where packets go that enter a hop.
    pub hops: [[Destination; MAX_HOPS]; MAX_CHAINS],
    /// For each chain, the role number plus one at each hop; 0 beyond its end.
    pub hop_roles: [[u16; MAX_HOPS]; MAX_CHAINS],
    /// For each role, where packets go that an NF sends to it.
    pub roles: [Destination; MAX_ROLES],
    /// 1 while the direct rings of the group form a loop: then an NF thread that waits for room in one must not wait for
    /// ever, as the next may be waiting for it.
    pub looped: u64,
    /// NF threads that signal no peer (NFs in VMs that poll), a bit each: the reader of a ring that one of them writes to must poll
    /// by itself now and then.
    pub silent: u64,
    /// For each producing and each consuming NF thread, the ring between them.
    pub rings: [[RingRef; MAX_STATIONS]; MAX_STATIONS],
    /// Names of the ports.
    pub ports: [Name; MAX_PORTS],
    /// Names of the roles.
    pub role_names: [Name; MAX_ROLES],
}

impl Table {
    /// A table that sends everything to the engine.
    #[must_use]
    pub fn new_boxed() -> Box<Self> {
        // Infallible for a type of fixed size short of running out of memory, which aborts in any other allocation too.
        Self::new_box_zeroed()
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Self>()))
    }

    /// Where a packet goes that enters `hop` of `chain`; to the engine for numbers that are not possible.
    #[inline]
    #[must_use]
    pub fn hop(&self, chain: u16, hop: u8) -> Destination {
        let hops = self.hops.get(usize::from(chain)).and_then(|hops| hops.get(usize::from(hop)));
        hops.copied().unwrap_or(Destination::engine(hop))
    }

    /// Where a packet goes that is sent to `role` from `hop` of `chain`: to the next hop of the chain with that role if
    /// there is one, else to the role's NF threads, keeping its hop, so that "next" after the detour is what it was.
    #[inline]
    #[must_use]
    pub fn role(&self, chain: u16, hop: u8, role: u16) -> Destination {
        let Some(detour) = self.roles.get(usize::from(role)) else { return Destination::engine(hop) };
        if let Some(roles) = self.hop_roles.get(usize::from(chain)) {
            let later = roles.iter().skip(usize::from(hop) + 1).position(|other| *other == role + 1);
            if let Some(later) = later {
                return self.hop(chain, hop + 1 + later as u8);
            }
        }
        Destination { hop, ..*detour }
    }

    /// Number of the role with this name.
    #[must_use]
    pub fn role_number(&self, name: &str) -> Option<u16> {
        number_of(&self.role_names, name)
    }

    /// Number of the port with this name.
    #[must_use]
    pub fn port_number(&self, name: &str) -> Option<u16> {
        number_of(&self.ports, name)
    }
}

fn number_of(names: &[Name], name: &str) -> Option<u16> {
    let name = Name::new(name)?;
    names.iter().position(|other| *other == name).map(|n| n as u16)
}

const EPOCH_AT: u64 = 128;
const TABLE_AT: u64 = 4096;
const WORDS: usize = size_of::<Table>() / 8;
const BYTES: u64 = (TABLE_AT + size_of::<Table>() as u64).next_multiple_of(4096);

const _: () = assert!(size_of::<Table>().is_multiple_of(8));

fn epoch(mapping: &Mapping) -> &AtomicU64 {
    // SAFETY: within the mapping, and only ever used as an atomic.
    unsafe { mapping.at::<AtomicU64>(EPOCH_AT).as_ref() }
}

fn words(mapping: &Mapping) -> &[AtomicU64; WORDS] {
    // SAFETY: within the mapping, and only ever used as atomics.
    unsafe { mapping.at::<[AtomicU64; WORDS]>(TABLE_AT).as_ref() }
}

/// Why a next-hop table that was passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Its memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It is something else.
    #[error("the memory passed as next-hop table holds something else: what passed it is no netvm engine")]
    NotATable,
    /// It is of another netvm.
    #[error(
        "the next-hop table has layout {theirs}, this netlib reads {}: build the NF against this netvm's netlib",
        crate::LAYOUT_VERSION
    )]
    Layout {
        /// The table's layout version.
        theirs: u64,
    },
}

/// The engine's side of the table.
#[derive(Debug)]
pub struct TablePublisher {
    mapping: Mapping,
    epoch: u64,
    copies: Vec<Weak<TableCopy>>,
}

/// A copy of the table for one NF alone, which may map it for writing: it can spoil nothing but what it works by itself, as
/// the engine never reads it. For those who map whatever they are passed for writing, as `ivshmem-doorbell` does.
#[derive(Debug)]
pub struct TableCopy(Mapping);

impl AsFd for TableCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Writes a table, whose words may be anything meanwhile, and then says that it is that of `epoch`.
fn write(mapping: &Mapping, content: impl Iterator<Item = u64>, epoch_now: u64) {
    let epoch = epoch(mapping);
    epoch.store(epoch_now - 1, Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, value) in words(mapping).iter().zip(content) {
        word.store(value, Ordering::Relaxed);
    }
    epoch.store(epoch_now, Ordering::Release);
}

impl TablePublisher {
    /// Makes the table of a trust group, which sends everything to the engine.
    ///
    /// # Errors
    /// [`MapError`] when its memory is not to be had or cannot be sealed.
    pub fn create(name: &str) -> Result<Self, MapError> {
        let mapping = Mapping::create(name, BYTES, Pages::Normal, None)?;
        kind::write(&mapping, Kind::Table);
        mapping.seal_for_readers(name)?;
        Ok(Self { mapping, epoch: 0, copies: Vec::new() })
    }

    /// Makes a copy that is kept up to date while it lives.
    ///
    /// # Errors
    /// [`MapError`] when its memory is not to be had.
    pub fn copy(&mut self, name: &str) -> Result<Arc<TableCopy>, MapError> {
        let mapping = Mapping::create(name, BYTES, Pages::Normal, None)?;
        kind::write(&mapping, Kind::Table);
        if self.epoch > 0 {
            let content = words(&self.mapping).iter().map(|word| word.load(Ordering::Relaxed));
            write(&mapping, content, self.epoch);
        }
        let copy = Arc::new(TableCopy(mapping));
        self.copies.push(Arc::downgrade(&copy));
        Ok(copy)
    }

    /// Publishes `table`; returns the epoch that an NF confirms once it works by it.
    pub fn publish(&mut self, table: &Table) -> u64 {
        self.epoch += 2;
        let content = || {
            let words = table.as_bytes().chunks_exact(8);
            words.map(|bytes| u64::from_ne_bytes(<[u8; 8]>::try_from(bytes).unwrap_or_default()))
        };
        write(&self.mapping, content(), self.epoch);
        let epoch = self.epoch;
        self.copies.retain(|copy| {
            copy.upgrade().is_some_and(|copy| {
                write(&copy.0, content(), epoch);
                true
            })
        });
        self.epoch
    }

    /// The epoch published last.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl AsFd for TablePublisher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

/// An NF's side of the table: the mapping, and the copy that the NF works by.
#[derive(Debug)]
pub struct TableReader {
    mapping: Mapping,
    epoch: u64,
    table: Box<Table>,
}

impl TableReader {
    /// Maps the table that the engine passed.
    ///
    /// # Errors
    /// [`TableError`] when the file is not a table of this layout.
    pub fn open(fd: OwnedFd) -> Result<Self, TableError> {
        let mapping = Mapping::open("table", fd, BYTES, false)?;
        let (kind, layout) = Kind::of(&mapping).ok_or(TableError::NotATable)?;
        if kind != Kind::Table {
            return Err(TableError::NotATable);
        }
        if layout != u64::from(crate::LAYOUT_VERSION) {
            return Err(TableError::Layout { theirs: layout });
        }
        Ok(Self { mapping, epoch: 0, table: Table::new_boxed() })
    }

    /// Whether a newer table has been published. One load, of a line that seldom changes.
    #[inline(always)]
    #[must_use]
    pub fn is_stale(&self) -> bool {
        epoch(&self.mapping).load(Ordering::Relaxed) != self.epoch
    }

    /// Copies the newest table if one can be had whole at this moment; returns whether the copy changed.
    pub fn refresh(&mut self) -> bool {
        let before = epoch(&self.mapping).load(Ordering::Acquire);
        if before == self.epoch || before % 2 == 1 {
            return false;
        }
        let mut copy = Table::new_boxed();
        for (word, bytes) in words(&self.mapping).iter().zip(copy.as_mut_bytes().chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        fence(Ordering::Acquire);
        if epoch(&self.mapping).load(Ordering::Relaxed) != before {
            return false;
        }
        (self.table, self.epoch) = (copy, before);
        true
    }

    /// The copy.
    #[inline(always)]
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The epoch of the copy; 0 before the first.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
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
    fn nobody_but_the_engine_can_write_it() {
        let publisher = TablePublisher::create("table-test").unwrap();
        let fd = publisher.as_fd().try_clone_to_owned().unwrap();
        assert!(Mapping::open("table", fd, BYTES, true).is_err());
    }

    #[test]
    fn a_copy_follows_and_what_its_owner_writes_reaches_nobody() {
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
    fn what_is_no_table_of_this_layout_is_refused() {
        let passed = |begins: [u64; 2], bytes| {
            let memory = Mapping::create("table-test", bytes, Pages::Normal, None).unwrap();
            // SAFETY: the first words of a mapping that nobody else has.
            unsafe { memory.at::<[u64; 2]>(0).write(begins) };
            TableReader::open(memory.as_fd().try_clone_to_owned().unwrap())
        };
        let layout = u64::from(crate::LAYOUT_VERSION);
        const MAGIC: u64 = u64::from_le_bytes(*b"netvmTBL");
        assert!(passed([MAGIC, layout], BYTES).is_ok());
        assert!(matches!(passed([0, layout], BYTES), Err(TableError::NotATable)));
        assert!(
            matches!(passed([MAGIC, layout + 1], BYTES), Err(TableError::Layout { theirs }) if theirs == layout + 1)
        );
        assert!(matches!(passed([MAGIC, layout], 4096), Err(TableError::Map(MapError::Size { .. }))));
    }

    #[test]
    fn destinations() {
        let mut table = Table::new_boxed();
        assert_eq!(table.hop(9, 3), Destination { hop: 0, ..Destination::engine(3) });
        table.hops[2][1] = Destination::nf_threads(1, Balance::FlowHash, &[4, 5]);
        table.hops[2][3] = Destination::nf_threads(3, Balance::LeastOccupied, &[6]);
        table.hop_roles[2][1] = 10;
        table.hop_roles[2][3] = 9;
        table.roles[9] = Destination::nf_threads(0, Balance::LeastOccupied, &[7]);
        assert_eq!((table.hop(2, 1).replicas(), table.hop(2, 1).balance()), (&[4, 5][..], Balance::FlowHash));
        assert_eq!(table.role(2, 0, 9), table.hop(2, 1), "a role that the chain has later is a jump to it");
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
}
