//! From a `[[vm]]` to a machine that can be started: programs, files, users, cores and memory, looked up beforehand.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netvm_config::model::{
    GroupId, Guest, Host, NfConfig, PortKind, VhostMode, VmAccel, VmBoot, VmConfig, VmNotify, VmStart,
};
use netvm_engine::Notify;
use netvm_vm::{Accel, Boot, Card, Machine, Version};

use super::qemu::{self, QemuError};
use crate::supervisor::cores::{CoreSet, CoresError};
use crate::supervisor::program::may_use;
use crate::supervisor::{Account, AccountError};

/// Where KVM is.
const KVM: &str = "/dev/kvm";

/// Why a VM cannot be started as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("vm {vm}: {problem}")]
pub struct VmRecipeError {
    /// Its name.
    pub vm: String,
    /// What is wrong, and what helps.
    pub problem: VmProblem,
}

/// What keeps a VM from being started.
#[derive(Debug, thiserror::Error)]
pub enum VmProblem {
    /// QEMU.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// The user.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A file.
    #[error("{}: {source} (`{key}` names it)", path.display())]
    File {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file that its user may not use.
    #[error("{} is not {right} for user number {uid}, as whom QEMU runs: change its mode or owner (or a folder's above it), or name another `user`", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// What is wanted.
        right: &'static str,
        /// Who wants it.
        uid: u32,
    },
    /// A folder where its user cannot listen.
    #[error("port {port}: QEMU is to listen at {}, and user number {uid} may not write in that folder, or not reach it: give the port a folder of the user's (one that is not there yet is made so), or `mode = \"server\"`", path.display())]
    Folder {
        /// The port.
        port: String,
        /// Its socket.
        path: PathBuf,
        /// As whom QEMU runs.
        uid: u32,
    },
    /// KVM was asked for.
    #[error("`accel = \"kvm\"`, but {reason}; or take `accel = \"kvm:tcg\"`")]
    NoKvm {
        /// What is in the way, and what helps.
        reason: &'static str,
    },
    /// More memory than there is.
    #[error("it is to have {wanted} MiB of memory, and this machine has {there}: lower its `memory`")]
    Memory {
        /// MiB that it is to have.
        wanted: u32,
        /// MiB that there are.
        there: u64,
    },
    /// A node that this machine does not have.
    #[error("there is no NUMA node {0} on this machine: leave `node` out, or see `lscpu`")]
    Node(u32),
}

/// What an NF in a VM is let in as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfRecipe {
    /// Its role.
    pub role: String,
    /// Its trust group: whose memory it sees.
    pub group: GroupId,
    /// Its threads.
    pub threads: u16,
    /// How it wakes others.
    pub notify: Notify,
}

/// Everything that it takes to start a VM, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRecipe {
    /// The network function that it is; `None`: it is an ordinary guest.
    pub nf: Option<NfRecipe>,
    /// Whether others start it.
    pub is_manual: bool,
    /// The machine.
    pub machine: Machine,
    /// QEMU's program.
    pub qemu: PathBuf,
    /// Its version.
    pub version: Version,
    /// Who it runs as; `None`: this process's own user.
    pub account: Option<Account>,
    /// Groups that the user has besides: that of KVM.
    pub groups: Vec<u32>,
    /// Where its threads may run.
    pub cores: CoreSet,
    /// Where its processors run, one after another; empty: on any of `cores`.
    pub pinned: Vec<u32>,
}

