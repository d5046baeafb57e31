//! A client of the API: one connection for each request, over the Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::escape::encode;
use crate::{
    AddRoutes, AddRule, AddressInfo, ApiError, ApplyHow, ApplyReply, CAPTURE_PROTOCOL, CAPTURE_SOCKET,
    CaptureRequest, ChainInfo, ConfigReply, DEFAULT_SOCKET, Done, Event, FILE_HEADER, Flows, GroupInfo,
    LastBurst, LatencyInfo, NeighbourInfo, NfInfo, PlanReply, PolicyInfo, PortInfo, RemoveRoutes, Revision,
    RevisionInfo, RouteQuery, RouterInfo, RouterRoutes, SOCKET_VARIABLE, Stats, Status, StopDaemon, StopVm,
    TraceReply, TraceRequest, VmByHand, VmInfo, path,
};

/// Longest answer to read.
const MAX_ANSWER: usize = 64 << 20;
/// Longest line of the event stream to read.
const LONGEST_EVENT: usize = 1 << 20;
/// Time limit of requests that only read.
const SHORT: Duration = Duration::from_secs(10);
/// Time limit of changes, which start NFs and wait for them.
const LONG: Duration = Duration::from_secs(120);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No netvmd listens on the socket.
    #[error("no netvmd answers on {}: {source}. Is it running? Start it with `netvmd --config FILE`; for another socket, use --socket or {SOCKET_VARIABLE}", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// This user may not connect.
    #[error("this user may not use {}: {source}. Run as root, or as a user whom the socket's owner and mode admit (see `ls -l {}`)", path.display(), path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another failure to connect.
    #[error("cannot connect to {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No answer in time.
    #[error(
        "netvmd did not answer `{request}` within {seconds} s. It may be busy starting NFs: see its log, and try again"
    )]
    Timeout {
        /// The request.
        request: String,
        /// The time limit.
        seconds: u64,
    },
    /// The connection broke.
    #[error("netvmd closed the connection during `{request}`: {source}. See its log")]
    Broken {
        /// The request.
        request: String,
        /// The error of HTTP.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer does not belong to this API.
    #[error("the answer to `{request}` is not netvmd's: {what}. Is {} its socket, and is it of the version of this program ({})?", path.display(), env!("CARGO_PKG_VERSION"))]
    Protocol {
        /// The request.
        request: String,
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The request has no JSON form.
    #[error("the request cannot be written as JSON: {0}")]
    Request(#[source] serde_json::Error),
    /// netvmd refused the request.
    #[error("{error}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its reason.
        error: ApiError,
    },
}

/// Environment variable with the trace that requests belong to.
const TRACE_VARIABLE: &str = "TRACEPARENT";

/// The body of a request.
enum Body<'a> {
    /// A configuration with the name of its file.
    Toml {
        file: &'a str,
        text: &'a str,
    },
    Json(String),
}

impl Body<'_> {
    fn json<T: Serialize>(value: &T) -> Result<Self, ClientError> {
        serde_json::to_string(value).map(Self::Json).map_err(ClientError::Request)
    }
}

/// A client of one netvmd.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    short: Duration,
    long: Duration,
    /// The trace that requests belong to, as in the header `traceparent` (W3C Trace Context).
    trace: Option<HeaderValue>,
}

impl Client {
    /// A client of the netvmd at `socket`; `None`: at the socket in the environment, else at the default one. Its requests
    /// belong to the trace that `TRACEPARENT` in the environment names.
    #[must_use]
    pub fn new(socket: Option<&Path>) -> Self {
        let named = || std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let socket = socket.map(Path::to_owned).or_else(named).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let trace = std::env::var(TRACE_VARIABLE).ok().and_then(|trace| HeaderValue::from_str(&trace).ok());
        Self { socket, short: SHORT, long: LONG, trace }
    }

    /// The same, by the socket of those who may capture if this user may not use the API's.
    #[must_use]
    pub fn for_capture(self) -> Self {
        let socket = self.socket.with_file_name(CAPTURE_SOCKET);
        let outcome = std::os::unix::net::UnixStream::connect(&self.socket);
        let is_denied = outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
        if is_denied && socket.exists() { Self { socket, ..self } } else { self }
    }

