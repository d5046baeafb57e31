// SPDX-License-Identifier: Apache-2.0
//! The pcap port: reads one capture and writes another, with time stamps and original lengths.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use dpdk::{Batch, Mbuf, PortNumber};
use netvm_capture::{CaptureReader, CaptureWriter, Timestamp, WriteError};
use netvm_clock as clock;

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::interface::device::{Device, Expects, PortContext};
use crate::interface::sink::count_as_sent;
use crate::memory::{Memory, Stamp};

/// Progress of a capture port, shared with the manager.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The input has been read to its end.
    pub(super) done: AtomicBool,
    /// The error that stopped it early.
    fault: Mutex<Option<String>>,
    /// The fault was reported.
    is_reported: AtomicBool,
}

impl Progress {
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.lock().ok()?.clone()
    }

    /// The fault, if it has not been reported yet.
    pub(super) fn new_fault(&self) -> Option<String> {
        let fault = self.fault()?;
        (!self.is_reported.swap(true, Ordering::Relaxed)).then_some(fault)
    }
}

/// How long a busy worker leaves written packets in memory, before other programs see them in the file.
const FLUSH_MICROS: u64 = 100_000;

/// Most frames that a port reads for one burst, skipped ones included.
const MAX_READS: usize = 64;

/// A capture port.
pub(super) struct Capture {
    port: PortId,
    input: Option<CaptureReader>,
    output: Option<CaptureWriter>,
    written: Vec<u8>,
    /// Since when packets that were written are only in memory.
    buffered: Option<u64>,
    pace: Option<RateLimit>,
    progress: Arc<Progress>,
    output_failed: bool,
    /// The time stamp and length of a frame that has no packet buffer yet; its bytes are in `buffer`.
    held: Option<(Timestamp, u32)>,
    buffer: Vec<u8>,
}

struct RateLimit {
    hertz: u64,
    start: Option<(u64, Timestamp)>,
}

impl RateLimit {
    fn is_due(&mut self, time: Timestamp) -> bool {
        let now = clock::cycles();
        let (start, first) = *self.start.get_or_insert((now, time));
        let passed = u128::from(now.wrapping_sub(start)) * 1_000_000_000 / u128::from(self.hertz);
        u128::from(time.0.saturating_sub(first.0)) <= passed
    }
}

impl Capture {
    pub(super) fn new(
        port: PortId,
        input: Option<CaptureReader>,
        output: Option<CaptureWriter>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            port,
            input,
            output,
            written: Vec::new(),
            buffered: None,
            pace: None,
            progress,
            output_failed: false,
            held: None,
            buffer: Vec::new(),
        }
    }

    /// Receives frames at the intervals of their time stamps if `is_on`, instead of at once.
    pub(super) fn with_pace(mut self, is_on: bool) -> Self {
        self.pace = is_on.then(|| RateLimit { hertz: clock::cycles_per_second(), start: None });
        self
    }

    /// Reports the first fault of the input.
    fn report(&self, text: String) {
        if let Ok(mut fault) = self.progress.fault.lock() {
            fault.get_or_insert(text);
        }
    }

    /// Reports the first fault of the output, even after one of the input.
    fn report_output(&mut self, text: String) {
        if std::mem::replace(&mut self.output_failed, true) {
            return;
        }
        if let Ok(mut fault) = self.progress.fault.lock() {
            *fault = Some(text);
            self.progress.is_reported.store(false, Ordering::Relaxed);
        }
    }

    /// Reads the next frame into `held`. Skips frames that cannot be read; closes the input at its end, and after an
    /// error that leaves no way to find the next frame.
    fn read(&mut self) {
        let Some(reader) = &mut self.input else { return };
        match reader.next_frame() {
            Ok(Some(frame)) => {
                self.buffer.clear();
                self.buffer.extend_from_slice(frame.data);
                self.held = Some((frame.timestamp, frame.orig_len));
            }
            Ok(None) => self.input = None,
            Err(error) => {
                let is_done = reader.is_done();
                self.report(error.to_string());
                if is_done {
                    self.input = None;
                }
            }
        }
    }

    fn write(&mut self, memory: &Memory, mbuf: &Mbuf) -> Result<(), WriteError> {
        let Some(writer) = &mut self.output else { return Ok(()) };
        // Packets from other ports get the current time.
        let Stamp { time, original } =
            memory.stamp(mbuf).unwrap_or_else(|| Stamp { time: now(), original: 0 });
        let length = u32::from(mbuf.data_len());
        self.written.resize(length as usize, 0);
        mbuf.copy_to(&mut self.written);
        self.buffered.get_or_insert_with(clock::cycles);
        writer.write(Timestamp(time), original.max(length), &self.written)
    }

    /// Puts what was written into the file.
    fn settle(&mut self) {
        self.buffered = None;
        if let Some(Err(error)) = self.output.as_mut().map(CaptureWriter::flush) {
            self.report_output(error.to_string());
        }
    }
}

/// In nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Device for Capture {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, _cx: &PortContext<'_>) {
        let geometry = memory.region().geometry();
        let mut reads = 0;
        while out.len() < wanted {
            if self.held.is_none() && self.input.is_some() {
                // Frames that are skipped take no longer than others.
                if reads == MAX_READS {
                    return;
                }
                reads += 1;
                self.read();
            }
            let Some((time, original)) = self.held else {
                if self.input.is_some() {
                    continue;
                }
                self.progress.done.store(true, Ordering::Release);
                return;
            };
            let bytes = &self.buffer;
            if let Some(pace) = &mut self.pace
                && !pace.is_due(time)
            {
                return;
            }
            if bytes.len() > geometry.room() as usize {
                let offset = self.input.as_ref().map_or(0, CaptureReader::offset);
                let (length, room) = (bytes.len(), geometry.room());
                self.report(format!(
                    "at byte {offset}: a frame of {length} bytes is skipped, as a buffer has room for {room}: raise buffer_size"
                ));
                self.held = None;
                continue;
            }
            let mut one = Batch::new();
            memory.pool.alloc_into(&mut one, 1);
            let Some(mut mbuf) = one.pop() else { return };
            if mbuf.set_bounds(geometry.headroom as u16, 0).is_ok() && mbuf.copy_from(bytes).is_ok() {
                mbuf.set_port(PortNumber(self.port.0));
                memory.set_stamp(&mbuf, Some(Stamp { time: time.0, original }));
                out.add(mbuf);
            }
            self.held = None;
        }
    }

    fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        batch.retain(|mbuf| match self.write(memory, mbuf) {
            Ok(()) => true,
            Err(error) => {
                self.report_output(error.to_string());
                cx.note_drop(DropReason::PortDown, mbuf);
                false
            }
        });
        count_as_sent(batch, cx);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        let passed = self.buffered.map_or(0, |since| clock::cycles().wrapping_sub(since));
        if passed > clock::cycles_in_micros(FLUSH_MICROS) {
            self.settle();
        }
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn needs_flush(&self) -> bool {
        self.buffered.is_some()
    }

    fn drop_unsent(&mut self, _cx: &PortContext<'_>) {}

    fn prepare_wait(&mut self) {
        if self.buffered.is_some() {
            self.settle();
        }
    }

    fn expects(&self) -> Expects<'_> {
        if self.input.is_none() && self.held.is_none() { Expects::Nothing } else { Expects::Unnoticed }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(writer) = self.output.take()
            && let Err(error) = writer.finish()
        {
            self.report_output(error.to_string());
        }
    }
}
