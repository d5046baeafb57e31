// SPDX-License-Identifier: Apache-2.0
//! The table of the API's operations: path, least role, bodies.

use netvm_model::Role;
use utoipa::openapi::path::HttpMethod;
use utoipa::openapi::schema::Type;

use super::{Body, Collected, Operation, QueryPart};
use crate::{
    AddPort, AddRoutes, AddRule, AddedPort, AddressInfo, ApplyReply, CaptureFile, CaptureRequest, ChainInfo,
    ConfigReply, ConnectionList, Done, Event, Flows, FlushedConnections, GroupInfo, HeldPackets, LatencyInfo,
    LivePortInfo, LiveTraceRequest, MulticastInfo, NeighbourInfo, NfInfo, PlanReply, PolicyInfo, PortInfo,
    RestoredConnections, Revision, RevisionInfo, RouterInfo, RouterRoutes, Stats, Status, StopDaemon, StopVm,
    TopTalkers, TraceReply, TraceRequest, TracedPacket, VmInfo, VmManualStart, path,
};

/// The query of a list of connections.
const SELECTED_CONNECTIONS: &[QueryPart] = &[
    ("id", Type::String, "Only the one of this number"),
    ("address", Type::String, "Only those with an end in this address or prefix"),
    ("l4_port", Type::Integer, "Only those with this TCP, UDP or SCTP port, or ICMP identifier, at an end"),
    ("protocol", Type::String, "Only those of this protocol"),
    ("state", Type::String, "Only those of which the protocol is in this state"),
    ("port", Type::String, "Only those whose first packet this port received"),
    ("zone", Type::Integer, "Only those of this zone"),
    ("limit", Type::Integer, "List at most so many"),
];

/// What of it selects connections to end.
const CONNECTION_FILTERS: &[QueryPart] = SELECTED_CONNECTIONS.split_at(7).0;

/// What of it selects connections to save.
const SAVED_FILTERS: &[QueryPart] = CONNECTION_FILTERS.split_at(1).1;

