// SPDX-License-Identifier: Apache-2.0
//! [`Shared`]: what the tables of all workers have in common.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use netvm_flow_table::NoMemory;
use netvm_wire::FlowHasher;

use super::Exceptions;
use crate::config::Config;
use crate::nat::{Blocks, ContactTable, Mappings};

/// What the tables of all workers share: the mappings of sources, and which connections are exceptions.
pub struct Shared {
    pub(crate) hasher: FlowHasher,
    /// Hashes what is to be the same after a restart.
    pub(crate) stable: FlowHasher,
    mappings: OnceLock<Mutex<Mappings>>,
    sessions: u32,
    /// Of several workers.
    exceptions: OnceLock<Exceptions>,
}

impl Shared {
    /// Sets the memory aside: `mappings`, `blocks` and `block_events` are those of all workers together.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(config: &Config) -> Result<Arc<Self>, NoMemory> {
        let shared = Arc::new(Self {
            hasher: FlowHasher::new(),
            stable: config.mapping_key.map_or_else(FlowHasher::new, FlowHasher::with_key),
            mappings: OnceLock::new(),
            sessions: config.sessions,
            exceptions: OnceLock::new(),
        });
        shared.allow_mappings(config)?;
        Ok(shared)
    }

    /// Sets memory aside for mappings, if it is not done yet and there are to be any. Of `config`, it takes `mappings`,
    /// `blocks` and `block_events`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn allow_mappings(&self, config: &Config) -> Result<(), NoMemory> {
        if config.mappings > 0 && self.mappings.get().is_none() {
            let blocks = Blocks::new(config.blocks.min(1 << 28), config.block_events)?;
            let mappings = Mappings::new(config.mappings.min(1 << 28), blocks)?;
            // Nobody else has done it meanwhile.
            let _ = self.mappings.set(Mutex::new(mappings));
        }
        Ok(())
    }

    /// Sets memory aside for the exceptions of so many workers: all of their connections may be some. Call it before
    /// there are several; it is done once.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn allow_workers(&self, workers: usize) -> Result<(), NoMemory> {
        if workers > 1 && self.exceptions.get().is_none() {
            let most = self.sessions.saturating_mul(workers as u32);
            // Nobody else has done it meanwhile.
            let _ = self.exceptions.set(Exceptions::new(most)?);
        }
        Ok(())
    }

    /// Notes from now on whom ends inside have sent to, for pools that filter by address. Without it, these filter by
    /// address and port.
    pub fn filter_by_address(&self, contacts: ContactTable) {
        if let Some(mut mappings) = self.mappings() {
            mappings.filter_by_address(contacts);
        }
    }

    pub(crate) fn exceptions_if_any(&self) -> Option<&Exceptions> {
        self.exceptions.get().filter(|exceptions| !exceptions.is_empty())
    }

    /// Notes that a worker has the connection with this hash. Returns false if there is no room, or another has it.
    pub(crate) fn add_exception(&self, hash: u64, worker: u8) -> bool {
        self.exceptions.get().is_some_and(|exceptions| exceptions.add(hash, worker))
    }

    /// Connections, or directions of them, that another worker has than their hash says.
    #[must_use]
    pub fn exceptions(&self) -> u32 {
        self.exceptions.get().map_or(0, Exceptions::len)
    }

    /// The mappings, if there are to be any. Other workers wait meanwhile: do what takes long before.
    pub(crate) fn mappings(&self) -> Option<MutexGuard<'_, Mappings>> {
        let mappings = self.mappings.get()?;
        Some(mappings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
