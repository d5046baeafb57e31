// SPDX-License-Identifier: Apache-2.0
//! Turns a `[[vm]]` into everything needed to start it: looks up programs, files, users, cores and memory.

pub(super) mod find;
pub(super) mod problem;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netvm_engine::NotifyMode;
use netvm_model::{GroupId, Guest, GuestCard, Host, NfConfig, VmAccel, VmBoot, VmConfig, VmNotify, VmStart};
use netvm_vm::{Accel, Boot, Card, CardKind, Machine, Version};

use crate::account::Account;
use crate::process::cores::CoreSet;
use crate::process::program::may_use;
use problem::{Problems, VmProblem};

/// KVM's device.
const KVM: &str = "/dev/kvm";
/// What a guest assumes of a card that does not tell its MTU.
const USUAL_MTU: u16 = 1500;

/// The NF in a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmNfSpec {
    /// Its role.
    pub role: String,
    /// Its trust group.
    pub group: GroupId,
    /// Its threads.
    pub threads: u16,
    /// How it notifies others.
    pub notify: NotifyMode,
}

/// Everything needed to start a VM, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSpec {
    /// The NF that it runs; `None`: an ordinary guest.
    pub nf: Option<VmNfSpec>,
    /// Whether it is started externally.
    pub is_manual: bool,
    /// The machine.
    pub machine: Machine,
    /// Why it runs without KVM although the configuration permits KVM.
    pub without_kvm: Option<String>,
    /// QEMU's program.
    pub qemu: PathBuf,
    /// Its version.
    pub version: Version,
    /// QEMU's user; `None`: netvmd's.
    pub account: Option<Account>,
    /// Supplementary groups: KVM's.
    pub groups: Vec<u32>,
    /// CPU affinity of its threads.
    pub cores: CoreSet,
    /// Cores of its virtual processors, in order; empty: any of `cores`.
    pub pinned: Vec<u32>,
}

impl VmSpec {
    /// Looks up everything that a VM needs. `allowed`: the cores that netvmd may use.
    ///
    /// # Errors
    /// All problems.
    pub(crate) fn find(
        host: &Host,
        vm: &VmConfig,
        is_root: bool,
        allowed: &[u32],
    ) -> Result<Self, Vec<VmProblem>> {
        let (cards, nf) = match &vm.guest {
            Guest::Ordinary { cards } => (&cards[..], None),
            Guest::Nf { role, threads, notify } => {
                let notify = match notify {
                    VmNotify::Poll => NotifyMode::Poll,
                    VmNotify::Doorbell => NotifyMode::Doorbell,
                };
                let nf = |nf: &NfConfig| {
                    let (role, group, threads) = (nf.role.clone(), nf.group, *threads);
                    VmNfSpec { role, group, threads, notify }
                };
                (&[][..], host.nf(*role).map(nf))
            }
        };
        let mut problems = Problems::default();
        let account = problems.keep(is_root.then(|| Account::find(&vm.user)).transpose()).flatten();
        let cards: Vec<Card> = cards.iter().filter_map(|at| card(host, at)).collect();
        let passed = cards.iter().find(|card| card.kind == CardKind::VfioUser);
        let qemu = problems.keep(match passed {
            Some(card) => find::find_with_e1000(&vm.qemu, account, &card.name),
            None => find::find(&vm.qemu, account),
        });
        let boot = problems.keep(boot(vm, account));
        let workers = host.engine.workers(allowed);
        // Only virtual processors are pinned; QEMU's other threads may use the NFs' cores.
        problems.keep(CoreSet::choose(&vm.cores, workers, allowed));
        problems.keep(has_node(vm));
        problems.keep(has_memory(vm));
        let accel = match &qemu {
            Some((path, _)) => problems.keep(choose_accel(vm.accel, account, path)),
            None => None,
        };
        for card in cards.iter().filter(|card| !card.connects) {
            problems.keep(can_listen(card, account));
        }
        let cores = problems.keep(CoreSet::choose(&[], workers, allowed));
        let problems = problems.into_inner();
        let (Some((qemu, version)), Some(boot), Some(accel), Some(cores), true) =
            (qemu, boot, accel, cores, problems.is_empty())
        else {
            return Err(problems);
        };
        let Chosen { accel, groups, without_kvm } = accel;
        let (name, memory, cpus, node) = (vm.name.clone(), vm.memory, vm.cpus, vm.node);
        let machine = Machine { name, memory, cpus, node, accel, boot, cards };
        let (is_manual, pinned) = (vm.start == VmStart::Manual, vm.cores.clone());
        Ok(Self { nf, is_manual, machine, without_kvm, qemu, version, account, groups, cores, pinned })
    }

    /// Whether a VM that was started by this one need not be started again for `other`: at most, its threads may use
    /// other cores.
    pub(crate) fn runs_as(&self, other: &Self) -> bool {
        *self == Self { cores: self.cores.clone(), ..other.clone() }
    }

    /// Lets the threads of a VM that was started by this one use the cores of `other`, but for its virtual processors
    /// that have cores of their own.
    pub(crate) fn follow_cores(&self, other: &Self, process: Option<u32>) {
        let Some(process) = process.filter(|_| !self.is_manual && self.cores != other.cores) else { return };
        if let Err(error) = self.cores.replace_by(&other.cores, process) {
            tracing::warn!("vm {}: process {process} keeps its cores: {error}", self.machine.name);
        }
    }
}

fn has_node(vm: &VmConfig) -> Result<(), VmProblem> {
    let is_there = |node: &u32| Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
    vm.node.filter(|node| !is_there(node)).map_or(Ok(()), |node| Err(VmProblem::Node(node)))
}

