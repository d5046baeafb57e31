// SPDX-License-Identifier: Apache-2.0
//! IPFIX messages (RFC 7011 section 3). In: records. Out: messages of at most a given size, with the templates that the
//! collector does not have yet.

use super::clock::Clock;
use super::item::Item;
use super::template::{SAMPLING, describe_sampling, write_sampling};

const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_SET: u16 = 3;

/// Builds one message after the other, for one transport session.
#[derive(Debug)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    limit: usize,
    domain: u32,
    sampling: u32,
    clock: Clock,
    /// Data records in earlier messages of the session.
    sequence: u32,
    /// Data records in this one,
    records: u32,
    /// and how many of them are about interfaces, not traffic.
    options: u32,
    /// Start and number of the open set.
    set: Option<(usize, u16)>,
    announced: [bool; Item::TEMPLATES],
    sampling_is_due: bool,
}

impl Messages {
    pub(super) fn new(limit: usize, domain: u32, sampling: u32, clock: Clock) -> Self {
        let mut messages = Self {
            bytes: Vec::with_capacity(limit),
            scratch: Vec::new(),
            limit,
            domain,
            sampling,
            clock,
            sequence: 0,
            records: 0,
            options: 0,
            set: None,
            announced: [false; Item::TEMPLATES],
            sampling_is_due: sampling > 1,
        };
        messages.begin();
        messages
    }

    fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
        (self.records, self.options, self.set) = (0, 0, None);
    }

    /// The collector has no templates: a new session.
    pub(super) fn restart(&mut self) {
        self.sequence = 0;
        self.forget_templates();
        self.begin();
    }

    /// Announces each template again before its next use (RFC 7011 section 8.4).
    pub(super) fn forget_templates(&mut self) {
        self.announced = [false; Item::TEMPLATES];
        self.sampling_is_due = self.sampling > 1;
    }

    /// Whether the message has no records.
    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Data records in the message, without those about interfaces.
    pub(super) const fn records(&self) -> u32 {
        self.records - self.options
    }

    /// Adds a record; false if the message has no room: take it first.
    pub(super) fn add(&mut self, item: &Item) -> bool {
        let before = (self.bytes.len(), self.set, self.announced, self.sampling_is_due, self.records);
        if self.sampling_is_due {
            self.sampling_is_due = false;
            self.append(OPTIONS_SET, describe_sampling);
            let interval = self.sampling;
            self.append(SAMPLING, |out| write_sampling(interval, out));
            self.records += 1;
        }
        let id = item.template_id();
        if let Some(known) = self.announced.get_mut(item.template_index())
            && !std::mem::replace(known, true)
        {
            let set = if item.is_option() { OPTIONS_SET } else { TEMPLATE_SET };
            self.append(set, |out| item.describe(out));
        }
        let clock = self.clock;
        self.append(id, |out| item.write(&clock, out));
        self.records += 1;
        self.options += u32::from(item.is_option());
        if self.bytes.len() > self.limit && before.4 > 0 {
            self.bytes.truncate(before.0);
            (self.set, self.announced, self.sampling_is_due, self.records) =
                (before.1, before.2, before.3, before.4);
            self.options -= u32::from(item.is_option());
            return false;
        }
        true
    }

    /// Appends to the open set if it has this number, else to a new one.
    fn append(&mut self, set: u16, write: impl FnOnce(&mut Vec<u8>)) {
        if self.set.is_none_or(|(_, open)| open != set) {
            self.close_set();
            self.set = Some((self.bytes.len(), set));
            self.bytes.extend(set.to_be_bytes());
            self.bytes.extend([0; SET_HEADER - 2]);
        }
        self.scratch.clear();
        write(&mut self.scratch);
        self.bytes.extend_from_slice(&self.scratch);
    }

    fn close_set(&mut self) {
        if let Some((start, _)) = self.set.take() {
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// Takes the message, whose export time is `unix_seconds`, and begins the next. Returns it and its records without
    /// those about interfaces.
    pub(super) fn take(&mut self, unix_seconds: u32, out: &mut Vec<u8>) -> u32 {
        self.close_set();
        let (length, records, traffic) = (self.bytes.len() as u16, self.records, self.records());
        let header = [
            &VERSION.to_be_bytes()[..],
            &length.to_be_bytes(),
            &unix_seconds.to_be_bytes(),
            &self.sequence.to_be_bytes(),
            &self.domain.to_be_bytes(),
        ]
        .concat();
        self.bytes[..HEADER].copy_from_slice(&header);
        out.clear();
        out.extend_from_slice(&self.bytes);
        self.sequence = self.sequence.wrapping_add(records);
        self.begin();
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{EndReason, Record};
    use crate::meter::{Meter, Settings};
    use crate::table::Tagged;
    use crate::testing::frame;

    fn records(count: u32) -> Vec<Record> {
        let settings = Settings { idle: 10, active: 100, sampling: 1, names: 4 };
        let (producer, mut consumer) = rtrb::RingBuffer::new(count as usize);
        let mut meter = Meter::new(Tagged::new(count as usize), settings, Some(producer));
        for n in 0..count {
            let frame = frame(n);
            meter.packet(&frame, netvm_wire::parse(&frame).ok().as_ref(), (3, 1_000_000));
        }
        meter.finish(|| false);
        let records: Vec<_> = std::iter::from_fn(|| consumer.pop().ok()).collect();
        assert!(records.len() == count as usize && records.iter().all(|r| r.reason == EndReason::Forced));
        records
    }

    const CLOCK: Clock =
        Clock { cycles: 1_000_000, unix_micros: 1_700_000_000_000_000, per_second: 1_000_000 };

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn half(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    #[test]
    fn messages_keep_their_size_and_count_records() {
        let mut messages = Messages::new(500, 7, 1, CLOCK);
        let (mut out, mut sent, mut templates) = (Vec::new(), 0, 0);
        let records = records(100);
        let mut rest = records.iter().peekable();
        while rest.peek().is_some() {
            while let Some(record) = rest.next_if(|record| messages.add(&Item::Flow(**record, None))) {
                assert_eq!(record.ingress, 3);
            }
            let count = messages.take(1_700_000_001, &mut out);
            assert!(count > 0 && out.len() <= 500);
            assert_eq!((half(&out, 0), usize::from(half(&out, 2))), (10, out.len()));
            assert_eq!((word(&out, 4), word(&out, 8), word(&out, 12)), (1_700_000_001, sent, 7));
            sent += count;
            let mut at = HEADER;
            while at < out.len() {
                templates += u32::from(half(&out, at) == TEMPLATE_SET);
                at += usize::from(half(&out, at + 2));
            }
            assert_eq!(at, out.len(), "sets fill the message");
        }
        assert_eq!((sent, templates), (100, 1));
        messages.forget_templates();
        assert!(messages.add(&Item::Flow(records[0], None)) && messages.take(0, &mut out) == 1);
        assert_eq!(half(&out, HEADER), TEMPLATE_SET, "announced again");
        messages.restart();
        assert!(messages.add(&Item::Flow(records[0], None)) && messages.take(0, &mut out) == 1);
        assert_eq!(word(&out, 8), 0, "a new session counts from 0");
    }

    #[test]
    fn cycles_become_unix_time() {
        assert_eq!(CLOCK.millis(1_000_000), 1_700_000_000_000);
        assert_eq!(CLOCK.millis(3_500_000), 1_700_000_002_500);
        assert_eq!(CLOCK.millis(0), 1_699_999_999_000);
    }
}
