//! The API as OpenAPI 3.1, made from the types. netvmd serves it at `GET /openapi.json`.

use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItemBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Object, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, ResponseBuilder,
};

use crate::path;
use crate::{
    AddRoutes, AddRule, AddressInfo, ApiError, ApplyReply, CaptureFile, CaptureRequest, ChainInfo,
    ConfigReply, ConnectionEvent, ConnectionList, Done, Event, Flows, FlushedConnections, GroupInfo,
    HeldPackets, LatencyInfo, LiveTraceRequest, NeighbourInfo, NfInfo, PlanReply, PolicyInfo, PortInfo,
    RestoredConnections, Revision, RevisionInfo, RouterInfo, RouterRoutes, Stats, Status, StopDaemon, StopVm,
    TopTalkers, TraceReply, TraceRequest, TracedPacket, VmInfo, VmManualStart,
};

const HEAD: &str = "# HTTP API

netvmd serves HTTP/1.1 on its Unix socket; `netvm` and every other client use it. `GET /openapi.json` is the whole description (OpenAPI 3.1), made from
the types of the code; `netvm openapi` prints it without a netvmd. This page is its list of operations: `netvm openapi --markdown > docs/reference/api.md`
(a test compares them). Every error is an `ApiError`, whose `message` says what to do.

```console
$ curl --unix-socket /run/netvm/api.sock http://netvm/v1/status
$ curl --unix-socket /run/netvm/api.sock http://netvm/openapi.json > netvm.json      # for code generators
```

| request | query | body | reply | what |
|---|---|---|---|---|
";

type Schemas = Vec<(String, RefOr<Schema>)>;

/// A part of a query: its name, its type and what it does.
type QueryPart = (&'static str, Type, &'static str);

/// What a body holds.
enum Body {
    None,
    /// A type of this crate.
    Json(Box<RefOr<Schema>>),
    /// Something else, with its media type.
    Text(&'static str),
}

/// One operation of the API.
struct Operation {
    method: HttpMethod,
    path: &'static str,
    summary: &'static str,
    query: &'static [QueryPart],
    request: Body,
    reply: Body,
}

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

/// The schemas that bodies refer to.
#[derive(Default)]
struct Collected(Schemas);

impl Collected {
    fn one<T: ToSchema>(&mut self) -> Body {
        Body::Json(Box::new(self.reference::<T>().into()))
    }

    fn list<T: ToSchema>(&mut self) -> Body {
        Body::Json(Box::new(ArrayBuilder::new().items(self.reference::<T>()).build().into()))
    }