fn has_memory(vm: &VmConfig) -> Result<(), VmProblem> {
    let too_little = memory("MemTotal").filter(|available| *available < u64::from(vm.memory));
    too_little.map_or(Ok(()), |available| Err(VmProblem::Memory { required: vm.memory, available }))
}

fn card(host: &Host, at: &netvm_model::VmCard) -> Option<Card> {
    let port = host.port(at.port)?;
    let info = port.kind.info();
    let kind = match info.card? {
        GuestCard::VirtioNet => CardKind::VhostUser,
        GuestCard::E1000 => CardKind::VfioUser,
    };
    let (path, connects) = info.socket()?;
    let (name, socket, queues) = (port.name.clone(), path.to_owned(), port.queues);
    let mac = port.card_mac().unwrap_or(at.mac).to_string();
    let mtu = Some(port.mtu).filter(|mtu| kind == CardKind::VhostUser && *mtu != USUAL_MTU);
    Some(Card { name, kind, socket, connects, mac, queues, mtu })
}

/// Checks that QEMU can create the socket of a port that connects to it. netvmd creates a missing folder for QEMU's
/// user.
fn can_listen(card: &Card, account: Option<Account>) -> Result<(), VmProblem> {
    let (Some(account), Some(folder)) = (account, card.socket.parent()) else { return Ok(()) };
    let is_there = folder.exists();
    let mut above = folder.ancestors().skip(usize::from(is_there)).filter(|folder| folder.exists());
    let may = |folder: &Path, rights| fs::metadata(folder).is_ok_and(|at| may_use(&at, account, rights));
    if (!is_there || may(folder, 0o3)) && above.all(|folder| may(folder, 0o1)) {
        return Ok(());
    }
    let (port, path) = (card.name.clone(), card.socket.clone());
    Err(VmProblem::Folder { port, path, uid: account.uid })
}

fn boot(vm: &VmConfig, account: Option<Account>) -> Result<Boot, VmProblem> {
    Ok(match &vm.boot {
        VmBoot::Kernel { kernel, initrd, append } => {
            usable("kernel", kernel, account, false)?;
            if let Some(initrd) = initrd {
                usable("initrd", initrd, account, false)?;
            }
            Boot::Kernel { kernel: kernel.clone(), initrd: initrd.clone(), append: append.clone() }
        }
        VmBoot::Image(path) => {
            usable("image", path, account, true)?;
            let is_qcow2 = path.extension().is_some_and(|extension| extension == "qcow2");
            Boot::Image { path: path.clone(), is_qcow2 }
        }
    })
}

/// Checks that a file exists and that QEMU's user may read it, and write it if it is a disk.
fn usable(key: &'static str, path: &Path, account: Option<Account>, is_disk: bool) -> Result<(), VmProblem> {
    let file = |source| VmProblem::File { key, path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(file)?;
    if metadata.is_dir() {
        return Err(file(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    let (bits, right) = if is_disk { (0o6, "readable and writable") } else { (0o4, "readable") };
    let Some(account) = account else {
        let opened = fs::OpenOptions::new().read(true).write(is_disk).open(path);
        return opened.map(|_| ()).map_err(file);
    };
    let denied = |path: &Path| VmProblem::Denied { key, path: path.to_owned(), right, uid: account.uid };
    if !may_use(&metadata, account, bits) {
        return Err(denied(path));
    }
    for folder in fs::canonicalize(path).map_err(file)?.ancestors().skip(1) {
        if !fs::metadata(folder).is_ok_and(|metadata| may_use(&metadata, account, 0o1)) {
            return Err(denied(path));
        }
    }
    Ok(())
}

/// The chosen accelerator.
struct Chosen {
    accel: Accel,
    /// The groups that QEMU needs to use it.
    groups: Vec<u32>,
    /// Why KVM is not used, if the configuration permits it.
    without_kvm: Option<String>,
}

fn choose_accel(wanted: VmAccel, account: Option<Account>, qemu: &Path) -> Result<Chosen, VmProblem> {
    let translator = |without_kvm| Chosen { accel: Accel::Tcg, groups: Vec::new(), without_kvm };
    if wanted == VmAccel::Tcg {
        return Ok(translator(None));
    }
    let usable = may_open_kvm(account).and_then(|groups| find::check_kvm(qemu).map(|()| groups));
    match (usable, wanted) {
        (Ok(groups), VmAccel::Kvm) => Ok(Chosen { accel: Accel::Kvm, groups, without_kvm: None }),
        (Ok(groups), _) => Ok(Chosen { accel: Accel::KvmOrTcg, groups, without_kvm: None }),
        (Err(reason), VmAccel::Kvm) => Err(VmProblem::NoKvm { reason }),
        (Err(reason), _) => Ok(translator(Some(reason))),
    }
}

/// The groups that let QEMU's user open KVM's device; else the reason why it cannot, and the remedy.
fn may_open_kvm(account: Option<Account>) -> Result<Vec<u32>, String> {
    let refused = match (fs::metadata(KVM), account) {
        (Err(_), _) => {
            "/dev/kvm does not exist: enable virtualization in the firmware, and load kvm_intel or kvm_amd"
        }
        (Ok(device), Some(account)) if may_use(&device, account, 0o6) => return Ok(Vec::new()),
        (Ok(device), Some(_)) if device.mode() & 0o060 == 0o060 => return Ok(vec![device.gid()]),
        (Ok(_), Some(_)) => "the group of /dev/kvm has no access: chmod g+rw /dev/kvm",
        (Ok(_), None) if fs::OpenOptions::new().read(true).write(true).open(KVM).is_ok() => {
            return Ok(Vec::new());
        }
        (Ok(_), None) => "netvmd's user cannot open /dev/kvm: add the user to its group",
    };
    Err(refused.to_owned())
}

/// An entry of /proc/meminfo in MiB.
pub(in crate::vms) fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}