/// Every operation, with its schemas.
pub(super) fn operations(all: &mut Collected) -> Vec<Operation> {
    use HttpMethod::{Delete, Get, Post};
    use Role::{Admin, Capture, Operate, View};
    let get = |(role, path), summary, reply| Operation {
        method: Get,
        role,
        path,
        summary,
        query: &[],
        request: Body::None,
        reply,
    };
    let post = |(role, path), summary, request, reply| Operation {
        method: Post,
        role,
        path,
        summary,
        query: &[],
        request,
        reply,
    };
    let toml = || Body::Text("application/toml");
    vec![
        get((View, path::STATUS), "State of netvmd, its workers and current problems", all.one::<Status>()),
        get((View, path::PORTS), "Ports", all.list::<PortInfo>()),
        get(
            (View, path::LIVE_PORTS),
            "Ports beside the configuration file, with their owners",
            all.list::<LivePortInfo>(),
        ),
        post(
            (Operate, path::LIVE_PORTS),
            "Add a port beside the configuration file, or replace that of the same owner and `id`",
            all.one::<AddPort>(),
            all.one::<AddedPort>(),
        ),
        post(
            (Operate, path::LIVE_PORT_BATCH),
            "Add several ports beside the configuration file in one transaction: all of them, or none if one is wrong",
            all.list::<AddPort>(),
            all.list::<AddedPort>(),
        ),
        Operation {
            method: Delete,
            query: &[
                ("owner", Type::String, "Who has added it"),
                ("id", Type::String, "What the owner knows it by"),
            ],
            ..get(
                (Operate, path::LIVE_PORTS),
                "Remove a port beside the configuration file",
                all.one::<Done>(),
            )
        },
        get((View, path::NFS), "Instances of NFs", all.list::<NfInfo>()),
        get((View, path::VMS), "Virtual machines", all.list::<VmInfo>()),
        post(
            (Operate, path::VM_START),
            "Start a virtual machine and wait until it runs",
            Body::None,
            all.one::<Done>(),
        ),
        post((Operate, path::VM_STOP), "Shut a virtual machine down", all.one::<StopVm>(), all.one::<Done>()),
        get(
            (View, path::VM_MANUAL_START),
            "How to run a virtual machine without netvmd",
            all.one::<VmManualStart>(),
        ),
        get((View, path::ROUTERS), "Virtual routers", all.list::<RouterInfo>()),
        Operation {
            query: &[
                ("most", Type::Integer, "List at most so many routes"),
                ("family", Type::Integer, "Only those of IPv4 (4) or IPv6 (6)"),
                ("prefix", Type::String, "Only those to this prefix and to prefixes in it"),
                ("address", Type::String, "Only the one that a packet to this address takes"),
                ("after", Type::String, "Only those behind this prefix: the last one of the page before"),
            ],
            ..get((View, path::ROUTES), "A virtual router and its routes", all.one::<RouterRoutes>())
        },
        post(
            (Operate, path::ROUTES),
            "Add static routes to a virtual router",
            all.one::<AddRoutes>(),
            all.one::<Done>(),
        ),
        Operation {
            method: Delete,
            query: &[
                ("prefix", Type::String, "Those to exactly this prefix"),
                ("metric", Type::Integer, "Only those with this metric"),
            ],
            ..get((Operate, path::ROUTES), "Remove static routes of a virtual router", all.one::<Done>())
        },
        get((View, path::NEIGHBOURS), "Neighbours of a virtual router", all.list::<NeighbourInfo>()),
        get((View, path::CHAINS), "Chains", all.list::<ChainInfo>()),
        get((View, path::GROUPS), "Trust groups and their memory", all.list::<GroupInfo>()),
        get((View, path::STATS), "All counters, read in one pass", all.one::<Stats>()),
        get(
            (View, path::LATENCY),
            "How long packets take; measured from the first request on, until a minute after the last",
            all.list::<LatencyInfo>(),
        ),
        get((View, path::CONFIG), "The running configuration", all.one::<ConfigReply>()),
        get(
            (View, path::HISTORY),
            "Configurations that were in force, the last one first",
            all.list::<RevisionInfo>(),
        ),
        get((View, path::REVISION), "A configuration that was in force", all.one::<Revision>()),
        post(
            (Admin, path::CONFIRM),
            "Keep the change that waits for its confirmation",
            Body::None,
            all.one::<Done>(),
        ),
        post(
            (Admin, path::REVERT),
            "Undo the change that waits for its confirmation",
            Body::None,
            all.one::<Done>(),
        ),
        post(
            (Operate, path::PLAN),
            "What applying a configuration would change",
            toml(),
            all.one::<PlanReply>(),
        ),
        Operation {
            query: &[
                ("save", Type::Boolean, "Also write netvmd's configuration file"),
                ("confirm", Type::Integer, "Go back after so many seconds unless confirmed"),
            ],
            ..post((Admin, path::APPLY), "Apply a configuration", toml(), all.one::<ApplyReply>())
        },
        get((View, path::POLICY), "The rules, and how often each matched", all.one::<PolicyInfo>()),
        post((Operate, path::RULES), "Add a rule", all.one::<AddRule>(), all.one::<Done>()),
        Operation {
            method: Delete,
            ..get((Operate, path::RULE), "Delete a rule, by name or number", all.one::<Done>())
        },
        post(
            (View, path::TRACE),
            "What would happen to a packet",
            all.one::<TraceRequest>(),
            all.one::<TraceReply>(),
        ),
        post(
            (Capture, path::LIVE_TRACE),
            "Follow packets of traffic, one JSON object a line (application/jsonl) for each",
            all.one::<LiveTraceRequest>(),
            all.one::<TracedPacket>(),
        ),
        get((View, path::FLOWS), "Flows in the workers' caches", all.one::<Flows>()),
        Operation {
            query: &[("count", Type::Integer, "Most addresses and most names")],
            ..get(
                (View, path::TOP_TALKERS),
                "Top talkers of the engine's flow monitor, or of live connections",
                all.one::<TopTalkers>(),
            )
        },
        Operation {
            query: SELECTED_CONNECTIONS,
            ..get((View, path::CONNECTIONS), "Tracked connections", all.one::<ConnectionList>())
        },
        Operation {
            method: Delete,
            query: CONNECTION_FILTERS,
            ..get((Operate, path::CONNECTIONS), "End tracked connections", all.one::<FlushedConnections>())
        },
        Operation {
            query: SAVED_FILTERS,
            ..get(
                (View, path::SAVED_CONNECTIONS),
                "Connections, as a file that the same path takes",
                Body::Text("application/octet-stream"),
            )
        },
        post(
            (Operate, path::SAVED_CONNECTIONS),
            "Restore saved connections",
            Body::Text("application/octet-stream"),
            all.one::<RestoredConnections>(),
        ),
        get(
            (View, path::CONNECTION_EVENTS),
            "Openings and closings of connections to come, one JSON object a line for each: `ConnectionEvent`",
            Body::Text("application/jsonl"),
        ),
        get(
            (View, path::ADDRESSES),
            "MAC addresses that L2 switching has learned",
            all.list::<AddressInfo>(),
        ),
        get(
            (View, path::MULTICAST),
            "Multicast groups, queriers and routers that IGMP and MLD snooping knows; 404 without snooping",
            all.one::<MulticastInfo>(),
        ),
        post(
            (Capture, path::CAPTURE),
            "Capture packets: status 101 and an upgrade to `netvm-capture`, see `netvm capture`",
            all.one::<CaptureRequest>(),
            Body::None,
        ),
        post(
            (Capture, path::CAPTURE_FILE),
            "Capture packets into a file, which the answer is",
            all.one::<CaptureFile>(),
            Body::Text("application/x-pcapng"),
        ),
        get((Capture, path::HELD_PACKETS), "Packets that an NF had when it ended", all.one::<HeldPackets>()),
        post((Operate, path::RESTART), "Restart every instance of an NF", Body::None, all.one::<Done>()),
        post((Admin, path::STOP), "Stop netvmd", all.one::<StopDaemon>(), all.one::<Done>()),
        Operation {
            query: &[
                ("after", Type::Integer, "Only events with a higher number"),
                (
                    "follow",
                    Type::Boolean,
                    "Go on with events to come, one JSON object a line (application/jsonl)",
                ),
            ],
            ..get((View, path::EVENTS), "What netvmd noticed", all.list::<Event>())
        },
        get(
            (View, path::METRICS),
            "All counters for Prometheus, as OpenMetrics if asked for",
            Body::Text("text/plain"),
        ),
        get((View, path::OPENAPI), "This description", Body::Text("application/json")),
    ]
}
