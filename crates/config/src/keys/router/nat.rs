// SPDX-License-Identifier: Apache-2.0
//! `snat` of `[[nat]]` and `[[router.interface]]`, with its options; `nat64` of `[[router]]`.

use netvm_model::{AddressRange, Host, Nat64, NatAddresses, PortAllocation, SourceNat, pool_ports};
use netvm_wire::{IpNet, PortRange};
use toml::Value;
use toml::de::DeValue;

use crate::syntax::finding::Kind;
use crate::syntax::form::{Nested, Number, OneOrMore, Optional, Scalar, Spanned, Text, Word};
use crate::syntax::table::{Form, Keys, Reader, Table, ValueLocation};

/// The word for the address of the interface that packets leave by.
const MASQUERADE: &str = "masquerade";
/// Fewest ports that a deterministic pool has for an address inside: a web page opens dozens of connections.
const MIN_PORTS_EACH: u128 = 64;
/// Lengths of NAT64's prefixes (RFC 6052 section 2.2).
const NAT64_LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// `snat` of an interface: addresses, or a table with options.
pub(super) struct Snat;

impl Form<SourceNat> for Snat {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<SourceNat> {
        if let DeValue::Table(_) = value.get_ref() {
            return Nested("snat").read(at, value);
        }
        let addresses = Pool.read(at, value)?;
        Some(SourceNat { addresses, ..SourceNat::default() })
    }

    fn write(&self, host: &Host, item: &mut SourceNat) -> Option<Value> {
        let plain = SourceNat { addresses: item.addresses.clone(), ..SourceNat::default() };
        if *item == plain { Pool.write(host, &mut item.addresses) } else { Nested("snat").write(host, item) }
    }
}

impl Keys for SourceNat {
    fn keys(&mut self, table: &mut Table<'_>) {
        let help =
            "name the addresses, such as `addresses = \"masquerade\"` or `addresses = \"203.0.113.0/28\"`";
        table.required("addresses", help, &mut self.addresses, Pool);
        options(self, table);
        if let Some(reader) = table.reader() {
            check(self, reader, "addresses");
        }
    }
}

/// `"masquerade"`, or ranges.
pub(super) struct Pool;

impl Form<NatAddresses> for Pool {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<NatAddresses> {
        match value.get_ref().as_str() {
            Some(MASQUERADE) => Some(NatAddresses::Interface),
            _ => Ranges.read(at, value).map(NatAddresses::Ranges),
        }
    }

    fn write(&self, host: &Host, item: &mut NatAddresses) -> Option<Value> {
        match item {
            NatAddresses::Interface => Some(MASQUERADE.into()),
            NatAddresses::Ranges(ranges) => Ranges.write(host, ranges),
        }
    }
}

/// Ranges of addresses of one family, of which no two overlap.
struct Ranges;

impl Ranges {
    fn form() -> impl Form<Vec<AddressRange>> {
        OneOrMore(Text(str::parse::<AddressRange>, ToString::to_string))
    }
}

impl Form<Vec<AddressRange>> for Ranges {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<AddressRange>> {
        let list = value.get_ref().as_array();
        if list.is_some_and(|list| list.is_empty()) {
            at.bad_value("is a pool without addresses").help("give at least one address").keep();
            return None;
        }
        let ranges = Self::form().read(at, value)?;
        let places: Vec<_> = list.into_iter().flatten().map(toml::Spanned::span).collect();
        let first = ranges.first()?;
        for (n, range) in ranges.iter().enumerate() {
            let place = places.get(n).cloned().unwrap_or_default();
            if range.is_v4() != first.is_v4() {
                at.note(Kind::Conflict, "a pool of IPv4 and IPv6 addresses")
                    .at(place, "of another family than the first")
                    .help("write a rule for each family")
                    .keep();
                return None;
            }
            if ranges.iter().take(n).any(|before| before.overlaps(*range)) {
                at.note(Kind::Duplicate, format!("a pool has addresses of {range} twice"))
                    .at(place, "again")
                    .help("remove one of them")
                    .keep();
                return None;
            }
        }
        Some(ranges)
    }

    fn write(&self, host: &Host, item: &mut Vec<AddressRange>) -> Option<Value> {
        Self::form().write(host, item)
    }
}

/// Blocks of ports.
#[derive(Clone, Copy)]
struct Blocks {
    size: u16,
    most: u16,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { size: 512, most: 4 }
    }
}

impl Keys for Blocks {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("size", &mut self.size, Number(1..=32_768));
        table.key("most", &mut self.most, Number(1..=1024));
    }
}

/// The keys beside the addresses.
pub(super) fn options(source: &mut SourceNat, table: &mut Table<'_>) {
    pool_ports_key(&mut source.ports, table);
    table.key("filtering", &mut source.filtering, Word);
    let (mut blocks, mut inside) = match source.allocation {
        PortAllocation::Any => (None, None),
        PortAllocation::Blocks { size, most } => (Some(Blocks { size, most }), None),
        PortAllocation::Deterministic { inside } => (None, Some(inside)),
    };
    table.key("blocks", &mut blocks, Optional(Nested("blocks")));
    table.key("inside", &mut inside, Optional(Text(str::parse::<IpNet>, ToString::to_string)));
    source.allocation = match (blocks, inside) {
        (_, Some(inside)) => PortAllocation::Deterministic { inside },
        (Some(Blocks { size, most }), None) => PortAllocation::Blocks { size, most },
        (None, None) => PortAllocation::Any,
    };
}

