//! The file as it is written: names are names still, and every value that a later check may complain of has its place.

use netvm_wire::{MacAddr, VlanId};
use toml::Spanned;

use crate::finding::{Findings, Kind, Span};
use crate::model::{
    Balance, EngineConfig, InterfaceAddress, Match, NfStart, OnFailure, Police, PolicyConfig, PortKind,
    PortPolicy, Restart, SetVlan, SwitchConfig, Verdict, VmAccel, VmBoot, VmNotify, VmStart,
};
use crate::read::Reader;

mod chain;
mod engine;
mod limits;
mod matching;
mod nf;
mod port;
mod port_policy;
mod router;
mod rule;
mod vm;

/// A name, if it could be read; `None` was complained of already.
pub(crate) type Name = Option<Spanned<String>>;

/// The whole file.
pub(crate) struct RawHost {
    pub(crate) engine: RawEngine,
    pub(crate) switch: SwitchConfig,
    pub(crate) policy: PolicyConfig,
    pub(crate) groups: Vec<RawGroup>,
    pub(crate) ports: Vec<RawPort>,
    pub(crate) nfs: Vec<RawNf>,
    pub(crate) vms: Vec<RawVm>,
    pub(crate) routers: Vec<RawRouter>,
    pub(crate) chains: Vec<RawChain>,
    pub(crate) rules: Vec<RawRule>,
}

/// `[engine]`.
#[derive(Default)]
pub(crate) struct RawEngine {
    pub(crate) config: EngineConfig,
    /// The place of `cores`.
    pub(crate) cores: Vec<Span>,
}

/// `[[group]]`.
pub(crate) struct RawGroup {
    pub(crate) name: Name,
    pub(crate) buffers: u32,
    pub(crate) buffer_size: Spanned<u32>,
    pub(crate) headroom: Spanned<u16>,
    pub(crate) may_send_to: Option<Vec<Spanned<String>>>,
}

/// `[[port]]`.
pub(crate) struct RawPort {
    pub(crate) span: Span,
    pub(crate) name: Name,
    pub(crate) kind: Option<PortKind>,
    /// The place of what this port has on this machine: its interface, address or file.
    pub(crate) device: Option<Spanned<String>>,
    pub(crate) queues: u16,
    pub(crate) mtu: Spanned<u16>,
    pub(crate) group: Option<Spanned<String>>,
    pub(crate) policy: RawPortPolicy,
}

/// What a port does with packets besides the rules.
pub(crate) struct RawPortPolicy {
    pub(crate) forward: Option<RawForward>,
    /// All but `forward`.
    pub(crate) policy: PortPolicy,
}

/// Where allowed packets go.
pub(crate) enum RawForward {
    Normal,
    Chain(Spanned<String>),
    Port(Spanned<String>),
    Router(Spanned<String>),
}

/// `[[nf]]`.
pub(crate) struct RawNf {
    pub(crate) span: Span,
    pub(crate) role: Name,
    pub(crate) group: Option<Spanned<String>>,
    pub(crate) balance: Balance,
    pub(crate) flow_verdicts: u16,
    pub(crate) start: NfStart,
    /// The places of the elements of `cores`.
    pub(crate) cores: Vec<Span>,
}

/// What a VM is to netvm.
pub(crate) enum RawGuest {
    Nf {
        role: Spanned<String>,
        threads: u16,
        notify: VmNotify,
    },
    Ordinary {
        /// Ports, and the address of each; one that was not given has its port's place.
        cards: Vec<(Spanned<String>, Spanned<MacAddr>)>,
    },
}

/// `[[vm]]`.
pub(crate) struct RawVm {
    pub(crate) name: Name,
    pub(crate) guest: Option<RawGuest>,
    pub(crate) memory: u32,
    pub(crate) cpus: u16,
    pub(crate) cores: Vec<u32>,
    /// The places of the elements of `cores`.
    pub(crate) core_spans: Vec<Span>,
    pub(crate) node: Option<u32>,
    pub(crate) accel: VmAccel,
    pub(crate) boot: Option<VmBoot>,
    pub(crate) qemu: String,
    pub(crate) user: String,
    pub(crate) start: VmStart,
    pub(crate) restart: Restart,
    pub(crate) boot_timeout: u32,
}

/// `[[router]]`.
pub(crate) struct RawRouter {
    pub(crate) name: Name,
    pub(crate) interfaces: Vec<RawInterface>,
}

