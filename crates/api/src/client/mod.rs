// SPDX-License-Identifier: Apache-2.0
//! A client of the API: one connection for each request, over the Unix socket or, to another machine, over TLS.

mod args;
mod error;
mod http;
mod server;
mod stream;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use hyper::header::HeaderValue;
use netvm_tls::ClientFiles;

pub use args::ServerArgs;
pub use error::ClientError;
use http::Body;
use server::{Remote, Server, Stream};
pub use stream::{ByteStream, ConnectionEventStream, EventStream, TraceStream};

use crate::escape::encode;
use crate::{
    AddPort, AddRoutes, AddRule, AddedPort, AddressInfo, ApplyHow, ApplyReply, ChainInfo, ConfigReply,
    ConnectionList, ConnectionQuery, DEFAULT_SOCKET, Done, Event, Flows, FlushedConnections, GroupInfo,
    HeldPackets, LatencyInfo, LivePortInfo, MulticastInfo, NeighbourInfo, NfInfo, PlanReply, PolicyInfo,
    PortInfo, RemovePort, RemoveRoutes, RestoredConnections, Revision, RevisionInfo, Role, RouteQuery,
    RouterInfo, RouterRoutes, SOCKET_VARIABLE, Stats, Status, StopDaemon, StopVm, TopTalkers, TraceReply,
    TraceRequest, VmInfo, VmManualStart, group_socket, path,
};

/// Time limit of requests that only read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of changes, which start NFs and wait for them.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Environment variable with the trace that requests belong to.
const TRACE_VARIABLE: &str = "TRACEPARENT";

/// A client of one netvmd.
#[derive(Clone, Debug)]
pub struct Client {
    server: Server,
    short: Duration,
    long: Duration,
    /// The trace that requests belong to, as in the header `traceparent` (W3C Trace Context).
    trace: Option<HeaderValue>,
}

impl Client {
    /// A client of the netvmd at `socket`; `None`: at the socket in the environment, else at the default one. Its
    /// requests belong to the trace that `TRACEPARENT` in the environment names.
    #[must_use]
    pub fn new(socket: Option<&Path>) -> Self {
        let named = || std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let socket = socket.map(Path::to_owned).or_else(named).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let trace = std::env::var(TRACE_VARIABLE).ok().and_then(|trace| HeaderValue::from_str(&trace).ok());
        Self { server: Server::Socket(socket), short: READ_TIMEOUT, long: CHANGE_TIMEOUT, trace }
    }

    /// A client of the netvmd at `https://NAME:PORT`, with these files.
    ///
    /// # Errors
    /// [`ClientError::Address`] and [`ClientError::Files`].
    pub fn remote(url: &str, files: &ClientFiles) -> Result<Self, ClientError> {
        Ok(Self { server: Server::Remote(Remote::new(url, files)?), ..Self::new(None) })
    }

    /// The same. If this user may not use the API's socket, by the first one of a group that the user may use.
    #[must_use]
    pub fn by_group(self) -> Self {
        let is_denied = |socket: &Path| {
            let outcome = std::os::unix::net::UnixStream::connect(socket);
            outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        };
        let Some(own) = self.server.socket().filter(|own| is_denied(own)) else { return self };
        let beside = |role| own.with_file_name(group_socket(role));
        let sockets = [Role::Operate, Role::Capture, Role::View].map(beside);
        let usable = sockets.into_iter().find(|socket| socket.exists() && !is_denied(socket));
        match usable {
            Some(socket) => Self { server: Server::Socket(socket), ..self },
            None => self,
        }
    }

    /// The same with other time limits: `short` for requests that only read, `long` for changes.
    #[must_use]
    pub fn with_timeouts(mut self, short: Duration, long: Duration) -> Self {
        (self.short, self.long) = (short, long);
        self
    }

