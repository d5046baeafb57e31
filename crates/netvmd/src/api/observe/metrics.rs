// SPDX-License-Identifier: Apache-2.0
//! `GET /metrics`: all counters for Prometheus, in OpenMetrics or, for clients that do not ask for it, in the older
//! text format. Names, labels and help texts are in `netvm_api::explain::METRICS`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use netvm_api::explain::{METRICS, Metric, MetricKind};
use netvm_api::{ChainInfo, ChainState, NatTargetInfo, NfInfo, PuntInfo, RouterInfo, ShareInfo, Stats};
use netvm_counters::{Counted, Exported, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::super::{Failure, routers, status, traffic};
use crate::daemon::Daemon;
use crate::messages::MessageCounts;

/// Scrapes within this time get the same reply, so that many scrapers cost as much as one.
const CACHE_TIME: Duration = Duration::from_millis(200);

pub(in crate::api) async fn metrics(
    State(daemon): State<Arc<Daemon>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let registry = registry(&daemon).await?;
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open = accepted.contains("application/openmetrics-text");
    let mut body = String::new();
    let (kind, written) = if is_open {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", text::encode(&mut body, &registry))
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", prometheus_text::encode(&mut body, &registry))
    };
    written.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}")))?;
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response())
}

async fn registry(daemon: &Arc<Daemon>) -> Result<Arc<Registry>, Failure> {
    if let Some(registry) = daemon.statistics().last_scrape(CACHE_TIME) {
        return Ok(registry);
    }
    let views = traffic::views(daemon).await?;
    let stats = traffic::stats_of(daemon, &views);
    let routers = routers::infos(daemon, &views).await;
    let mut scrape = Scrape::default();
    let nfs = traffic::nf_infos(daemon, &views);
    scrape.netvmd(daemon, &stats, status::problems(daemon, &views, &nfs).len());
    scrape.ports(&stats);
    scrape.drops(&stats);
    scrape.chains(&stats);
    scrape.roles(&stats);
    scrape.nfs(&stats.nfs);
    scrape.workers(&stats);
    scrape.routers(&routers);
    scrape.flow_monitor(&stats);
    scrape.connections(&stats);
    scrape.targets(&stats);
    scrape.groups(&stats);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let registry = Arc::new(registry);
    daemon.statistics().keep_scrape(&registry);
    Ok(registry)
}

