// SPDX-License-Identifier: Apache-2.0
//! Notices: events that no call of the engine reports.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netvm_guest_socket::refused_for_files;
use netvm_model::PairSide;
use netvm_notify::Signaller;

use crate::ids::{GroupId, InstanceId, PortId, RoleId, WorkerId};
use crate::policy::SwitchingEvent;

/// Connections that are refused after such a time without any are reported again.
const REPORT_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// Why a program that is a hop has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// Its process has ended.
    Ended,
    /// One of its ports is closed.
    PortClosed,
    /// No probe and no packet comes back by the port of this side.
    Silent(PairSide),
    /// Packets go in, and none comes back.
    Hung,
}

/// What has happened to a program that is a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramChange {
    /// It forwards packets, after this time.
    Forwards(Duration),
    /// It has failed.
    Fails(ProgramFault),
    /// It has replaced another one, which has failed.
    TookOver,
}

/// An event since the last call of [`Engine::notices`](super::Engine::notices).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// All buffers of an NF that ended are back.
    Reclaimed {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
        /// Buffers reclaimed.
        buffers: u64,
        /// Time from the detection of its end until the buffers that it held then were back.
        first_sweep: Duration,
        /// Time until the teardown was complete.
        total: Duration,
    },
    /// An audit found lost buffers: an NF that ended had written false owners into the owner table.
    Audited {
        /// The trust group.
        group: GroupId,
        /// Buffers reclaimed.
        buffers: u64,
    },
    /// A capture could not be read or written to its end, or a guest was disconnected: it truncated shared memory or
    /// broke the protocol.
    PortFault {
        /// The port.
        port: PortId,
        /// What happened.
        fault: String,
    },
    /// A port cannot be opened now. It stays closed until [`Engine::reopen`](super::Engine::reopen) opens it.
    PortClosed {
        /// The port.
        port: PortId,
        /// Why, and the remedy.
        fault: String,
    },
    /// A port cannot be opened yet, or no longer, as its container is not there. It waits, like a closed one.
    PortWaits {
        /// The port.
        port: PortId,
        /// What it waits for.
        fault: String,
    },
    /// The kernel refuses to signal eventfds asynchronously, so a hostile NF or guest can stall threads that wake it.
    /// Reported once.
    WakesMayWait {
        /// The kernel's answer, an errno.
        error: i32,
    },
    /// The process has ended that keeps interfaces for the next netvmd. It was started again, or could not be.
    InterfacesNotKept {
        /// Why not.
        error: Option<String>,
    },
    /// No file descriptor was free for connections of guests, which were closed. Reported once, and again after a quiet
    /// time.
    OutOfFiles,
    /// A queue of a port has moved from one worker to another.
    QueueMoved {
        /// The port.
        port: PortId,
        /// The worker that had it.
        from: WorkerId,
        /// The worker that has it.
        to: WorkerId,
    },
    /// A worker was added.
    WorkerAdded {
        /// The worker.
        worker: WorkerId,
        /// Its core.
        core: u32,
    },
    /// A worker has given all of its work to others, and ended.
    WorkerRemoved {
        /// The worker.
        worker: WorkerId,
        /// The core that it had.
        core: u32,
    },
    /// A worker runs on another core.
    WorkerMoved {
        /// The worker.
        worker: WorkerId,
        /// The core that it had.
        from: u32,
        /// Its core.
        to: u32,
    },
    /// An NF makes no progress although packets wait for it. It gets no new packets.
    Hung {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
        /// The time without progress.
        stalled: Duration,
    },
    /// An NF makes no progress although packets wait for it, because its process waits for a core. It still gets
    /// packets.
    Starved {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
        /// The time without a core.
        starved: Duration,
    },
    /// A hung or starved NF makes progress again. It gets packets.
    Recovered {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
    },
    /// An NF of a trust group damaged the group's memory: the group has new memory, and all its NFs are evicted.
    GroupReset {
        /// The group.
        group: GroupId,
    },
    /// An NF damaged its group's memory, and no memory is free to replace it.
    GroupNotReset {
        /// The group.
        group: GroupId,
        /// Why.
        error: String,
    },
    /// The engine has ended an NF's connection, because its group's memory was damaged. Its process may still run.
    Evicted {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
    },
    /// An address moved to a port, or there is a loop of links or a storm.
    Switching {
        /// The port.
        port: PortId,
        /// What L2 switching saw there.
        event: SwitchingEvent,
    },
    /// A program that is a hop forwards packets, or has failed.
    Program {
        /// Its role.
        role: RoleId,
        /// The number of the instance.
        instance: u16,
        /// What has happened.
        change: ProgramChange,
    },
    /// Other members of a bond carry packets.
    Bond {
        /// The bond.
        port: PortId,
        /// The members by which it sends, now.
        carry: Vec<PortId>,
    },
    /// The hosts of a port have reported more multicast groups than they may join.
    MulticastLimit {
        /// The port.
        port: PortId,
        /// Reports that changed nothing, so far.
        over_limit: u64,
    },
    /// A standby replica became active.
    StandbyTookOver {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
    },
}

/// Notices that were not read yet.
#[derive(Default)]
pub(crate) struct Notices {
    queue: VecDeque<Notice>,
    /// [`Notice::WakesMayWait`] was reported.
    wakes_may_wait: bool,
    /// Connections that were refused for want of descriptors, and when the last one was.
    refused: (u64, Option<Instant>),
}

impl Notices {
    pub(crate) fn push(&mut self, notice: Notice) {
        self.queue.push_back(notice);
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Notice> + '_ {
        // A guest's queue may create its signaller at any time.
        if let Some(error) = Signaller::refusal().filter(|_| !self.wakes_may_wait) {
            self.wakes_may_wait = true;
            self.push(Notice::WakesMayWait { error: error.raw_os_error() });
        }
        let (refused, now) = (refused_for_files(), Instant::now());
        let (before, last) = self.refused;
        if refused != before {
            self.refused = (refused, Some(now));
            if last.is_none_or(|last| now.duration_since(last) >= REPORT_AGAIN_AFTER) {
                self.push(Notice::OutOfFiles);
            }
        }
        self.queue.drain(..)
    }
}
