// SPDX-License-Identifier: Apache-2.0
//! Interfaces that have a fast path if they are to have one and this machine can.

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
    /// Why it has no fast path, although it is to have one if that is possible.
    pub(super) why_not: Option<String>,
}

impl Managed {
    /// Opens an interface as one end of a pair by `paired`, or without a fast path by `plain`.
    pub(super) fn open(
        opening: &Opening<'_>,
        fast_path: FastPath,
        paired: impl FnOnce(
            &Arc<PrivateNamespace>,
        ) -> Result<(netvm_vnet::Opened, ManagedInterface, Pair), OpenError>,
        plain: impl FnOnce() -> Result<(netvm_vnet::Opened, ManagedInterface), OpenError>,
    ) -> Result<Self, OpenProblem> {
        let fast = || -> Result<Self, FastPathError> {
            let shared = opening.kernel_flows.make()?;
            let (opened, interface, pair) = paired(&shared.namespace)?;
            let fast = FastPort::new(shared, opening.config.id, pair)?;
            Ok(Self { opened, interface, fast: Some(fast), why_not: None })
        };
        let why_not = match fast_path {
            FastPath::Off => None,
            FastPath::Auto | FastPath::On => match fast() {
                Ok(opened) => return Ok(opened),
                Err(error) => Some(format!("no fast path: {error}")),
            },
        };
        let (opened, interface) = plain()?;
        Ok(Self { opened, interface, fast: None, why_not })
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
