// SPDX-License-Identifier: Apache-2.0
//! The keys of every item, each listed once: its name, the field of [`netvm_model`] that it sets, the form
//! of its value, and the checks of this key alone.

use netvm_model::{Host, Rule};

use crate::syntax::form::{Items, Nested, UnlessDefault};
use crate::syntax::table::{Keys, Table};

mod action;
mod engine;
mod nf;
mod port;
mod port_policy;
mod router;
mod rule;
mod static_route;
mod vm;

impl Keys for Host {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("engine", &mut self.engine, Nested("[engine]"));
        table.key("api", &mut self.api, UnlessDefault(Nested("[api]")));
        table.key("health", &mut self.health, UnlessDefault(Nested("[health]")));
        table.key("switch", &mut self.switch, Nested("[switch]"));
        table.key("policy", &mut self.policy, Nested("[policy]"));
        table.key("group", &mut self.groups, Items("[[group]]"));
        table.key("port", &mut self.ports, Items("[[port]]"));
        table.key("nf", &mut self.nfs, Items("[[nf]]"));
        table.key("vm", &mut self.vms, Items("[[vm]]"));
        table.key("router", &mut self.routers, Items("[[router]]"));
        table.key("chain", &mut self.chains, Items("[[chain]]"));
        table.key("rule", &mut self.rules, Items("[[rule]]"));
        table.key("nat", &mut self.nat, UnlessDefault(Items("[[nat]]")));
    }
}

pub(crate) use static_route::Routes;

/// The rules of a file without a host.
pub(crate) struct Rules(pub(crate) Vec<Rule>);

impl Keys for Rules {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("rule", &mut self.0, Items("[[rule]]"));
    }
}
