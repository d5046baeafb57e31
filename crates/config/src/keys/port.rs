// SPDX-License-Identifier: Apache-2.0
//! `[[port]]`: the keys about the device.

use std::net::IpAddr;
use std::path::PathBuf;

use netvm_model::{
    Choice, DaemonLoss, FRAME_HEADER, FastPath, Host, InterfaceAddress, KeyValue, KindInfo, MAX_WORKERS,
    OneQueue, PortConfig, PortKind, Publish, SocketRights, VhostDma,
};
use netvm_policy::PortId;
use toml::Value;
use toml::de::DeValue;

use crate::syntax::field::{self, FieldError};
use crate::syntax::form::{
    Addresses, Flag, InGroup, List, Name, Number, OneOrMore, OnlyIf, Optional, Plain, PowerOfTwo, Spanned,
    TEXTS, Text, ToPort, ToRouter, UnlessDefault, Vlan, one_of, text,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Table, ValueLocation};

/// Longest name of a DMA device (`RTE_DEV_NAME_MAX_LEN` of DPDK, without the NUL byte).
const DEVICE_BYTES: usize = 63;
/// Longest frame that fits into the largest buffer, after a headroom of 256.
const MAX_FRAME: u64 = 65_472 - 256;
/// Highest NUMA node of Linux (`MAX_NUMNODES`).
const LAST_NODE: u64 = 1023;

impl Numbered for PortConfig {
    fn numbered(number: usize) -> Self {
        Self::new(PortId(number as u16), String::new(), PortKind::default())
    }
}

impl Keys for PortConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "client", &mut self.name, Name(names::port));
        let kinds = PortKind::all().map(|kind| format!("`{}`", kind.word()));
        let help = format!("say what the port is: {}", kinds.join(", "));
        let kind = table.required("kind", &help, &mut self.kind, Kind);
        for mut other in PortKind::all().into_iter().filter(|other| other.word() != self.kind.word()) {
            let word = other.word();
            let keys = |table: &mut Table<'_>| other.keys(table);
            match kind {
                Some(_) => table.others(&format!("kind = \"{word}\""), keys),
                None => table.allow(keys),
            }
        }
        self.kind.keys(table);
        if self.kind.own_socket().is_some() {
            self.socket.keys(table);
        } else if kind.is_none() {
            table.allow(|table| self.socket.keys(table));
        } else {
            let form = "kind = \"e1000\", or \"vhost-user\" or \"memif\" as a server";
            table.others(form, |table| self.socket.keys(table));
        }
        let KindInfo { needed_mtu: needed, default_mtu, one_queue, .. } = self.kind.info();
        if table.reader().is_some() {
            self.mtu = default_mtu.max(needed);
        }
        if let Some(at) = table.key("mtu", &mut self.mtu, Number(68..=MAX_FRAME - u64::from(FRAME_HEADER)))
            && self.mtu < needed
        {
            let size = needed + FRAME_HEADER;
            at.bad_value(&format!("is {}, but frames are {size} bytes long", self.mtu))
                .help(format!(
                    "frames of {size} bytes, {FRAME_HEADER} of them header, need an MTU of {needed}"
                ))
                .keep();
        }
        if let Some(at) = table.key("queues", &mut self.queues, Number(1..=MAX_WORKERS as u64))
            && self.queues > 1
            && let Some(OneQueue { what, help }) = one_queue
        {
            at.bad_value(&format!("is {} for {what}", self.queues)).help(help).keep();
        }
        table.key("worker", &mut self.worker, Worker);
        table.key("node", &mut self.node, Optional(Number(0..=LAST_NODE)));
        table.key("gro", &mut self.gro, Flag);
        table.key("group", &mut self.group, Optional(InGroup));
        self.policy.keys(table);
        let publish = |publish: &mut Vec<Publish>, table: &mut Table<'_>| {
            table.key("publish", publish, OneOrMore(Text(str::parse, ToString::to_string)));
        };
        if self.kind.info().container().is_some() {
            publish(&mut self.policy.publish, table);
        } else if kind.is_none() {
            table.allow(|table| publish(&mut Vec::new(), table));
        } else {
            table.others("kind = \"container\"", |table| publish(&mut Vec::new(), table));
        }
    }
}

/// The number of a worker, or `"auto"`.
struct Worker;

impl Form<Option<u8>> for Worker {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Option<u8>> {
        match value.get_ref() {
            DeValue::Integer(_) => Number(0..=MAX_WORKERS as u64 - 1).read(at, value).map(Some),
            DeValue::String(_) => one_of(at, text(at, value)?, [("auto", None)].into_iter()),
            other => at.wrong_type(other, "the number of a worker, or `\"auto\"`"),
        }
    }

