// SPDX-License-Identifier: Apache-2.0
//! `routes` of a `[[router]]`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use netvm_model::{RouteTarget, RouterConfig, RouterInterface, StaticRoute};
use netvm_wire::{IpNet, Ipv4Net};

use crate::syntax::finding::Kind;
use crate::syntax::form::{Flag, Items, Name, Number, OneOrMore, Optional, Text, UnlessDefault};
use crate::syntax::names;
use crate::syntax::table::{Keys, Numbered, Reader, Table};

impl Numbered for StaticRoute {
    fn numbered(_: usize) -> Self {
        let to = IpNet::V4(Ipv4Net::host(Ipv4Addr::UNSPECIFIED));
        Self { to, target: RouteTarget::Blackhole, metric: None }
    }
}

impl Keys for StaticRoute {
    fn keys(&mut self, table: &mut Table<'_>) {
        let help = "give its destination, such as `to = \"0.0.0.0/0\"` or `to = \"2001:db8::/32\"`";
        table.required("to", help, &mut self.to, Text(str::parse::<IpNet>, ToString::to_string));
        let (mut via, mut interface, mut blackhole) =
            match std::mem::replace(&mut self.target, RouteTarget::Blackhole) {
                RouteTarget::Blackhole => (Vec::new(), None, true),
                RouteTarget::Connected(interface) => (Vec::new(), Some(interface), false),
                RouteTarget::Gateways { via, interface } => (via, interface, false),
            };
        if table.reader().is_some() {
            blackhole = false;
        }
        table.key("via", &mut via, OneOrMore(Text(str::parse::<IpAddr>, ToString::to_string)));
        table.key("interface", &mut interface, Optional(Name(names::interface)));
        table.key("blackhole", &mut blackhole, UnlessDefault(Flag));
        table.key("metric", &mut self.metric, Optional(Number(1..=u64::from(u32::MAX))));
        if let Some(reader) = table.reader() {
            if blackhole && (!via.is_empty() || interface.is_some()) {
                let other = if via.is_empty() { "interface" } else { "via" };
                reader.conflict(other, "blackhole").help("keep one of them").keep();
            }
            check_target(reader, self.to, &via);
        }
        self.target = match (interface, via.is_empty()) {
            (interface, false) => RouteTarget::Gateways { via, interface },
            (Some(interface), true) => RouteTarget::Connected(interface),
            (None, true) => RouteTarget::Blackhole,
        };
    }
}

/// Routes to add to a router.
pub(crate) struct Routes<'a> {
    pub(crate) of: &'a RouterConfig,
    pub(crate) routes: Vec<StaticRoute>,
}

impl Keys for Routes<'_> {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("routes", &mut self.routes, UnlessDefault(Items("[[router.routes]]")));
        if let Some(reader) = table.reader() {
            check(reader, &self.of.interfaces, &self.routes);
        }
    }
}

fn check_target(reader: &Reader<'_>, to: IpNet, via: &[IpAddr]) {
    // A wrong value of `via` has its own finding.
    let is_given = ["via", "interface", "blackhole"].iter().any(|key| reader.place.value(key).is_some());
    if !is_given {
        reader
            .note(Kind::MissingKey, "a route without a target")
            .at(reader.place.header.clone(), "")
            .help("give it a gateway (`via`), an `interface`, or `blackhole = true`")
            .keep();
    }
    if let Some(other) = via.iter().find(|address| address.is_ipv4() != to.is_v4()) {
        reader
            .note(Kind::BadValue, format!("the gateway {other} is of another family than {to}"))
            .at(reader.place.of("via"), "must be of the same family")
            .help("give a gateway of the same family")
            .keep();
    }
}

/// Checks the routes of a router together, and with its interfaces.
pub(super) fn check(reader: &Reader<'_>, interfaces: &[RouterInterface], routes: &[StaticRoute]) {
    let mut seen = BTreeMap::new();
    for (route, place) in routes.iter().zip(reader.place.items("routes")) {
        let name = match &route.target {
            RouteTarget::Connected(name) | RouteTarget::Gateways { interface: Some(name), .. } => Some(name),
            _ => None,
        };
        if let Some(name) = name.filter(|name| interfaces.iter().all(|known| known.name != **name)) {
            reader
                .note(Kind::UnknownName, format!("the router has no interface `{name}`"))
                .at(place.of("interface"), "unknown")
                .help("name one of its [[router.interface]]")
                .keep();
        }
        let first = seen.entry((route.to.to_string(), route.metric)).or_insert_with(|| place.header.clone());
        if *first != place.header {
            reader
                .note(
                    Kind::Duplicate,
                    format!("two routes of one router to {} have the same metric", route.to),
                )
                .at(place.header.clone(), "again")
                .at(first.clone(), "first here")
                .help("give one of them another `metric`; for several gateways, give `via` a list")
                .keep();
        }
    }
}