    fn reference<T: ToSchema>(&mut self) -> Ref {
        let name = T::name().into_owned();
        T::schemas(&mut self.0);
        self.0.push((name.clone(), T::schema()));
        Ref::from_schema_name(name)
    }
}

/// The whole description.
#[must_use]
pub fn openapi() -> OpenApi {
    let mut schemas = Collected::default();
    let mut paths = PathsBuilder::new();
    for operation in operations(&mut schemas) {
        let (path, method) = (operation.path, operation.method.clone());
        let item = PathItemBuilder::new().operation(method, describe(operation));
        paths = paths.path(path, item.build());
    }
    schemas.reference::<ApiError>();
    // A line of a long answer.
    schemas.reference::<ConnectionEvent>();
    let token = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components = ComponentsBuilder::new().schemas_from_iter(schemas.0).security_scheme("token", token);
    let about = "The API of netvmd, served on its Unix socket (by default /run/netvm/api.sock), whose owner and mode say who \
                 may use it. If the configuration has `web` in `[api]`, the reading part is also served on that loopback \
                 address, for those who have the token. Times are in seconds, sizes in bytes.";
    let info = InfoBuilder::new().title("netvmd").version(env!("CARGO_PKG_VERSION")).description(Some(about));
    OpenApiBuilder::new().info(info.build()).paths(paths).components(Some(components.build())).build()
}

fn operations(all: &mut Collected) -> Vec<Operation> {
    use HttpMethod::{Delete, Get, Post};
    let get = |path, summary, reply| Operation {
        method: Get,
        path,
        summary,
        query: &[],
        request: Body::None,
        reply,
    };
    let post =
        |path, summary, request, reply| Operation { method: Post, path, summary, query: &[], request, reply };
    let toml = || Body::Text("application/toml");
    vec![
        get(path::STATUS, "State of netvmd, its workers and current problems", all.one::<Status>()),
        get(path::PORTS, "Ports", all.list::<PortInfo>()),
        get(path::NFS, "Instances of NFs", all.list::<NfInfo>()),
        get(path::VMS, "Virtual machines", all.list::<VmInfo>()),
        post(path::VM_START, "Start a virtual machine and wait until it runs", Body::None, all.one::<Done>()),
        post(path::VM_STOP, "Shut a virtual machine down", all.one::<StopVm>(), all.one::<Done>()),
        get(path::VM_MANUAL_START, "How to run a virtual machine without netvmd", all.one::<VmManualStart>()),
        get(path::ROUTERS, "Virtual routers", all.list::<RouterInfo>()),
        Operation {
            query: &[
                ("most", Type::Integer, "List at most so many routes"),
                ("family", Type::Integer, "Only those of IPv4 (4) or IPv6 (6)"),
                ("prefix", Type::String, "Only those to this prefix and to prefixes in it"),
                ("address", Type::String, "Only the one that a packet to this address takes"),
                ("after", Type::String, "Only those behind this prefix: the last one of the page before"),
            ],
            ..get(path::ROUTES, "A virtual router and its routes", all.one::<RouterRoutes>())
        },
        post(
            path::ROUTES,
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
            ..get(path::ROUTES, "Remove static routes of a virtual router", all.one::<Done>())
        },
        get(path::NEIGHBOURS, "Neighbours of a virtual router", all.list::<NeighbourInfo>()),
        get(path::CHAINS, "Chains", all.list::<ChainInfo>()),
        get(path::GROUPS, "Trust groups and their memory", all.list::<GroupInfo>()),
        get(path::STATS, "All counters, read in one pass", all.one::<Stats>()),
        get(
            path::LATENCY,
            "How long packets take; measured from the first request on, until a minute after the last",
            all.list::<LatencyInfo>(),
        ),
        get(path::CONFIG, "The running configuration", all.one::<ConfigReply>()),
        get(
            path::HISTORY,
            "Configurations that were in force, the last one first",
            all.list::<RevisionInfo>(),
        ),
        get(path::REVISION, "A configuration that was in force", all.one::<Revision>()),
        post(path::CONFIRM, "Keep the change that waits for its confirmation", Body::None, all.one::<Done>()),
        post(path::REVERT, "Undo the change that waits for its confirmation", Body::None, all.one::<Done>()),
        post(path::PLAN, "What applying a configuration would change", toml(), all.one::<PlanReply>()),
        Operation {
            query: &[
                ("save", Type::Boolean, "Also write netvmd's configuration file"),
                ("confirm", Type::Integer, "Go back after so many seconds unless confirmed"),
            ],
            ..post(path::APPLY, "Apply a configuration", toml(), all.one::<ApplyReply>())
        },
        get(path::POLICY, "The rules, and how often each matched", all.one::<PolicyInfo>()),
        post(path::RULES, "Add a rule", all.one::<AddRule>(), all.one::<Done>()),
        Operation {
            method: Delete,
            ..get(path::RULE, "Delete a rule, by name or number", all.one::<Done>())
        },
        post(
            path::TRACE,
            "What would happen to a packet",
            all.one::<TraceRequest>(),
            all.one::<TraceReply>(),
        ),
        post(
            path::LIVE_TRACE,
            "Follow packets of traffic, one JSON object a line (application/jsonl) for each",
            all.one::<LiveTraceRequest>(),
            all.one::<TracedPacket>(),
        ),
        get(path::FLOWS, "Flows in the workers' caches", all.one::<Flows>()),
        Operation {
            query: &[("count", Type::Integer, "Most addresses and most names")],
            ..get(
                path::TOP_TALKERS,
                "Top talkers of the engine's flow monitor, or of live connections",
                all.one::<TopTalkers>(),
            )
        },
        Operation {
            query: SELECTED_CONNECTIONS,
            ..get(path::CONNECTIONS, "Tracked connections", all.one::<ConnectionList>())
        },
        Operation {
            method: Delete,
            query: CONNECTION_FILTERS,
            ..get(path::CONNECTIONS, "End tracked connections", all.one::<FlushedConnections>())
        },
        get(
            path::SAVED_CONNECTIONS,
            "All connections, as a file that the same path takes",
            Body::Text("application/octet-stream"),
        ),
        post(
            path::SAVED_CONNECTIONS,
            "Restore saved connections",
            Body::Text("application/octet-stream"),
            all.one::<RestoredConnections>(),
        ),
        get(
            path::CONNECTION_EVENTS,
            "Openings and closings of connections to come, one JSON object a line for each: `ConnectionEvent`",
            Body::Text("application/jsonl"),
        ),
        get(path::ADDRESSES, "MAC addresses that L2 switching has learned", all.list::<AddressInfo>()),
        post(
            path::CAPTURE,
            "Capture packets: status 101 and an upgrade to `netvm-capture`, see `netvm capture`",
            all.one::<CaptureRequest>(),
            Body::None,
        ),
        post(
            path::CAPTURE_FILE,
            "Capture packets into a file, which the answer is",
            all.one::<CaptureFile>(),
            Body::Text("application/x-pcapng"),
        ),
        get(path::HELD_PACKETS, "Packets that an NF had when it ended", all.one::<HeldPackets>()),
        post(path::RESTART, "Restart every instance of an NF", Body::None, all.one::<Done>()),
        post(path::STOP, "Stop netvmd", all.one::<StopDaemon>(), all.one::<Done>()),
        Operation {
            query: &[
                ("after", Type::Integer, "Only events with a higher number"),
                (
                    "follow",
                    Type::Boolean,
                    "Go on with events to come, one JSON object a line (application/jsonl)",
                ),
            ],
            ..get(path::EVENTS, "What netvmd noticed", all.list::<Event>())
        },
        get(
            path::METRICS,
            "All counters for Prometheus, as OpenMetrics if asked for",
            Body::Text("text/plain"),
        ),
        get(path::OPENAPI, "This description", Body::Text("application/json")),
    ]
}

fn describe(operation: Operation) -> OperationBuilder {
    let mut described = OperationBuilder::new().summary(Some(operation.summary));
    for name in operation.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let text = Object::with_type(SchemaType::Type(Type::String));
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
        described = described.parameter(parameter.required(Required::True).schema(Some(text)).build());
    }
    for (name, kind, about) in operation.query {
        let schema = Object::with_type(SchemaType::Type(kind.clone()));
        let parameter = ParameterBuilder::new().name(*name).parameter_in(ParameterIn::Query);
        described = described.parameter(parameter.description(Some(*about)).schema(Some(schema)).build());
    }
    if let Some((media, schema)) = content(operation.request) {
        let content = ContentBuilder::new().schema(schema).build();
        described = described.request_body(Some(RequestBodyBuilder::new().content(media, content).build()));
    }
    let mut reply = ResponseBuilder::new().description("Success");
    if let Some((media, schema)) = content(operation.reply) {
        reply = reply.content(media, ContentBuilder::new().schema(schema).build());
    }
    let error = ContentBuilder::new().schema(Some(Ref::from_schema_name("ApiError"))).build();
    let error = ResponseBuilder::new()
        .description("404 no such thing; 409 another change, or a restart is needed; 422 wrong input; 500 failed, nothing changed; 503 starting, stopping or too many clients")
        .content("application/json", error);
    described.response("200", reply.build()).response("default", error.build())
}