    /// Absent means `"auto"`.
    fn write(&self, _: &Host, item: &mut Option<u8>) -> Option<Value> {
        item.map(|number| Value::Integer(number.into()))
    }
}

/// The word of a [`PortKind`].
struct Kind;

impl Form<PortKind> for Kind {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<PortKind> {
        one_of(at, text(at, value)?, PortKind::all().map(|kind| (kind.word(), kind)).into_iter())
    }

    fn write(&self, _: &Host, item: &mut PortKind) -> Option<Value> {
        Some(item.word().into())
    }
}

/// The keys that go with the kind.
impl Keys for PortKind {
    fn keys(&mut self, table: &mut Table<'_>) {
        for key in self.own_keys() {
            if let Some(help) = key.help {
                table.require(key.name, help);
            }
            own_key(key.name, key.value, table);
        }
    }
}

fn own_key(name: &'static str, value: KeyValue<'_>, table: &mut Table<'_>) {
    match value {
        KeyValue::PciAddress(address) => {
            table.key(name, address, Text(field::pci_address, String::clone));
        }
        KeyValue::Interface(interface) => {
            table.key(name, interface, Name(names::kernel_interface));
        }
        KeyValue::Namespace(namespace) => {
            table.key(name, namespace, Text(field::namespace, String::clone));
        }
        KeyValue::Mac(mac) => {
            table.key(name, mac, Optional(Text(field::card_mac, ToString::to_string)));
        }
        KeyValue::Addressing(addresses, own_gateways) => {
            table.key("addresses", addresses, Addresses);
            gateways(own_gateways, addresses, table);
        }
        KeyValue::Socket(path) => {
            table.key(name, path, Text(field::socket_path, field::path_text));
        }
        KeyValue::Secret(secret) => {
            table.key(name, secret, Optional(Text(field::secret, String::clone)));
        }
        KeyValue::RingSize(size) => {
            table.key(name, size, PowerOfTwo(2..=1 << 14));
        }
        KeyValue::Captures(input, output) => captures(input, output, table),
        KeyValue::Port(port) => {
            table.key(name, port, ToPort);
        }
        KeyValue::Router(router) => {
            table.key(name, router, ToRouter);
        }
        KeyValue::Address(address) => {
            table.key(name, address, Text(field::gateway, ToString::to_string));
        }
        KeyValue::Addresses(addresses) => {
            table.key(name, addresses, UnlessDefault(OneOrMore(Text(field::gateway, ToString::to_string))));
        }
        KeyValue::Ports(ports) => {
            table.key(name, ports, List(ToPort, TEXTS));
        }
        KeyValue::Tag(tag) => {
            table.key(name, tag, Vlan);
        }
        KeyValue::Flag(flag) => {
            table.key(name, flag, Flag);
        }
        KeyValue::Word(word) => {
            let mut position = word.chosen();
            table.key(name, &mut position, OneOf(word.words()));
            word.choose(position);
        }
        KeyValue::SparseWord(word) => {
            let mut position = word.chosen();
            table.key(name, &mut position, UnlessDefault(OneOf(word.words())));
            word.choose(position);
        }
        KeyValue::Dma(dma) => {
            table.key(name, dma, UnlessDefault(Text(dma_of, |dma: &VhostDma| dma.word().to_owned())));
        }
        KeyValue::FastPath(fast_path, on_loss) => {
            table.key(name, fast_path, UnlessDefault(FlagOrAuto));
            on_loss.into_iter().for_each(|on_loss| on_daemon_loss(on_loss, *fast_path, table));
        }
        KeyValue::FrameSize(size) => {
            table.key(name, size, Number(60..=MAX_FRAME));
        }
        KeyValue::Number(number, range) => {
            table.key(name, number, Number(range));
        }
        KeyValue::OptionalNumber(number, range) => {
            table.key(name, number, Optional(Number(range)));
        }
        KeyValue::Packets(count) => {
            table.key(name, count, Optional(Number(1..=i64::MAX as u64)));
        }
        KeyValue::Rate(rate, burst) => rate_and_burst(rate, burst, table),
    }
}

