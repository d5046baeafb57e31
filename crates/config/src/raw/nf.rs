//! `[[nf]]`.

use toml::Spanned;

use super::{RawNf, engine, name};
use crate::document::BALANCE;
use crate::finding::{Kind, Span};
use crate::model::{Balance, MAX_REPLICAS, MAX_THREADS, NfStart};
use crate::read::{List, Reader};

/// The user of NFs that do not name one: it owns nothing.
pub(super) const DEFAULT_USER: &str = "nobody";
/// Longest user name that Linux's tools make.
const USER_BYTES: usize = 32;
/// Variables that netvmd itself sets for NFs.
const RESERVED_VARIABLES: &str = "NETVM_";

/// Keys of NFs that netvmd starts.
const MANAGED: &[(&str, &str)] = &[
    ("replicas", "`command`"),
    ("standby", "`command`"),
    ("threads", "`command`"),
    ("user", "`command`"),
    ("cores", "`command`"),
    ("environment", "`command`"),
];
/// Keys of NFs that attach by themselves.
const EXTERNAL: &[(&str, &str)] = &[("attach_users", "NFs that netvmd does not start (without `command`)")];

pub(super) fn read(table: &Reader<'_>) -> RawNf {
    let role = name(table, "role", "firewall");
    let group = table.text("group");
    let balance = table.word("balance", BALANCE).map_or_else(Balance::default, Spanned::into_inner);
    let flow_verdicts = table.number("flow_verdicts", 0..=u16::MAX.into()).map_or(0, Spanned::into_inner);
    let command = table.texts("command");
    let is_managed = table.key_span("command").is_some();
    let mut cores = Vec::new();
    let start = if is_managed {
        let named = engine::cores(table, "cores");
        cores = named.iter().map(|(_, span)| span.clone()).collect();
        managed(table, command, named.into_iter().map(|(core, _)| core).collect())
    } else {
        let users = table.texts("attach_users").map(Spanned::into_inner).unwrap_or_default();
        NfStart::External {
            users: users.into_iter().filter_map(|user| check_user(table, "attach_users", user)).collect(),
        }
    };
    table.finish(if is_managed { EXTERNAL } else { MANAGED });
    RawNf { span: table.span.clone(), role, group, balance, flow_verdicts, start, cores }
}

fn managed(table: &Reader<'_>, command: Option<List<String>>, cores: Vec<u32>) -> NfStart {
    let replicas = table.number::<u16>("replicas", 1..=MAX_REPLICAS as u64);
    let threads = table.number::<u16>("threads", 1..=MAX_THREADS as u64);
    let count = |number: &Option<Spanned<u16>>| number.as_ref().map_or(1, |number| *number.get_ref());
    let together = usize::from(count(&replicas)) * usize::from(count(&threads));
    if together > MAX_REPLICAS {
        let place = threads.as_ref().or(replicas.as_ref()).map_or_else(|| table.span.clone(), Spanned::span);
        table
            .findings
            .note(Kind::TooMany, format!("replicas × threads is {together}"))
            .at(place, "too many together")
            .help(format!(
                "a hop chooses among at most {MAX_REPLICAS} threads, those of all replicas together"
            ))
            .keep();
    }
    NfStart::Managed {
        command: command.map(|command| check_command(table, command)).unwrap_or_default(),
        user: table
            .text("user")
            .and_then(|user| check_user(table, "user", user))
            .unwrap_or_else(|| DEFAULT_USER.to_owned()),
        replicas: count(&replicas),
        standby: table.number("standby", 0..=MAX_REPLICAS as u64).map_or(0, Spanned::into_inner),
        cores,
        environment: environment(table),
        threads: count(&threads),
    }
}

fn check_command(table: &Reader<'_>, command: List<String>) -> Vec<String> {
    let span = command.span();
    let words = command.into_inner();
    if words.first().is_none_or(|program| program.get_ref().is_empty()) {
        table
            .bad_value("command", span, "names no program")
            .help("write the program and its arguments, such as [\"netvm-firewall\", \"--rules\", \"fw.rules\"]; leave `command` out for an NF that attaches by itself")
            .keep();
    }
    for word in words.iter().filter(|word| word.get_ref().contains('\0')) {
        no_zero_byte(table, "command", word.span());
    }
    words.into_iter().map(Spanned::into_inner).collect()
}

fn no_zero_byte(table: &Reader<'_>, key: &str, span: Span) {
    table.bad_value(key, span, "has a zero byte").help("programs cannot be given one: remove it").keep();
}

pub(super) fn check_user(table: &Reader<'_>, key: &str, user: Spanned<String>) -> Option<String> {
    let text = user.get_ref();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=USER_BYTES).contains(&text.len()) && text.chars().all(allowed) {
        return Some(user.into_inner());
    }
    table
        .bad_value(key, user.span(), &format!("cannot be `{text}`"))
        .help("name a user of this machine, or give its number in quotes")
        .keep();
    None
}

fn environment(table: &Reader<'_>) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (name, value) in table.variables("environment") {
        let text = name.get_ref();
        if text.starts_with(RESERVED_VARIABLES) {
            table
                .bad_value("environment", name.span(), &format!("cannot set `{text}`"))
                .help(format!("variables that begin with {RESERVED_VARIABLES} are set by netvmd: remove it"))
                .keep();
        } else if text.is_empty() || text.contains(['=', '\0']) {
            table
                .bad_value("environment", name.span(), "has a variable without a proper name")
                .help("a name is not empty and has no `=`")
                .keep();
        } else if value.contains('\0') {
            no_zero_byte(table, text, name.span());
        } else {
            variables.push((name.into_inner(), value));
        }
    }
    variables
}
