// SPDX-License-Identifier: Apache-2.0
//! The difference between the configuration file and the running configuration.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use netvm_api::Drift;
use netvm_model::Host;

use super::LiveSet;
use crate::runtime::lock;

/// A difference, and its inputs.
#[derive(Debug)]
struct Known {
    modified: Option<SystemTime>,
    running: Arc<Host>,
    drift: Drift,
}

/// The last difference: files with many rules take long to read.
#[derive(Debug, Default)]
pub(super) struct DriftCache(Mutex<Option<Known>>);

impl DriftCache {
    /// The difference. May take as long as reading the file; call it off the runtime's thread.
    pub(super) fn find(&self, config: &Path, running: &Arc<Host>, live: &LiveSet) -> Drift {
        let modified = std::fs::metadata(config).and_then(|metadata| metadata.modified()).ok();
        let mut known = lock(&self.0);
        match &*known {
            Some(known) if known.modified == modified && Arc::ptr_eq(&known.running, running) => {
                known.drift.clone()
            }
            _ => {
                let drift = between(config, &live.without(running));
                *known = Some(Known { modified, running: Arc::clone(running), drift: drift.clone() });
                drift
            }
        }
    }
}

fn between(config: &Path, running: &Host) -> Drift {
    let text = match std::fs::read_to_string(config) {
        Ok(text) => text,
        Err(error) => return Drift::Unreadable { reason: error.to_string() },
    };
    match netvm_config::parse(&config.display().to_string(), &text) {
        Ok(mut loaded) => {
            netvm_model::assign_ids(&mut loaded.host, Some(running));
            match netvm_config::plan(running, &loaded.host).changes.len() {
                0 => Drift::None,
                changes => Drift::Changes { changes: changes as u64 },
            }
        }
        Err(error) => Drift::Unreadable { reason: error.to_string() },
    }
}
