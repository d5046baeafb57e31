// SPDX-License-Identifier: Apache-2.0
//! What ports with a fast path share: the network namespace with the other ends of their interfaces, and the kernel's
//! flow table. Neither is made before a port needs it.

mod sampler;

use std::cell::{Cell, OnceCell};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_kernel_flows::{Hook, PortEnds, PortPrograms, ProgramError, Table, TableSize};
use netvm_vnet::{LinkState, OpenError, Pair, PrivateNamespace};
use netvm_wire::MacAddr;

use crate::ids::PortId;
use crate::kept::{InterfaceStore, KeptNamespace};
pub(crate) use sampler::{Intervals, Sample, Sampler};

/// Flows that the table has room for, 12 MB of the kernel's memory.
const FLOWS: u32 = 1 << 16;
const SIZE: TableSize = TableSize { ports: netvm_region::MAX_PORTS as u32, flows: FLOWS };

/// Why a port has no fast path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FastPathError {
    /// The table, the namespace or the programs.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The interface.
    #[error(transparent)]
    Interface(#[from] OpenError),
}

/// The table, once a port has needed it.
#[derive(Debug, Default)]
pub(crate) struct KernelFlows(OnceCell<Arc<Shared>>);

/// Table and namespace.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) namespace: Arc<PrivateNamespace>,
    pub(crate) table: Table,
    /// Keeps the namespace for the next netvmd. The table is always a new one: what an earlier one knows, the rules of
    /// now may forbid.
    kept: Mutex<KeptNamespace>,
}

impl KernelFlows {
    /// Makes what ports share, unless that is there.
    pub(crate) fn make(&self, store: &InterfaceStore) -> Result<&Arc<Shared>, ProgramError> {
        if let Some(shared) = self.0.get() {
            return Ok(shared);
        }
        let table = Table::new(SIZE).map_err(ProgramError::Place)?;
        let (mut kept, left) = store.open_namespace();
        let adopted = left.and_then(|file| PrivateNamespace::adopt(file).ok());
        let namespace = match adopted {
            Some(namespace) => namespace,
            None => {
                let namespace = PrivateNamespace::new().map_err(ProgramError::Place)?;
                kept.keep(&namespace);
                namespace
            }
        };
        let (namespace, kept) = (Arc::new(namespace), Mutex::new(kept));
        Ok(self.0.get_or_init(|| Arc::new(Shared { namespace, table, kept })))
    }

    /// What ports share, if any has needed it.
    pub(crate) fn get(&self) -> Option<&Arc<Shared>> {
        self.0.get()
    }
}

impl Shared {
    fn with_kept(&self, act: impl FnOnce(&mut KeptNamespace)) {
        act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Keeps the namespace again, after the store has ended.
    pub(crate) fn keep_again(&self, store: &InterfaceStore) {
        self.with_kept(|kept| kept.keep_again(store, &*self.namespace));
    }

    /// Keeps the namespace until there is another netvmd, as flows continue.
    pub(crate) fn keep_on(&self) {
        self.with_kept(KeptNamespace::keep_on);
    }

    /// Removes what an earlier netvmd has left there, but for these.
    pub(crate) fn remove_others(&self, ends: impl Iterator<Item = FastEnd>) {
        let ends: Vec<u32> = ends.map(|end| end.interface).collect();
        // If this fails, nothing passes them all the same.
        let _ = self.namespace.remove_others(&ends);
    }
}

/// What the container's end is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastEnd {
    /// Index of the other end.
    pub(crate) interface: u32,
    /// The longest packet that the container takes, in bytes behind the Ethernet header.
    pub(crate) mtu: u32,
    /// Whether the kernel may pass packets from and to it: it is up, and neither an XDP program nor a worker has to see
    /// them.
    pub(crate) is_open: bool,
}

/// The fast path of a port. Dropping it removes the interface.
#[derive(Debug)]
pub(crate) struct FastPort {
    shared: Arc<Shared>,
    slot: u32,
    end: Cell<FastEnd>,
    // Before the pair, on which they run.
    programs: PortPrograms,
    pair: Pair,
}

impl FastPort {
    /// Joins both ends: what the kernel does not know goes to netvm.
    /// `links`: those of the programs that an earlier netvmd has left at them.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        port: PortId,
        pair: Pair,
        links: Option<[OwnedFd; 2]>,
    ) -> Result<Self, ProgramError> {
        let slot = port.0.into();
        shared.table.set_epoch(slot, 0);
        let ends = PortEnds { slot, veth: pair.outer(), tap: pair.tap() };
        let attach = || match links {
            Some(links) => PortPrograms::adopt(&shared.table, &ends, links),
            None => PortPrograms::attach(&shared.table, &ends, Hook::allowed()),
        };
        let programs = shared.namespace.inside(attach).map_err(ProgramError::Place)??;
        let end = Cell::new(FastEnd { interface: pair.outer(), mtu: 0, is_open: false });
        Ok(Self { shared: Arc::clone(shared), slot, end, programs, pair })
    }

    /// What a port's driver says of it.
    pub(crate) const fn text(&self) -> &'static str {
        match self.programs.hook() {
            Hook::Tcx => ", fast path",
            Hook::Clsact => ", fast path by clsact",
        }
    }

    /// Follows the container's end. While an XDP program runs on it, all its packets take the way through the pair.
    pub(crate) fn follow(&self, state: LinkState) {
        let LinkState { is_up, mtu, mac, has_xdp } = state;
        self.shared.table.set_mac(self.slot, mac.filter(|_| !has_xdp).map(MacAddr));
        // If this fails, the container may send packets as long as before.
        let _ = self.pair.follow_mtu(mtu.unwrap_or(0));
        let (interface, mtu) = (self.pair.outer(), mtu.unwrap_or(0));
        self.end.set(FastEnd { interface, mtu, is_open: is_up && !has_xdp });
    }

    /// The container's end as it was followed last.
    pub(crate) const fn end(&self) -> FastEnd {
        self.end.get()
    }

    /// The links of its programs; `None`: they are attached otherwise, and cannot be kept.
    pub(crate) fn links(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.programs.links()
    }

    /// Has interface and programs stay for the next netvmd. The kernel forwards nothing more.
    pub(crate) fn leave(&mut self) {
        self.programs.leave();
        self.pair.leave();
    }

    /// Whether the container's interface is there.
    pub(crate) fn exists(&self) -> bool {
        self.pair.exists()
    }
}

impl Drop for FastPort {
    fn drop(&mut self) {
        self.shared.table.set_epoch(self.slot, 0);
    }
}
