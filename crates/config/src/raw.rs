//! The file as it is written: names are names still, and every value that a later check may complain of has its place.

use toml::Spanned;

use crate::finding::{Findings, Kind, Span};
use crate::model::{Balance, EngineConfig, Match, NfStart, OnFailure, PortKind};
use crate::read::Reader;

mod engine;
mod nf;
mod port;
mod steer;

/// A name, if it could be read; `None` was complained of already.
pub(crate) type Name = Option<Spanned<String>>;

/// The whole file.
pub(crate) struct RawHost {
    pub(crate) engine: RawEngine,
    pub(crate) groups: Vec<RawGroup>,
    pub(crate) ports: Vec<RawPort>,
    pub(crate) nfs: Vec<RawNf>,
    pub(crate) chains: Vec<RawChain>,
    pub(crate) steering: Vec<RawSteer>,
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
    pub(crate) cells: u32,
    pub(crate) cell_size: Spanned<u32>,
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
}

/// `[[nf]]`.
pub(crate) struct RawNf {
    pub(crate) span: Span,
    pub(crate) role: Name,
    pub(crate) group: Option<Spanned<String>>,
    pub(crate) balance: Balance,
    pub(crate) start: NfStart,
    /// The places of the elements of `cores`.
    pub(crate) cores: Vec<Span>,
}

/// Where a chain ends.
pub(crate) enum RawOutput {
    None,
    Ingress,
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

/// What a rule does.
pub(crate) enum RawAction {
    Chain(Spanned<String>),
    Port(Spanned<String>),
    Drop,
}

/// `[[steer]]`.
pub(crate) struct RawSteer {
    pub(crate) span: Span,
    pub(crate) port: Name,
    pub(crate) matches: Match,
    /// The place of `match`.
    pub(crate) matched: Option<Span>,
    /// `None`: it was complained of.
    pub(crate) action: Option<RawAction>,
}

impl RawSteer {
    /// The place of the match, or of the rule if it matches everything.
    pub(crate) fn match_span(&self) -> Span {
        self.matched.clone().unwrap_or_else(|| self.span.clone())
    }
}

impl RawHost {
    /// Reads everything; what cannot be read is complained of and left out.
    pub(crate) fn read(root: &Reader<'_>) -> Self {
        let engine = root.table("engine", "[engine]").map(|table| engine::read(&table)).unwrap_or_default();
        let groups = root.tables("group", "[[group]]").iter().map(engine::read_group).collect();
        let ports = root.tables("port", "[[port]]").iter().map(port::read).collect();
        let nfs = root.tables("nf", "[[nf]]").iter().map(nf::read).collect();
        let chains = root.tables("chain", "[[chain]]").iter().map(steer::read_chain).collect();
        let steering = root.tables("steer", "[[steer]]").iter().map(steer::read).collect();
        root.finish(&[]);
        Self { engine, groups, ports, nfs, chains, steering }
    }
}

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
