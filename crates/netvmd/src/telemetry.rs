// SPDX-License-Identifier: Apache-2.0
//! OpenTelemetry traces of changes: a span for each `apply` and for each of its steps, sent by OTLP over HTTP.
//!
//! Off unless the environment names a collector, as in the OpenTelemetry specification: `OTEL_EXPORTER_OTLP_ENDPOINT`
//! or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. A separate thread sends the spans, so an unreachable or slow collector
//! delays nothing.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::field::Empty;
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Target of the spans.
pub(crate) const TRACED: &str = "netvmd::change";
/// Variables that name the collector, in order of precedence.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The `service.name`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` sets another.
const SERVICE: &str = "netvmd";
/// Time limit for a request to the collector, and for the last request when netvmd ends.
const TIMEOUT: Duration = Duration::from_secs(5);
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends spans; dropping it sends the remaining ones.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
}

/// The collector cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    #[error(
        "{variable}={endpoint}: netvmd supports only http:// here: run a collector on this machine that forwards the traces"
    )]
    Scheme { variable: &'static str, endpoint: String },
    #[error("{0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

impl Traces {
    /// Starts to send, if the environment names a collector.
    ///
    /// # Errors
    /// [`TracesError`] if the collector's address is wrong.
    pub(crate) fn from_environment() -> Result<Option<Self>, TracesError> {
        let named = |variable| {
            std::env::var(variable).ok().filter(|value| !value.is_empty()).map(|value| (variable, value))
        };
        let Some((variable, endpoint)) = ENDPOINTS.into_iter().find_map(named) else { return Ok(None) };
        if !endpoint.starts_with("http://") {
            return Err(TracesError::Scheme { variable, endpoint });
        }
        let exporter = SpanExporter::builder().with_http().with_http_client(Client::new(endpoint)).build()?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Self { provider }))
    }

    pub(crate) fn tracer(&self) -> SdkTracer {
        self.provider.tracer(SERVICE)
    }
}

impl Drop for Traces {
    /// Sends the remaining spans.
    fn drop(&mut self) {
        // The client has logged the error.
        let _ = self.provider.shutdown_with_timeout(LAST_TIMEOUT);
    }
}

/// Makes a span part of the trace that a request belongs to (`traceparent`, W3C Trace Context).
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // Fails if no traces are sent.
    let _ = span.set_parent(context);
}

/// The span of a change.
pub(crate) fn change(file: &str, why: &str) -> Span {
    tracing::info_span!(
        target: TRACED, "change", otel.name = why, netvm.file = file, netvm.changes = Empty,
        otel.status_code = Empty, otel.status_description = Empty
    )
}

/// Runs a step of a change in its own span.
pub(crate) async fn step<T, E: Display>(
    name: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let span = tracing::info_span!(
        target: TRACED, "step", otel.name = name, otel.status_code = Empty, otel.status_description = Empty
    );
    within(span, work).await
}

/// Runs work in a span, and records its error there.
pub(crate) async fn within<T, E: Display>(
    span: Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let outcome = work.instrument(span.clone()).await;
    if let Err(error) = &outcome {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", error.to_string());
    }
    outcome
}

/// Sends requests to the collector, and logs once when it cannot be reached.
#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    endpoint: String,
    is_away: AtomicBool,
}

impl Client {
    fn new(endpoint: String) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        Self { agent: config.build().into(), endpoint, is_away: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, mut body) = self.agent.run(request.map(|body| body.to_vec()))?.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }

    fn note(&self, problem: Option<String>) {
        let was_away = self.is_away.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_away => tracing::warn!("traces for {} are lost: {problem}", self.endpoint),
            None if was_away => tracing::info!("traces reach {} again", self.endpoint),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.send(request);
        self.note(match &response {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        });
        Ok(response?)
    }
}
