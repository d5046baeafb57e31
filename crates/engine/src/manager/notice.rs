//! Notices: events that no call of the engine reports.

use std::collections::VecDeque;
use std::time::Duration;

use netvm_notify::Signaller;

use crate::ids::{GroupId, InstanceId, PortId, RoleId};

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
    /// A capture could not be read or written to its end, or a guest was disconnected: it truncated shared memory or broke
    /// the protocol.
    PortFault {
        /// The port.
        port: PortId,
        /// What happened.
        fault: String,
    },
    /// The kernel refuses to signal eventfds asynchronously, so a hostile NF or guest can stall threads that wake it.
    /// Reported once.
    WakesMayWait {
        /// The kernel's answer, an errno.
        error: i32,
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
    /// A hung NF makes progress again. It gets packets again.
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
        self.queue.drain(..)
    }
}
