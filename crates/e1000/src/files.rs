// SPDX-License-Identifier: Apache-2.0
//! The files of a card and its client in a store ([`netvm_fd_store`]), from which another process can go on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use netvm_fd_store::{Store, StoredFiles};

use crate::nic::VECTORS;

/// Numbers of files: the client's connection, whose end ends all, the ring registers, the card's state, the eventfds of
/// INTx and of its unmasking, and of each MSI-X vector, and guest memory.
pub(crate) const CONNECTION: u32 = 0;
pub(crate) const PAGES: u32 = 1;
pub(crate) const STATE: u32 = 2;
pub(crate) const LINE: u32 = 3;
pub(crate) const UNMASK: u32 = 4;
pub(crate) const FIRST_VECTOR: u32 = 5;
pub(crate) const FIRST_MEMORY: u32 = FIRST_VECTOR + VECTORS as u32;

static STORE: OnceLock<Arc<Store>> = OnceLock::new();

/// Keeps the files of all cards that this process opens from now on, so that their guests stay connected when another
/// process takes its place. The first store stays.
pub fn keep_cards_in(store: Arc<Store>) {
    let _ = STORE.set(store);
}

/// The files of one card. Without a store, or once it is gone, nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct Files(Option<StoredFiles>);

/// Files that another process has left.
#[derive(Debug, Default)]
pub(crate) struct FilesLeft(Vec<(u32, OwnedFd)>);

impl FilesLeft {
    pub(crate) fn take(&mut self, number: u32) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(other, _)| *other == number)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Guest memory is mapped in many ranges.
    pub(crate) fn get(&self, number: u32) -> Option<&OwnedFd> {
        self.0.iter().find(|(other, _)| *other == number).map(|(_, file)| file)
    }
}

impl Files {
    /// Those of a card with this name, and what another process has left.
    pub(crate) fn open(name: &[u8]) -> io::Result<(Self, FilesLeft)> {
        let Some(store) = STORE.get() else { return Ok(<_>::default()) };
        store.open(name).map(|(kept, left)| (Self(Some(kept)), FilesLeft(left)))
    }

    /// An error means that the store has gone.
    fn with(&mut self, act: impl FnOnce(&StoredFiles) -> io::Result<()>) {
        self.0.take_if(|kept| act(kept).is_err());
    }

    pub(crate) fn put(&mut self, number: u32, file: impl AsFd) {
        self.with(|kept| kept.put(number, file));
    }

    /// Puts a file, or removes it.
    pub(crate) fn set(&mut self, number: u32, file: Option<&OwnedFd>) {
        self.with(|kept| file.map_or_else(|| kept.remove(number), |file| kept.put(number, file)));
    }

    pub(crate) fn forget(&mut self) {
        self.with(StoredFiles::forget);
    }
}
