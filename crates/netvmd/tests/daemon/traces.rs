// SPDX-License-Identifier: Apache-2.0
//! Traces of changes, as a collector receives them.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use axum::body::Bytes;
use axum::routing::post;
use netvm_api::path;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;

use super::common::{Daemon, ENGINE, Folder, forwarding_chain, program};
use super::config;

const TIMEOUT: Duration = Duration::from_secs(30);
/// A trace and a span of the caller.
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector, which passes on what it receives.
fn collector() -> (String, Receiver<ExportTraceServiceRequest>) {
    let (sender, received) = channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let take = async move |body: Bytes| {
            sender.send(ExportTraceServiceRequest::decode(body).unwrap()).unwrap();
        };
        let service = axum::Router::new().route("/v1/traces", post(take));
        let serve =
            async { axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), service).await };
        runtime.block_on(serve).unwrap();
    });
    (format!("http://{address}"), received)
}

fn traced(endpoint: &str, config: &str) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut daemon = Daemon::launch_as(command, Arc::new(Folder::new()), config);
    daemon.await_log("serves its API on");
    daemon
}

/// The spans of a change: those that have come once its own has.
fn spans(received: &Receiver<ExportTraceServiceRequest>, change: &str) -> Vec<Span> {
    let mut spans = Vec::new();
    while !spans.iter().any(|span: &Span| span.name == change) {
        for resource in received.recv_timeout(TIMEOUT).unwrap().resource_spans {
            let attributes = format!("{:?}", resource.resource);
            assert!(attributes.contains("service.name") && attributes.contains("netvmd"), "{attributes}");
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let names = || spans.iter().map(|span| &span.name).collect::<Vec<_>>();
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no `{name}` in {:?}", names()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_change_and_its_steps_are_spans_of_the_callers_trace() {
    let (endpoint, received) = collector();
    let daemon = traced(&endpoint, &config(&["a"]));
    let changed = format!("{}{}", config(&["a"]), forwarding_chain("b", &program("forward")));
    let (status, answer) =
        daemon.request_with(&[&format!("traceparent: {CALLER}")], "POST", path::APPLY, &changed);
    assert_eq!(status, 200, "{answer}");
    let spans = spans(&received, "apply");
    let change = named(&spans, "apply");
    let caller: Vec<&str> = CALLER.split('-').collect();
    assert_eq!(
        (hex(&change.trace_id).as_str(), hex(&change.parent_span_id).as_str()),
        (caller[1], caller[2])
    );
    let attributes = format!("{:?}", change.attributes);
    assert!(attributes.contains("netvm.changes") && attributes.contains("netvm.file"), "{attributes}");
    for step in ["read and look up", "start new NFs", "change the engine", "replace NFs"] {
        let step = named(&spans, step);
        assert_eq!(step.parent_span_id, change.span_id, "{step:?}");
        assert!(step.start_time_unix_nano >= change.start_time_unix_nano, "{step:?}");
        assert!(step.end_time_unix_nano <= change.end_time_unix_nano, "{step:?}");
    }
    assert_eq!(named(&spans, "start nf b-nf").parent_span_id, named(&spans, "start new NFs").span_id);
    assert!(!daemon.log().contains("apply:"), "spans are not in the log:\n{}", daemon.log());
}

#[test]
fn a_failed_change_says_why_and_an_absent_collector_delays_nothing() {
    let (endpoint, received) = collector();
    let daemon = traced(&endpoint, &config(&["a"]));
    let (status, _) = daemon.request("POST", path::APPLY, "[[port]]\nname = 3\n");
    assert_eq!(status, 422);
    let spans = spans(&received, "apply");
    for name in ["apply", "read and look up"] {
        let status = named(&spans, name).status.clone().unwrap();
        assert_eq!(status.code(), StatusCode::Error);
        assert_eq!(status.message, "configuration has 2 errors");
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut daemon = traced(&format!("http://{nobody}"), &ENGINE);
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &config(&["a"]));
    daemon.await_log(&format!("traces for http://{nobody} are lost:"));
    let mut refused = traced("https://collector.example:4318", &ENGINE);
    refused.await_log("netvmd supports only http:// here");
}
