// SPDX-License-Identifier: Apache-2.0
//! The packet path: workers, ports, trust groups, chains, and the NFs that attach to them.
//!
//! [`Engine`] starts the workers, applies configurations ([`Engine::apply`]), admits NFs ([`Engine::admit`]) and
//! reclaims their buffers when they end. The packet path is in `worker`, one file per stage; `docs/architecture.md`
//! walks a packet through it.

mod capture;
mod counters;
mod drop_reason;
mod ids;
mod inflight;
mod interface;
mod kept;
mod kernel_flows;
mod limits;
mod link;
mod manager;
mod memory;
mod nat;
mod policy;
mod port_bits;
mod router;
mod snapshot;
mod worker;

pub use counters::{
    ChainCounters, ChainCounts, ConnectionCounters, ConnectionCounts, Counter, DropCounts, Drops,
    InterfaceCounters, InterfaceCounts, LinkCounters, LinkCounts, MonitorCounts, PortCounters, PortCounts,
    RouterCounters, RouterCounts, Stage, StageCounters, WorkerCounters, WorkerCounts,
};
pub use drop_reason::{DropReason, Violation};
pub use ids::{
    CaptureId, ChainId, GroupId, InstanceId, LinkId, MemoryId, NfThreadId, PortId, RoleId, TraceId, WorkerId,
};
pub use interface::{InterfaceState, InterfaceView, OpenError, note_kvm};
pub use kept::close_left_interfaces;
pub use link::MAX_LINKS;
pub use manager::{Address, FlowVerdict, FlowView, HostAddress, LocalAddresses};
pub use manager::{
    AdmitError, ApplyError, BondMemberView, BondView, CaptureError, CaptureNames, CaptureSpec,
    CaptureStarted, ChainView, CoresError, Engine, EngineConnections, GroupError, GroupView, GuestShape,
    HeldPacket, HeldPackets, InstanceState, InstanceView, LatencyView, MemoryView, MulticastView,
    NamedCapturePoint, Notice, PortMulticast, PortView, PortWorker, PreparedCapture, PreparedTrace,
    ProgramChange, ProgramFault, ProgramState, ProgramView, QueueView, RoleTotals, RouterView, SavedPart,
    StageView, StartError, StartTraceError, ThreadView, TraceError, TraceRead, TraceSpec, UnknownRouter,
    WorkerView, current_tick,
};
pub use netvm_e1000::{Counts as CardCounts, keep_cards_in};
pub use netvm_region::{NotifyMode, ReadyMessage};
pub use netvm_switch::snoop::DomainView;
pub use netvm_switch::{LastMove, Moves, StormClass};
pub use policy::{Compiler, Policy, PolicyError, RuleCount, SwitchingEvent, SwitchingView};
pub use router::{
    EvpnUpdate, PuntClass, PuntCounts, PuntReason, RouterInterfaceState, RouterState, UnknownNetwork,
};
pub use worker::trace::{Lost, NatEnd, NfVerdict, Origin, Step, TimedStep, TracedPacket, Translated};
pub use worker::{
    ConnectionFilter, ConnectionView, FlowCounts, Hypothetical, LogEvent, NoPort, Restored, Span,
    rule_number, rule_of,
};
