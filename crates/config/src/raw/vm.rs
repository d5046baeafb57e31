//! `[[vm]]`.

use std::path::PathBuf;

use netvm_wire::MacAddr;
use toml::Spanned;

use super::nf::{DEFAULT_USER, check_user};
use super::{RawGuest, RawVm, engine, name};
use crate::document::{ACCEL, MANUAL, NOTIFY, RESTART};
use crate::finding::Kind;
use crate::model::{MAX_NODES, MAX_THREADS, VmBoot, VmStart};
use crate::read::{Reader, at};
use crate::stable::hash;

/// QEMU's program, unless another is named.
const QEMU: &str = "qemu-system-x86_64";
/// MiB that a VM has unless it says otherwise.
const MEMORY: u32 = 512;
/// Most MiB: a TiB.
const MOST_MEMORY: u64 = 1 << 20;
/// Least MiB: below it not even a small kernel starts.
const LEAST_MEMORY: u64 = 32;
/// Most virtual processors of QEMU's q35 without an IOMMU.
const MOST_CPUS: u64 = 255;
/// Seconds that a VM has for booting.
const BOOT_TIMEOUT: u32 = 60;
/// Most of them: an hour.
const LONGEST_BOOT_TIMEOUT: u64 = 3600;
/// Most network cards: what fits QEMU's root bus beside the rest.
const MAX_CARDS: usize = 16;

/// Keys of guests that are network functions.
const OF_NFS: &[(&str, &str)] = &[("threads", "`role`"), ("notify", "`role`")];
/// Keys of ordinary guests.
const OF_GUESTS: &[(&str, &str)] = &[("macs", "`ports`")];
/// Keys of kernels.
const OF_KERNELS: &[(&str, &str)] = &[("initrd", "`kernel`"), ("append", "`kernel`")];

pub(super) fn read(table: &Reader<'_>) -> RawVm {
    let name = name(table, "name", "web1");
    let cores = engine::cores(table, "cores");
    let mut foreign = Vec::new();
    let guest = guest(table, name.as_ref().map_or("", |name| name.get_ref()), &mut foreign);
    let boot = boot(table, &mut foreign);
    let vm = RawVm {
        guest,
        memory: table.number("memory", LEAST_MEMORY..=MOST_MEMORY).map_or(MEMORY, Spanned::into_inner),
        cpus: table.number("cpus", 1..=MOST_CPUS).map_or(1, Spanned::into_inner),
        core_spans: cores.iter().map(|(_, span)| span.clone()).collect(),
        cores: cores.into_iter().map(|(core, _)| core).collect(),
        node: table.number("node", 0..=MAX_NODES as u64 - 1).map(Spanned::into_inner),
        accel: table.word("accel", ACCEL).map(Spanned::into_inner).unwrap_or_default(),
        boot,
        qemu: qemu(table),
        user: table
            .text("user")
            .and_then(|user| check_user(table, "user", user))
            .unwrap_or_else(|| DEFAULT_USER.to_owned()),
        start: start(table),
        restart: table.word("restart", RESTART).map(Spanned::into_inner).unwrap_or_default(),
        boot_timeout: table
            .number("boot_timeout", 1..=LONGEST_BOOT_TIMEOUT)
            .map_or(BOOT_TIMEOUT, Spanned::into_inner),
        name,
    };
    table.finish(&foreign);
    vm
}

fn start(table: &Reader<'_>) -> VmStart {
    match table.flag_or_word("start", &[(MANUAL, VmStart::Manual)]) {
        Some(Err(start)) => start,
        Some(Ok(true)) | None => VmStart::WithNetvmd,
        Some(Ok(false)) => VmStart::WhenTold,
    }
}

