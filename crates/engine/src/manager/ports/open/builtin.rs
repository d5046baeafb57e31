//! Opens ports without a device: capture files, patches, the traffic source and the sink.

use std::sync::Arc;

use netvm_capture::{CaptureReader, CaptureWriter, WriterOptions};
use netvm_model::{PortConfig, PortKind};

use super::{Opened, Queues, Site};
use crate::ids::WorkerId;
use crate::interface::Device;
use crate::interface::missed::Missed;
use crate::interface::patch::{Patch, PatchEnd};
use crate::interface::pcap::{Capture, Progress};
use crate::interface::sink::Sink;
use crate::interface::source::Source;
use crate::manager::ports::OpenProblem;

pub(super) fn open_patch(end: PatchEnd, site: &Site) -> Opened {
    let (worker, memory) = site.queue(0);
    let device = Patch::open(end.clone(), memory.id);
    let queues: Queues = vec![(worker, Box::new(device))];
    Opened { patch: Some(end), ..Opened::new(queues, "patch".to_owned()) }
}

pub(super) fn open(config: &PortConfig, site: &Site) -> Result<Opened, OpenProblem> {
    let (worker, memory) = site.queue(0);
    let room = memory.region().geometry().room();
    if config.queues > 1 && matches!(config.kind, PortKind::Pcap { .. }) {
        return Err(OpenProblem::OneQueue { wanted: config.queues });
    }
    match &config.kind {
        PortKind::Pcap { input, output, paced } => {
            let input = input.as_deref().map(CaptureReader::open).transpose()?;
            // The output keeps the input's format, so no time stamp loses precision.
            let options = match (&input, output) {
                (Some(input), Some(output)) => WriterOptions::for_output(output, input),
                _ => WriterOptions::default(),
            };
            let output = output.as_deref().map(|path| CaptureWriter::create(path, options)).transpose()?;
            let progress = Arc::new(Progress::default());
            let device = Capture::new(config.id, input, output, *paced, Arc::clone(&progress));
            let queues: Queues = vec![(worker, Box::new(device))];
            Ok(Opened { progress: Some(progress), ..Opened::new(queues, "capture file".to_owned()) })
        }
        PortKind::Source(source) if u32::from(source.size) > room => {
            Err(OpenProblem::TooLong { wanted: source.size.into(), room })
        }
        PortKind::Source(source) => {
            let common = Arc::default();
            let count = config.queues.max(1);
            let queue = |n: u16| -> (WorkerId, Box<dyn Device>) {
                (site.queue(n.into()).0, Box::new(Source::new(source, (n, count), &common)))
            };
            let queues = (0..count).map(queue).collect();
            let opened = Opened::new(queues, "built-in source".to_owned());
            Ok(Opened { missed: vec![Missed::Source(common)], ..opened })
        }
        // A sink for each worker: they share nothing.
        _ => {
            let queue = |n: usize| -> (WorkerId, Box<dyn Device>) { (site.queue(n).0, Box::new(Sink)) };
            let queues = (0..site.queues_by_default()).map(queue).collect();
            Ok(Opened::new(queues, "built-in sink".to_owned()))
        }
    }
}
