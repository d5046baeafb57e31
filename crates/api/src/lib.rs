// SPDX-License-Identifier: Apache-2.0
//! The HTTP/JSON API of netvmd: paths and types for both sides, and a client.
//!
//! netvmd serves HTTP/1.1 on a Unix socket ([`DEFAULT_SOCKET`]), whose owner and mode control access. Bodies are JSON
//! unless the table says otherwise. Times are in seconds, sizes in bytes. Counters start at 0 with netvmd and never go
//! down.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/ports` | [`PortInfo`] of every port |
//! | `GET /v1/live-ports` | [`LivePortInfo`] of every port beside the configuration file |
//! | `POST /v1/live-ports`, body [`AddPort`] | [`AddedPort`], when the port is open, or waits for what it needs |
//! | `DELETE /v1/live-ports?owner=O&id=I` | [`Done`]; see [`RemovePort`] |
//! | `GET /v1/nfs` | [`NfInfo`] of every instance of every NF |
//! | `GET /v1/vms` | [`VmInfo`] of every virtual machine |
//! | `GET /v1/vms/{vm}/manual-start` | [`VmManualStart`]: how to run it without netvmd |
//! | `POST /v1/vms/{vm}/start` | [`Done`], when it runs |
//! | `POST /v1/vms/{vm}/stop`, body [`StopVm`] | [`Done`], when it has ended |
//! | `GET /v1/routers` | [`RouterInfo`] of every virtual router |
//! | `GET /v1/routers/{router}/routes?…` | [`RouterRoutes`]: its routes as the engine has them, those that a [`RouteQuery`] selects, at most [`MAX_ROUTES`] |
//! | `POST /v1/routers/{router}/routes`, body [`AddRoutes`] | [`Done`], when the router's kernel has them |
//! | `DELETE /v1/routers/{router}/routes?…` | [`Done`]; the static routes that a [`RemoveRoutes`] selects |
//! | `GET /v1/routers/{router}/neighbours` | [`NeighbourInfo`] of every neighbour with a known MAC address |
//! | `GET /v1/chains` | [`ChainInfo`] of every chain |
//! | `GET /v1/groups` | [`GroupInfo`] of every trust group |
//! | `GET /v1/stats` | [`Stats`]: all of these with drops and stages, read in one pass |
//! | `GET /v1/latency` | [`LatencyInfo`] of every way that packets took; measured from the first request on, until a minute after the last |
//! | `GET /v1/config` | [`ConfigReply`]: the running configuration |
//! | `POST /v1/plan`, body TOML | [`PlanReply`]: what [`/v1/apply`](path::APPLY) would change |
//! | `POST /v1/apply`, body TOML | [`ApplyReply`], after the change |
//! | `GET /v1/policy` | [`PolicyInfo`]: the rules and how often each matched |
//! | `POST /v1/policy/rules`, body [`AddRule`] | [`Done`], when the rule is in force |
//! | `DELETE /v1/policy/rules/{rule}` | [`Done`]; by name or number |
//! | `POST /v1/policy/trace`, body [`TraceRequest`] | [`TraceReply`]; nothing is sent |
//! | `POST /v1/trace`, body [`LiveTraceRequest`] | [`TracedPacket`]s, one a line, as they end |
//! | `GET /v1/flows` | [`Flows`], at most [`MAX_FLOWS`] |
//! | `GET /v1/flows/top?count=N` | [`TopTalkers`] of the engine's flow monitor |
//! | `GET /v1/connections?…` | [`ConnectionList`]: the tracked connections that a [`ConnectionQuery`] selects, at most [`MAX_CONNECTIONS`] |
//! | `DELETE /v1/connections?…` | [`FlushedConnections`], when those that a [`ConnectionQuery`] selects have ended |
//! | `GET /v1/connections/saved?…` | those that a [`ConnectionQuery`] without number and limit selects, as a file |
//! | `POST /v1/connections/saved`, body such a file | [`RestoredConnections`] |
//! | `GET /v1/connections/events` | [`ConnectionEvent`]s to come, one a line, until the client closes the connection |
//! | `GET /v1/addresses` | [`AddressInfo`] of every MAC address that L2 switching has learned |
//! | `GET /v1/multicast` | [`MulticastInfo`]: groups, queriers and routers that snooping knows |
//! | `POST /v1/capture`, body [`CaptureRequest`] | 101, upgrade to [`CAPTURE_PROTOCOL`]: see [`CaptureInfo`] |
//! | `POST /v1/capture/file`, body [`CaptureFile`] | pcapng, until a limit is reached or the client closes the connection |
//! | `GET /v1/nfs/{role}/held-packets` | [`HeldPackets`] |
//! | `POST /v1/nfs/{role}/restart` | [`Done`]; every instance of the role |
//! | `GET /v1/events?after=N&follow=true` | [`Event`]s; with `follow` one a line, until the client closes the connection |
//! | `GET /metrics` | all counters, for Prometheus |
//! | `GET /openapi.json` | this API as OpenAPI 3.1 |
//! | `POST /v1/stop` | [`Done`]; netvmd ends after it |
//!
//! If the configuration says so (`web` in `[api]`), netvmd also serves the reading part of this, and its web page, on a
//! loopback address. Requests need its token there: `Authorization: Bearer TOKEN`.
//!
//! The body of every error is an [`ApiError`]. Its status: 403 the client lacks the [`Role`] (see [`openapi::roles`]);
//! 404 no such path, role or method; 409 the change needs a restart of netvmd, or another change is in progress; 422
//! the configuration has errors (see [`ApiError::diagnostics`]); 500 netvmd failed, and nothing has changed; 503 netvmd
//! is starting or stopping.
#![forbid(unsafe_code)]

