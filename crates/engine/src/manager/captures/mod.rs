// SPDX-License-Identifier: Apache-2.0
//! Packet captures: converts the names in a client's request to numbers for the workers, and creates a ring for each
//! worker. Its client also has the rings of workers that may be added later, which have no memory until then. The ring
//! of a worker that ends stays, and the next worker of its number goes on with it.
//!
//! While a capture of a chain's hops runs, packets pass the engine between all hops. Otherwise, NFs of one trust group
//! pass packets to each other directly, and no worker sees them.

mod interface;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use netvm_capture_ring::{Filter, FilterError, Instruction, MAX_INTERFACES, RingError, Writer};
use netvm_model::Host;
use netvm_model::words::nearest_names;

use super::reaper::Reaper;
use super::workers::Workers;
use crate::capture::points::{CapturePoints, DropReasons};
use crate::capture::{CaptureParts, EndedCapture, MAX_CAPTURES, WorkerCapture};
use crate::drop_reason::DropReason;
use crate::ids::{CaptureId, ChainId, WorkerId};
use crate::port_bits::PortBits;
use crate::snapshot::Shortened;
use crate::worker::Command;
pub use interface::NamedCapturePoint;
use interface::{of_everything, of_point, of_ports};

/// Longest copy of a packet.
const MAX_SNAPLEN: u32 = 65_535;

/// What to capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureSpec {
    /// Capture points by name; empty: all ports, or with `dropped` everything.
    pub at: Vec<String>,
    /// Captures drops instead of packets that pass: for these reasons, or for all reasons if the list is empty.
    pub dropped: Option<Vec<String>>,
    /// A program of classic BPF; empty: every packet.
    pub filter: Vec<Instruction>,
    /// Longest copy of a packet; 0: whole packets.
    pub snaplen: u32,
    /// Size of each worker's ring of records in bytes.
    pub ring_bytes: u64,
}

impl CaptureSpec {
    /// Checks the filter, makes a ring for each worker that there can be (`room`), and allocates those of the `workers`
    /// that there are. This takes some time for much memory, so it is for another thread than the manager's.
    ///
    /// # Errors
    /// [`CaptureError::Filter`], [`CaptureError::Ring`] or [`CaptureError::Descriptor`].
    pub fn prepare(&self, workers: usize, room: usize) -> Result<PreparedCapture, CaptureError> {
        let filter = if self.filter.is_empty() { None } else { Some(Filter::new(&self.filter)?) };
        let snaplen = if self.snaplen == 0 { MAX_SNAPLEN } else { self.snaplen.min(MAX_SNAPLEN) };
        let (mut parts, mut rings) = (Vec::new(), Vec::new());
        for worker in 0..room.max(workers) {
            let ring = Writer::create_spare(self.ring_bytes)?;
            if worker < workers {
                ring.allocate()?;
            }
            rings.push(ring.as_fd().try_clone_to_owned()?);
            parts.push(CaptureParts { ring, filter: filter.clone(), snaplen: snaplen as usize });
        }
        Ok(PreparedCapture { parts, rings })
    }
}

/// The filter and the rings of a capture that is to start.
#[derive(Debug)]
pub struct PreparedCapture {
    /// Of each worker that there can be.
    parts: Vec<CaptureParts>,
    rings: Vec<OwnedFd>,
}

/// A capture that runs.
#[derive(Debug)]
pub struct CaptureStarted {
    /// Its number.
    pub id: CaptureId,
    /// The memory of the ring of each worker that there can be.
    pub rings: Vec<OwnedFd>,
    /// Its capture points; a record names one by its position.
    pub interfaces: Vec<NamedCapturePoint>,
    /// The names for the numbers in records.
    pub names: CaptureNames,
}

/// Names of the numbers in records.
#[derive(Clone, Debug, Default)]
pub struct CaptureNames {
    /// Chains and the roles of their hops, by number. Chains without some hops have the name of the whole.
    pub chains: BTreeMap<u16, (String, Vec<String>)>,
    /// Ports.
    pub ports: BTreeMap<u16, String>,
    /// Roles.
    pub roles: BTreeMap<u16, String>,
}

