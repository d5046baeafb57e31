//! An arbitrary next-hop table, as an NF may be passed it.

use netvm_region::{MAX_CHAINS, MAX_HOPS, MAX_REPLICAS, Table, TableReader};

use crate::control::memory;
use crate::input::Input;

/// Where the reader finds the epoch and the table.
const EPOCH_AT: usize = 128;
const TABLE_AT: usize = 4096;
const BYTES: usize = (TABLE_AT + size_of::<Table>()).next_multiple_of(4096);

/// Reads a table of the fuzzer's making and looks up whatever the fuzzer asks for.
pub fn table(data: &[u8]) {
    let mut input = Input::new(data);
    let (short, epoch, seed) = (input.u8(), u64::from(input.u8()), input.u8());
    let mut content = vec![seed; BYTES];
    content[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&epoch.to_le_bytes());
    let questions: Vec<_> = (0..8).map(|_| (input.u16(), input.u8(), input.u16())).collect();
    while !input.is_empty() {
        let at = TABLE_AT + input.u32() as usize % size_of::<Table>();
        let bytes = input.u8();
        let bytes = input.bytes(usize::from(bytes));
        let end = (at + bytes.len()).min(BYTES);
        content[at..end].copy_from_slice(&bytes[..end - at]);
    }
    let missing = if short % 8 == 0 { usize::from(short) } else { 0 };
    let Ok(mut reader) = TableReader::open(memory("fuzz-table", &content, (BYTES - missing) as u64)) else {
        return assert!(missing > 0, "a table of the right size is mapped");
    };
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
