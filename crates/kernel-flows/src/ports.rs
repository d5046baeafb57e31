// SPDX-License-Identifier: Apache-2.0
//! The programs of a port.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
    links: [Link; 2],
}

impl PortPrograms {
    /// Attaches the programs. The calling thread is in the namespace of both interfaces.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn attach(table: &Table, ends: &PortEnds) -> Result<Self, ProgramError> {
        let [from, to] = load(table, ends)?;
        let attach = |program: &Program, interface| {
            Link::attach(program, interface, Attach::TcxIngress).map_err(ProgramError::Attach)
        };
        Ok(Self { links: [attach(&from, ends.veth)?, attach(&to, ends.tap)?] })
    }

    /// Puts the programs in place of those of a port that another process has left. `links` are its descriptors.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn adopt(table: &Table, ends: &PortEnds, links: [OwnedFd; 2]) -> Result<Self, ProgramError> {
        let programs = load(table, ends)?;
        let [from, to] = links;
        let adopt = |link, program| Link::adopt(link, program).map_err(ProgramError::Attach);
        Ok(Self { links: [adopt(from, &programs[0])?, adopt(to, &programs[1])?] })
    }

    /// Their descriptors, for [`PortPrograms::adopt`].
    #[must_use]
    pub fn links(&self) -> [BorrowedFd<'_>; 2] {
        self.links.each_ref().map(AsFd::as_fd)
    }

    /// Has them stay when this is dropped, as long as another process has their descriptors.
    pub fn leave(&mut self) {
        self.links.iter_mut().for_each(Link::leave);
    }
}

/// Loads the programs of a port: that of netvm's end of its pair, and that of its TAP device.
fn load(table: &Table, ends: &PortEnds) -> Result<[Program; 2], ProgramError> {
    if ends.slot >= table.size().ports {
        return Err(ProgramError::Slot(ends.slot));
    }
    let load = |instructions: Result<_, _>| {
        let instructions: Vec<_> =
            instructions.map_err(|error| ProgramError::Load(LoadError::from(error)))?;
        Program::load(ProgramKind::Tc, &instructions).map_err(ProgramError::Load)
    };
    Ok([load(from_container(table, ends))?, load(to_container(table, ends))?])
}
