// SPDX-License-Identifier: Apache-2.0
//! The built-in traffic source.

mod device;

use std::sync::Arc;

use netvm_model::SourceConfig;

use super::control::{Control, OpenProblem, Opened, Opening, Queues};
use device::{SharedState, Source};

/// The control side.
struct Generator(Arc<SharedState>);

impl Control for Generator {
    fn missed(&self) -> u64 {
        self.0.missed()
    }
}

pub(super) fn open(opening: &Opening<'_>, source: &SourceConfig) -> Result<Opened, OpenProblem> {
    let room = opening.queue(0).1.region().geometry().room();
    if u32::from(source.size) > room {
        return Err(OpenProblem::TooLong { wanted: source.size.into(), room });
    }
    let (common, count) = (Arc::default(), opening.queues());
    let mut queues = Queues::new();
    for n in 0..count {
        let (worker, _) = opening.queue(n.into());
        queues.push((worker, Box::new(Source::new(source, (n, count), &common))));
    }
    Ok(Opened::new(queues, "built-in source", Generator(common)))
}
