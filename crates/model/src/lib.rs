// SPDX-License-Identifier: Apache-2.0
//! The model that netvmd and the engine run. A [`Host`] that `netvm-config` has read is consistent: names are unique,
//! references resolve, limits hold. Nothing here parses a file.
//!
//! # Numbers
//!
//! Groups, ports, NFs, routers, chains, rules and names of queues have a number (`id`), by which others refer to them.
//! **Their position in a `Vec` is only the order of the file**; for rules, the order also decides which one matches
//! first. Look an item up with [`Host::group`], [`Host::port`], [`Host::nf`], [`Host::router`] or [`Host::chain`].
//! `netvm_config::load` numbers from 0 in the order of the file. Before a new host replaces a running one,
//! [`assign_ids`] gives each item that the running host has by name (a rule without a name: by content) the number that
//! it has there. New items get numbers that the running host does not use, if possible. Therefore:
//!
//! - an item that stays keeps its number in shared tables, descriptors and statistics;
//! - numbers may have gaps, but stay below their limit ([`MAX_PORTS`] and so on): index an array of that size, or keep
//!   a map;
//! - a renamed item is a removed one and a new one.
#![forbid(unsafe_code)]

mod derived;
mod engine;
mod host;
mod nf;
mod port;
mod router;
mod vm;
pub mod words;

pub use derived::machine;
pub use engine::{
    ApiConfig, ConnectionLog, ConnectionTimeouts, ConnectionsConfig, EngineConfig, Eviction, Fingerprint,
    FlowCacheConfig, FlowMonitorConfig, Group, HealthConfig, Idle, LogSubject, McastRouter, MonitorTable,
    ParseFingerprintError, ParseStaticGroupError, PolicyConfig, PortSnooping, RemoteApi, RemoteClient,
    RemoteUser, Role, SnoopingConfig, StaticGroup, SwitchConfig,
};
pub use host::{CheckedTarget, Host, PairHop, PairPort, Reach, assign_ids, new_rule_id};
pub use netvm_ids::{
    ChainId, GroupId, MAX_CHAINS, MAX_GROUP_THREADS, MAX_GROUPS, MAX_HOPS, MAX_NODES, MAX_PORTS,
    MAX_QUEUE_NAMES, MAX_REPLICAS, MAX_ROLES, MAX_ROUTERS, MAX_RULES, MAX_SET, MAX_THREADS, MAX_TX_QUEUES,
    MAX_VMS, MAX_WORKERS, NAME_BYTES, PortId, QueueId, RoleId, RouterId, RuleId,
};
pub use netvm_policy::{
    Action, Actions, Bound, Ends, Label, LabelError, Labels, LoadLimit, Masked, Match, Police, Rate, Rule,
    RuleParts, Selection, SetVlan, Span, When,
};
pub use nf::{
    Attach, AttachInfo, Balance, Chain, DEFAULT_ALLOCATE, DEFAULT_HANG_TIMEOUT, HOP_SOCKETS, NfConfig,
    NfLimits, NfStart, OnFailure, Output, PairConfig, PairEnd, PairSide, Scale, SteerTo, WhileStarting,
};
pub use port::{
    Access, AclDefault, BondConfig, BondMode, CardModel, Choice, ContainerConfig, DEFAULT_MTU, DaemonLoss,
    Doorbells, FRAME_HEADER, FastPath, Forward, Guard, GuestCard, HostConfig, Key, KeyValue, KindInfo,
    LacpRate, MAX_MEMBERS, MAX_RESERVED, MemifConfig, MemifRole, OneQueue, PortConfig, PortKind, PortPolicy,
    QosConfig, QueueConfig, Receives, Resource, SendsTo, SocketIds, SocketRights, SourceConfig, StormLimits,
    VhostDma, VhostMode, VlanMode, VxlanConfig, VxlanControl,
};
pub use router::nat::{
    AddressRange, DestinationNat, Filtering, HealthCheck, Nat64, NatAction, NatAddresses, NatRule, NatTarget,
    POOL_PORTS, ParseAddressRangeError, PortAllocation, SourceNat, pool_ports,
};
pub use router::publish::{ParsePublishError, Publish};
pub use router::{
    InterfaceAddress, PUNT_RATE, ParseInterfaceAddressError, RouteTarget, RouterConfig, RouterInterface,
    StaticRoute, Urpf,
};
pub use vm::{Guest, Restart, VmAccel, VmBoot, VmCard, VmConfig, VmNotify, VmStart};
