// SPDX-License-Identifier: Apache-2.0
//! The programs of a port.

use std::fmt;
use std::io;

use netvm_bpf::{Attach, Link, LoadError, Program, ProgramKind};

use crate::ends::PortEnds;
use crate::program::{from_container, to_container};
use crate::table::Table;

/// The kernel refuses a step.
#[derive(Debug)]
pub enum ProgramError {
    /// A program cannot be loaded: it may lack `bpf_redirect_peer` (Linux 5.10), for instance.
    Load(LoadError),
    /// A program cannot be attached: the kernel may lack tcx (Linux 6.6).
    Attach(io::Error),
    /// There can be no table, or no network namespace of netvm's own.
    Place(io::Error),
    /// The table has no such slot.
    Slot(u32),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => write!(f, "cannot load a tc program (it takes Linux 5.11): {error}"),
            Self::Attach(error) => write!(f, "cannot attach a tc program (tcx takes Linux 6.6): {error}"),
            Self::Place(error) => write!(
                f,
                "cannot make a flow table in the kernel (it takes CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN): {error}"
            ),
            Self::Slot(slot) => write!(f, "the kernel flow table has no port {slot}"),
        }
    }
}

impl std::error::Error for ProgramError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Load(error) => Some(error),
            Self::Attach(error) | Self::Place(error) => Some(error),
            Self::Slot(_) => None,
        }
    }
}

/// The attached programs of a port. Dropping them detaches them: nothing passes then.
#[derive(Debug)]
pub struct PortPrograms {
    _links: [Link; 2],
}

impl PortPrograms {
    /// Attaches the programs. The calling thread is in the namespace of both interfaces.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn attach(table: &Table, ends: &PortEnds) -> Result<Self, ProgramError> {
        if ends.slot >= table.size().ports {
            return Err(ProgramError::Slot(ends.slot));
        }
        let load = |instructions: Result<_, _>| {
            let instructions: Vec<_> =
                instructions.map_err(|error| ProgramError::Load(LoadError::from(error)))?;
            Program::load(ProgramKind::Tc, &instructions).map_err(ProgramError::Load)
        };
        let programs =
            [(load(from_container(table, ends))?, ends.veth), (load(to_container(table, ends))?, ends.tap)];
        let attach = |(program, interface): &(Program, u32)| {
            Link::attach(program, *interface, Attach::TcxIngress).map_err(ProgramError::Attach)
        };
        Ok(Self { _links: [attach(&programs[0])?, attach(&programs[1])?] })
    }
}
