// SPDX-License-Identifier: Apache-2.0
//! What a client sees of a running netvmd: its state, counters, events, flows and packets.

mod capture;
mod connections;
mod event;
mod flow_monitor;
mod port;
mod status;
mod trace;
mod traffic;

pub use capture::{
    CAPTURE_PROTOCOL, CaptureFile, CaptureInfo, CaptureInterface, CaptureRequest, FilterProgram, HeldPacket,
    HeldPackets, MAX_FILTER,
};
pub use connections::{
    ClosedConnection, ConnectionCounts, ConnectionEvent, ConnectionInfo, ConnectionList, ConnectionQuery,
    FlushedConnections, LoggedConnection, PortBlock, RestoredConnections, TcpEndInfo,
};
pub use event::{Event, EventKind, EventQuery, EventSeverity};
pub use flow_monitor::{AddressBytes, FlowMonitorInfo, NameBytes, TopQuery, TopTalkers};
pub use port::{
    BondInfo, BondMemberInfo, PortInfo, PortWorkerInfo, RouterShareInfo, ShareInfo, TunnelInfo, TxQueueInfo,
};
pub use status::{HugePages, Status, WorkerInfo};
pub use trace::{LiveTraceRequest, StepKind, TracedPacket, TracedStep};
pub use traffic::{
    ChainInfo, ChainState, Drops, GroupInfo, LatencyInfo, NfInfo, NfPackets, NfState, Reasons, RegionInfo,
    RoleInfo, StageInfo, Stats, ThreadInfo,
};
