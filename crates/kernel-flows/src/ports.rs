// SPDX-License-Identifier: Apache-2.0
//! The programs of a port, and how they are attached: by tcx if the kernel has that and lets them, else as filters of
//! tc's `clsact`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_bpf::{Attach, Link, LoadError, Program, ProgramKind};
use netvm_netlink::IngressFilter;

use crate::ends::PortEnds;
use crate::program::{from_container, to_container};
use crate::table::Table;

/// The kernel refuses a step.
#[derive(Debug)]
pub enum ProgramError {
    /// A program cannot be loaded: it may lack `bpf_redirect_peer` (Linux 5.10), for instance.
    Load(LoadError),
    /// A program can be attached neither by tcx (Linux 6.6), if that was tried, nor by `clsact`.
    Attach {
        /// Of tcx.
        tcx: Option<io::Error>,
        /// Of `clsact`.
        clsact: io::Error,
    },
    /// There can be no table, or no network namespace of netvm's own.
    Place(io::Error),
    /// The table has no such slot.
    Slot(u32),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => write!(f, "cannot load a tc program (it takes Linux 5.11): {error}"),
            Self::Attach { tcx, clsact } => {
                f.write_str("cannot attach a tc program: ")?;
                if let Some(tcx) = tcx {
                    write!(f, "tcx (Linux 6.6): {tcx}; ")?;
                }
                write!(f, "clsact: {clsact}")
            }
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
            Self::Attach { clsact: error, .. } | Self::Place(error) => Some(error),
            Self::Slot(_) => None,
        }
    }
}

/// How programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// tcx (Linux 6.6).
    Tcx,
    /// Filters of tc's `clsact`.
    Clsact,
}

/// The environment variable that keeps programs from tcx if it is 0.
const VARIABLE: &str = "NETVM_TCX";

impl Hook {
    /// The best one that may be used: tcx, unless the environment has `NETVM_TCX=0`.
    #[must_use]
    pub fn allowed() -> Self {
        if std::env::var_os(VARIABLE).is_some_and(|value| value == "0") { Self::Clsact } else { Self::Tcx }
    }
}

/// A program that is attached to an interface. Dropping it detaches the program.
#[derive(Debug)]
enum Attached {
    Tcx(Link),
    Clsact { _filter: IngressFilter },
}

impl Attached {
    fn new(program: &Program, interface: u32, hook: Hook) -> io::Result<Self> {
        Ok(match hook {
            Hook::Tcx => Self::Tcx(Link::attach(program, interface, Attach::TcxIngress)?),
            Hook::Clsact => Self::Clsact { _filter: IngressFilter::add(interface, program.as_fd())? },
        })
    }
}

/// The attached programs of a port. Dropping them detaches them: nothing passes then.
#[derive(Debug)]
pub struct PortPrograms {
    attached: [Attached; 2],
    hook: Hook,
}

impl PortPrograms {
    /// Attaches the programs, by tcx only if that is allowed; if the kernel refuses it, or else, by `clsact`. The
    /// calling thread is in the namespace of both interfaces.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn attach(table: &Table, ends: &PortEnds, allowed: Hook) -> Result<Self, ProgramError> {
        let [from, to] = load(table, ends)?;
        let attach = |hook| -> io::Result<Self> {
            let [from, to] = [(&from, ends.veth), (&to, ends.tap)]
                .map(|(program, interface)| Attached::new(program, interface, hook));
            Ok(Self { attached: [from?, to?], hook })
        };
        let tcx = match allowed {
            Hook::Clsact => None,
            Hook::Tcx => match attach(Hook::Tcx) {
                Ok(attached) => return Ok(attached),
                Err(error) => Some(error),
            },
        };
        attach(Hook::Clsact).map_err(|clsact| ProgramError::Attach { tcx, clsact })
    }

    /// Puts the programs in place of those of a port that another process has left. `links` are its descriptors. The
    /// calling thread is in the namespace of both interfaces.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn adopt(table: &Table, ends: &PortEnds, links: [OwnedFd; 2]) -> Result<Self, ProgramError> {
        let programs = load(table, ends)?;
        let [from, to] = links;
        let adopt =
            |link, program| Link::adopt(link, program).map(Attached::Tcx).map_err(ProgramError::Place);
        Ok(Self { attached: [adopt(from, &programs[0])?, adopt(to, &programs[1])?], hook: Hook::Tcx })
    }

    /// How they are attached.
    #[must_use]
    pub const fn hook(&self) -> Hook {
        self.hook
    }

    /// Their descriptors, for [`PortPrograms::adopt`]; `None`: filters of `clsact` have none.
    #[must_use]
    pub fn links(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.attached {
            [Attached::Tcx(from), Attached::Tcx(to)] => Some([from.as_fd(), to.as_fd()]),
            _ => None,
        }
    }

    /// Has them stay when this is dropped, as long as another process has their descriptors.
    pub fn leave(&mut self) {
        for attached in &mut self.attached {
            if let Attached::Tcx(link) = attached {
                link.leave();
            }
        }
    }
}

/// Loads the programs of a port, that of netvm's end of its pair, and that of its TAP device, and notes that end.
fn load(table: &Table, ends: &PortEnds) -> Result<[Program; 2], ProgramError> {
    if ends.slot >= table.size().ports {
        return Err(ProgramError::Slot(ends.slot));
    }
    table.set_end(ends).map_err(ProgramError::Place)?;
    let load = |instructions: Result<_, _>| {
        let instructions: Vec<_> =
            instructions.map_err(|error| ProgramError::Load(LoadError::from(error)))?;
        Program::load(ProgramKind::Tc, &instructions).map_err(ProgramError::Load)
    };
    Ok([load(from_container(table, ends))?, load(to_container(table, ends))?])
}
