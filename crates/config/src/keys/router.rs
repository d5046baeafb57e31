// SPDX-License-Identifier: Apache-2.0
//! `[[router]]` and `[[router.interface]]`.

use std::collections::BTreeMap;

use netvm_model::{MAX_RESERVED, PUNT_RATE, RouterConfig, RouterInterface};
use netvm_policy::{PortId, RouterId};
use netvm_wire::MacAddr;

use crate::syntax::field;
use crate::syntax::finding::Kind;
use crate::syntax::form::{
    Addresses, Flag, Items, Name, Nested, Number, Optional, Scalar, ToPort, UnlessDefault, Vlan, Word,
};
use crate::syntax::names;
use crate::syntax::table::{Keys, Numbered, Table};

mod nat;
mod nat_rule;

impl Numbered for RouterConfig {
    fn numbered(number: usize) -> Self {
        Self {
            id: RouterId(number as u16),
            name: String::new(),
            interfaces: Vec::new(),
            routes: Vec::new(),
            track: false,
            nat64: None,
            weight: 1,
            reserve: 0,
        }
    }
}

impl Keys for RouterConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "blue", &mut self.name, Name(names::router));
        let help = "a router needs at least one: add a [[router.interface]]";
        table.required("interface", help, &mut self.interfaces, Items("[[router.interface]]"));
        table.key("routes", &mut self.routes, UnlessDefault(Items("[[router.routes]]")));
        table.key("track", &mut self.track, Flag);
        table.key("nat64", &mut self.nat64, Optional(Nested("nat64")));
        table.key("weight", &mut self.weight, Number(1..=1000));
        table.key("reserve", &mut self.reserve, Number(0..=MAX_RESERVED.into()));
        let Some(reader) = table.reader() else { return };
        super::static_route::check(reader, &self.interfaces, &self.routes);
        let mut seen = BTreeMap::new();
        for (interface, place) in self.interfaces.iter_mut().zip(reader.place.items("interface")) {
            if interface.mac == MacAddr::ZERO {
                interface.mac = RouterInterface::own_mac(&self.name, &interface.name);
            }
            interface.host_end = RouterInterface::host_end_of(&self.name, &interface.name);
            let place = place.of("name");
            let first = seen.entry(&interface.name).or_insert_with(|| place.clone());
            if *first != place && !interface.name.is_empty() {
                let message = format!("two interfaces of one router are called `{}`", interface.name);
                reader
                    .note(Kind::Duplicate, message)
                    .at(place, "again")
                    .at(first.clone(), "first here")
                    .help("give every interface of a router a name of its own")
                    .keep();
            }
        }
    }
}

impl Numbered for RouterInterface {
    fn numbered(_: usize) -> Self {
        Self {
            name: String::new(),
            port: PortId::default(),
            vlan: None,
            mac: MacAddr::ZERO,
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            snat: None,
            punt: PortId::default(),
            host_end: String::new(),
        }
    }
}

impl Keys for RouterInterface {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "lan", &mut self.name, Name(names::interface));
        let help = "name the port of its packets, such as `port = \"uplink\"`";
        table.required("port", help, &mut self.port, ToPort);
        table.key("vlan", &mut self.vlan, Optional(Vlan));
        table.key("mac", &mut self.mac, Scalar(field::card_mac, ToString::to_string));
        table.key("addresses", &mut self.addresses, Addresses);
        table.key("punt_rate", &mut self.punt_rate, Number(1..=100_000_000));
        table.key("urpf", &mut self.urpf, Optional(Word));
        table.key("snat", &mut self.snat, Optional(nat::Snat));
    }
}
