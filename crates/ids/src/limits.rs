// SPDX-License-Identifier: Apache-2.0
//! How many objects there can be. Shared memory has room for that many (`netvm-region`), so a change of a limit that it
//! uses is a change of its layout.

/// Chains that a host can have; chain numbers are below it.
pub const MAX_CHAINS: usize = 256;
/// Hops that a chain can have.
pub const MAX_HOPS: usize = 16;
/// Roles that a host can have; role numbers are below it.
pub const MAX_ROLES: usize = 128;
/// Ports that a host can have; port numbers are below it.
pub const MAX_PORTS: usize = 1024;
/// Rules that a host can have; rule numbers are below it.
pub const MAX_RULES: usize = 65_536;
/// Elements that a field of a match, or a list of a guard, can have.
pub const MAX_SET: usize = 1024;
/// Trust groups that a host can have; group numbers are below it.
pub const MAX_GROUPS: usize = 64;
/// Virtual machines that a host can have.
pub const MAX_VMS: usize = 128;
/// Virtual routers that a host can have; router numbers are below it.
pub const MAX_ROUTERS: usize = 64;
/// Workers that an engine can have.
pub const MAX_WORKERS: usize = 32;
/// Most queues of a port's `qos`.
pub const MAX_TX_QUEUES: usize = 16;
/// Names that queues of all ports can have; the numbers of names are below it.
pub const MAX_QUEUE_NAMES: usize = 255;
/// NUMA nodes that an engine can be spread over.
pub const MAX_NODES: usize = 4;
/// Threads that an NF process can have.
pub const MAX_THREADS: usize = 16;
/// NF threads that a hop chooses from: replicas times threads.
pub const MAX_REPLICAS: usize = 8;
/// NF threads that a trust group can have, standby replicas included.
pub const MAX_GROUP_THREADS: usize = 63;
/// Bytes that a name can have.
pub const NAME_BYTES: usize = 32;
