//! An arbitrary next-hop table, as an NF may be passed it.

use netvm_region::{LAYOUT_VERSION, MAX_CHAINS, MAX_HOPS, MAX_REPLICAS, Table, TableError, TableReader};

use crate::control::memory;
use crate::input::Input;

/// What a table begins with, before the version of its layout.
const MAGIC: &[u8; 8] = b"netvmTBL";
/// Where the reader finds the epoch and the table.
const EPOCH_AT: usize = 128;
const TABLE_AT: usize = 4096;
const BYTES: usize = (TABLE_AT + size_of::<Table>()).next_multiple_of(4096);

/// Reads a table of the fuzzer's making and looks up whatever the fuzzer asks for.
pub fn table(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, epoch, seed) = (input.u8(), u64::from(input.u8()), input.u8());
    let mut content = vec![seed; BYTES];
    let (missing, foreign, newer) =
        (if kind % 8 == 0 { usize::from(kind) } else { 0 }, kind % 8 == 1, u64::from(kind % 8 == 2));
    if !foreign {
        content[..8].copy_from_slice(MAGIC);
        content[8..16].copy_from_slice(&(u64::from(LAYOUT_VERSION) + newer).to_le_bytes());
    }
    content[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&epoch.to_le_bytes());
    let questions: Vec<_> = (0..8).map(|_| (input.u16(), input.u8(), input.u16())).collect();
    while !input.is_empty() {
        let at = TABLE_AT + input.u32() as usize % size_of::<Table>();
        let bytes = input.u8();
        let bytes = input.bytes(usize::from(bytes));
        let end = (at + bytes.len()).min(BYTES);
        content[at..end].copy_from_slice(&bytes[..end - at]);
    }
    let mut reader = match TableReader::open(memory("fuzz-table", &content, (BYTES - missing) as u64)) {
        Ok(reader) => reader,
        Err(TableError::Map(_)) => return assert!(missing > 0, "a table of the right size is mapped"),
        Err(TableError::NotATable) => return assert!(foreign),
        Err(TableError::Layout { .. }) => return assert!(newer > 0),
    };
    assert!(missing == 0 && !foreign && newer == 0, "only a table of this layout is read");
    assert_eq!(reader.is_stale(), epoch != 0);
    // An odd epoch says that the table is being written.
    let whole = epoch != 0 && epoch % 2 == 0;
    assert_eq!(reader.refresh(), whole);
    assert_eq!(reader.epoch(), if whole { epoch } else { 0 });
    assert!(!reader.refresh());
    for (chain, hop, role) in questions {
        ask(reader.table(), chain, hop, role);
        ask(reader.table(), chain % MAX_CHAINS as u16, hop % MAX_HOPS as u8, role % 256);
    }
    for names in [&reader.table().ports[..], &reader.table().role_names[..]] {
        for name in names {
            let text = name.as_str();
            let (port, role) = (reader.table().port_number(text), reader.table().role_number(text));
            assert!(!text.is_empty() || (port, role) == (None, None), "nothing has no number");
        }
    }
}

fn ask(table: &Table, chain: u16, hop: u8, role: u16) {
    for destination in [table.hop(chain, hop), table.role(chain, hop, role)] {
        assert!(destination.replicas().len() <= MAX_REPLICAS);
        let _ = destination.balance();
    }
    if usize::from(chain) >= MAX_CHAINS || usize::from(hop) >= MAX_HOPS {
        assert!(table.hop(chain, hop).replicas().is_empty(), "what there is not goes to the engine");
    }
    let (from, to) = (usize::from(chain) % table.rings.len(), usize::from(role) % table.rings.len());
    let _ = table.rings[from][to].get();
}
