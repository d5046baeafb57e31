//! `[[router]]`.

use toml::Spanned;

use netvm_wire::{MacAddr, VlanId};

use super::{Name, RawInterface, RawRouter, name};
use crate::finding::Kind;
use crate::model::{InterfaceAddress, NAME_BYTES, PUNT_RATE, RouterInterface};
use crate::read::Reader;

/// Longest name of an interface (`IFNAMSIZ` - 1).
const INTERFACE_BYTES: usize = 15;
/// Longest name of a router: a punt port is called `ROUTER.INTERFACE`.
const ROUTER_BYTES: usize = NAME_BYTES - 1 - INTERFACE_BYTES;
/// Names that a namespace has already, or that mean something to its settings (`/proc/sys/net/ipv4/conf`) or to paths.
const TAKEN: [&str; 5] = ["lo", "all", "default", ".", ".."];

pub(super) fn read(table: &Reader<'_>) -> RawRouter {
    let name = name(table, "name", "blue").filter(|name| short(table, "name", name, ROUTER_BYTES));
    let own = name.as_ref().map_or("", |name| name.get_ref());
    let interfaces: Vec<RawInterface> =
        table.tables("interface", "[[router.interface]]").iter().map(|table| interface(table, own)).collect();
    if table.key_span("interface").is_none() {
        table.missing("interface", "a router needs at least one: add a [[router.interface]]");
    }
    let mut seen: Vec<&Spanned<String>> = Vec::new();
    for interface in interfaces.iter().filter_map(|interface| interface.name.as_ref()) {
        match seen.iter().find(|known| known.get_ref() == interface.get_ref()) {
            Some(first) => table
                .findings
                .note(
                    Kind::Duplicate,
                    format!("two interfaces of one router are called `{}`", interface.get_ref()),
                )
                .at(interface.span(), "again")
                .at(first.span(), "first here")
                .help("give every interface of a router a name of its own")
                .keep(),
            None => seen.push(interface),
        }
    }
    table.finish(&[]);
    RawRouter { name, interfaces }
}

fn interface(table: &Reader<'_>, router: &str) -> RawInterface {
    let name = interface_name(table);
    if table.key_span("port").is_none() {
        table.missing("port", "name the port of its packets, such as `port = \"uplink\"`");
    }
    let own_mac = || RouterInterface::own_mac(router, name.as_ref().map_or("", |name| name.get_ref()));
    let mac = table.parsed("mac", str::parse::<MacAddr>).filter(|mac| is_of_one_card(table, mac));
    let vlan = table.number::<u16>("vlan", 1..=u64::from(VlanId::MAX));
    let interface = RawInterface {
        span: table.span.clone(),
        port: table.text("port"),
        vlan: vlan.and_then(|vlan| VlanId::new(vlan.into_inner()).ok()),
        mac: mac.map_or_else(own_mac, Spanned::into_inner),
        addresses: addresses(table),
        punt_rate: table.number("punt_rate", 1..=100_000_000).map_or(PUNT_RATE, Spanned::into_inner),
        name,
    };
    table.finish(&[]);
    interface
}

fn interface_name(table: &Reader<'_>) -> Name {
    let name = name(table, "name", "lan").filter(|name| short(table, "name", name, INTERFACE_BYTES))?;
    if !TAKEN.contains(&name.get_ref().as_str()) {
        return Some(name);
    }
    table
        .findings
        .note(Kind::BadName, format!("`name` of an interface cannot be `{}`", name.get_ref()))
        .at(name.span(), "means something else in a namespace")
        .help("give it another name")
        .keep();
    None
}

/// Whether a name is no longer than what it is for allows.
fn short(table: &Reader<'_>, key: &str, name: &Spanned<String>, most: usize) -> bool {
    let length = name.get_ref().len();
    if length > most {
        table
            .findings
            .note(Kind::BadName, format!("`{key}` cannot be `{}`", name.get_ref()))
            .at(name.span(), format!("{length} characters long"))
            .help(format!("at most {most} characters are possible here"))
            .keep();
    }
    length <= most
}

fn is_of_one_card(table: &Reader<'_>, mac: &Spanned<MacAddr>) -> bool {
    let fits = !mac.get_ref().is_multicast() && *mac.get_ref() != MacAddr::ZERO;
    if !fits {
        table
            .bad_value("mac", mac.span(), &format!("cannot be `{}`", mac.get_ref()))
            .help("it is no address of one card: its first byte must be even, and not all of it 0")
            .keep();
    }
    fits
}

/// Addresses, each once; there may be none.
fn addresses(table: &Reader<'_>) -> Vec<InterfaceAddress> {
    let Some(texts) = table.texts("addresses") else { return Vec::new() };
    let mut known: Vec<Spanned<InterfaceAddress>> = Vec::new();
    for text in texts.into_inner() {
        match text.get_ref().parse::<InterfaceAddress>() {
            Ok(address) => match known.iter().find(|known| known.get_ref().address == address.address) {
                Some(first) => table
                    .findings
                    .note(Kind::Duplicate, format!("an interface has the address {} twice", address.address))
                    .at(text.span(), "again")
                    .at(first.span(), "first here")
                    .help("remove one of them")
                    .keep(),
                None => known.push(Spanned::new(text.span(), address)),
            },
            Err(error) => table
                .bad_value("addresses", text.span(), &format!("cannot have `{}`", text.get_ref()))
                .help(error.to_string())
                .keep(),
        }
    }
    known.into_iter().map(Spanned::into_inner).collect()
}