fn guest(
    table: &Reader<'_>,
    name: &str,
    foreign: &mut Vec<(&'static str, &'static str)>,
) -> Option<RawGuest> {
    let role = table.text("role");
    let ports = table.texts("ports");
    if let (Some(first), Some(second)) = (table.key_span("role"), table.key_span("ports")) {
        table
            .findings
            .note(Kind::Conflict, "`ports` and `role` in one [[vm]]")
            .at(second, "ports are for ordinary guests")
            .at(first, "and this makes it a network function")
            .help("keep one of them: a network function gets its packets through its role, without a card")
            .keep();
        table.know(["threads", "notify", "macs"]);
        return None;
    }
    if table.key_span("role").is_some() {
        foreign.extend(OF_GUESTS);
        let threads = table.number("threads", 1..=MAX_THREADS as u64).map_or(1, Spanned::into_inner);
        let notify = table.word("notify", NOTIFY).map(Spanned::into_inner).unwrap_or_default();
        return Some(RawGuest::Nf { role: role?, threads, notify });
    }
    foreign.extend(OF_NFS);
    if table.key_span("ports").is_none() {
        table.missing(
            "ports",
            "name its vhost-user ports, such as `ports = [\"guest1\"]`, or the `role` of the NF that it is",
        );
        table.know(["macs"]);
        return None;
    }
    let macs = macs(table);
    let ports = ports?;
    if let Some(extra) = ports.get_ref().get(MAX_CARDS) {
        table
            .findings
            .note(Kind::TooMany, format!("{} ports of one VM", ports.get_ref().len()))
            .at(extra.span(), "one too many")
            .help(format!("a VM can have {MAX_CARDS} network cards"))
            .keep();
    }
    if ports.get_ref().is_empty() {
        table
            .bad_value("ports", ports.span(), "is an empty list")
            .help("name a vhost-user port, or the `role` of the NF that it is")
            .keep();
    }
    if let Some(macs) = macs.as_ref().filter(|macs| macs.get_ref().len() != ports.get_ref().len()) {
        table
            .bad_value(
                "macs",
                macs.span(),
                &format!("has {} addresses for {} ports", macs.get_ref().len(), ports.get_ref().len()),
            )
            .help("give one for each port, in the same order, or leave `macs` out")
            .keep();
    }
    let given = macs.map(Spanned::into_inner).unwrap_or_default();
    let card = |(n, port): (usize, Spanned<String>)| {
        let mac = given.get(n).cloned().unwrap_or_else(|| at(port.span(), own_mac(name, n)));
        (port, mac)
    };
    Some(RawGuest::Ordinary { cards: ports.into_inner().into_iter().enumerate().map(card).collect() })
}

fn macs(table: &Reader<'_>) -> Option<Spanned<Vec<Spanned<MacAddr>>>> {
    let texts = table.texts("macs")?;
    let span = texts.span();
    let parse = |text: Spanned<String>| {
        let wrong = match text.get_ref().parse::<MacAddr>() {
            Ok(mac) if mac.octets()[0] & 1 == 0 && mac != MacAddr::ZERO => return Some(at(text.span(), mac)),
            Ok(_) => {
                "it is no address of one card: its first byte must be even, and not all of it 0".to_owned()
            }
            Err(error) => error.to_string(),
        };
        table.bad_value("macs", text.span(), &format!("cannot hold `{}`", text.get_ref())).help(wrong).keep();
        None
    };
    let macs: Vec<_> = texts.into_inner().into_iter().map(parse).collect();
    macs.into_iter().collect::<Option<Vec<_>>>().map(|macs| at(span, macs))
}

/// An address of a card that was given none: locally administered, and always the same for that name and place.
fn own_mac(name: &str, card: usize) -> MacAddr {
    let [a, b, c, d, e, ..] = hash(name.bytes().chain([0, card as u8])).to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}

fn boot(table: &Reader<'_>, foreign: &mut Vec<(&'static str, &'static str)>) -> Option<VmBoot> {
    let (kernel, image) = (path(table, "kernel"), path(table, "image"));
    match (table.key_span("kernel"), table.key_span("image")) {
        (Some(first), Some(second)) => {
            table
                .findings
                .note(Kind::Conflict, "`image` and `kernel` in one [[vm]]")
                .at(second, "it starts this")
                .at(first, "and this?")
                .help("keep one of them")
                .keep();
            table.know(["initrd", "append"]);
            None
        }
        (Some(_), None) => {
            let initrd = path(table, "initrd");
            let append = table.text("append").map(Spanned::into_inner).unwrap_or_default();
            kernel.map(|kernel| VmBoot::Kernel { kernel, initrd, append })
        }
        (None, Some(_)) => {
            foreign.extend(OF_KERNELS);
            image.map(VmBoot::Image)
        }
        (None, None) => {
            table.missing("image", "name its disk (`image`), or its Linux kernel (`kernel`, and `initrd`)");
            table.know(["initrd", "append"]);
            None
        }
    }
}

/// The path of a file, which does not depend on where netvmd was started.
fn path(table: &Reader<'_>, key: &'static str) -> Option<PathBuf> {
    let text = table.text(key)?;
    let path = PathBuf::from(text.get_ref());
    if path.is_absolute() && !text.get_ref().contains('\0') {
        return Some(path);
    }
    table
        .bad_value(key, text.span(), &format!("cannot be `{}`", text.get_ref()))
        .help("give the absolute path of a file, such as \"/var/lib/netvm/guest.qcow2\"")
        .keep();
    None
}

fn qemu(table: &Reader<'_>) -> String {
    let Some(qemu) = table.text("qemu") else { return QEMU.to_owned() };
    if qemu.get_ref().is_empty() || qemu.get_ref().contains('\0') {
        table
            .bad_value("qemu", qemu.span(), "names no program")
            .help(format!("give a name or an absolute path, or leave it out: it is `{QEMU}` then"))
            .keep();
    }
    qemu.into_inner()
}