mod change;
mod client;
mod escape;
pub mod explain;
mod live;
mod observe;
pub mod openapi;
mod policy;
mod router;
mod vm;

pub use change::{
    ApiError, ApplyHow, ApplyReply, ConfigReply, Diagnostic, Done, Drift, PlanReply, Revision, RevisionInfo,
    Severity, StopDaemon,
};
pub use client::{
    ByteStream, Client, ClientError, ConnectionEventStream, EventStream, ServerArgs, TraceStream,
};
pub use escape::file_name;
pub use live::{AddPort, AddedPort, LivePortInfo, RemovePort};
pub use netvm_config::{Change, ChangeKind, Effect, ItemKind, Plan};
pub use netvm_model::{Idle, Role};
pub use netvm_tls::{ClientFiles, TlsError};
pub use observe::*;
pub use policy::{
    AddRule, AddressInfo, CacheInfo, FlowInfo, FlowVerdict, FlowVerdictInfo, Flows, MulticastDomain,
    MulticastGroup, MulticastInfo, MulticastMember, MulticastPort, PolicyInfo, Position, RuleInfo,
    TraceReply, TraceRequest,
};
pub use router::{
    AddRoutes, NatTargetInfo, NeighbourInfo, PuntInfo, RemoveRoutes, RouteAction, RouteHop, RouteInfo,
    RouteQuery, RouterInfo, RouterInterfaceInfo, RouterRoutes,
};
pub use vm::{StopVm, VmInfo, VmManualStart, VmState};

/// The default path of netvmd's API socket.
pub const DEFAULT_SOCKET: &str = "/run/netvm/api.sock";
/// Environment variable with another path.
pub const SOCKET_VARIABLE: &str = "NETVM_API";

/// The name of the socket, beside the API's, for the group whose members have a role.
#[must_use]
pub fn group_socket(role: Role) -> String {
    format!("{}.sock", role.word())
}

