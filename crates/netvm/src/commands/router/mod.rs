// SPDX-License-Identifier: Apache-2.0
//! `netvm router`.

mod lookup;

use netvm_api::{
    AddRoutes, Client, MAX_ROUTES, NeighbourInfo, RemoveRoutes, RouteAction, RouteInfo, RouteQuery,
    RouterInfo, RouterRoutes,
};

use crate::cli::{AddRouteArgs, RouterCommand};
use crate::commands::counters::Columns;
use crate::error::CliError;
use crate::format::{bytes, count};
use crate::output::{Output, StateColour, lines};

pub use lookup::lookup;

/// Runs a `router` command.
pub async fn router(
    client: &Client,
    output: &Output,
    command: Option<RouterCommand>,
) -> Result<(), CliError> {
    match command.unwrap_or(RouterCommand::List) {
        RouterCommand::List => {
            let routers = client.routers().await?;
            if output.json { output.value(&routers) } else { output.text(&draw_list(&routers, output)) }
        }
        RouterCommand::Neigh { name } => {
            let neighbours = client.neighbours(&name).await?;
            if output.json {
                output.value(&neighbours)
            } else {
                output.text(&draw_neighbours(&neighbours, output))
            }
        }
        RouterCommand::Add(route) => {
            let routes = AddRoutes { toml: toml(&route) };
            output.done(&client.add_routes(&route.name, &routes).await?)
        }
        RouterCommand::Del { name, prefix, metric } => {
            output.done(&client.remove_routes(&name, &RemoveRoutes { prefix, metric }).await?)
        }
        RouterCommand::Lookup(arguments) => lookup(&arguments, output.json),
        RouterCommand::Show { name, limit, all, family, prefix, address } => {
            let routers = client.routers().await?;
            if routers.iter().all(|router| router.name != name) {
                let known = routers.into_iter().map(|router| router.name).collect();
                return Err(CliError::Unknown { what: "router", name, known });
            }
            let query = RouteQuery { family, prefix, address, ..RouteQuery::default() };
            let limit = if all { usize::MAX } else { limit };
            let routes = pages(client, &name, query, limit).await?;
            if output.json { output.value(&routes) } else { output.text(&draw(&routes, output)) }
        }
    }
}

/// A route as in a configuration.
fn toml(route: &AddRouteArgs) -> String {
    let AddRouteArgs { prefix, via, interface, metric, blackhole, .. } = route;
    // As in Rust, for texts without control characters.
    let mut keys = vec![format!("to = {prefix:?}")];
    if !via.is_empty() {
        let via: Vec<String> = via.iter().map(|address| format!("\"{address}\"")).collect();
        keys.push(format!("via = [{}]", via.join(", ")));
    }
    keys.extend(interface.as_ref().map(|name| format!("interface = {name:?}")));
    keys.extend(metric.map(|metric| format!("metric = {metric}")));
    keys.extend(blackhole.then(|| "blackhole = true".to_owned()));
    format!("routes = [{{ {} }}]", keys.join(", "))
}

fn draw_neighbours(neighbours: &[NeighbourInfo], output: &Output) -> String {
    if neighbours.is_empty() {
        return "no neighbour has a known MAC address\n".to_owned();
    }
    let mut table = output.table(&["ADDRESS", "INTERFACE", "MAC", "STATE"]);
    for neighbour in neighbours {
        let (word, colour) =
            if neighbour.is_stale { ("stale", StateColour::Warning) } else { ("heard", StateColour::Good) };
        table.add_row([
            (&neighbour.address).into(),
            (&neighbour.interface).into(),
            (&neighbour.mac).into(),
            output.cell(word, colour),
        ]);
    }
    lines(table)
}

/// Reads up to `limit` routes, page by page.
async fn pages(
    client: &Client,
    name: &str,
    mut query: RouteQuery,
    limit: usize,
) -> Result<RouterRoutes, CliError> {
    query.most = Some(limit.min(MAX_ROUTES));
    let mut shown = client.routes(name, &query).await?;
    while shown.more > 0 && shown.routes.len() < limit {
        query.after = shown.routes.last().map(|route| route.prefix.clone());
        query.most = Some((limit - shown.routes.len()).min(MAX_ROUTES));
        let page = client.routes(name, &query).await?;
        shown.more = page.more;
        if page.routes.is_empty() {
            break;
        }
        shown.routes.extend(page.routes);
    }
    Ok(shown)
}

fn draw_list(routers: &[RouterInfo], output: &Output) -> String {
    if routers.is_empty() {
        return "no virtual routers: add [[router]] to the configuration\n".to_owned();
    }
    let counters = Columns::of(routers);
    let first = ["ROUTER", "NAMESPACE", "INTERFACES", ">IPV4 ROUTES", ">IPV6 ROUTES", ">NEIGHBOURS"];
    let mut table = Columns::table(output, &first, &[&counters]);
    for router in routers {
        let names: Vec<&str> = router.interfaces.iter().map(|interface| &*interface.name).collect();
        let row = [
            router.name.clone(),
            router.namespace.clone(),
            names.join(","),
            count(router.routes_v4),
            count(router.routes_v6),
            count(router.neighbours),
        ];
        table.add_row(row.into_iter().chain(counters.cells(router)));
    }
    let mut text = lines(table);
    for limitation in LIMITATIONS {
        text.extend(routers.iter().filter_map(|router| limitation(router, output)));
    }
    text
}

