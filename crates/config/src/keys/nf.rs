// SPDX-License-Identifier: Apache-2.0
//! `[[nf]]` and `[[chain]]`.

mod scale;
mod steer;

use netvm_model::{
    Balance, Chain, DEFAULT_ALLOCATE, DEFAULT_HANG_TIMEOUT, GroupId, Host, MAX_HOPS, MAX_REPLICAS,
    MAX_THREADS, NfConfig, NfLimits, NfStart, OnFailure, Output, PairConfig, RoleId,
};
use netvm_policy::{Action, ChainId};
use toml::Value;
use toml::de::DeValue;

use super::action;
use super::engine::Cores;
use crate::syntax::field;
use crate::syntax::finding::Kind;
use crate::syntax::form::{
    InGroup, List, Name, Nested, Number, OnlyIf, Optional, Plain, Spanned, TEXTS, Text, ToChain, ToPort,
    ToRole, UnlessDefault, Word, text,
};
use crate::syntax::names::{self, INGRESS};
use crate::syntax::table::{Form, Keys, Numbered, Reader, Table, ValueLocation};

mod pair;

/// The user of NFs and VMs without `user`: it owns no files.
pub(super) const DEFAULT_USER: &str = "nobody";
/// Most buffers that an NF thread may keep for packets of its own, and most packets that it may hold.
const MAX_KEPT: u64 = 32_768;
/// Prefix of the variables that netvmd itself sets for NFs.
const RESERVED_VARIABLES: &str = "NETVM_";

impl Numbered for NfConfig {
    fn numbered(number: usize) -> Self {
        Self {
            id: RoleId(number as u16),
            role: String::new(),
            group: GroupId::default(),
            balance: Balance::default(),
            flow_verdicts: 0,
            steer: Vec::new(),
            hang_timeout: DEFAULT_HANG_TIMEOUT,
            allocate: DEFAULT_ALLOCATE,
            hold: 0,
            start: NfStart::External { users: Vec::new() },
        }
    }
}

impl Keys for NfConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("role", "firewall", &mut self.role, Name(names::any));
        table.key("group", &mut self.group, InGroup);
        let attach = pair::attach(&self.role, &self.start, table);
        let of_netlib = |nf: &mut Self, table: &mut Table<'_>| {
            table.key("flow_verdicts", &mut nf.flow_verdicts, UnlessDefault(Number(0..=u16::MAX.into())));
            let is_other = nf.allocate != DEFAULT_ALLOCATE;
            table.key("allocate", &mut nf.allocate, OnlyIf(is_other, Number(0..=MAX_KEPT)));
            table.key("hold", &mut nf.hold, UnlessDefault(Number(0..=MAX_KEPT)));
            steer::keys(nf, table);
        };
        let balance = |nf: &mut Self, table: &mut Table<'_>| {
            table.key("balance", &mut nf.balance, Word);
        };
        if attach.is_none() {
            of_netlib(self, table);
        }
        table.key("hang_timeout", &mut self.hang_timeout, Number(0..=u16::MAX.into()));
        if let Some(reader) = table.reader() {
            if !reader.has("group") && reader.file.names.groups.len() > 1 {
                reader
                    .note(Kind::MissingKey, format!("[[nf]] {} has no `group`", self.role))
                    .at(reader.place.header.clone(), "`group` is missing here")
                    .help("there are several groups: say which one it belongs to, such as `group = \"edge\"`")
                    .keep();
            }
            let given = reader.has("command");
            if let Some(attach) = attach {
                self.start = NfStart::Ports(PairConfig::new(attach));
                table.others("NFs that use netlib (without `attach`)", |table| {
                    let mut other = Self { start: managed(), ..Self::numbered(0) };
                    of_netlib(&mut other, table);
                    balance(&mut other, table);
                    other.start.keys(table);
                    NfStart::External { users: Vec::new() }.keys(table);
                });
            } else if given {
                self.start = managed();
                let external = |table: &mut Table<'_>| NfStart::External { users: Vec::new() }.keys(table);
                table.others("NFs that netvmd does not start (without `command`)", external);
            } else {
                table.others("`command`", |table| managed().keys(table));
            }
        }
        if attach.is_none() {
            table.others("`attach`", pair::all_keys);
        }
        self.start.keys(table);
        if attach.is_none() {
            balance(self, table);
        }
        if let Some(reader) = table.reader() {
            scale::check(self, reader);
        }
    }
}

/// One process without a program.
fn managed() -> NfStart {
    NfStart::Managed {
        command: Vec::new(),
        user: DEFAULT_USER.to_owned(),
        replicas: 1,
        scale: None,
        standby: 0,
        cores: Vec::new(),
        environment: Vec::new(),
        threads: 1,
        limits: NfLimits::default(),
    }
}

impl Keys for NfStart {
    fn keys(&mut self, table: &mut Table<'_>) {
        match self {
            Self::Managed {
                command,
                user,
                replicas,
                scale,
                standby,
                cores,
                environment,
                threads,
                limits,
            } => {
                if let Some(at) = table.key("command", command, List(Plain, TEXTS)) {
                    check_command(&at, command, table.reader().map(|reader| &*reader));
                }
                table.key("user", user, Text(field::user, String::clone));
                scale::replicas(replicas, scale, table);
                table.key("standby", standby, Number(0..=MAX_REPLICAS as u64));
                table.key("threads", threads, Number(1..=MAX_THREADS as u64));
                table.key("cores", cores, Cores);
                table.key("environment", environment, Environment);
                limits.keys(table);
                let most = scale.map_or(*replicas, |scale| scale.most);
                let product = usize::from(most) * usize::from(*threads);
                if let Some(reader) = table.reader()
                    && product > MAX_REPLICAS
                {
                    let key = if reader.has("threads") { "threads" } else { "replicas" };
                    reader
                        .note(Kind::TooMany, format!("replicas × threads is {product}"))
                        .at(reader.place.of(key), "exceeds the limit")
                        .help(format!(
                            "a hop chooses among at most {MAX_REPLICAS} threads of all replicas together"
                        ))
                        .keep();
                }
            }
            Self::External { users } => {
                table.key("attach_users", users, List(Text(field::user, String::clone), TEXTS));
            }
            Self::Ports(pair) => pair.keys(table),
        }
    }
}