/// A capture is refused.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// No such capture point.
    #[error("no port, chain, NF or router `{name}`{}", nearest_of(near))]
    UnknownPoint {
        /// The name in the request.
        name: String,
        /// The nearest names.
        near: Vec<String>,
    },
    /// No such hop.
    #[error("chain {chain} has no hop `{hop}`: its hops are {hops}")]
    UnknownHop {
        /// The chain.
        chain: String,
        /// As given.
        hop: String,
        /// Its hops.
        hops: String,
    },
    /// Several things have the name.
    #[error("`{name}` is {what}: write {remedy}")]
    Ambiguous {
        /// As given.
        name: String,
        /// The things.
        what: String,
        /// The unambiguous names.
        remedy: String,
    },
    /// No such reason.
    #[error("no drop reason `{name}`{}", nearest_of(near))]
    UnknownReason {
        /// As given.
        name: String,
        /// The nearest.
        near: Vec<String>,
    },
    /// Packets of this reason never reach a worker, or have left it.
    #[error(
        "packets that are dropped as `{0}` cannot be captured: netvm does not have them; `netvm stats --drops` counts them"
    )]
    NotCaptured(&'static str),
    /// Too many at a time.
    #[error("{MAX_CAPTURES} captures run already, which is the limit: end one")]
    TooMany,
    /// Too many capture points.
    #[error("{0} capture points, the limit is {MAX_INTERFACES}: name those that matter with --at")]
    TooManyPoints(usize),
    /// Nothing to capture.
    #[error("there is no port to capture at")]
    NoPoint,
    /// The filter program is invalid.
    #[error("the filter is refused: {0}")]
    Filter(#[from] FilterError),
    /// The rings.
    #[error("cannot allocate the capture's buffer: {0} (ask for less with --buffer)")]
    Ring(#[from] RingError),
    /// The rings' descriptors.
    #[error("cannot pass the capture's buffer on: {0}")]
    Descriptor(#[from] std::io::Error),
}

fn nearest_of(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; the nearest are {}", near.join(", ")),
    }
}

#[derive(Debug)]
struct Session {
    interfaces: Vec<NamedCapturePoint>,
    dropped: Option<DropReasons>,
    /// What workers get that are added later, by number.
    spares: BTreeMap<WorkerId, Box<WorkerCapture>>,
}

/// The captures that run.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    last: u32,
    sessions: BTreeMap<CaptureId, Session>,
}

/// What the numbers of capture points and the names of numbers are taken from.
#[derive(Clone, Copy)]
pub(crate) struct Numbering<'a> {
    pub(crate) host: &'a Host,
    /// Chains with bypassed hops: they have numbers of their own.
    pub(crate) shortened: &'a [Shortened],
}

impl Captures {
    /// Adds the ports of whose packets workers have to see every one to `ports`, for captures of packets that pass:
    /// what is dropped comes to them anyway.
    pub(crate) fn add_ports(&self, host: &Host, ports: &mut PortBits) {
        let passing = self.sessions.values().filter(|session| session.dropped.is_none());
        passing.flat_map(|session| &session.interfaces).for_each(|point| point.add_ports(host, ports));
    }

    /// The chains that are captured at their hops.
    pub(crate) fn chains(&self, host: &Host) -> BTreeSet<ChainId> {
        let passing = self.sessions.values().filter(|session| session.dropped.is_none());
        passing.flat_map(|session| &session.interfaces).flat_map(|point| point.chains(host)).collect()
    }

    /// Starts a capture. The tables of NFs and the snapshots of workers have to follow, as packets may have to pass the
    /// engine between hops from now on.
    pub(crate) fn start(
        &mut self,
        spec: &CaptureSpec,
        prepared: PreparedCapture,
        numbering: Numbering<'_>,
        workers: &mut Workers,
    ) -> Result<CaptureStarted, CaptureError> {
        if self.sessions.len() >= MAX_CAPTURES {
            return Err(CaptureError::TooMany);
        }
        let mut session = Session::new(spec, numbering.host)?;
        let id = CaptureId(self.last + 1);
        let points = session.points(numbering);
        let PreparedCapture { parts, rings } = prepared;
        let captures =
            parts.into_iter().map(|parts| Box::new(WorkerCapture::new(id, Arc::clone(&points), parts)));
        session.spares = (0u8..).map(WorkerId).zip(captures).collect();
        // Workers may have been added meanwhile.
        workers.ids().try_for_each(|worker| session.allocate(worker))?;
        self.last = id.0;
        let interfaces = session.interfaces.clone();
        self.sessions.insert(id, session);
        workers.ids().for_each(|worker| self.add_captures(worker, workers));
        Ok(CaptureStarted { id, rings, interfaces, names: CaptureNames::of(numbering) })
    }