    /// The socket; `None` if netvmd is on another machine.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.server.socket()
    }

    /// The plan for applying `toml`. `file` is its name, for diagnostics.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when the configuration is wrong.
    pub async fn plan(&self, file: &str, toml: &str) -> Result<PlanReply, ClientError> {
        self.request(Method::POST, path::PLAN, Some(Body::Toml { file, text: toml }), self.short).await
    }

    /// Applies `toml`. After an error, the running configuration is unchanged.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when the configuration is wrong.
    pub async fn apply(&self, file: &str, toml: &str, how: ApplyHow) -> Result<ApplyReply, ClientError> {
        let confirm = how.confirm.map_or_else(String::new, |seconds| format!("&confirm={seconds}"));
        let path = format!("{}?save={}{confirm}", path::APPLY, how.save);
        self.request(Method::POST, &path, Some(Body::Toml { file, text: toml }), self.long).await
    }

    /// Keeps the change that waits for its confirmation.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if none waits, or it cannot be saved.
    pub async fn confirm(&self) -> Result<Done, ClientError> {
        self.request(Method::POST, path::CONFIRM, None, self.long).await
    }

    /// Undoes the change that waits for its confirmation.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if none waits.
    pub async fn revert(&self) -> Result<Done, ClientError> {
        self.request(Method::POST, path::REVERT, None, self.long).await
    }

    /// A configuration that was in force.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is none of that number.
    pub async fn revision(&self, number: u64) -> Result<Revision, ClientError> {
        self.get(&path::REVISION.replace("{number}", &number.to_string())).await
    }

    /// Restarts every instance of an NF.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is no such role, or netvmd does not start it.
    pub async fn restart(&self, role: &str) -> Result<Done, ClientError> {
        let path = path::RESTART.replace("{role}", &encode(role, ""));
        self.request(Method::POST, &path, None, self.long).await
    }

    /// The packets that the NF of a role had when it ended.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there are none.
    pub async fn held_packets(&self, role: &str) -> Result<HeldPackets, ClientError> {
        self.get(&path::HELD_PACKETS.replace("{role}", &encode(role, ""))).await
    }

    /// The addresses and names with the most bytes, at most `count` of each.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when no flows are counted.
    pub async fn top_talkers(&self, count: usize) -> Result<TopTalkers, ClientError> {
        self.get(&format!("{}?count={count}", path::TOP_TALKERS)).await
    }

    /// The tracked connections that a query selects.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when no port tracks connections, or the query is wrong.
    pub async fn connections(&self, query: &ConnectionQuery) -> Result<ConnectionList, ClientError> {
        self.get(&format!("{}?{}", path::CONNECTIONS, query.query())).await
    }

    /// Ends the tracked connections that a query selects.
    ///
    /// # Errors
    /// As for [`connections`](Self::connections).
    pub async fn flush_connections(
        &self,
        query: &ConnectionQuery,
    ) -> Result<FlushedConnections, ClientError> {
        let path = format!("{}?{}", path::CONNECTIONS, query.query());
        self.request(Method::DELETE, &path, None, self.short).await
    }

    /// Restores the connections of a file that [`saved_connections`](Self::saved_connections) has sent.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when no port tracks connections, or it is not such a file.
    pub async fn load_connections(&self, file: Vec<u8>) -> Result<RestoredConnections, ClientError> {
        let body = Body::Bytes(file.into());
        self.request(Method::POST, path::SAVED_CONNECTIONS, Some(body), self.long).await
    }

    /// How to run a virtual machine without netvmd.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is none of that name.
    pub async fn vm_manual_start(&self, vm: &str) -> Result<VmManualStart, ClientError> {
        self.get(&path::VM_MANUAL_START.replace("{vm}", &encode(vm, ""))).await
    }

    /// `GET /v1/routers/{router}/routes`: the routes that a query selects.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is no router of that name.
    pub async fn routes(&self, router: &str, query: &RouteQuery) -> Result<RouterRoutes, ClientError> {
        let path = path::ROUTES.replace("{router}", &encode(router, ""));
        self.get(&format!("{path}?{}", query.query())).await
    }

    /// Adds static routes to a router.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when a route is wrong.
    pub async fn add_routes(&self, router: &str, routes: &AddRoutes) -> Result<Done, ClientError> {
        let path = path::ROUTES.replace("{router}", &encode(router, ""));
        self.request(Method::POST, &path, Some(Body::json(routes)?), self.short).await
    }

    /// Removes static routes of a router.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none, or it is the configuration's or a daemon's.
    pub async fn remove_routes(&self, router: &str, which: &RemoveRoutes) -> Result<Done, ClientError> {
        let path = path::ROUTES.replace("{router}", &encode(router, ""));
        self.request(Method::DELETE, &format!("{path}?{}", which.query()), None, self.short).await
    }

    /// `GET /v1/routers/{router}/neighbours`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is no router of that name.
    pub async fn neighbours(&self, router: &str) -> Result<Vec<NeighbourInfo>, ClientError> {
        self.get(&path::NEIGHBOURS.replace("{router}", &encode(router, ""))).await
    }

    /// Starts a virtual machine, and waits until it runs.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none of that name, or it does not start.
    pub async fn start_vm(&self, vm: &str) -> Result<Done, ClientError> {
        let path = path::VM_START.replace("{vm}", &encode(vm, ""));
        self.request(Method::POST, &path, None, self.long).await
    }

    /// Shuts a virtual machine down, and waits until it has ended.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is none of that name.
    pub async fn stop_vm(&self, vm: &str, how: StopVm) -> Result<Done, ClientError> {
        let path = path::VM_STOP.replace("{vm}", &encode(vm, ""));
        self.request(Method::POST, &path, Some(Body::json(&how)?), self.long).await
    }

    /// Adds a port beside the configuration file, and waits until it is open, or known to wait for something.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when the port is wrong, or contradicts what runs.
    pub async fn add_port(&self, port: &AddPort) -> Result<AddedPort, ClientError> {
        self.request(Method::POST, path::LIVE_PORTS, Some(Body::json(port)?), self.long).await
    }

    /// The same for several ports, in one transaction: all of them or none.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when one of them is wrong; then none is added.
    pub async fn add_ports(&self, ports: &[AddPort]) -> Result<Vec<AddedPort>, ClientError> {
        self.request(Method::POST, path::LIVE_PORT_BATCH, Some(Body::json(&ports)?), self.long).await
    }

    /// Removes a port that was added beside the configuration file.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none.
    pub async fn remove_port(&self, which: &RemovePort) -> Result<Done, ClientError> {
        let path = format!("{}?{}", path::LIVE_PORTS, which.query());
        self.request(Method::DELETE, &path, None, self.long).await
    }

    /// Adds a rule, and waits until it is in force.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with diagnostics when the rule is wrong.
    pub async fn add_rule(&self, rule: &AddRule) -> Result<Done, ClientError> {
        self.request(Method::POST, path::RULES, Some(Body::json(rule)?), self.long).await
    }

    /// Removes a rule, by name or number.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is no such rule.
    pub async fn delete_rule(&self, rule: &str) -> Result<Done, ClientError> {
        let path = path::RULE.replace("{rule}", &encode(rule, ""));
        self.request(Method::DELETE, &path, None, self.long).await
    }

    /// Traces what would happen to a packet.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is no such port, or the frame cannot be read.
    pub async fn trace(&self, packet: &TraceRequest) -> Result<TraceReply, ClientError> {
        self.request(Method::POST, path::TRACE, Some(Body::json(packet)?), self.short).await
    }

    /// Stops netvmd.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stop(&self, how: StopDaemon) -> Result<Done, ClientError> {
        self.request(Method::POST, path::STOP, Some(Body::json(&how)?), self.long).await
    }
    /// The process that listens on the socket; `None` if it is in a PID namespace that this process cannot see, or on
    /// another machine.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn process(&self) -> Result<Option<i32>, ClientError> {
        let (Some(socket), Stream::Socket(stream)) = (self.server.socket(), self.connect().await?) else {
            return Ok(None);
        };
        let peer = stream.peer_cred().map_err(|error| server::socket_error(socket, error))?;
        Ok(peer.pid().filter(|pid| *pid > 0))
    }
}