impl Keys for NfLimits {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("memory", &mut self.memory, Number(16..=16 << 20));
        table.key("tasks", &mut self.tasks, Number(16..=65_536));
        table.key("cpu_weight", &mut self.cpu_weight, Number(1..=10_000));
        table.key("writable", &mut self.writable, List(Text(field::absolute_path, field::path_text), TEXTS));
    }
}

fn check_command(at: &ValueLocation<'_>, command: &[String], reader: Option<&Reader<'_>>) {
    if command.first().is_none_or(String::is_empty) {
        at.bad_value("names no program")
            .help("write the program and its arguments, such as [\"netvm-firewall\", \"--rules\", \"fw.rules\"]; leave `command` out for an NF that attaches by itself")
            .keep();
    }
    for (n, _) in command.iter().enumerate().filter(|(_, word)| word.contains('\0')) {
        let span = reader.map_or_else(|| at.span.clone(), |reader| reader.place.element("command", n));
        no_nul(&at.element(span));
    }
}

fn no_nul(at: &ValueLocation<'_>) {
    at.bad_value("contains a NUL byte").help("a program cannot get one: remove it").keep();
}

/// Environment variables, in the order of the file.
struct Environment;

impl Form<Vec<(String, String)>> for Environment {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<(String, String)>> {
        let DeValue::Table(table) = value.get_ref() else {
            return at.wrong_type(value.get_ref(), "a table of strings, such as { NAME = \"value\" }");
        };
        let mut variables = Vec::new();
        for (name, value) in table {
            let Some(text) = text(&at.element(value.span()), value) else { continue };
            let (at, name) = (at.element(name.span()), name.get_ref());
            if name.starts_with(RESERVED_VARIABLES) {
                at.bad_value(&format!("cannot set `{name}`"))
                    .help(format!(
                        "variables that begin with {RESERVED_VARIABLES} are set by netvmd: remove it"
                    ))
                    .keep();
            } else if name.is_empty() || name.contains(['=', '\0']) {
                at.bad_value("has a variable without a proper name")
                    .help("a name is not empty and has no `=`")
                    .keep();
            } else if text.contains('\0') {
                no_nul(&at);
            } else {
                variables.push((name.to_string(), text.to_owned()));
            }
        }
        Some(variables)
    }

    fn write(&self, _: &Host, item: &mut Vec<(String, String)>) -> Option<Value> {
        let values = item.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        Some(Value::Table(values.collect()))
    }
}

/// An [`Output`]: a text, or a table.
struct To;

impl Form<Output> for To {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Output> {
        if value.get_ref().is_table() {
            return Nested("output").read(at, value);
        }
        if text(at, value)? == INGRESS {
            Some(Output::Ingress)
        } else {
            ToPort.read(at, value).map(Output::Port)
        }
    }

    fn write(&self, host: &Host, item: &mut Output) -> Option<Value> {
        match item {
            Output::None => None,
            Output::Ingress => Some(INGRESS.into()),
            Output::Port(id) => ToPort.write(host, id),
            Output::Normal | Output::Router(_) => Nested("output").write(host, item),
        }
    }
}

impl Keys for Output {
    fn keys(&mut self, table: &mut Table<'_>) {
        let mut to = match *self {
            Self::Router(id) => Some(Action::Router(id)),
            Self::Normal => Some(Action::Normal),
            _ => None,
        };
        let keys = ["normal", "router"];
        action::keys(&mut to, table, &keys);
        action::exactly_one(table, &keys, "write `\"PORT\"`, `{ normal = true }` or `{ router = \"…\" }`");
        match to {
            Some(Action::Router(id)) => *self = Self::Router(id),
            Some(Action::Normal) => *self = Self::Normal,
            _ => {}
        }
    }
}

impl Numbered for Chain {
    fn numbered(number: usize) -> Self {
        Self {
            id: ChainId(number as u16),
            name: String::new(),
            hops: Vec::new(),
            on_failure: OnFailure::default(),
            output: Output::default(),
            reverse: None,
        }
    }
}

impl Keys for Chain {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "web", &mut self.name, Name(names::any));
        let example = "list the roles that packets pass, such as `hops = [\"firewall\", \"monitor\"]`";
        if let Some(at) = table.required("hops", example, &mut self.hops, List(ToRole, TEXTS))
            && self.hops.is_empty()
        {
            at.bad_value("is empty")
                .help(format!("{example}; to send packets straight out of a port, use `out` in [[rule]]"))
                .keep();
        }
        if let Some(reader) = table.reader()
            && self.hops.len() > MAX_HOPS
        {
            reader
                .note(Kind::TooMany, "a chain with too many hops")
                .at(reader.place.element("hops", MAX_HOPS), format!("this is hop {}", MAX_HOPS + 1))
                .help(format!("a chain has at most {MAX_HOPS} hops"))
                .keep();
        }
        table.key("on_failure", &mut self.on_failure, Word);
        table.key("output", &mut self.output, To);
        table.key("reverse", &mut self.reverse, Optional(ToChain));
    }
}
