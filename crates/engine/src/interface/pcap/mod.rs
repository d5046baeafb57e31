// SPDX-License-Identifier: Apache-2.0
//! Captures, read and written.

mod device;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use netvm_capture::{CaptureReader, CaptureWriter, WriterOptions};

use super::control::{Control, OpenProblem, Opened, Opening};
use device::{Capture, Progress};

/// The control side.
struct Pcap(Arc<Progress>);

impl Control for Pcap {
    fn fault(&self) -> Option<String> {
        self.0.fault()
    }

    fn new_fault(&mut self) -> Option<String> {
        self.0.new_fault()
    }

    fn is_done(&self) -> Option<bool> {
        Some(self.0.done.load(Ordering::Acquire))
    }

    fn close(self: Box<Self>) -> Option<String> {
        self.0.new_fault()
    }
}

pub(super) fn open(
    opening: &Opening<'_>,
    input: Option<&Path>,
    output: Option<&Path>,
    paced: bool,
) -> Result<Opened, OpenProblem> {
    opening.check_one_queue()?;
    let input = input.map(CaptureReader::open).transpose()?;
    // The output keeps the input's format, so no time stamp loses precision.
    let options = match (&input, output) {
        (Some(input), Some(output)) => WriterOptions::for_output(output, input),
        _ => WriterOptions::default(),
    };
    let output = output.map(|path| CaptureWriter::create(path, options)).transpose()?;
    let progress = Arc::new(Progress::default());
    let device = Capture::new(opening.config.id, input, output, Arc::clone(&progress)).with_pace(paced);
    Ok(Opened::of_one(opening, device, "capture file", Pcap(progress)))
}
