//! `policy`: forwarding on one core, netvm beside Open vSwitch with its DPDK datapath, on the same flows.
//!
//! ```text
//!   net_null + traffic -> netvm's worker, or Open vSwitch's PMD thread -> a port that swallows
//! ```
//!
//! Both receive frames of 64 bytes (FCS included) from DPDK's null device, written there by the same code
//! (`peer/traffic.c`). `source`: what that alone costs; netvm receives and frees, as nothing says what to do with packets.
//!
//! - `…-port-N`: one rule sends everything from one port out of the other.
//! - `…-normal-N`: L2 switching by MAC address. The destination is known, so that nothing is flooded: to netvm because the
//!   other port has sent a packet, to Open vSwitch by `fdb/add`.
//! - `…-acl-N`: the same with a filter set of drop rules before it that nothing matches.
//! - `…-new-tuples`: as `acl`, and no packet's addresses and ports ever come again; the MAC addresses stay. What Open
//!   vSwitch caches are regions of the tuple space that its rules tell apart, so that it can keep these in its datapath.
//! - `…-new-flows`: as `acl`, and each packet has a source MAC address of its own as well, so that it is new in every field
//!   of the flow key that a sender can choose. L2 switching depends on that address: to Open vSwitch, each packet is one
//!   for its slow path.
//! - `ovs-smc-…`: with its signature match cache, which is off unless asked for.
//!
//! Rates are of packets that left, per second in which the thread that forwards had its core: both sides poll, so that this
//! is the rate of one core whatever else runs there. Open vSwitch gets up to ten seconds for its caches and its datapath to fill until its
//! rate no longer changes; netvm gets the usual warm-up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netvm_config::model::{
    Action, Actions, Forward, Host, Idle, Match, PortId, PortKind, Rule, RuleId, RuleParts, SourceConfig,
};
use netvm_policy_import::classbench::{self, Flags};

use crate::cli::{Cores, PolicyArgs};
use crate::error::{BenchError, RulesError};
use crate::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::layout::Layout;
use crate::peers::ovs::{self, Ends, NORMAL, PORT_TO_PORT, Setup, drops};
use crate::report::{Row, Unit};
use crate::rig::Rig;
use crate::sandbox;
use crate::traffic::Traffic;

/// Few, so that they stay in the processor's caches.
const BUFFERS: u32 = 4096;
/// Without FCS.
const FRAME: u16 = 60;
/// Flows that are also measured with Open vSwitch's signature match cache.
const SIGNATURE_CACHE_FLOWS: u64 = 100_000;
/// Open vSwitch's slow path stalls its PMD thread now and then, when it goes through its flows: no shorter window tells a
/// rate.
const SLOW_PATH_WINDOW: Duration = Duration::from_secs(1);
/// Where the shared data are, beside the source tree.
const ACL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/acl/acl1_1k.rules");

/// What is done with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Port,
    Normal,
    Acl,
}

impl Policy {
    const ALL: [Self; 3] = [Self::Port, Self::Normal, Self::Acl];

    const fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Normal => "normal",
            Self::Acl => "acl",
        }
    }
}

/// One policy and one traffic, for all sides.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    policy: Policy,
    traffic: Traffic,
}

/// The filter set, and the same as Open vSwitch's flows.
struct Acl {
    rules: Vec<Match>,
    flows: Vec<String>,
}

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
pub fn measure(args: &PolicyArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    let acl = load(args.acl.as_deref().unwrap_or(Path::new(ACL)))?;
    let mut cases = cases(&args.flows);
    cases.retain(|case| args.only.is_empty() || args.only.contains(&case.name));
    let sandbox = if args.bench.skip_peers {
        eprintln!("comparisons left out, as --skip-peers says");
        None
    } else {
        ovs::find()?;
        Some(sandbox::enter()?)
    };
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    let mut comparisons = Vec::new();
    subjects.push(Subject::new("source", move |plan| source(cores, plan)));
    for case in &cases {
        let acl = &acl;
        subjects
            .push(Subject::new(format!("netvm-{}", case.name), move |plan| netvm(case, acl, cores, plan)));
        let Some(sandbox) = &sandbox else { continue };
        let caches: &[bool] =
            if case.traffic == Traffic::of(SIGNATURE_CACHE_FLOWS) && case.policy != Policy::Port {
                &[false, true]
            } else {
                &[false]
            };
        for &cache in caches {
            let name = format!("ovs-{}{}", if cache { "smc-" } else { "" }, case.name);
            comparisons.push(Comparison::new(format!("netvm-{}", case.name), name.as_str()));
            subjects.push(Subject::new(name.clone(), move |plan| {
                open_vswitch(&name, case, cache, acl, sandbox, cores, plan)
            }));
        }
    }
    comparisons.extend(
        args.flows
            .iter()
            .map(|flows| Comparison::new(format!("netvm-acl-{flows}"), format!("netvm-normal-{flows}"))),
    );
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

fn cases(flows: &[u64]) -> Vec<Case> {
    let of = |flows: u64, policy: Policy| Case {
        name: format!("{}-{flows}", policy.name()),
        policy,
        traffic: Traffic::of(flows),
    };
    let each = flows.iter().flat_map(|&flows| Policy::ALL.map(|policy| of(flows, policy)));
    let new = [("new-tuples", false), ("new-flows", true)].map(|(name, new_macs)| Case {
        name: name.to_owned(),
        policy: Policy::Acl,
        traffic: Traffic { flows: None, new_macs },
    });
    each.chain(new).collect()
}

fn load(path: &Path) -> Result<Acl, BenchError> {
    let read = || -> Result<Acl, RulesError> {
        let text = fs::read_to_string(path)?;
        let imported = classbench::parse(&text, Actions::default(), Flags::Ignore)?;
        let rules: Vec<Match> = imported.rules.into_iter().map(|rule| rule.matches).collect();
        let flows = drops(&rules, 1)?;
        Ok(Acl { rules, flows })
    };
    read().map_err(|source| BenchError::Rules { path: PathBuf::from(path), source })
}

/// Two ports, and what the case says of packets from the first.
fn host(case: &Case, acl: &Acl, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Poll);
    let group = layout.group("policy", BUFFERS, 2048);
    let input = layout.port("in", PortKind::Null { size: FRAME }, 1500);
    // It says one packet, from the address to which the traffic goes; what goes out is counted and freed.
    let once = SourceConfig { size: FRAME, count: Some(1), ..SourceConfig::default() };
    let output = layout.port("out", PortKind::Source(once), 1500);
    let mut host = layout.build();
    for port in &mut host.ports {
        port.group = Some(group);
        if case.policy != Policy::Port {
            port.policy.forward = Forward::Normal;
        }
    }
    host.rules = rules(case.policy, acl, input, output);
    host
}

