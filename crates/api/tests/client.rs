// SPDX-License-Identifier: Apache-2.0
//! The client against a scripted server. This tests the client alone, not netvmd.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use netvm_api::{
    ApiError, ApplyHow, ApplyReply, ChainInfo, ChainState, Client, ClientError, ConfigReply, Diagnostic,
    Done, Drift, Drops, FILE_HEADER, GroupInfo, HugePages, Idle, NfInfo, NfPackets, NfState, PlanReply,
    PortInfo, PortWorkerInfo, RegionInfo, RoleInfo, Severity, StageInfo, Stats, Status, StopDaemon,
    ThreadInfo, WorkerInfo, file_name, path,
};
use serde::Serialize;
use tokio::net::UnixListener;

/// A socket path of this test's own, removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("netvm-api-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn client(&self) -> Client {
        Client::new(Some(&self.0)).with_timeouts(Duration::from_secs(5), Duration::from_secs(5))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let removed = std::fs::remove_file(&self.0);
        assert!(removed.is_ok() || !self.0.exists(), "{removed:?}");
    }
}

fn serve(router: Router) -> Socket {
    let socket = Socket::new();
    let listener = UnixListener::bind(&socket.0).unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    socket
}

#[allow(clippy::needless_update, reason = "a new counter is 0 here")]
fn worker() -> WorkerInfo {
    WorkerInfo {
        id: 0,
        core: 1,
        node: 0,
        idle: Idle::Adaptive,
        queues: 2,
        busy_percent: 12.5,
        sleeps: 9,
        copies: 3,
        copied_bytes: 192,
        longest_turn_us: 41.0,
        ..WorkerInfo::default()
    }
}

fn status() -> Status {
    Status {
        version: "9.8.7".into(),
        dpdk: "DPDK 22.11.7".into(),
        pid: 7,
        drift: Drift::None,
        revision: None,
        confirm_within_s: None,
        config: Some("/etc/netvm/host.toml".into()),
        uptime_s: 1.5,
        clock_hz: 2_600_000_000,
        huge_pages: HugePages::Some,
        workers: vec![worker()],
        ports: 1,
        nfs: 1,
        chains: 1,
        dropped: 15,
        problems: vec!["NF firewall has no process".into()],
    }
}

