//! `GET /metrics`: all counters for Prometheus, in OpenMetrics or, for clients that do not ask for it, in the older text
//! format. Names, labels and help texts are in `netvm_api::explain::METRICS`.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use netvm_api::explain::{METRICS, Metric, MetricKind};
use netvm_api::{ChainState, NfInfo, PuntInfo, RouterInfo, RouterInterfaceInfo, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::super::{Failure, routers, status, traffic};
use crate::daemon::Daemon;

/// Scrapes within this time get the same reply, so that many scrapers cost as much as one.
const KEPT: Duration = Duration::from_millis(200);

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
    let last = || daemon.last_scrape.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((made, registry)) = &*last()
        && made.elapsed() < KEPT
    {
        return Ok(Arc::clone(registry));
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
    scrape.groups(&stats);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let registry = Arc::new(registry);
    *last() = Some((Instant::now(), Arc::clone(&registry)));
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
        let events = daemon.engine.events().counts();
        self.add(
            "netvm_events",
            events.by_severity.map(|(severity, count)| ([severity.word().to_owned()], count as f64)),
        );
        self.add("netvm_events_lost", [([], events.lost as f64)]);
    }

    fn ports(&mut self, stats: &Stats) {
        let mut add = |name: &str, value: fn(&netvm_api::PortInfo) -> f64| {
            self.add(name, stats.ports.iter().map(|port| ([port.name.clone()], value(port))));
        };
        add("netvm_port_rx_packets", |port| port.rx_packets as f64);
        add("netvm_port_rx_bytes", |port| port.rx_bytes as f64);
        add("netvm_port_rx_coalesced_packets", |port| port.rx_coalesced.unwrap_or(0) as f64);
        add("netvm_port_tx_packets", |port| port.tx_packets as f64);
        add("netvm_port_tx_bytes", |port| port.tx_bytes as f64);
        add("netvm_port_rx_missed_packets", |port| port.rx_dropped as f64);
        add("netvm_port_mac_moves", |port| port.mac_moves as f64);
        add("netvm_port_mac_moves_held", |port| port.mac_moves_held as f64);
        add("netvm_port_worker_seconds", |port| port.share.as_ref().map_or(0.0, |share| share.worker_s));
        add("netvm_port_waited_turns", |port| port.share.as_ref().map_or(0.0, |share| share.waited as f64));
        add("netvm_port_link_up", |port| flag(port.link));
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
        let mut add = |name: &str, value: fn(&netvm_api::ChainInfo) -> f64| {
            self.add(name, stats.chains.iter().map(|chain| ([chain.name.clone()], value(chain))));
        };
        add("netvm_chain_entered_packets", |chain| chain.entered as f64);
        add("netvm_chain_left_packets", |chain| chain.left as f64);
        add("netvm_chain_up", |chain| flag(chain.state == ChainState::Up));
        let hops = stats.chains.iter().flat_map(|chain| {
            let hop = |(n, role): (usize, &String)| ([chain.name.clone(), n.to_string(), role.clone()], 1.0);
            chain.hops.iter().enumerate().map(hop).collect::<Vec<_>>()
        });
        self.add("netvm_chain_hop", hops);
    }

    fn roles(&mut self, stats: &Stats) {
        let mut add = |name: &str, value: fn(&netvm_api::NfPackets) -> u64| {
            let samples = stats.roles.iter().map(|role| ([role.role.clone()], value(&role.packets) as f64));
            self.add(name, samples);
        };
        add("netvm_nf_received_packets", |packets| packets.received);
        add("netvm_nf_passed_packets", |packets| packets.next);
        add("netvm_nf_discarded_packets", |packets| packets.dropped);
        add("netvm_nf_to_port_packets", |packets| packets.to_port);
        add("netvm_nf_to_role_packets", |packets| packets.to_role);
        add("netvm_nf_detoured_packets", |packets| packets.detoured);
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
        let mut add = |name: &str, value: fn(&netvm_api::ThreadInfo) -> f64| {
            let samples = nfs.iter().flat_map(|nf| {
                let [role, instance] = of(nf);
                let sample = move |(n, thread): (usize, &netvm_api::ThreadInfo)| {
                    ([role.clone(), instance.clone(), n.to_string()], value(thread))
                };
                nf.threads.iter().enumerate().map(sample)
            });
            self.add(name, samples);
        };
        add("netvm_nf_busy_cycles", |thread| thread.cycles as f64);
        add("netvm_nf_ring_ratio", |thread| thread.ring_percent / 100.0);
        add("netvm_nf_buffers", |thread| f64::from(thread.buffers));
    }

    fn workers(&mut self, stats: &Stats) {
        let busy = |worker: &netvm_api::WorkerInfo| {
            ([worker.id.to_string(), worker.core.to_string()], worker.busy_percent / 100.0)
        };
        self.add("netvm_worker_busy_ratio", stats.workers.iter().map(busy));
        let mut add = |name: &str, value: fn(&netvm_api::WorkerInfo) -> f64| {
            self.add(name, stats.workers.iter().map(|worker| ([worker.id.to_string()], value(worker))));
        };
        add("netvm_worker_queues", |worker| f64::from(worker.queues));
        add("netvm_worker_sleeps", |worker| worker.sleeps as f64);
        add("netvm_worker_copied_packets", |worker| worker.copies as f64);
        add("netvm_worker_copied_bytes", |worker| worker.copied_bytes as f64);
        add("netvm_worker_longest_turn_seconds", |worker| worker.longest_turn_us / 1e6);
        let stages = stats.stages.iter().map(|stage| ([stage.stage.clone()], stage.ns_per_packet / 1e9));
        self.add("netvm_stage_seconds", stages);
    }

    fn routers(&mut self, routers: &[RouterInfo]) {
        let mut add = |name: &str, value: fn(&RouterInfo) -> u64| {
            self.add(name, routers.iter().map(|router| ([router.name.clone()], value(router) as f64)));
        };
        add("netvm_router_forwarded_packets", |router| router.forwarded);
        add("netvm_router_punted_packets", |router| router.punted);
        add("netvm_router_from_kernel_packets", |router| router.from_kernel);
        add("netvm_router_neighbours", |router| router.neighbours);
        self.router_interfaces(routers);
        let routes = routers.iter().flat_map(|router| {
            let of = |family: &str, count: u64| ([router.name.clone(), family.to_owned()], count as f64);
            [of("ipv4", router.routes_v4), of("ipv6", router.routes_v6)]
        });
        self.add("netvm_router_routes", routes);
    }

    fn flow_monitor(&mut self, stats: &Stats) {
        let Some(monitor) = stats.flow_monitor else { return };
        let mut add = |name: &str, value: u64| self.add(name, [([], value as f64)]);
        add("netvm_flow_monitor_packets", monitor.packets);
        add("netvm_flow_monitor_flows", monitor.flows);
        add("netvm_flow_monitor_records", monitor.records);
        add("netvm_flow_monitor_evicted_flows", monitor.evicted);
        add("netvm_flow_monitor_exported_records", monitor.exported);
        let lost = [("ring", monitor.lost_records), ("collector", monitor.unexported)];
        self.add("netvm_flow_monitor_lost_records", lost.map(|(at, count)| ([at.to_owned()], count as f64)));
    }

    fn router_interfaces(&mut self, routers: &[RouterInfo]) {
        let all = || routers.iter().flat_map(|router| router.interfaces.iter().map(move |one| (router, one)));
        let mut add = |name: &str, value: fn(&RouterInterfaceInfo) -> u64| {
            let of = |(router, one): (&RouterInfo, &RouterInterfaceInfo)| {
                ([router.name.clone(), one.name.clone()], value(one) as f64)
            };
            self.add(name, all().map(of));
        };
        add("netvm_router_interface_rx_packets", |interface| interface.rx_packets);
        add("netvm_router_interface_rx_bytes", |interface| interface.rx_bytes);
        add("netvm_router_interface_rx_dropped_packets", |interface| interface.rx_dropped);
        add("netvm_router_interface_tx_packets", |interface| interface.tx_packets);
        add("netvm_router_interface_tx_bytes", |interface| interface.tx_bytes);
        let mut add = |name: &str, value: fn(&PuntInfo) -> u64| {
            let classes = all().flat_map(|(router, one)| {
                let of = |punt: &PuntInfo| {
                    let labels = [&router.name, &one.name, &punt.class, &punt.reason].map(Clone::clone);
                    (labels, value(punt) as f64)
                };
                one.punts.iter().map(of).collect::<Vec<_>>()
            });
            self.add(name, classes);
        };
        add("netvm_router_interface_punted_packets", |punt| punt.punted);
        add("netvm_router_interface_punt_dropped_packets", |punt| punt.dropped);
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
        let reclaimed = stats.groups.iter().map(|group| ([group.name.clone()], group.reclaimed_total as f64));
        self.add("netvm_group_reclaimed_buffers", reclaimed);
    }
}
