//! Packets of a burst in a row that have something in common.

use dpdk::{Batch, Mbuf};

/// Splits a batch into runs of packets with the same key, in order, and gives each to `each`, which empties it.
pub(crate) fn runs<K: PartialEq + Copy>(
    batch: &mut Batch,
    mut key: impl FnMut(&Mbuf) -> K,
    mut each: impl FnMut(K, &mut Batch),
) {
    let mut run = Batch::new();
    let mut current = None;
    for mbuf in batch.drain() {
        let this = key(&mbuf);
        if let Some(before) = current
            && before != this
        {
            each(before, &mut run);
        }
        current = Some(this);
        // A run is no longer than the batch it comes from: there is room.
        let _ = run.push(mbuf);
    }
    if let Some(last) = current {
        each(last, &mut run);
    }
}

/// Splits a batch into packets with the same key, in order among themselves, and gives each group to `each`, which
/// empties it. `key` gets the index of a packet in the batch.
pub(crate) fn groups<K: PartialEq>(
    batch: &mut Batch,
    key: impl Fn(usize) -> K,
    mut each: impl FnMut(K, &mut Batch),
) {
    let mut indexes = [0u8; Batch::CAPACITY];
    for (n, index) in (0u8..).zip(&mut indexes) {
        *index = n;
    }
    while !batch.is_empty() {
        let chosen = key(indexes[0].into());
        let (mut same, mut others) = (Batch::new(), Batch::new());
        for (n, mbuf) in batch.drain().enumerate() {
            let index = indexes[n];
            // Each is as large as the batch that they come from: there is room.
            if key(index.into()) == chosen {
                let _ = same.push(mbuf);
            } else {
                indexes[others.len()] = index;
                let _ = others.push(mbuf);
            }
        }
        each(chosen, &mut same);
        batch.append(&mut others);
    }
}