/// What becomes of packets on a fast path without netvmd.
fn on_daemon_loss(on_loss: &mut DaemonLoss, fast_path: FastPath, table: &mut Table<'_>) {
    let mut position = on_loss.chosen();
    let at = table.key("on_daemon_loss", &mut position, UnlessDefault(OneOf(on_loss.words())));
    on_loss.choose(position);
    if let Some(at) = at.filter(|_| fast_path == FastPath::Off) {
        at.bad_value("means nothing without `fast_path`").help("set `fast_path = true` or `\"auto\"`").keep();
    }
}

/// A boolean, or `"auto"`.
struct FlagOrAuto;

impl Form<FastPath> for FlagOrAuto {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<FastPath> {
        match value.get_ref() {
            DeValue::Boolean(true) => Some(FastPath::On),
            DeValue::Boolean(false) => Some(FastPath::Off),
            DeValue::String(text) => one_of(at, text, [("auto", FastPath::Auto)].into_iter()),
            other => at.wrong_type(other, "`true`, `false` or `\"auto\"`"),
        }
    }

    fn write(&self, _: &Host, item: &mut FastPath) -> Option<Value> {
        Some(match item {
            FastPath::On => Value::Boolean(true),
            FastPath::Off => Value::Boolean(false),
            FastPath::Auto => "auto".into(),
        })
    }
}

/// One of some words, by its position.
struct OneOf(Vec<&'static str>);

impl Form<usize> for OneOf {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<usize> {
        let words = self.0.iter().enumerate().map(|(position, word)| (*word, position));
        one_of(at, text(at, value)?, words)
    }

    fn write(&self, _: &Host, position: &mut usize) -> Option<Value> {
        self.0.get(*position).map(|word| (*word).into())
    }
}

fn captures(input: &mut Option<PathBuf>, output: &mut Option<PathBuf>, table: &mut Table<'_>) {
    for (key, path) in [("input", input), ("output", output)] {
        let mut text = path.as_ref().map(field::path_text);
        table.key(key, &mut text, Optional(Plain));
        *path = text.map(PathBuf::from);
    }
    if let Some(reader) = table.reader()
        && reader.given(&["input", "output"]).is_empty()
    {
        reader.missing("input", "name a capture to read (`input`), one to write (`output`), or both");
    }
}

/// The rate of a source, and its bursts.
fn rate_and_burst(rate: &mut Option<u64>, burst: &mut u16, table: &mut Table<'_>) {
    table.key("rate", rate, Optional(Number(1..=i64::MAX as u64)));
    let has_rate = table.has("rate", rate.is_some());
    if let Some(at) = table.key("burst", burst, OnlyIf(has_rate, Number(1..=u16::MAX.into())))
        && !has_rate
    {
        at.bad_value("has no effect without `rate`")
            .help(
                "give the source a `rate`, or leave `burst` out: without a rate it sends as fast as possible",
            )
            .keep();
    }
}

impl Keys for SocketRights {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("socket_owner", &mut self.owner, Optional(Text(field::owner, String::clone)));
        let mode = Text(field::mode, |mode: &u32| format!("{mode:04o}"));
        table.key("socket_mode", &mut self.mode, Optional(mode));
    }
}

/// The default gateways of an interface with these addresses.
fn gateways(gateways: &mut Vec<IpAddr>, addresses: &[InterfaceAddress], table: &mut Table<'_>) {
    let form = List(Text(field::gateway, ToString::to_string), TEXTS);
    let Some(at) = table.key("gateways", gateways, form) else { return };
    if gateways.iter().filter(|gateway| gateway.is_ipv4()).count() > 1
        || gateways.iter().filter(|gateway| gateway.is_ipv6()).count() > 1
    {
        at.bad_value("has two gateways of one address family")
            .help("give at most one IPv4 and one IPv6 gateway")
            .keep();
        return;
    }
    let is_reached = |gateway: &IpAddr| {
        is_link_local(*gateway) || addresses.iter().any(|address| address.has_in_network(*gateway))
    };
    if let Some(gateway) = gateways.iter().find(|gateway| !is_reached(gateway)) {
        at.bad_value(&format!("has {gateway}, which is in no network of `addresses`"))
            .help("give the interface an address in the gateway's network, or correct the gateway")
            .keep();
    }
}

/// Whether an address is in fe80::/10, which every IPv6 interface reaches.
const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn dma_of(text: &str) -> Result<VhostDma, FieldError> {
    match text {
        "off" => Ok(VhostDma::Off),
        "auto" => Ok(VhostDma::Auto),
        _ if (1..=DEVICE_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(VhostDma::Device(text.to_owned()))
        }
        _ => Err(FieldError::Syntax("`off`, `auto`, or a DMA device by its name in DPDK, such as `wq0.1`")),
    }
}
