// SPDX-License-Identifier: Apache-2.0
//! Exports the flows that the workers count. In: records from the workers' rings, and counts of drops once a second.
//! Out: IPFIX messages and JSON lines, from the exporter's thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netvm_clock as clock;
use netvm_engine::{DropCounts, Engine, rule_number};
use netvm_flowmon::export::{
    Clock, Drops, Exporter, Interface, Interfaces, Options, RuleNames, Target, View,
};
use netvm_model::{FlowMonitorConfig, Host, PortConfig, Rule};
use tokio::task::JoinHandle;

use crate::engine_thread::{EngineGone, EngineHandle, PortsClosed};
use crate::names::{labels_of, rule_name};

const NAME: &str = "netvmd";
/// Observation domains (RFC 7011 section 3.1) of flows, and of events of NAT.
const FLOWS: u32 = 1;
const NAT: u32 = 2;
/// Most bytes of a UDP message: an MTU of 1500 bytes without IPv6 and UDP headers, and with room for a tunnel.
const MESSAGE_SIZE: usize = 1400;
/// Most UDP messages per second, some 150,000 records.
const MESSAGES_PER_SECOND: u32 = 5000;
/// Interval of templates over UDP.
const TEMPLATE_REFRESH: Duration = Duration::from_secs(60);
/// Interval between reports of drops.
const PERIOD: Duration = Duration::from_secs(1);

/// Drops so far, by kind of place, name and reason.
type Counts = BTreeMap<(&'static str, String, &'static str), u64>;

/// The exporter, if flows are counted.
#[derive(Debug, Default)]
pub(crate) struct FlowExport {
    running: Option<(Arc<Exporter>, JoinHandle<()>)>,
    reopen: Arc<AtomicBool>,
}

impl FlowExport {
    /// Starts the exporter's thread. If that fails, logs the reason, and netvmd forwards traffic without exporting
    /// flows.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub(crate) async fn start(
        config: Option<&FlowMonitorConfig>,
        engine: &EngineHandle,
    ) -> Result<Self, EngineGone> {
        let reopen = Arc::new(AtomicBool::new(false));
        let (rings, host) = engine.call(|engine| (engine.take_flow_records(), engine.shared_host())).await?;
        let Some(config) = config else { return Ok(Self::default()) };
        let names = SharedNames::default();
        names.follow(&host);
        let SharedNames { rules, interfaces } = names.clone();
        let options = Options { rules, interfaces, ..options(config, &reopen) };
        let exporter = match Exporter::start(&options) {
            Ok(exporter) => Arc::new(exporter),
            Err(error) => {
                tracing::error!("{error}. Flows are not exported until netvmd restarts");
                tokio::spawn(drop_rings(engine.clone()));
                return Ok(Self::default());
            }
        };
        rings.into_iter().for_each(|ring| exporter.add(ring));
        let watching = tokio::spawn(watch(Arc::clone(&exporter), engine.clone(), names, host));
        Ok(Self { running: Some((exporter, watching)), reopen })
    }

    /// The exporter's counters.
    pub(crate) fn view(&self) -> Option<View> {
        self.running.as_ref().map(|(exporter, _)| exporter.view())
    }

    /// Reopens the eve file, for log rotation.
    pub(crate) fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Exports the remaining records.
    pub(crate) async fn end(self, _: PortsClosed) {
        let Some((exporter, watching)) = self.running else { return };
        watching.abort();
        // Waits for the task, which holds a reference to the exporter.
        let _ = watching.await;
        let Some(exporter) = Arc::into_inner(exporter) else { return };
        let totals = exporter.finish();
        tracing::info!(
            "exported {} flow records in {} messages, lost {}",
            totals.exported,
            totals.messages,
            totals.lost
        );
    }
}

fn options(config: &FlowMonitorConfig, reopen: &Arc<AtomicBool>) -> Options {
    Options {
        collector: config.export.clone(),
        sampling: config.sampling,
        eve: config.eve.clone(),
        reopen: Arc::clone(reopen),
        ..options_of(FLOWS)
    }
}