fn pool_ports_key(ports: &mut PortRange, table: &mut Table<'_>) {
    let at = table.key("ports", ports, Scalar(str::parse::<PortRange>, ToString::to_string));
    let Some(at) = at.filter(|_| ports.first() < pool_ports().first()) else { return };
    if ports.contains(0) {
        at.bad_value(&format!("is {ports}")).help("must be from 1 to 65535").keep();
        return;
    }
    at.note(Kind::WellKnownPorts, format!("a pool with the ports {ports}"))
        .at(at.span.clone(), "below 1024")
        .help("services of these addresses, and published ports, are there: begin at 1024")
        .keep();
}

/// Checks `snat` with its options; `addresses` is the key of the addresses.
pub(super) fn check(source: &SourceNat, reader: &Reader<'_>, addresses: &str) {
    if let [first, second] = reader.given(&["blocks", "inside"])[..] {
        reader.conflict(first, second).help("keep one of them").keep();
        return;
    }
    match &source.allocation {
        PortAllocation::Blocks { size, .. } => check_blocks(source.ports, (*size).into(), reader),
        PortAllocation::Deterministic { inside } => check_inside(source, *inside, reader, addresses),
        _ => {}
    }
}

/// Checks that blocks of this size, which begin at its multiples, are all of the ports.
fn check_blocks(ports: PortRange, size: u32, reader: &Reader<'_>) {
    let place = reader.place.of("blocks");
    if !size.is_power_of_two() {
        let lower = 1 << size.ilog2();
        reader
            .note(Kind::BadValue, format!("blocks of {size} ports"))
            .at(place, "the `size` of blocks is a power of two")
            .help(format!("choose {lower} or {}", lower * 2))
            .keep();
        return;
    }
    let (first, end) = (u32::from(ports.first()), u32::from(ports.last()) + 1);
    let (whole_first, whole_end) = (first.next_multiple_of(size), end / size * size);
    if (first, end) == (whole_first, whole_end) {
        return;
    }
    let help = if whole_first < whole_end {
        format!("set `ports = \"{whole_first}-{}\"`, or choose a smaller `size`", whole_end - 1)
    } else {
        "choose a smaller `size`".to_owned()
    };
    let (first, last) = (ports.first(), ports.last());
    reader
        .note(Kind::BadValue, format!("blocks of {size} ports are not all of the ports {first}-{last}"))
        .at(place, "begin at multiples of their size, so some ports would be in no block")
        .help(help)
        .keep();
}

/// Checks that a deterministic pool has ports for each address inside.
fn check_inside(source: &SourceNat, inside: IpNet, reader: &Reader<'_>, addresses: &str) {
    let place = reader.place.of("inside");
    let NatAddresses::Ranges(ranges) = &source.addresses else {
        reader
            .note(Kind::Conflict, "`inside` with an address that is not in the file")
            .at(place, "computes who has which address and ports")
            .help(format!("list the addresses in `{addresses}`, or leave `inside` out"))
            .keep();
        return;
    };
    if source.is_v4() != Some(inside.is_v4()) {
        reader
            .note(Kind::Conflict, format!("{inside} is of another family than the addresses of the pool"))
            .at(place, "of another family")
            .help("give a network of the same family")
            .keep();
        return;
    }
    let outside = ranges.iter().fold(0u128, |sum, range| sum.saturating_add(range.count())).max(1);
    let ports = u128::from(source.ports.last() - source.ports.first()) + 1;
    let sharing = AddressRange::from(inside).count().div_ceil(outside);
    let each = ports / sharing;
    if each < MIN_PORTS_EACH {
        let most = ports / MIN_PORTS_EACH;
        reader
            .note(Kind::BadValue, format!("a pool of {outside} addresses is too small for {inside}"))
            .at(place, format!("each address of it would have {each} ports"))
            .help(format!("one address is enough for {most} of them, with {MIN_PORTS_EACH} ports each: add addresses, or make `inside` smaller"))
            .keep();
    }
}

impl Keys for Nat64 {
    fn keys(&mut self, table: &mut Table<'_>) {
        let prefix = table.key("prefix", &mut self.prefix, Text(str::parse::<IpNet>, ToString::to_string));
        if let Some(at) = prefix
            && (self.prefix.is_v4() || !NAT64_LENGTHS.contains(&self.prefix.length()))
        {
            at.bad_value(&format!("is {}", self.prefix))
                .help("must be an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits (RFC 6052), such as \"64:ff9b::/96\"")
                .keep();
        }
        let help = "name the IPv4 addresses of IPv6 hosts, such as `addresses = \"203.0.113.8\"`";
        let at = table.required("addresses", help, &mut self.addresses, Ranges);
        if let Some(at) = at
            && self.addresses.iter().any(|range| !range.is_v4())
        {
            at.bad_value("has IPv6 addresses")
                .help("must be IPv4 addresses: IPv6 hosts get them for IPv4")
                .keep();
        }
        pool_ports_key(&mut self.ports, table);
        table.key("filtering", &mut self.filtering, Word);
    }
}