impl VmRecipe {
    /// Finds everything that a VM needs. `workers` are the cores of workers, `allowed` those that netvmd may use.
    pub(super) fn find(
        host: &Host,
        vm: &VmConfig,
        is_root: bool,
        workers: &[u32],
        allowed: &[u32],
    ) -> Result<Self, VmProblem> {
        let (cards, nf) = match &vm.guest {
            Guest::Ordinary { cards } => (&cards[..], None),
            Guest::Nf { role, threads, notify } => {
                let notify = match notify {
                    VmNotify::Poll => Notify::Poll,
                    VmNotify::Doorbell => Notify::Doorbell,
                };
                let nf = |nf: &NfConfig| {
                    let (role, group, threads) = (nf.role.clone(), nf.group, *threads);
                    NfRecipe { role, group, threads, notify }
                };
                (&[][..], host.nf(*role).map(nf))
            }
        };
        let account = if is_root { Some(Account::find(&vm.user)?) } else { None };
        let (qemu, version) = qemu::find(&vm.qemu, account)?;
        let boot = boot(vm, account)?;
        // Its processors are placed one by one; what else QEMU has may go wherever NFs may.
        CoreSet::choose(&vm.cores, workers, allowed)?;
        if let Some(node) =
            vm.node.filter(|node| !Path::new(&format!("/sys/devices/system/node/node{node}")).exists())
        {
            return Err(VmProblem::Node(node));
        }
        if let Some(there) = memory("MemTotal").filter(|there| *there < u64::from(vm.memory)) {
            return Err(VmProblem::Memory { wanted: vm.memory, there });
        }
        let (accel, groups) = accel(vm.accel, account)?;
        let machine = Machine {
            name: vm.name.clone(),
            memory: vm.memory,
            cpus: vm.cpus,
            node: vm.node,
            accel,
            boot,
            cards: cards.iter().filter_map(|at| card(host, at)).collect(),
        };
        machine.cards.iter().filter(|card| !card.connects).try_for_each(|card| can_listen(card, account))?;
        let cores = CoreSet::choose(&[], workers, allowed)?;
        let is_manual = vm.start == VmStart::Manual;
        Ok(Self { nf, is_manual, machine, qemu, version, account, groups, cores, pinned: vm.cores.clone() })
    }
}

fn card(host: &Host, at: &netvm_config::model::VmCard) -> Option<Card> {
    let port = host.port(at.port)?;
    let PortKind::VhostUser { path, mode, .. } = &port.kind else { return None };
    Some(Card {
        name: port.name.clone(),
        socket: path.clone(),
        connects: *mode == VhostMode::Server,
        mac: at.mac.to_string(),
        queues: port.queues,
    })
}

/// Sees that QEMU can make the socket of a port that connects to it. A folder that is not there yet will be the user's.
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

/// Sees that a file is there, and that QEMU's user may read it, and write it if it is a disk.
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
    let denied = |path: &Path| VmProblem::Denied { path: path.to_owned(), right, uid: account.uid };
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

/// Who will run the instructions, and the groups that this takes.
fn accel(wanted: VmAccel, account: Option<Account>) -> Result<(Accel, Vec<u32>), VmProblem> {
    if wanted == VmAccel::Tcg {
        return Ok((Accel::Tcg, Vec::new()));
    }
    let usable = match (fs::metadata(KVM), account) {
        (Err(_), _) => Err(
            "there is no /dev/kvm: switch virtualization on in the firmware, and load kvm_intel or kvm_amd",
        ),
        (Ok(device), Some(account)) if may_use(&device, account, 0o6) => Ok(Vec::new()),
        (Ok(device), Some(_)) if device.mode() & 0o060 == 0o060 => Ok(vec![device.gid()]),
        (Ok(_), Some(_)) => Err("/dev/kvm is not for its group: chmod g+rw /dev/kvm"),
        (Ok(_), None) => fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(KVM)
            .map(|_| Vec::new())
            .map_err(|_| "/dev/kvm cannot be opened by netvmd's user: add the user to its group"),
    };
    match (usable, wanted) {
        (Ok(groups), VmAccel::Kvm) => Ok((Accel::Kvm, groups)),
        (Ok(groups), _) => Ok((Accel::KvmOrTcg, groups)),
        (Err(reason), VmAccel::Kvm) => Err(VmProblem::NoKvm { reason }),
        (Err(_), _) => Ok((Accel::Tcg, Vec::new())),
    }
}

/// MiB that the kernel says under a name in /proc/meminfo.
pub(super) fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}
