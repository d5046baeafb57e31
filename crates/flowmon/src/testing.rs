// SPDX-License-Identifier: Apache-2.0
//! What tests of this crate share.

use netvm_wire::{FlowHasher, FrameBuilder, MacAddr};

use crate::entry::Sample;
use crate::key::Key;

/// A UDP packet of flow `number` at `now`.
pub(crate) fn sample(hasher: &FlowHasher, number: u32, now: u64) -> Sample {
    let frame = frame(number);
    let headers = netvm_wire::parse(&frame).unwrap();
    let (key, from_higher) = Key::of(&headers);
    let hash = hasher.words(key.words());
    Sample { key, hash, from_higher, tcp_flags: 0, ingress: 0, bytes: 60, octets: 46, now }
}

/// A frame of flow `number`.
pub(crate) fn frame(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let builder = builder.ip([10, a, b, c].into(), [192, 0, 2, 1].into());
    builder.udp(1024 + u16::from(d), 53).frame_len(60).to_vec().unwrap()
}