#[allow(clippy::needless_update, reason = "a new counter is 0 here")]
fn stats() -> Stats {
    let port = PortInfo {
        id: 4,
        name: "client".into(),
        kind: "af_xdp".into(),
        driver_mode: "native, copying".into(),
        link: true,
        queues: 1,
        workers: vec![PortWorkerInfo { worker: 0, queues: 1, load_percent: 12.5 }],
        mtu: 1500,
        group: Some("edge".into()),
        rx_packets: u64::MAX,
        rx_bytes: 2,
        rx_coalesced: Some(7),
        rx_by_kernel: None,
        tx_packets: 3,
        tx_bytes: 4,
        rx_dropped: 5,
        tx_dropped: 6,
        policed: None,
        spoofed: None,
        mac_moves: 0,
        mac_moves_held: 0,
        share: None,
        tx_queues: Vec::new(),
        ..PortInfo::default()
    };
    let thread = ThreadInfo {
        nf_thread: 3,
        packets: NfPackets {
            received: 10,
            next: 5,
            dropped: 2,
            to_port: 2,
            to_role: 1,
            detoured: 0,
            flows_decided: 12_345,
            flows_refused: 678,
            ..NfPackets::default()
        },
        cycles_per_packet: 33.5,
        nf_cycles_per_packet: 20.0,
        bursts: 2,
        sleeps: 1,
        cycles: 335,
        ring_percent: 12.5,
        buffers: 7,
        ..ThreadInfo::default()
    };
    let nf = NfInfo {
        role: "firewall".into(),
        instance: 0,
        pid: None,
        state: NfState::Backoff,
        managed: true,
        group: "edge".into(),
        threads: vec![thread],
        restarts: 2,
        last_exit: Some("killed by signal 9".into()),
        uptime_s: None,
        counters: [("allowed".to_owned(), 8)].into(),
        violations: [("buffer-not-out".to_owned(), 1)].into(),
    };
    let chain = ChainInfo {
        id: 0,
        name: "web".into(),
        hops: vec!["firewall".into()],
        output: None,
        state: ChainState::Down,
        entered: 10,
        left: 8,
        dropped_at_entry: 1,
        dropped_inside: 1,
        ..ChainInfo::default()
    };
    let region = RegionInfo {
        node: 0,
        pages: "2 MiB pages".into(),
        bytes: 1 << 25,
        buffers: 16_384,
        buffer_size: 2048,
        in_engine: 4,
        in_nfs: 3,
        free: 16_377,
    };
    let group = GroupInfo {
        id: 1,
        name: "edge".into(),
        regions: vec![region],
        instances: 1,
        reclaimed_total: 77,
        longest_reclaim_ms: 3.5,
        ..GroupInfo::default()
    };
    let drops = Drops {
        total: 15,
        ports: [("client".to_owned(), [("no-rule".to_owned(), 4)].into())].into(),
        chains: [("web".to_owned(), [("nf-down".to_owned(), 5), ("chain-full".to_owned(), 6)].into())].into(),
        nfs: [("firewall".to_owned(), [("verdict".to_owned(), 7)].into())].into(),
    };
    let stage = StageInfo {
        stage: "engine to NF".into(),
        packets: 100,
        cycles_per_packet: 26.0,
        ns_per_packet: 10.0,
    };
    Stats {
        uptime_s: 2.0,
        ports: vec![port],
        nfs: vec![nf],
        roles: vec![RoleInfo {
            role: "firewall".to_owned(),
            packets: NfPackets { received: 20, ..NfPackets::default() },
            ..RoleInfo::default()
        }],
        chains: vec![chain],
        groups: vec![group],
        workers: vec![worker()],
        drops,
        stages: vec![stage],
        flow_monitor: None,
        connections: None,
        nat_targets: Vec::new(),
    }
}

/// A handler that answers `value`.
fn answer<T: Serialize + Clone + Send + Sync + 'static>(value: T) -> axum::routing::MethodRouter {
    get(move || async move { Json(value) })
}

#[tokio::test]
async fn everything_that_can_be_read_arrives_as_it_was_sent() {
    let stats = stats();
    let config =
        ConfigReply { toml: "[engine]\n".into(), config: serde_json::json!({"engine": {"cores": []}}) };
    let socket = serve(
        Router::new()
            .route(path::STATUS, answer(status()))
            .route(path::PORTS, answer(stats.ports.clone()))
            .route(path::NFS, answer(stats.nfs.clone()))
            .route(path::CHAINS, answer(stats.chains.clone()))
            .route(path::GROUPS, answer(stats.groups.clone()))
            .route(path::STATS, answer(stats.clone()))
            .route(path::CONFIG, answer(config.clone())),
    );
    let client = socket.client();
    assert_eq!(client.socket(), Some(socket.0.as_path()));
    assert_eq!(client.status().await.unwrap(), status());
    assert_eq!(client.ports().await.unwrap(), stats.ports);
    assert_eq!(client.nfs().await.unwrap(), stats.nfs);
    assert_eq!(client.chains().await.unwrap(), stats.chains);
    assert_eq!(client.groups().await.unwrap(), stats.groups);
    assert_eq!(client.stats().await.unwrap(), stats);
    assert_eq!(client.stats().await.unwrap().drops.sum(), 15);
    assert_eq!(client.config().await.unwrap(), config);
}