    /// Ends a capture. Returns whether it ran.
    pub(crate) fn stop(&mut self, id: CaptureId, workers: &mut Workers, reaper: &Reaper) -> bool {
        let Some(session) = self.sessions.remove(&id) else { return false };
        session.spares.into_values().for_each(|capture| reaper.free(EndedCapture(capture)));
        workers.send_all(|_| Command::RemoveCapture(id));
        true
    }

    /// Sends the workers the numbers of the capture points in the configuration in force.
    pub(crate) fn renumber(&self, numbering: Numbering<'_>, workers: &mut Workers) {
        for (id, session) in &self.sessions {
            let points = session.points(numbering);
            workers.send_all(|_| Command::SetPoints(*id, Arc::clone(&points)));
        }
    }
}

impl Session {
    fn new(spec: &CaptureSpec, host: &Host) -> Result<Self, CaptureError> {
        let dropped = spec.dropped.as_ref().map(|reasons| reason_bits(reasons)).transpose()?;
        let interfaces = match (spec.at.as_slice(), dropped) {
            ([], None) => of_ports(host),
            ([], Some(_)) => of_everything(host),
            (names, _) => {
                let mut all = Vec::new();
                for name in names {
                    for point in of_point(host, name, dropped.is_some())? {
                        if !all.contains(&point) {
                            all.push(point);
                        }
                    }
                }
                all
            }
        };
        match interfaces.len() {
            0 => Err(CaptureError::NoPoint),
            count if count > MAX_INTERFACES => Err(CaptureError::TooManyPoints(count)),
            _ => Ok(Self { interfaces, dropped, spares: BTreeMap::new() }),
        }
    }

    fn points(&self, numbering: Numbering<'_>) -> Arc<CapturePoints> {
        let mut points = CapturePoints::new(self.dropped);
        for (number, interface) in (0u16..).zip(&self.interfaces) {
            interface.add_to(&mut points, number, numbering);
        }
        points.into()
    }
}

impl CaptureNames {
    fn of(Numbering { host, shortened }: Numbering<'_>) -> Self {
        let hops = |hops: &[crate::ids::RoleId]| {
            hops.iter().map(|role| host.nf(*role).map_or_else(String::new, |nf| nf.role.clone())).collect()
        };
        let mut names = Self {
            chains: host.chains.iter().map(|c| (c.id.0, (c.name.clone(), hops(&c.hops)))).collect(),
            ports: host.ports.iter().map(|port| (port.id.0, port.name.clone())).collect(),
            roles: host.nfs.iter().map(|nf| (nf.id.0, nf.role.clone())).collect(),
        };
        for short in shortened {
            if let Some(whole) = names.chains.get(&short.of.0).cloned() {
                names.chains.insert(short.id.0, whole);
            }
        }
        names
    }
}

/// Bit mask of the reasons; all bits if the list is empty.
fn reason_bits(names: &[String]) -> Result<DropReasons, CaptureError> {
    if names.is_empty() {
        return Ok(DropReasons::MAX);
    }
    let bit = |name: &String| {
        let known = DropReason::ALL.into_iter().find(|reason| reason.name() == name);
        match known {
            Some(reason @ (DropReason::RxMissed | DropReason::TxRefused | DropReason::PeerGone)) => {
                Err(CaptureError::NotCaptured(reason.name()))
            }
            Some(reason) => Ok(1 << reason as u8),
            None => {
                let near = nearest_names(name, DropReason::ALL.into_iter().map(DropReason::name));
                Err(CaptureError::UnknownReason { name: name.clone(), near })
            }
        }
    };
    names.iter().try_fold(0, |bits, name| Ok(bits | bit(name)?))
}
