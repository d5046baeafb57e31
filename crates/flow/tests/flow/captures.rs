// SPDX-License-Identifier: Apache-2.0
//! Captures of ordinary and broken traffic: both parsers give the same keys, and the cache gives one decision for each.

use std::collections::HashMap;

use netvm_capture::CaptureReader;
use netvm_flow::{FlowCache, New, Options, Slot, Validity};
use netvm_wire::{FlowKey, parse_prefix};

const NOW: Validity = Validity { generation: 1, now: 1 };

#[test]
fn captures_have_one_key_each_and_one_decision() {
    let folder = tempfile::tempdir().unwrap();
    let mut cache = FlowCache::new(&Options { entries: 1 << 14, ..Options::default() }).unwrap();
    let mut known: HashMap<FlowKey, u32> = HashMap::new();
    let (mut frames, mut malformed) = (0u32, 0u32);
    for path in netvm_workload::captures::write(folder.path()).unwrap() {
        let Ok(mut reader) = CaptureReader::open(&path) else { continue };
        while let Ok(Some(frame)) = reader.next_frame() {
            let length = frame.orig_len as usize;
            for cut in (0..frame.data.len().min(100)).chain([frame.data.len()]) {
                let headers = &frame.data[..cut];
                let general = parse_prefix(headers, length).map(|headers| *headers.key());
                assert_eq!(FlowKey::of_frame(headers, length), general, "{cut} bytes of {:02x?}", frame.data);
            }
            frames += 1;
            let Ok(key) = FlowKey::of_frame(frame.data, length) else {
                malformed += 1;
                continue;
            };
            let mut slots = [Slot::FIRST];
            if cache.find(0, &[key], NOW, &mut slots) == 1 {
                assert_eq!(cache.hit(slots[0], 1, 64, 1).decision, known[&key]);
            } else {
                let decision = known.len() as u32;
                assert_eq!(known.insert(key, decision), None, "there is room for all");
                cache.insert(0, &key, New { decision, extra: 0, lifetime: Options::NEVER }, NOW);
            }
        }
    }
    println!("{frames} frames, {malformed} malformed, {} flows, {:?}", known.len(), cache.counters());
    assert!(frames > 1000 && malformed < frames / 2);
    assert_eq!(cache.counters().evictions, 0);
}