/// The paths of the API.
pub mod path {
    /// [`Status`](crate::Status).
    pub const STATUS: &str = "/v1/status";
    /// [`PortInfo`](crate::PortInfo)s.
    pub const PORTS: &str = "/v1/ports";
    /// [`LivePortInfo`](crate::LivePortInfo)s; to add one: takes [`AddPort`](crate::AddPort), or to remove it
    /// [`RemovePort`](crate::RemovePort) as a query.
    pub const LIVE_PORTS: &str = "/v1/live-ports";
    /// To add several ports in one transaction: takes [`AddPort`](crate::AddPort)s, answers
    /// [`AddedPort`](crate::AddedPort)s in their order.
    pub const LIVE_PORT_BATCH: &str = "/v1/live-ports/batch";
    /// [`NfInfo`](crate::NfInfo)s.
    pub const NFS: &str = "/v1/nfs";
    /// [`VmInfo`](crate::VmInfo)s.
    pub const VMS: &str = "/v1/vms";
    /// [`VmManualStart`](crate::VmManualStart); `{vm}` stands for the VM's name.
    pub const VM_MANUAL_START: &str = "/v1/vms/{vm}/manual-start";
    /// [`Done`](crate::Done).
    pub const VM_START: &str = "/v1/vms/{vm}/start";
    /// [`Done`](crate::Done); takes [`StopVm`](crate::StopVm).
    pub const VM_STOP: &str = "/v1/vms/{vm}/stop";
    /// [`RouterInfo`](crate::RouterInfo)s.
    pub const ROUTERS: &str = "/v1/routers";
    /// [`RouterRoutes`](crate::RouterRoutes); `{router}` stands for the router's name, and `?most=N` may follow. To
    /// change them: [`Done`](crate::Done); takes [`AddRoutes`](crate::AddRoutes), or
    /// [`RemoveRoutes`](crate::RemoveRoutes) as a query.
    pub const ROUTES: &str = "/v1/routers/{router}/routes";
    /// [`NeighbourInfo`](crate::NeighbourInfo)s.
    pub const NEIGHBOURS: &str = "/v1/routers/{router}/neighbours";
    /// [`ChainInfo`](crate::ChainInfo)s.
    pub const CHAINS: &str = "/v1/chains";
    /// [`GroupInfo`](crate::GroupInfo)s.
    pub const GROUPS: &str = "/v1/groups";
    /// [`Stats`](crate::Stats).
    pub const STATS: &str = "/v1/stats";
    /// [`LatencyInfo`](crate::LatencyInfo)s.
    pub const LATENCY: &str = "/v1/latency";
    /// [`ConfigReply`](crate::ConfigReply).
    pub const CONFIG: &str = "/v1/config";
    /// [`RevisionInfo`](crate::RevisionInfo)s, the last one first.
    pub const HISTORY: &str = "/v1/config/history";
    /// [`Revision`](crate::Revision); `{number}` stands for its number.
    pub const REVISION: &str = "/v1/config/history/{number}";
    /// [`Done`](crate::Done): keeps a change that waits for its confirmation.
    pub const CONFIRM: &str = "/v1/config/confirm";
    /// [`Done`](crate::Done): undoes a change that waits for its confirmation.
    pub const REVERT: &str = "/v1/config/revert";
    /// [`PlanReply`](crate::PlanReply).
    pub const PLAN: &str = "/v1/plan";
    /// [`ApplyReply`](crate::ApplyReply); [`ApplyHow`](crate::ApplyHow) may follow as a query.
    pub const APPLY: &str = "/v1/apply";
    /// [`PolicyInfo`](crate::PolicyInfo).
    pub const POLICY: &str = "/v1/policy";
    /// [`Done`](crate::Done); takes [`AddRule`](crate::AddRule).
    pub const RULES: &str = "/v1/policy/rules";
    /// [`Done`](crate::Done); `{rule}` stands for its name or number.
    pub const RULE: &str = "/v1/policy/rules/{rule}";
    /// [`TraceReply`](crate::TraceReply); takes [`TraceRequest`](crate::TraceRequest).
    pub const TRACE: &str = "/v1/policy/trace";
    /// [`TracedPacket`](crate::TracedPacket)s; takes [`LiveTraceRequest`](crate::LiveTraceRequest).
    pub const LIVE_TRACE: &str = "/v1/trace";
    /// [`Flows`](crate::Flows).
    pub const FLOWS: &str = "/v1/flows";
    /// [`TopTalkers`](crate::TopTalkers); [`TopQuery`](crate::TopQuery) may follow as a query.
    pub const TOP_TALKERS: &str = "/v1/flows/top";
    /// [`ConnectionList`](crate::ConnectionList); to end them: [`FlushedConnections`](crate::FlushedConnections).
    /// [`ConnectionQuery`](crate::ConnectionQuery) may follow as a query.
    pub const CONNECTIONS: &str = "/v1/connections";
    /// A file of all connections; takes one: [`RestoredConnections`](crate::RestoredConnections).
    pub const SAVED_CONNECTIONS: &str = "/v1/connections/saved";
    /// [`ConnectionEvent`](crate::ConnectionEvent)s to come.
    pub const CONNECTION_EVENTS: &str = "/v1/connections/events";
    /// [`AddressInfo`](crate::AddressInfo)s.
    pub const ADDRESSES: &str = "/v1/addresses";
    /// [`MulticastInfo`](crate::MulticastInfo).
    pub const MULTICAST: &str = "/v1/multicast";
    /// Takes [`CaptureRequest`](crate::CaptureRequest), and upgrades the connection.
    pub const CAPTURE: &str = "/v1/capture";
    /// pcapng; takes [`CaptureFile`](crate::CaptureFile).
    pub const CAPTURE_FILE: &str = "/v1/capture/file";
    /// [`Done`](crate::Done); `{role}` stands for the role, as axum writes it.
    pub const RESTART: &str = "/v1/nfs/{role}/restart";
    /// [`HeldPackets`](crate::HeldPackets).
    pub const HELD_PACKETS: &str = "/v1/nfs/{role}/held-packets";
    /// [`Event`](crate::Event)s; [`EventQuery`](crate::EventQuery) may follow as a query.
    pub const EVENTS: &str = "/v1/events";
    /// The API as OpenAPI 3.1.
    pub const OPENAPI: &str = "/openapi.json";
    /// All counters, for Prometheus.
    pub const METRICS: &str = "/metrics";
    /// [`Done`](crate::Done).
    pub const STOP: &str = "/v1/stop";
}

/// Most flows in an answer.
pub const MAX_FLOWS: usize = 10_000;

/// Most connections in an answer.
pub const MAX_CONNECTIONS: usize = 10_000;

/// Most routes in an answer.
pub const MAX_ROUTES: usize = 10_000;

/// Header of a request with a TOML body: the name of the file, percent-encoded ([`file_name`] reads it), for
/// diagnostics.
pub const FILE_HEADER: &str = "netvm-file";