#[tokio::test]
async fn files_roles_and_plans_arrive() {
    let host = |text: &str| netvm_config::parse("host.toml", text).unwrap().host;
    let plan = netvm_config::plan(&host(""), &host("[[port]]\nname = \"out\"\nkind = \"sink\""));
    let (planned, applied) = (plan.clone(), plan.clone());
    let parts = |headers: HeaderMap, body: String| (file_name(headers[FILE_HEADER].as_bytes()), body);
    let socket = serve(
        Router::new()
            .route(
                path::PLAN,
                post(move |headers: HeaderMap, body: String| async move {
                    assert_eq!(parts(headers, body), ("/tmp/Büro 1.toml".to_owned(), "[engine]".to_owned()));
                    Json(PlanReply { plan: planned, warnings: Vec::new(), live: Vec::new() })
                }),
            )
            .route(
                path::APPLY,
                post(move |Query(how): Query<ApplyHow>, headers: HeaderMap, body: String| async move {
                    assert_eq!(parts(headers, body), ("x.toml".to_owned(), "[engine]\n".repeat(10_000)));
                    Json(ApplyReply {
                        plan: applied,
                        warnings: Vec::new(),
                        took_ms: 1.5,
                        saved: None,
                        confirm_within_s: how.confirm,
                    })
                }),
            )
            .route(path::RESTART, post(|Path(role): Path<String>| async { Json(Done { message: role }) }))
            .route(path::STOP, post(|| async { Json(Done { message: "stopping".into() }) })),
    );
    let client = socket.client();
    let how = ApplyHow { save: true, confirm: Some(7) };
    assert_eq!(client.plan("/tmp/Büro 1.toml", "[engine]").await.unwrap().plan, plan);
    assert_eq!(
        client.apply("x.toml", &"[engine]\n".repeat(10_000), how).await.unwrap().confirm_within_s,
        Some(7)
    );
    assert_eq!(client.restart("fire/wall é").await.unwrap().message, "fire/wall é");
    assert_eq!(client.stop(StopDaemon { purge: true }).await.unwrap().message, "stopping");
}

#[tokio::test]
async fn what_netvmd_refuses_is_told_with_its_reasons() {
    let error = netvm_config::parse("host.toml", "[engine]\ncoers = [0]").unwrap_err();
    let refusal = ApiError::of_config(&error);
    let expected = refusal.clone();
    let socket =
        serve(Router::new().route(
            path::APPLY,
            post(move || async move { (StatusCode::UNPROCESSABLE_ENTITY, Json(refusal)) }),
        ));
    let Err(ClientError::Refused { status, error }) =
        socket.client().apply("host.toml", "x", ApplyHow::default()).await
    else {
        panic!("not refused");
    };
    assert_eq!((status, &error), (422, &expected));
    let Diagnostic { severity, code, line, column, help, rendered, .. } = &error.diagnostics[0];
    assert_eq!((*severity, code.as_str(), *line, *column), (Severity::Error, "config::unknown_key", 2, 1));
    assert_eq!(help.as_deref(), Some("did you mean `cores`?"));
    assert!(rendered.contains("host.toml:2:1"), "{rendered}");
}

#[tokio::test]
async fn a_dead_socket_is_told_with_a_remedy() {
    let socket = Socket::new();
    let error = socket.client().status().await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    // A socket that a killed netvmd left behind.
    drop(std::os::unix::net::UnixListener::bind(&socket.0).unwrap());
    let error = socket.client().status().await.unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("Start it with `netvmd --config FILE`") && text.contains(&*socket.0.to_string_lossy()),
        "{text}"
    );
}

#[tokio::test]
async fn answers_that_are_not_netvmds_are_told_so() {
    let socket =
        serve(Router::new().route(path::STATUS, get(|| async { "hello" })).route(
            path::PORTS,
            get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "oops").into_response() }),
        ));
    let client = socket.client();
    for (error, what) in [
        (client.status().await.unwrap_err(), "expected value"),
        (client.ports().await.unwrap_err(), "HTTP status 500"),
        (client.chains().await.unwrap_err(), "HTTP status 404"),
    ] {
        assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_or_goes_away_is_told_so() {
    let slow = serve(Router::new().route(path::STATUS, get(std::future::pending::<()>)));
    let limit = Duration::from_millis(50);
    let error = slow.client().with_timeouts(limit, limit).status().await.unwrap_err();
    assert!(
        matches!(error, ClientError::Timeout { .. }) && error.to_string().contains("GET /v1/status"),
        "{error}"
    );

    let socket = Socket::new();
    let listener = UnixListener::bind(&socket.0).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    let error = socket.client().status().await.unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
}