/// The page `docs/reference/api.md`.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for one in operations(&mut Collected::default()) {
        let method = match one.method {
            HttpMethod::Post => "POST",
            HttpMethod::Delete => "DELETE",
            _ => "GET",
        };
        let name = |body: &Body| match body {
            Body::None => String::new(),
            Body::Text(media) => (*media).to_owned(),
            Body::Json(schema) if let RefOr::Ref(to) = &**schema => {
                format!("`{}`", to.ref_location.rsplit('/').next().unwrap_or_default())
            }
            Body::Json(_) => "list".to_owned(),
        };
        let query: Vec<String> = one.query.iter().map(|(name, ..)| format!("`{name}`")).collect();
        page.push_str(&format!(
            "| `{method} {}` | {} | {} | {} | {} |\n",
            one.path,
            query.join(", "),
            name(&one.request),
            name(&one.reply),
            one.summary
        ));
    }
    page
}

/// The media type and schema of a body.
fn content(body: Body) -> Option<(&'static str, Option<RefOr<Schema>>)> {
    match body {
        Body::None => None,
        Body::Json(schema) => Some(("application/json", Some(*schema))),
        Body::Text(media) => Some((media, None)),
    }
}

#[cfg(test)]
mod tests {
    use netvm_counters::{Counted, TABLES, Table};
    use serde_json::Value;

    use super::*;
    use crate::{
        ConnectionCounts, FlowMonitorInfo, NatTargetInfo, NfPackets, PuntInfo, RouterInterfaceInfo,
        ShareInfo, ThreadInfo, TxQueueInfo, WorkerInfo,
    };

    /// A property of a schema, or of a part of it.
    fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
        let parts = schema["allOf"].as_array().into_iter().flatten();
        parts.chain([schema]).find_map(|part| part["properties"].get(name))
    }

    #[test]
    fn every_counter_is_described() {
        fn of<T: Counted + ToSchema>() -> (String, &'static Table) {
            (T::name().into_owned(), T::TABLE)
        }
        let described = [
            of::<PortInfo>(),
            of::<ShareInfo>(),
            of::<TxQueueInfo>(),
            of::<ChainInfo>(),
            of::<NfPackets>(),
            of::<ThreadInfo>(),
            of::<WorkerInfo>(),
            of::<FlowMonitorInfo>(),
            of::<ConnectionCounts>(),
            of::<GroupInfo>(),
            of::<RouterInfo>(),
            of::<RouterInterfaceInfo>(),
            of::<NatTargetInfo>(),
            of::<PuntInfo>(),
        ];
        assert_eq!(described.each_ref().map(|(_, table)| *table), TABLES);
        let document = serde_json::to_value(openapi()).unwrap();
        for (name, table) in described {
            let schema = &document["components"]["schemas"][&name];
            for counter in table.counters {
                let Some(property) = property(schema, counter.name) else {
                    panic!("{name}: {}", counter.name)
                };
                assert_eq!(property["description"], counter.text, "{name}: {}", counter.name);
            }
        }
    }
}
