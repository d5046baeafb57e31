// SPDX-License-Identifier: Apache-2.0
//! `[[vm]]`.

use std::path::PathBuf;

use netvm_model::{
    Guest, Host, MAX_NODES, MAX_THREADS, Restart, RoleId, VmAccel, VmBoot, VmCard, VmConfig, VmNotify,
    VmStart,
};
use netvm_policy::PortId;
use netvm_wire::MacAddr;
use toml::Value;
use toml::de::DeValue;

use super::engine::Cores;
use super::nf::DEFAULT_USER;
use crate::syntax::field;
use crate::syntax::finding::Kind;
use crate::syntax::form::{
    List, Name, Number, Optional, Plain, Spanned, TEXTS, Text, ToPort, ToRole, Word, one_of,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Table, ValueLocation};

/// Most MiB of a VM: a TiB.
const MAX_MEMORY_MIB: u64 = 1 << 20;
/// Least MiB: with less, not even a small kernel boots.
const MIN_MEMORY_MIB: u64 = 32;
/// Most virtual processors of QEMU's q35 without an IOMMU.
const MAX_CPUS: u64 = 255;
/// Most seconds of `boot_timeout`: an hour.
const MAX_BOOT_TIMEOUT: u64 = 3600;
/// Most network cards that fit on QEMU's root bus with the other devices.
const MAX_CARDS: usize = 16;

impl Numbered for VmConfig {
    fn numbered(_: usize) -> Self {
        Self {
            name: String::new(),
            guest: Guest::Ordinary { cards: Vec::new() },
            memory: 512,
            cpus: 1,
            cores: Vec::new(),
            node: None,
            accel: VmAccel::default(),
            boot: VmBoot::Image(PathBuf::new()),
            qemu: field::QEMU.to_owned(),
            user: DEFAULT_USER.to_owned(),
            start: VmStart::default(),
            restart: Restart::default(),
            boot_timeout: 60,
        }
    }
}

impl Keys for VmConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "web1", &mut self.name, Name(names::any));
        guest(&mut self.guest, &self.name, table);
        boot(&mut self.boot, table);
        table.key("memory", &mut self.memory, Number(MIN_MEMORY_MIB..=MAX_MEMORY_MIB));
        table.key("cpus", &mut self.cpus, Number(1..=MAX_CPUS));
        table.key("cores", &mut self.cores, Cores);
        table.key("node", &mut self.node, Optional(Number(0..=MAX_NODES as u64 - 1)));
        table.key("accel", &mut self.accel, Word);
        table.key("qemu", &mut self.qemu, Text(field::program, String::clone));
        table.key("user", &mut self.user, Text(field::user, String::clone));
        table.key("start", &mut self.start, Start);
        table.key("restart", &mut self.restart, Word);
        table.key("boot_timeout", &mut self.boot_timeout, Number(1..=MAX_BOOT_TIMEOUT));
    }
}

/// The keys of the guest: `role` or `ports`, and the keys that depend on it.
fn guest(guest: &mut Guest, vm: &str, table: &mut Table<'_>) {
    if let Some(reader) = table.reader() {
        let of_nf = |table: &mut Table<'_>| guest_keys(&mut nf(), "", table);
        let of_ordinary =
            |table: &mut Table<'_>| guest_keys(&mut Guest::Ordinary { cards: Vec::new() }, "", table);
        match (reader.has("role"), reader.has("ports")) {
            (true, true) => {
                reader
                    .conflict("role", "ports")
                    .help("keep one of them: a network function gets its packets through its role, without a card")
                    .keep();
                table.allow(of_nf);
                return table.allow(of_ordinary);
            }
            (true, false) => {
                *guest = nf();
                table.others("`ports`", of_ordinary);
            }
            (false, _) => table.others("`role`", of_nf),
        }
    }
    guest_keys(guest, vm, table);
}