/// For an exporter of events of NAT.
pub(super) fn nat_options(collector: Target) -> Options {
    Options { collector: Some(collector), ..options_of(NAT) }
}

/// What all exporters have in common.
fn options_of(domain: u32) -> Options {
    Options {
        program: NAME,
        collector: None,
        domain,
        message_size: MESSAGE_SIZE,
        messages_per_second: MESSAGES_PER_SECOND,
        template_refresh: TEMPLATE_REFRESH,
        sampling: 1,
        rules: RuleNames::default(),
        interfaces: Interfaces::default(),
        eve: None,
        reopen: Arc::default(),
        clock: Clock {
            cycles: clock::cycles(),
            unix_micros: unix_micros(),
            per_second: clock::cycles_per_second(),
        },
    }
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Drops the rings of workers that are added, so that these make no records.
async fn drop_rings(engine: EngineHandle) {
    while engine.call(|engine| drop(engine.take_flow_records())).await.is_ok() {
        tokio::time::sleep(PERIOD).await;
    }
}

/// The names of rules and ports, by the numbers that records have. The exporter shares them.
#[derive(Clone, Default)]
struct SharedNames {
    rules: RuleNames,
    interfaces: Interfaces,
}

impl SharedNames {
    /// Takes them from the host that is in force now.
    fn follow(&self, host: &Host) {
        let rule = |rule: &Rule| (rule_number(rule.id), rule_name(host, rule.id).into());
        self.rules.set(host.rules.iter().map(rule).collect());
        let interface =
            |port: &PortConfig| (port.id.0, Interface { name: port.name.clone(), labels: labels_of(port) });
        self.interfaces.set(host.ports.iter().map(interface).collect());
    }
}

/// Passes the rings of workers that were added and counts of drops to the exporter once a second, and logs lost
/// records, until the engine ends. `names` has those of a host, and follows the host.
async fn watch(exporter: Arc<Exporter>, engine: EngineHandle, names: SharedNames, mut named: Arc<Host>) {
    let (mut before, mut lost_before) = (Counts::new(), 0);
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok((rings, host, (counts, lost))) =
            engine.call(|engine| (engine.take_flow_records(), engine.shared_host(), read(engine))).await
        else {
            return;
        };
        if !Arc::ptr_eq(&host, &named) {
            names.follow(&host);
            named = host;
        }
        rings.into_iter().for_each(|ring| exporter.add(ring));
        for ((place, name, reason), count) in &counts {
            let key = (*place, name.clone(), *reason);
            let packets = count.saturating_sub(before.get(&key).copied().unwrap_or(0));
            if packets > 0 {
                exporter.note_drops(Drops {
                    place,
                    name: name.clone(),
                    reason: (*reason).to_owned(),
                    packets,
                    unix_micros: unix_micros(),
                });
            }
        }
        if lost > lost_before {
            tracing::warn!(
                "{} flow records lost: the exporter was too slow; sample with flow_monitor.sampling, or raise its time-outs",
                lost - lost_before
            );
        }
        (before, lost_before) = (counts, lost);
    }
}

/// Drops of ports and chains so far, and lost records. Drops by NFs count as drops of their chains.
fn read(engine: &mut Engine) -> (Counts, u64) {
    let host = engine.shared_host();
    let mut counts = Counts::new();
    let mut add = |place, name: Option<String>, drops: &DropCounts| {
        let Some(name) = name else { return };
        for (reason, count) in drops {
            *counts.entry((place, name.clone(), reason.name())).or_default() += count;
        }
    };
    for view in engine.ports() {
        add("port", host.port(view.id).map(|port| port.name.clone()), &view.drops);
    }
    for view in engine.chains() {
        add("chain", host.chain(view.id).map(|chain| chain.name.clone()), &view.drops);
    }
    (counts, engine.monitor_counts().lost_records)
}
