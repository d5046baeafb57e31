// SPDX-License-Identifier: Apache-2.0
//! `[health]`.

use std::net::IpAddr;

use netvm_model::{HealthConfig, Host};
use toml::Value;

use crate::syntax::form::{Flag, List, Number, Optional, Plain, Spanned, TEXTS, Text, text};
use crate::syntax::table::{Form, Keys, Table, ValueLocation};

/// The longest times in seconds.
const MAX_WITHIN: u64 = 600;
const MAX_STEADY: u64 = 60;

impl Keys for HealthConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("within", &mut self.within, Number(1..=MAX_WITHIN));
        table.key("steady", &mut self.steady, Number(0..=MAX_STEADY));
        table.key("chains", &mut self.chains, Flag);
        table.key("ports", &mut self.ports, List(PortName, TEXTS));
        table.key("ping", &mut self.ping, List(Text(str::parse::<IpAddr>, ToString::to_string), TEXTS));
        table.key("router", &mut self.router, Optional(RouterName));
    }
}

/// The name of a port of the file.
struct PortName;

impl Form<String> for PortName {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<String> {
        let name = text(at, value)?;
        at.file.names.ports.find(at.file.findings, name, value.span()).map(|_| name.to_owned())
    }

    fn write(&self, host: &Host, item: &mut String) -> Option<Value> {
        Plain.write(host, item)
    }
}

/// The name of a router of the file.
struct RouterName;

impl Form<String> for RouterName {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<String> {
        let name = text(at, value)?;
        at.file.names.routers.find(at.file.findings, name, value.span()).map(|_| name.to_owned())
    }

    fn write(&self, host: &Host, item: &mut String) -> Option<Value> {
        Plain.write(host, item)
    }
}