/// The boot keys: `kernel` or `image`, and the keys that depend on it.
fn boot(boot: &mut VmBoot, table: &mut Table<'_>) {
    if let Some(reader) = table.reader() {
        let of_kernel = |table: &mut Table<'_>| kernel().keys(table);
        match (reader.has("kernel"), reader.has("image")) {
            (true, true) => {
                reader.conflict("kernel", "image").help("keep one of them").keep();
                table.allow(of_kernel);
                return table.allow(|table| boot.keys(table));
            }
            (true, false) => *boot = kernel(),
            (false, true) => table.others("`kernel`", of_kernel),
            (false, false) => {
                reader.missing(
                    "image",
                    "name its disk (`image`), or its Linux kernel (`kernel`, and `initrd`)",
                );
                table.allow(of_kernel);
            }
        }
    }
    boot.keys(table);
}

/// A [`VmStart`]: a boolean, or a word.
struct Start;

/// The word for [`VmStart::Manual`].
const MANUAL: &str = "manual";

impl Form<VmStart> for Start {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<VmStart> {
        match value.get_ref() {
            DeValue::Boolean(true) => Some(VmStart::WithNetvmd),
            DeValue::Boolean(false) => Some(VmStart::OnCommand),
            DeValue::String(text) => one_of(at, text, [(MANUAL, VmStart::Manual)].into_iter()),
            other => at.wrong_type(other, "`true`, `false` or a word in quotes"),
        }
    }

    fn write(&self, _: &Host, item: &mut VmStart) -> Option<Value> {
        Some(match item {
            VmStart::WithNetvmd => Value::Boolean(true),
            VmStart::OnCommand => Value::Boolean(false),
            VmStart::Manual => MANUAL.into(),
        })
    }
}

/// A network function with the defaults of its keys.
fn nf() -> Guest {
    Guest::Nf { role: RoleId::default(), threads: 1, notify: VmNotify::default() }
}

fn guest_keys(guest: &mut Guest, vm: &str, table: &mut Table<'_>) {
    match guest {
        Guest::Nf { role, threads, notify } => {
            table.key("role", role, ToRole);
            table.key("threads", threads, Number(1..=MAX_THREADS as u64));
            table.key("notify", notify, Word);
        }
        Guest::Ordinary { cards } => {
            let (mut ports, mut macs) = cards.iter().map(|card| (card.port, card.mac)).unzip();
            card_keys(&mut ports, &mut macs, table);
            let mac = |n: usize| macs.get(n).copied().unwrap_or_else(|| VmCard::own_mac(vm, n));
            *cards = ports.iter().enumerate().map(|(n, port)| VmCard { port: *port, mac: mac(n) }).collect();
        }
    }
}

fn card_keys(ports: &mut Vec<PortId>, macs: &mut Vec<MacAddr>, table: &mut Table<'_>) {
    let help = "name its ports, such as `ports = [\"guest1\"]`, or the `role` of the NF that it is";
    let read = table.required("ports", help, ports, List(ToPort, TEXTS));
    let with_macs = table.key("macs", macs, List(Text(field::card_mac, ToString::to_string), TEXTS));
    let (Some(at), Some(reader)) = (read, table.reader()) else { return };
    if ports.len() > MAX_CARDS {
        at.note(Kind::TooMany, format!("{} ports of one VM", ports.len()))
            .at(reader.place.element("ports", MAX_CARDS), "exceeds the limit")
            .help(format!("a VM can have {MAX_CARDS} network cards"))
            .keep();
    }
    if ports.is_empty() {
        at.bad_value("is an empty list")
            .help("name a port of kind vhost-user or e1000, or the `role` of the NF that it is")
            .keep();
    }
    if let Some(at) = with_macs.filter(|_| macs.len() != ports.len()) {
        at.bad_value(&format!("has {} addresses for {} ports", macs.len(), ports.len()))
            .help("give one for each port, in the same order, or leave `macs` out")
            .keep();
    }
}

/// A Linux kernel with the defaults of its keys.
fn kernel() -> VmBoot {
    VmBoot::Kernel { kernel: PathBuf::new(), initrd: None, append: String::new() }
}

impl Keys for VmBoot {
    fn keys(&mut self, table: &mut Table<'_>) {
        let path = || Text(field::absolute_path, field::path_text);
        match self {
            Self::Kernel { kernel, initrd, append } => {
                table.key("kernel", kernel, path());
                table.key("initrd", initrd, Optional(path()));
                table.key("append", append, Plain);
            }
            Self::Image(image) => drop(table.key("image", image, path())),
        }
    }
}
