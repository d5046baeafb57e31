// SPDX-License-Identifier: Apache-2.0
//! Splits bursts by a common key.

use dpdk::Batch;

/// Packets of a batch.
const MAX: usize = Batch::CAPACITY;

/// Splits a batch into groups of packets with the same key, and calls `each` with each group, which it empties. Packets
/// of a group keep their order. `key` gets the index of a packet in the batch.
///
/// Cost: a compare with the key of each group so far, and two moves, for each packet.
pub(crate) fn groups<K: PartialEq>(
    batch: &mut Batch,
    key: impl Fn(usize) -> K,
    mut each: impl FnMut(K, &mut Batch),
) {
    let count = batch.len();
    // A group is the list of its packets: the first and the last of each group, and the next of each packet.
    let (mut firsts, mut lasts, mut nexts) = ([0u8; MAX], [0u8; MAX], [0u8; MAX]);
    let mut known = 0;
    for n in 0..count {
        let this = key(n);
        match firsts[..known].iter().position(|first| key((*first).into()) == this) {
            Some(group) => {
                nexts[usize::from(lasts[group])] = n as u8;
                lasts[group] = n as u8;
            }
            None => {
                (firsts[known], lasts[known]) = (n as u8, n as u8);
                known += 1;
            }
        }
    }
    if known == 1 {
        return each(key(0), batch);
    }
    let mut packets = [const { None }; MAX];
    for (slot, mbuf) in packets.iter_mut().zip(batch.drain()) {
        *slot = Some(mbuf);
    }
    let mut same = Batch::new();
    for (first, last) in firsts[..known].iter().zip(lasts) {
        let mut n = *first;
        loop {
            if let Some(mbuf) = packets[usize::from(n)].take() {
                same.add(mbuf);
            }
            if n == last {
                break;
            }
            n = nexts[usize::from(n)];
        }
        each(key((*first).into()), &mut same);
    }
}