fn rules(policy: Policy, acl: &Acl, input: PortId, output: PortId) -> Vec<Rule> {
    let (matches, terminal) = match policy {
        Policy::Port => (vec![Match { from: vec![input], ..Match::default() }], Action::Port(output)),
        Policy::Normal => (Vec::new(), Action::Normal),
        Policy::Acl => (acl.rules.clone(), Action::Drop),
    };
    let actions = Actions { terminal: Some(terminal), ..Actions::default() };
    let numbered = (0..).map(RuleId).zip(matches);
    numbered
        .map(|(id, matches)| Rule::from(RuleParts { id, name: String::new(), matches, actions }))
        .collect()
}

/// A host that does nothing with what comes in by a port with the traffic.
fn source(cores: Cores, plan: &Plan) -> Measured {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("policy", BUFFERS, 2048);
    layout.port("in", PortKind::Null { size: FRAME }, 1500);
    let mut host = layout.build();
    host.ports[0].group = Some(group);
    let mut rig = Rig::start(&host, &[])?;
    let traffic = Traffic { flows: None, new_macs: false }.attach()?;
    let window = rig.watch(plan)?;
    drop(traffic);
    Ok(vec![Figure::new("source", Unit::Mpps, window.per_core(window.received()))])
}

fn netvm(case: &Case, acl: &Acl, cores: Cores, plan: &Plan) -> Measured {
    let what = format!("netvm-{}", case.name);
    let host = host(case, acl, cores.engine);
    // First the port with the traffic alone: until it has it, it receives what its buffers hold from before, which must not
    // be the packet that the other port says.
    let silent = Host { ports: host.ports[..1].to_vec(), rules: Vec::new(), ..host.clone() };
    let mut rig = Rig::start(&silent, &[])?;
    let traffic = case.traffic.attach()?;
    rig.engine().apply(&host)?;
    let window = rig.watch(plan)?;
    drop(traffic);
    window.check_sound(&what)?;
    window.warn_if_disturbed(&what);
    window.check_forwarded(&what)?;
    Ok(vec![Figure::new(what, Unit::Mpps, window.per_core(window.sent()))])
}

fn open_vswitch(
    name: &str,
    case: &Case,
    signature_cache: bool,
    acl: &Acl,
    sandbox: &Path,
    cores: Cores,
    plan: &Plan,
) -> Measured {
    let mut flows = match case.policy {
        Policy::Port => vec![PORT_TO_PORT.to_owned()],
        Policy::Normal | Policy::Acl => vec![NORMAL.to_owned()],
    };
    if case.policy == Policy::Acl {
        flows.extend_from_slice(&acl.flows);
    }
    let setup = Setup { flows: &flows, signature_cache, ends: Ends::Null(case.traffic) };
    let window = if case.traffic.flows.is_none() { plan.window.max(SLOW_PATH_WINDOW) } else { plan.window };
    let outcome = ovs::measure(sandbox, setup, cores, &Plan { window, ..*plan })?;
    let mut figures = vec![Figure::new(name, Unit::Mpps, outcome.mpps)];
    if case.traffic.flows.is_none() {
        figures.push(Figure::new(format!("{name} dropped"), Unit::Percent, outcome.dropped_percent));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use netvm_wire::FlowKey;

    use super::*;
    use crate::traffic::frame;

    #[test]
    fn every_policy_meets_every_number_of_flows() {
        let names: Vec<String> = cases(&[1, 1000]).into_iter().map(|case| case.name).collect();
        let expected = ["port-1", "normal-1", "acl-1", "port-1000", "normal-1000", "acl-1000"];
        assert_eq!(names[..6], expected);
        assert_eq!(names[6..], ["new-tuples", "new-flows"]);
    }

    #[test]
    fn no_flow_matches_the_filter_set() {
        let path = Path::new(ACL);
        if !path.exists() {
            println!("SKIP: there is no {}", path.display());
            return;
        }
        let acl = load(path).unwrap();
        assert_eq!(acl.rules.len(), 959);
        // Ranges of ports take several flows, and rules that differ by TCP flags alone take one.
        assert!(acl.flows.len() > acl.rules.len(), "{} flows", acl.flows.len());
        for flow in (0..20_000).chain(1 << 40..(1 << 40) + 20_000) {
            let frame = frame(flow, flow % 2 == 0);
            let key = FlowKey::of_frame(&frame[..60], 60).unwrap();
            let rule = acl.rules.iter().position(|rule| rule.fits_key(&key));
            assert_eq!(rule, None, "flow {flow}: {key:?}");
        }
    }
}