/// A value of a metric with its labels.
#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// All samples, by metric.
#[derive(Debug, Default)]
struct Scrape(Vec<(&'static Metric, Vec<Sample>)>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, samples) in self.0.iter().filter(|(_, samples)| !samples.is_empty()) {
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.text, None, kind)?;
            for Sample { labels, value } in samples {
                let sample = family.encode_family(labels)?;
                match metric.kind {
                    // A counter is exact up to 2^53, as in Prometheus itself.
                    MetricKind::Counter => ConstCounter::new(*value).encode(sample)?,
                    MetricKind::Gauge => ConstGauge::new(*value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

/// 1 for true, 0 for false.
fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A name that an NF chose, reduced to the characters of names: a peer must not put arbitrary text into labels.
fn label(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    name.chars().map(|c| if allowed(c) { c } else { '_' }).collect()
}

impl Scrape {
    /// Adds the metrics of things with counters: for each thing, the values of the labels that name it.
    fn counters<'a, T: Counted + 'a, const N: usize>(
        &mut self,
        things: impl IntoIterator<Item = ([String; N], &'a T)>,
    ) {
        let things: Vec<_> = things.into_iter().map(|(labels, thing)| (labels, thing.values())).collect();
        for (n, counter) in T::TABLE.counters.iter().enumerate() {
            let Some(Exported { metric, label }) = &counter.metric else { continue };
            debug_assert_eq!(metric.labels.len(), N + usize::from(label.is_some()), "{}", metric.name);
            let sample = |(values, counts): &([String; N], Vec<Option<Value>>)| {
                let values = values.iter().cloned().chain(label.map(str::to_owned));
                Sample {
                    labels: metric.labels.iter().copied().zip(values).collect(),
                    value: counts[n].map_or(0.0, Value::as_f64) / counter.unit.per_base_unit(),
                }
            };
            let samples = things.iter().map(sample);
            match self.0.iter_mut().find(|(known, _)| known.name == metric.name) {
                Some((_, known)) => known.extend(samples),
                None => self.0.push((metric, samples.collect())),
            }
        }
    }

    /// Adds the samples of a metric: for each, the values of its labels in order, and its value.
    fn add<const N: usize>(&mut self, name: &str, samples: impl IntoIterator<Item = ([String; N], f64)>) {
        let Some(metric) = METRICS.iter().find(|metric| metric.name == name) else {
            debug_assert!(false, "no text for metric {name}");
            return;
        };
        debug_assert_eq!(metric.labels.len(), N, "{name}");
        let sample = |(values, value): ([String; N], f64)| Sample {
            labels: metric.labels.iter().copied().zip(values).collect(),
            value,
        };
        self.0.push((metric, samples.into_iter().map(sample).collect()));
    }

    fn netvmd(&mut self, daemon: &Daemon, stats: &Stats, problems: usize) {
        self.add("netvm_info", [([env!("CARGO_PKG_VERSION").to_owned(), dpdk::version().to_owned()], 1.0)]);
        self.add("netvm_uptime_seconds", [([], stats.uptime_s)]);
        self.add("netvm_problems", [([], problems as f64)]);
        let events = daemon.engine().events().counts();
        self.add(
            "netvm_events",
            events.by_severity.map(|(severity, count)| ([severity.word().to_owned()], count as f64)),
        );
        self.add("netvm_events_lost", [([], events.lost as f64)]);
        let MessageCounts { delivered, full, refused, unreceived } = daemon.engine().messages().counts();
        let counts =
            [("delivered", delivered), ("full", full), ("refused", refused), ("unreceived", unreceived)];
        self.add("netvm_messages", counts.map(|(outcome, count)| ([outcome.to_owned()], count as f64)));
    }

    fn ports(&mut self, stats: &Stats) {
        let none = ShareInfo::default();
        self.counters(stats.ports.iter().map(|port| ([port.name.clone()], port)));
        self.counters(
            stats.ports.iter().map(|port| ([port.name.clone()], port.share.as_ref().unwrap_or(&none))),
        );
        let links = stats.ports.iter().map(|port| ([port.name.clone()], flag(port.link)));
        self.add("netvm_port_link_up", links);
        let loads = stats.ports.iter().flat_map(|port| {
            let label = |worker: u8| [port.name.clone(), worker.to_string()];
            port.workers.iter().map(move |load| (label(load.worker), load.load_percent / 100.0))
        });
        self.add("netvm_port_load_ratio", loads);
    }

    fn drops(&mut self, stats: &Stats) {
        let places = [("port", &stats.drops.ports), ("chain", &stats.drops.chains), ("nf", &stats.drops.nfs)];
        let mut samples = Vec::new();
        for (at, names) in places {
            for (name, reasons) in names {
                let sample = |(reason, count): (&String, &u64)| {
                    ([at.to_owned(), name.clone(), reason.clone()], *count as f64)
                };
                samples.extend(reasons.iter().map(sample));
            }
        }
        self.add("netvm_dropped_packets", samples);
    }

    fn chains(&mut self, stats: &Stats) {
        self.counters(stats.chains.iter().map(|chain| ([chain.name.clone()], chain)));
        let up = |chain: &ChainInfo| ([chain.name.clone()], flag(chain.state == ChainState::Up));
        self.add("netvm_chain_up", stats.chains.iter().map(up));
        let hops = stats.chains.iter().flat_map(|chain| {
            let hop = |(n, role): (usize, &String)| ([chain.name.clone(), n.to_string(), role.clone()], 1.0);
            chain.hops.iter().enumerate().map(hop).collect::<Vec<_>>()
        });
        self.add("netvm_chain_hop", hops);
    }

    fn roles(&mut self, stats: &Stats) {
        self.counters(stats.roles.iter().map(|role| ([role.role.clone()], &role.packets)));
        let violations = stats.roles.iter().flat_map(|role| {
            let all = role.violations.iter();
            all.map(|(name, count)| ([role.role.clone(), name.clone()], *count as f64)).collect::<Vec<_>>()
        });
        self.add("netvm_nf_violations", violations);
        let mut own = std::collections::BTreeMap::<[String; 2], f64>::new();
        for role in &stats.roles {
            for (name, count) in &role.counters {
                // Adds up counters whose names have become equal.
                *own.entry([role.role.clone(), label(name)]).or_default() += *count as f64;
            }
        }
        self.add("netvm_nf_own", own);
    }

    fn nfs(&mut self, nfs: &[NfInfo]) {
        let of = |nf: &NfInfo| [nf.role.clone(), nf.instance.to_string()];
        self.add("netvm_nf_running", nfs.iter().map(|nf| (of(nf), flag(nf.state.gets_packets()))));
        self.add("netvm_nf_restarts", nfs.iter().map(|nf| (of(nf), nf.restarts as f64)));
        let threads = nfs.iter().flat_map(|nf| {
            let [role, instance] = of(nf);
            let labels = move |n: usize| [role.clone(), instance.clone(), n.to_string()];
            nf.threads.iter().enumerate().map(move |(n, thread)| (labels(n), thread))
        });
        self.counters(threads);
    }

    fn workers(&mut self, stats: &Stats) {
        let busy = |worker: &netvm_api::WorkerInfo| {
            ([worker.id.to_string(), worker.core.to_string()], worker.busy_percent / 100.0)
        };
        self.add("netvm_worker_busy_ratio", stats.workers.iter().map(busy));
        let of = |worker: &netvm_api::WorkerInfo| [worker.id.to_string()];
        let queues = stats.workers.iter().map(|worker| (of(worker), f64::from(worker.queues)));
        self.add("netvm_worker_queues", queues);
        self.counters(stats.workers.iter().map(|worker| (of(worker), worker)));
        let stages = stats.stages.iter().map(|stage| ([stage.stage.clone()], stage.ns_per_packet / 1e9));
        self.add("netvm_stage_seconds", stages);
    }

    fn routers(&mut self, routers: &[RouterInfo]) {
        self.counters(routers.iter().map(|router| ([router.name.clone()], router)));
        let neighbours = routers.iter().map(|router| ([router.name.clone()], router.neighbours as f64));
        self.add("netvm_router_neighbours", neighbours);
        let interfaces =
            || routers.iter().flat_map(|router| router.interfaces.iter().map(move |one| (&router.name, one)));
        self.counters(interfaces().map(|(router, one)| ([router.clone(), one.name.clone()], one)));
        self.counters(interfaces().flat_map(|(router, one)| {
            let labels =
                move |punt: &PuntInfo| [router, &one.name, &punt.class, &punt.reason].map(Clone::clone);
            one.punts.iter().map(move |punt| (labels(punt), punt))
        }));
        let routes = routers.iter().flat_map(|router| {
            let of = |family: &str, count: u64| ([router.name.clone(), family.to_owned()], count as f64);
            [of("ipv4", router.routes_v4), of("ipv6", router.routes_v6)]
        });
        self.add("netvm_router_routes", routes);
    }

    fn flow_monitor(&mut self, stats: &Stats) {
        self.counters(stats.flow_monitor.iter().map(|monitor| ([], monitor)));
    }

    fn connections(&mut self, stats: &Stats) {
        self.counters(stats.connections.iter().map(|counts| ([], counts)));
    }

    fn targets(&mut self, stats: &Stats) {
        let of = |it: &NatTargetInfo| [it.router.clone().unwrap_or_default(), it.target.clone()];
        self.counters(stats.nat_targets.iter().map(|it| (of(it), it)));
        self.add("netvm_nat_target_up", stats.nat_targets.iter().map(|it| (of(it), flag(it.up))));
    }

    fn groups(&mut self, stats: &Stats) {
        let regions =
            || stats.groups.iter().flat_map(|group| group.regions.iter().map(move |one| (group, one)));
        let buffers = regions().flat_map(|(group, region)| {
            let of = |state: &str, count: u32| {
                ([group.name.clone(), region.node.to_string(), state.to_owned()], f64::from(count))
            };
            [of("free", region.free), of("engine", region.in_engine), of("nfs", region.in_nfs)]
        });
        self.add("netvm_group_buffers", buffers);
        let sizes = regions()
            .map(|(group, one)| ([group.name.clone(), one.node.to_string()], f64::from(one.buffer_size)));
        self.add("netvm_group_buffer_bytes", sizes);
        self.counters(stats.groups.iter().map(|group| ([group.name.clone()], group)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use netvm_api::{
        ConnectionCounts, Drops, FlowMonitorInfo, GroupInfo, NfState, PortInfo, RoleInfo,
        RouterInterfaceInfo, ThreadInfo, WorkerInfo,
    };
    use netvm_counters::TABLES;

    use super::*;

    /// One of everything.
    fn stats() -> (Stats, RouterInfo) {
        let nf = NfInfo {
            role: "firewall".to_owned(),
            instance: 1,
            pid: None,
            state: NfState::Running,
            managed: true,
            group: String::new(),
            threads: vec![ThreadInfo { ring_percent: 62.5, ..ThreadInfo::default() }],
            restarts: 0,
            last_exit: None,
            uptime_s: None,
            counters: BTreeMap::new(),
            violations: BTreeMap::new(),
        };
        let stats = Stats {
            uptime_s: 1.0,
            ports: vec![PortInfo { name: "lan".to_owned(), rx_packets: 7, ..PortInfo::default() }],
            nfs: vec![nf],
            roles: vec![RoleInfo::default()],
            chains: vec![ChainInfo::default()],
            groups: vec![GroupInfo::default()],
            workers: vec![WorkerInfo { longest_turn_us: 41.0, ..WorkerInfo::default() }],
            drops: Drops::default(),
            stages: Vec::new(),
            flow_monitor: Some(FlowMonitorInfo {
                lost_records: 2,
                unexported: 3,
                ..FlowMonitorInfo::default()
            }),
            connections: Some(ConnectionCounts { evicted: 4, ..ConnectionCounts::default() }),
            nat_targets: vec![NatTargetInfo::default()],
        };
        let interface =
            RouterInterfaceInfo { punts: vec![PuntInfo::default()], ..RouterInterfaceInfo::default() };
        (stats, RouterInfo { interfaces: vec![interface], ..RouterInfo::default() })
    }

    #[test]
    fn every_counter_with_a_metric_is_exported() {
        let (stats, router) = stats();
        let mut scrape = Scrape::default();
        scrape.ports(&stats);
        scrape.chains(&stats);
        scrape.roles(&stats);
        scrape.nfs(&stats.nfs);
        scrape.workers(&stats);
        scrape.routers(&[router]);
        scrape.flow_monitor(&stats);
        scrape.connections(&stats);
        scrape.targets(&stats);
        scrape.groups(&stats);
        let samples = |name: &str| -> Vec<(String, f64)> {
            let known = scrape.0.iter().filter(|(metric, _)| metric.name == name);
            let text = |sample: &Sample| {
                let labels = sample.labels.iter().map(|(label, value)| format!("{label}={value}"));
                (labels.collect::<Vec<_>>().join(","), sample.value)
            };
            known.flat_map(|(_, samples)| samples).map(text).collect()
        };
        for counter in TABLES.into_iter().flat_map(|table| table.counters) {
            let Some(Exported { metric, .. }) = counter.metric else { continue };
            assert!(!samples(metric.name).is_empty(), "{}", metric.name);
        }
        assert_eq!(samples("netvm_port_rx_packets"), [("port=lan".to_owned(), 7.0)]);
        assert_eq!(samples("netvm_port_rx_coalesced_packets"), [("port=lan".to_owned(), 0.0)]);
        assert_eq!(samples("netvm_nf_ring_ratio"), [("role=firewall,instance=1,thread=0".to_owned(), 0.625)]);
        assert_eq!(samples("netvm_worker_longest_turn_seconds"), [("worker=0".to_owned(), 41e-6)]);
        let lost = [("at=ring".to_owned(), 2.0), ("at=collector".to_owned(), 3.0)];
        assert_eq!(samples("netvm_flow_monitor_lost_records"), lost);
        let ended = [("timeout", 0.0), ("eviction", 4.0), ("flush", 0.0), ("nat", 0.0)];
        let ended = ended.map(|(by, count)| (format!("by={by}"), count));
        assert_eq!(samples("netvm_connections_ended"), ended);
    }
}
