// SPDX-License-Identifier: Apache-2.0
//! NFs that return packets in another order, changed, or twice.

use netvm_ring::{Descriptor, VerdictKind};

use super::raw::{Attached, attach};

/// What an NF makes of a burst.
pub type Change = fn(&mut Vec<Descriptor>);

pub fn change_of(kind: &str) -> Option<Change> {
    Some(match kind {
        "reversed" => |burst| burst.reverse(),
        // One of seven is overtaken by all others of its burst.
        "late" => |burst| {
            let (late, rest): (Vec<_>, Vec<_>) = burst.iter().partition(|d| d.buffer() % 7 == 0);
            *burst = [rest, late].concat();
        },
        "trimmed" => |burst| {
            for descriptor in burst {
                *descriptor = descriptor.with_span(descriptor.offset() + 4, descriptor.length() - 4);
            }
        },
        // As a hostile one may: longer than its buffer.
        "stretched" => |burst| {
            for descriptor in burst.iter_mut().filter(|d| d.buffer() % 3 == 0) {
                *descriptor = descriptor.with_span(descriptor.offset(), u16::MAX);
            }
        },
        "twice" => |burst| *burst = burst.iter().flat_map(|descriptor| [*descriptor; 2]).collect(),
        "dropping" => |burst| {
            for descriptor in burst.iter_mut().filter(|d| d.buffer() % 3 == 0) {
                *descriptor = descriptor.with_verdict(VerdictKind::Drop, 0);
            }
        },
        _ => return None,
    })
}

pub fn return_changed(change: Change) -> ! {
    let Attached { mut rings, control: _control, socket: _socket, .. } = attach("changing");
    loop {
        for (consumer, producer) in &mut rings {
            let mut burst = [Descriptor::default(); 50];
            let count = consumer.pop(&mut burst);
            let mut burst = burst[..count].to_vec();
            change(&mut burst);
            let mut rest = burst.as_slice();
            while !rest.is_empty() {
                rest = &rest[producer.push(rest)..];
            }
        }
    }
}