macro_rules! reads {
    ($($(#[$doc:meta])* $name:ident -> $reply:ty: $path:ident;)*) => {
        impl Client {
            $($(#[$doc])*
            ///
            /// # Errors
            /// [`ClientError`].
            pub async fn $name(&self) -> Result<$reply, ClientError> {
                self.get(path::$path).await
            })*
        }
    };
}
reads! {
    /// The state of netvmd, and what it runs on.
    status -> Status: STATUS;
    /// All ports.
    ports -> Vec<PortInfo>: PORTS;
    /// All ports beside the configuration file.
    live_ports -> Vec<LivePortInfo>: LIVE_PORTS;
    /// All instances of all NFs.
    nfs -> Vec<NfInfo>: NFS;
    /// All chains.
    chains -> Vec<ChainInfo>: CHAINS;
    /// All trust groups.
    groups -> Vec<GroupInfo>: GROUPS;
    /// All counters.
    stats -> Stats: STATS;
    /// Latencies of packets.
    latency -> Vec<LatencyInfo>: LATENCY;
    /// The running configuration.
    config -> ConfigReply: CONFIG;
    /// The events that netvmd remembers.
    events -> Vec<Event>: EVENTS;
    /// The configurations that were in force, the last one first.
    history -> Vec<RevisionInfo>: HISTORY;
    /// All virtual machines.
    vms -> Vec<VmInfo>: VMS;
    /// All virtual routers.
    routers -> Vec<RouterInfo>: ROUTERS;
    /// The rules in force, and how often each matched.
    policy -> PolicyInfo: POLICY;
    /// The flows in the flow caches.
    flows -> Flows: FLOWS;
    /// The MAC addresses that L2 switching has learned.
    addresses -> Vec<AddressInfo>: ADDRESSES;
    /// Groups, queriers and routers that snooping knows.
    multicast -> MulticastInfo: MULTICAST;
}