/// `[[router.interface]]`.
pub(crate) struct RawInterface {
    pub(crate) span: Span,
    pub(crate) name: Name,
    pub(crate) port: Option<Spanned<String>>,
    pub(crate) vlan: Option<VlanId>,
    pub(crate) mac: MacAddr,
    pub(crate) addresses: Vec<InterfaceAddress>,
    pub(crate) punt_rate: u32,
}

/// Where a chain ends.
pub(crate) enum RawOutput {
    None,
    Ingress,
    Normal,
    Router(Spanned<String>),
    Port(Spanned<String>),
}

/// `[[chain]]`.
pub(crate) struct RawChain {
    pub(crate) span: Span,
    pub(crate) name: Name,
    pub(crate) hops: Vec<Spanned<String>>,
    pub(crate) on_failure: Spanned<OnFailure>,
    pub(crate) output: RawOutput,
}

/// Where a rule sends packets.
pub(crate) enum RawVerdict {
    Chain(Spanned<String>),
    Port(Spanned<String>),
    Router(Spanned<String>),
    Plain(Verdict),
}

/// `[[rule]]`.
pub(crate) struct RawRule {
    pub(crate) span: Span,
    pub(crate) name: Name,
    pub(crate) from: Vec<Spanned<String>>,
    pub(crate) to: Vec<Spanned<String>>,
    /// All but the ports.
    pub(crate) matches: Match,
    /// The place of `match`.
    pub(crate) matched: Option<Span>,
    pub(crate) verdict: Option<RawVerdict>,
    pub(crate) set_vlan: Option<SetVlan>,
    pub(crate) mirror: Option<Spanned<String>>,
    pub(crate) police: Option<Police>,
}

impl RawRule {
    /// The place of the match, or of the rule if it has none.
    pub(crate) fn match_span(&self) -> Span {
        self.matched.clone().unwrap_or_else(|| self.span.clone())
    }
}

impl RawHost {
    /// Reads everything; what cannot be read is complained of and left out.
    pub(crate) fn read(root: &Reader<'_>) -> Self {
        let engine = root.table("engine", "[engine]").map(|table| engine::read(&table)).unwrap_or_default();
        let switch = root.table("switch", "[switch]").map(|table| engine::read_switch(&table));
        let policy = root.table("policy", "[policy]").map(|table| engine::read_policy(&table));
        let (switch, policy) = (switch.unwrap_or_default(), policy.unwrap_or_default());
        let groups = root.tables("group", "[[group]]").iter().map(engine::read_group).collect();
        let ports = root.tables("port", "[[port]]").iter().map(port::read).collect();
        let nfs = root.tables("nf", "[[nf]]").iter().map(nf::read).collect();
        let vms = root.tables("vm", "[[vm]]").iter().map(vm::read).collect();
        let routers = root.tables("router", "[[router]]").iter().map(router::read).collect();
        let chains = root.tables("chain", "[[chain]]").iter().map(chain::read).collect();
        let rules = root.tables("rule", RULE).iter().map(rule::read).collect();
        root.finish(&[]);
        Self { engine, switch, policy, groups, ports, nfs, vms, routers, chains, rules }
    }

    /// Reads nothing but rules: tables of them, or one that the root itself is.
    pub(crate) fn read_rules(root: &Reader<'_>) -> Vec<RawRule> {
        if root.key_span("rule").is_none() {
            return vec![rule::read(root)];
        }
        let rules = root.tables("rule", RULE).iter().map(rule::read).collect();
        root.finish(&[]);
        rules
    }
}

/// How people know a rule.
const RULE: &str = "[[rule]]";

/// Reads a name that must be there and can be one.
fn name(table: &Reader<'_>, key: &'static str, example: &str) -> Name {
    if table.key_span(key).is_none() {
        table.missing(key, format!("give it one, such as `{key} = \"{example}\"`"));
    }
    let name = table.text(key)?;
    check_name(table.findings, key, &name).then_some(name)
}

fn check_name(findings: &Findings, key: &str, name: &Spanned<String>) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let text = name.get_ref();
    let wrong = if text.is_empty() {
        "a name has at least one character".to_owned()
    } else if text.len() > crate::model::NAME_BYTES {
        format!("{} characters long", text.len())
    } else if let Some(c) = text.chars().find(|c| !allowed(*c)) {
        format!("{c:?} cannot be in a name")
    } else {
        return true;
    };
    findings
        .note(Kind::BadName, format!("`{key}` cannot be `{text}`"))
        .at(name.span(), wrong)
        .help(format!("names have 1 to {} of the characters A-Z a-z 0-9 _ - .", crate::model::NAME_BYTES))
        .keep();
    false
}
