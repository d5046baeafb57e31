// SPDX-License-Identifier: Apache-2.0
//! Interfaces that have a fast path if they are to have one and this machine can.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_model::FastPath;
use netvm_vnet::{ManagedInterface, OpenError, Pair, PrivateNamespace};

use crate::interface::control::{OpenProblem, Opening};
use crate::kernel_flows::{FastPathError, FastPort};

/// An open interface.
pub(super) struct Managed {
    pub(super) opened: netvm_vnet::Opened,
    pub(super) interface: ManagedInterface,
    pub(super) fast: Option<FastPort>,
    /// An earlier netvmd has made it.
    pub(super) is_adopted: bool,
    /// Why it has no fast path, although it is to have one if that is possible.
    pub(super) why_not: Option<String>,
}

/// An interface that is one end of a pair, with the links of the programs that an earlier netvmd has left at it.
pub(super) type Paired = (netvm_vnet::Opened, ManagedInterface, Pair, Option<[OwnedFd; 2]>);

impl Managed {
    /// Opens an interface as one end of a pair by `paired`, or without a fast path by `plain`.
    pub(super) fn open(
        opening: &Opening<'_>,
        fast_path: FastPath,
        mut paired: impl FnMut(&Arc<PrivateNamespace>) -> Result<Paired, OpenError>,
        plain: impl FnOnce() -> Result<(netvm_vnet::Opened, ManagedInterface), OpenError>,
    ) -> Result<Self, OpenProblem> {
        let mut fast = || -> Result<Self, FastPathError> {
            let shared = opening.kernel_flows.make(opening.store)?;
            if opening.config.continues() {
                shared.keep_on();
            }
            loop {
                let (opened, interface, pair, links) = paired(&shared.namespace)?;
                let is_adopted = links.is_some();
                match FastPort::new(shared, opening.config.id, pair, links) {
                    // It is made anew.
                    Err(_) if is_adopted => {}
                    fast => {
                        return Ok(Self { opened, interface, fast: Some(fast?), is_adopted, why_not: None });
                    }
                }
            }
        };
        let why_not = match fast_path {
            FastPath::Off => None,
            FastPath::Auto | FastPath::On => match fast() {
                Ok(opened) => return Ok(opened),
                Err(error) => Some(format!("no fast path: {error}")),
            },
        };
        let (opened, interface) = plain()?;
        Ok(Self { opened, interface, fast: None, is_adopted: false, why_not })
    }

    /// Why a port with `fast_path = true` has none, for its status; `None` if it has one, or need not.
    pub(super) fn note(&self, fast_path: FastPath) -> Option<String> {
        self.why_not.clone().filter(|_| fast_path == FastPath::On)
    }
}

/// Follows what becomes of an interface with a fast path.
pub(super) fn follow(fast: Option<&FastPort>, interface: &ManagedInterface) {
    if let (Some(fast), Some(state)) = (fast, interface.state()) {
        fast.follow(state);
    }
}