/// What the engine leaves to a router's kernel, a line for each if it does.
const LIMITATIONS: [fn(&RouterInfo, &Output) -> Option<String>; 3] = [rules, full, nat];

fn rules(router: &RouterInfo, output: &Output) -> Option<String> {
    let word = output.paint("policy routing rules", StateColour::Warning);
    router.has_rules.then(|| {
        format!(
            "{name}: {word} other than the default ones: its kernel forwards all packets of their family, slowly (see \
             `ip -n {namespace} rule` and `ip -6 -n {namespace} rule`)\n",
            name = router.name,
            namespace = router.namespace,
        )
    })
}

fn full(router: &RouterInfo, output: &Output) -> Option<String> {
    let word = output.paint("full", StateColour::Warning);
    router.is_full.then(|| {
        format!(
            "{}: its table or its next hops are {word}: its kernel forwards packets of the routes left out, slowly\n",
            router.name
        )
    })
}

fn nat(router: &RouterInfo, output: &Output) -> Option<String> {
    let word = output.paint("chains of NAT", StateColour::Warning);
    router.has_nat.then(|| {
        format!(
            "{}: its namespace has {word}, which do not apply to packets that the engine forwards (see `ip netns exec {} nft list \
             ruleset`)\n",
            router.name, router.namespace
        )
    })
}

fn draw(shown: &RouterRoutes, output: &Output) -> String {
    let router = &shown.router;
    let mut text = format!(
        "router {} in namespace {}: {} IPv4 routes, {} IPv6 routes, {} neighbours, {} next hops, FIB of {}\n\n",
        router.name,
        router.namespace,
        count(router.routes_v4),
        count(router.routes_v6),
        count(router.neighbours),
        count(router.next_hops),
        bytes(router.table_bytes),
    );
    let mut table = output.table(&[
        "INTERFACE",
        "PORT",
        "VLAN",
        "MAC",
        "ADDRESSES",
        "PUNT PORT",
        ">PUNTED",
        ">OVER QUOTA",
        ">FROM KERNEL",
    ]);
    for interface in &router.interfaces {
        table.add_row([
            interface.name.clone(),
            interface.port.clone(),
            interface.vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
            interface.mac.clone(),
            if interface.addresses.is_empty() { "-".to_owned() } else { interface.addresses.join(" ") },
            interface.punt_port.clone(),
            count(interface.punted),
            count(interface.over_quota),
            count(interface.from_kernel),
        ]);
    }
    text.push_str(&lines(table));
    text.extend(LIMITATIONS.iter().filter_map(|limitation| limitation(router, output)));
    text.push('\n');
    let counters = Columns::of(&router.interfaces);
    let mut table = Columns::table(output, &["INTERFACE"], &[&counters]);
    for interface in &router.interfaces {
        table.add_row([vec![interface.name.clone()], counters.cells(interface)].concat());
    }
    text.push_str(&lines(table));
    text.push('\n');
    let punts = router.interfaces.iter().flat_map(|one| one.punts.iter().map(move |punt| (&*one.name, punt)));
    let counters = Columns::of(punts.clone().map(|(_, punt)| punt));
    let mut table = Columns::table(output, &["INTERFACE", "FOR THE KERNEL", "WHY PUNTED"], &[&counters]);
    for (interface, punt) in punts.clone() {
        let names = vec![interface.to_owned(), punt.class.clone(), punt.reason.clone()];
        table.add_row([names, counters.cells(punt)].concat());
    }
    if punts.count() > 0 {
        text.push_str(&lines(table));
        text.push('\n');
    }
    let mut table = output.table(&["PREFIX", "ACTION", "TO"]);
    for route in &shown.routes {
        let (word, colour) = match route.action {
            RouteAction::Forward if route.hops.iter().all(|hop| hop.mac.is_none()) => {
                ("resolving", StateColour::Warning)
            }
            RouteAction::Forward => ("forward", StateColour::Good),
            RouteAction::Punt => ("kernel", StateColour::Warning),
            RouteAction::Blackhole => ("blackhole", StateColour::Bad),
        };
        table.add_row([(&route.prefix).into(), output.cell(word, colour), hops(route).into()]);
    }
    text.push_str(&lines(table));
    if shown.more > 0 {
        text.push_str(&format!("and {} more (--all shows them)\n", count(shown.more)));
    }
    text
}

fn hops(route: &RouteInfo) -> String {
    let hop = |hop: &netvm_api::RouteHop| {
        let interface = hop.interface.as_deref().unwrap_or("?");
        let mac = hop.mac.as_deref().unwrap_or("unresolved");
        let weight = if hop.weight == 1 { String::new() } else { format!(" weight {}", hop.weight) };
        format!("{} on {interface} ({mac}){weight}", hop.address)
    };
    if route.hops.is_empty() {
        "-".to_owned()
    } else {
        route.hops.iter().map(hop).collect::<Vec<_>>().join(", ")
    }
}
