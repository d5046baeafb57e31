// SPDX-License-Identifier: Apache-2.0
//! Keys of `[[nf]]` with `attach`: programs whose packets pass a pair of ports.

use netvm_model::words::Words;
use netvm_model::{Attach, Host, MAX_REPLICAS, NAME_BYTES, NfStart, PairConfig, PairEnd, PairSide};
use toml::Value;

use super::{Environment, check_command};
use crate::keys::engine::Cores;
use crate::syntax::field;
use crate::syntax::form::{
    Flag, List, Number, Optional, Plain, Spanned, TEXTS, Text, UnlessDefault, Word, one_of, text,
};
use crate::syntax::table::{Form, Keys, Table, ValueLocation};

/// The word for NFs that use netlib.
const NETLIB: &str = "netlib";
/// The longest MTU of an interface of a program.
const MAX_MTU: u64 = 16_000;

/// How an NF is attached; `None`: by netlib.
pub(super) struct HowAttached;

impl Form<Option<Attach>> for HowAttached {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Option<Attach>> {
        let ports = Attach::WORDS.iter().map(|(word, attach)| (*word, Some(*attach)));
        one_of(at, text(at, value)?, std::iter::once((NETLIB, None)).chain(ports))
    }

    /// Absent means netlib.
    fn write(&self, _: &Host, item: &mut Option<Attach>) -> Option<Value> {
        item.map(|attach| attach.word().into())
    }
}

/// Reads how an NF of this role is attached, if not by netlib.
pub(super) fn attach(role: &str, start: &NfStart, table: &mut Table<'_>) -> Option<Attach> {
    let mut attach = match start {
        NfStart::Ports(pair) => Some(pair.attach),
        _ => None,
    };
    let at = table.key("attach", &mut attach, HowAttached);
    let longest = PairEnd { role, instance: 2 * MAX_REPLICAS as u16, side: PairSide::Right }.port_name();
    if let Some(at) = at.filter(|_| attach.is_some() && longest.len() > NAME_BYTES) {
        let most = NAME_BYTES - (longest.len() - role.len());
        at.bad_value(&format!("makes ports whose names begin with `{role}`, which is too long"))
            .help(format!("give the role a name of at most {most} characters"))
            .keep();
    }
    attach
}

/// The keys of all ways to attach a program.
pub(super) fn all_keys(table: &mut Table<'_>) {
    PairConfig::new(Attach::Veth).keys(table);
    sockets(&mut PairConfig::new(Attach::VhostUser), table);
}

fn sockets(pair: &mut PairConfig, table: &mut Table<'_>) {
    table.key("sockets", &mut pair.sockets, Text(field::absolute_path, field::path_text));
}

impl Keys for PairConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        let info = self.attach.info();
        if let Some(at) = table.key("command", &mut self.command, UnlessDefault(List(Plain, TEXTS))) {
            check_command(&at, &self.command, table.reader().map(|reader| &*reader));
        }
        table.key("user", &mut self.user, Text(field::user, String::clone));
        table.key("replicas", &mut self.replicas, Number(1..=MAX_REPLICAS as u64));
        table.key("standby", &mut self.standby, Number(0..=MAX_REPLICAS as u64));
        table.key("cores", &mut self.cores, Cores);
        table.key("environment", &mut self.environment, Environment);
        self.limits.keys(table);
        table.key("ports", &mut self.port_count, Number(1..=2));
        table.key("rewrite_macs", &mut self.rewrite_macs, Flag);
        table.key("restore_ttl", &mut self.restore_ttl, Flag);
        table.key("mtu", &mut self.mtu, Number(68..=MAX_MTU));
        table.key("probe", &mut self.probe, Flag);
        table.key("while_starting", &mut self.while_starting, Optional(Word));
        let offloads = |offloads: &mut bool, table: &mut Table<'_>| {
            table.key("offloads", offloads, Flag);
        };
        match info.may_offload {
            true => offloads(&mut self.offloads, table),
            false => table.others("attach = \"veth\" or \"tap\"", |table| offloads(&mut false, table)),
        }
        match info.has_namespace {
            true => table.others("attach = \"vhost-user\" or \"memif\"", |table| {
                sockets(&mut Self::new(Attach::VhostUser), table);
            }),
            false => sockets(self, table),
        }
    }
}