    /// The same with other time limits: `short` for requests that only read, `long` for changes.
    #[must_use]
    pub fn with_timeouts(mut self, short: Duration, long: Duration) -> Self {
        (self.short, self.long) = (short, long);
        self
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
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
    pub async fn last_burst(&self, role: &str) -> Result<LastBurst, ClientError> {
        self.get(&path::LAST_BURST.replace("{role}", &encode(role, ""))).await
    }

    /// How to run a virtual machine without netvmd.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is none of that name.
    pub async fn vm_by_hand(&self, vm: &str) -> Result<VmByHand, ClientError> {
        self.get(&path::VM_BY_HAND.replace("{vm}", &encode(vm, ""))).await
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

    /// Starts a capture. The connection is its own from now on: send a byte, receive the hand-over of `netvm-tap`; closing
    /// the connection ends the capture.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when a place or reason does not exist, or the filter is wrong.
    pub async fn capture(
        &self,
        request: &CaptureRequest,
    ) -> Result<std::os::unix::net::UnixStream, ClientError> {
        let name = format!("POST {}", path::CAPTURE);
        let broken =
            |source: hyper::Error| ClientError::Broken { request: name.clone(), source: source.into() };
        let body = serde_json::to_string(request).map_err(ClientError::Request)?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.connect_error(error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = connection.with_upgrades();
        let exchange = async {
            let request = Request::post(path::CAPTURE)
                .header(header::HOST, "netvmd")
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONNECTION, "upgrade")
                .header(header::UPGRADE, CAPTURE_PROTOCOL)
                .body(Full::new(Bytes::from(body)))
                .map_err(|error| self.unexpected(&name, error.to_string()))?;
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return hyper::upgrade::on(response).await.map_err(broken);
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let bytes = body.map_err(|source| ClientError::Broken { request: name.clone(), source })?;
            match serde_json::from_slice(&bytes.to_bytes()) {
                Ok(error) => Err(ClientError::Refused { status: status.as_u16(), error }),
                Err(_) => Err(self.unexpected(&name, format!("HTTP status {status}"))),
            }
        };
        let both = async {
            tokio::pin!(exchange);
            tokio::pin!(connection);
            tokio::select! {
                answer = &mut exchange => answer,
                _ = &mut connection => exchange.await,
            }
        };
        let timeout = |_| ClientError::Timeout { request: name.clone(), seconds: self.short.as_secs() };
        let upgraded = tokio::time::timeout(self.short, both).await.map_err(timeout)??;
        let parts = upgraded.downcast::<TokioIo<UnixStream>>();
        let parts = parts.map_err(|_| self.unexpected(&name, "not a Unix stream".to_owned()))?;
        let stream = parts.io.into_inner().into_std().map_err(|error| self.connect_error(error))?;
        stream.set_nonblocking(false).map_err(|error| self.connect_error(error))?;
        Ok(stream)
    }

    /// The process that listens on the socket; `None` if it is in a PID namespace that this process cannot see.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn process(&self) -> Result<Option<i32>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.connect_error(error))?;
        let peer = stream.peer_cred().map_err(|error| self.connect_error(error))?;
        Ok(peer.pid().filter(|pid| *pid > 0))
    }

    /// The events after a number, and those to come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, ClientError> {
        let name = format!("GET {}", path::EVENTS);
        let broken =
            |source: hyper::Error| ClientError::Broken { request: name.clone(), source: source.into() };
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.connect_error(error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let uri = format!("{}?after={after}&follow=true", path::EVENTS);
        let request =
            Request::builder().uri(uri).header(header::HOST, "netvmd").body(Full::<Bytes>::default());
        let request = request.map_err(|error| self.unexpected(&name, error.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(self.unexpected(&name, format!("HTTP status {}", response.status())));
        }
        Ok(EventStream { client: self.clone(), body: response.into_body(), rest: Vec::new(), connection })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None, self.short).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let name = format!("{method} {path}");
        let timeout = || ClientError::Timeout { request: name.clone(), seconds: limit.as_secs() };
        let answer = tokio::time::timeout(limit, self.exchange(&name, method, path, body));
        let (status, bytes) = answer.await.map_err(|_| timeout())??;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| self.unexpected(&name, error.to_string()));
        }
        match serde_json::from_slice(&bytes) {
            Ok(error) => Err(ClientError::Refused { status: status.as_u16(), error }),
            Err(_) => Err(self.unexpected(&name, format!("HTTP status {status}"))),
        }
    }

    async fn exchange(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.connect_error(error))?;
        let broken =
            |source: hyper::Error| ClientError::Broken { request: name.to_owned(), source: source.into() };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async {
            let mut request = Request::builder().method(method).uri(path).header(header::HOST, "netvmd");
            let text = match body {
                None => Bytes::new(),
                Some(Body::Toml { file, text }) => {
                    request = request
                        .header(header::CONTENT_TYPE, "application/toml")
                        .header(FILE_HEADER, encode(file, "/"));
                    Bytes::copy_from_slice(text.as_bytes())
                }
                Some(Body::Json(json)) => {
                    request = request.header(header::CONTENT_TYPE, "application/json");
                    Bytes::from(json)
                }
            };
            if let Some(trace) = &self.trace {
                request = request.header("traceparent", trace);
            }
            let request =
                request.body(Full::new(text)).map_err(|error| self.unexpected(name, error.to_string()))?;
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let bytes = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await
                .map_err(|source| ClientError::Broken { request: name.to_owned(), source })?;
            Ok((status, bytes.to_bytes()))
        };
        // The connection must be polled while the exchange waits. It ends after the exchange.
        tokio::pin!(exchange);
        tokio::pin!(connection);
        tokio::select! {
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    }

    fn connect_error(&self, source: io::Error) -> ClientError {
        let path = self.socket.clone();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning { path, source }
            }
            io::ErrorKind::PermissionDenied => ClientError::Denied { path, source },
            _ => ClientError::Connect { path, source },
        }
    }

    fn unexpected(&self, request: &str, what: String) -> ClientError {
        ClientError::Protocol { request: request.to_owned(), path: self.socket.clone(), what }
    }
}

/// Events as they happen.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    body: hyper::body::Incoming,
    /// What has arrived of the next lines.
    rest: Vec<u8>,
    connection: tokio::task::JoinHandle<()>,
}

impl EventStream {
    /// The next event; `None` when netvmd has ended the stream, as it does when it stops. It is not safe to drop this
    /// future before it is ready and to call it again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let name = || format!("GET {}", path::EVENTS);
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let event = serde_json::from_slice(&line);
                return event.map(Some).map_err(|error| self.client.unexpected(&name(), error.to_string()));
            }
            if self.rest.len() > LONGEST_EVENT {
                return Err(self.client.unexpected(&name(), "an endless line".to_owned()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.rest.extend(frame.into_data().into_iter().flatten()),
                Some(Err(source)) => {
                    return Err(ClientError::Broken { request: name(), source: source.into() });
                }
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.connection.abort();
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
}
