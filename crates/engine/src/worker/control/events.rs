// SPDX-License-Identifier: Apache-2.0
//! Events to the manager, which frees all memory that a worker no longer uses: a worker itself frees only packets.

use std::sync::Arc;

use super::connection_page::ConnectionPage;
use super::flow_page::{FlowPage, MonitorPage};
use super::visit::Visit;
use crate::capture::WorkerCapture;
use crate::capture::points::CapturePoints;
use crate::ids::PortId;
use crate::inflight::ThreadInFlight;
use crate::inflight::sweep::{SweepRequest, Swept};
use crate::interface::{PortQueue, Shaper};
use crate::link::Link;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::worker::record::{LiveTrace, TraceRecord};
use crate::worker::state::connections::WorkerConnections;
use crate::worker::state::handoff::{Held, Peer};
use crate::worker::state::moved::connections::MovedConnections;
use crate::worker::state::moved::flows::MovedFlows;

/// Objects that a worker no longer uses.
pub(crate) enum Retired {
    Capture(Box<WorkerCapture>),
    Trace(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<LiveTrace>),
    Record(#[expect(dead_code, reason = "carried to be freed by the manager")] TraceRecord),
    Snapshot(#[expect(dead_code, reason = "carried to be freed by the manager")] Arc<Snapshot>),
    Memory(#[expect(dead_code, reason = "carried to be freed by the manager")] Arc<Memory>),
    Link(
        #[expect(dead_code, reason = "carried to be freed by the manager")] Box<Link>,
        #[expect(dead_code, reason = "carried to be freed by the manager")] Option<Box<ThreadInFlight>>,
    ),
    Points(#[expect(dead_code, reason = "carried to be freed by the manager")] Arc<CapturePoints>),
    Shaper(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<Shaper>),
    Connections(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<WorkerConnections>),
    Held(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<Held>),
    Peer(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<Peer>),
    Flows(#[expect(dead_code, reason = "carried to be freed by the manager")] Box<MovedFlows>),
    MovedConnections(
        #[expect(dead_code, reason = "carried to be freed by the manager")] Box<MovedConnections>,
    ),
}

/// An event from a worker.
pub(crate) enum Event {
    /// A queue that this worker no longer uses, to be closed.
    PortRetired(PortId, Option<Box<PortQueue>>),
    /// A queue for another worker; `None` if there is none.
    QueueTaken(Option<Box<PortQueue>>),
    /// Flows that other workers own now.
    FlowsTaken(Box<MovedFlows>),
    /// Connections that other workers own now.
    ConnectionsTaken(Box<MovedConnections>),
    /// Something else that this worker no longer uses, to be freed.
    Retired(Retired),
    /// A traced packet has ended.
    Traced(TraceRecord),
    /// A sweep is done; the request comes back.
    Swept(Swept, SweepRequest),
    /// A page of flows was written.
    Flows(Box<FlowPage>),
    /// A part of the monitor's running flows.
    Monitor(Box<MonitorPage>),
    /// A part of the connections.
    Connections(Box<ConnectionPage>),
    /// What is kept of flows.
    Visited(Box<Visit>),
    /// A barrier was passed.
    Passed(u64),
}
