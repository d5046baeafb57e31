// SPDX-License-Identifier: Apache-2.0
//! Virtual machines. Ordinary guests keep running when netvmd ends. The next netvmd finds them by their folders in the
//! run directory, and takes them over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netvm_model::{Host, Restart, VmConfig, VmStart};
use netvm_vm::{Domain, NfDevices, Sockets, shell_line};
use tokio::sync::watch;

mod boot;
mod controller;
mod handle;
mod instance;
mod links;
mod manual;
mod qemu;
mod report;
mod spec;
mod status;

pub use spec::VmSpec;
pub use spec::problem::{VmProblem, VmSpecError};
pub use status::{Attached, VmPhase, VmStartup, VmStatus};

use crate::attach::{External, Externals};
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::events::LogLimit;
use crate::process::Confinement;
use crate::process::backoff::Backoff;
use crate::runtime::{blocking, lock};
use controller::Controller;
use handle::{DesiredState, Prepared, VmHandle};
use qemu::folder::{Folder, Record};
use qemu::process::Machine;

/// The VMs of a configuration, checked.
#[derive(Debug)]
pub struct PreparedVms {
    vms: Vec<Prepared>,
    /// The VMs that this machine cannot start now, and the problem.
    waiting: BTreeMap<String, (VmConfig, String)>,
}

/// How to run a VM by hand.
#[derive(Clone, Debug)]
pub struct ManualStart {
    /// QEMU's command line, quoted for a shell.
    pub shell: String,
    /// Its arguments.
    pub command: Vec<String>,
    /// The libvirt domain.
    pub libvirt_xml: String,
}

/// The VMs.
#[derive(Debug)]
pub struct Machines {
    engine: EngineHandle,
    run_dir: PathBuf,
    confinement: Arc<Confinement>,
    /// The cores that netvmd may use.
    cores: Vec<u32>,
    /// Whether QEMU can run as another user.
    is_root: bool,
    handles: Mutex<BTreeMap<String, VmHandle>>,
    /// VMs that wait for something that this machine lacks.
    waiting: Mutex<BTreeMap<String, (VmConfig, String)>>,
}

impl Machines {
    /// No VMs yet. `run_dir` holds their folders.
    #[must_use]
    pub fn new(
        engine: EngineHandle,
        run_dir: PathBuf,
        confinement: Arc<Confinement>,
        cores: Vec<u32>,
    ) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        // Absolute, for users who start a VM from another folder.
        let run_dir = std::path::absolute(&run_dir).unwrap_or(run_dir);
        let (handles, waiting) = (Mutex::default(), Mutex::default());
        Self { engine, run_dir, confinement, cores, is_root, handles, waiting }
    }

    /// Looks up programs, files, users, cores and memory of all VMs, on another thread. Starts nothing. If a lookup
    /// fails for a VM of the `running` configuration that has not changed, the VM keeps the earlier result, so that it
    /// does not prevent other changes. If they `may_wait`, VMs that cannot be started do so, and are looked up again
    /// later.
    ///
    /// # Errors
    /// [`VmSpecError`] names the first VM that cannot be started, and the reasons.
    pub async fn prepare(
        &self,
        host: &Host,
        running: &Host,
        may_wait: bool,
    ) -> Result<PreparedVms, VmSpecError> {
        let is_same = |vm: &&VmConfig| host.has_same_vm(vm, running);
        let spec = |vm: &VmConfig| Some((vm.name.clone(), self.spec(&vm.name)?));
        let before: BTreeMap<_, _> = host.vms.iter().filter(is_same).filter_map(spec).collect();
        let (vms, host) = (host.vms.clone(), host.clone());
        let (is_root, cores) = (self.is_root, self.cores.clone());
        let waits = lock(&self.waiting).clone();
        let mut waiting = BTreeMap::new();
        let prepare = move |vm: &VmConfig, waiting: &mut BTreeMap<_, _>| {
            let spec = match (VmSpec::find(&host, vm, is_root, &cores), before.get(&vm.name)) {
                (Ok(spec), _) => Arc::new(spec),
                (Err(_), Some(before)) => Arc::clone(before),
                (Err(problems), None) => {
                    let error = VmSpecError { vm: vm.name.clone(), problems };
                    if !may_wait && waits.get(&vm.name).is_none_or(|(before, _)| before != vm) {
                        return Err(error);
                    }
                    waiting.insert(vm.name.clone(), (vm.clone(), error.to_string()));
                    return Ok(None);
                }
            };
            Ok(Some(Prepared {
                spec,
                restart: vm.restart,
                boot_timeout: Duration::from_secs(vm.boot_timeout.into()),
                is_up: vm.start == VmStart::WithNetvmd,
            }))
        };
        let prepare_all = move || {
            let prepared = vms.iter().filter_map(|vm| prepare(vm, &mut waiting).transpose());
            let vms = prepared.collect::<Result<_, _>>()?;
            Ok(PreparedVms { vms, waiting })
        };
        blocking(prepare_all).await
    }

    /// The VMs that wait for something that this machine lacks, and what it is.
    pub fn waiting(&self) -> Vec<(String, String)> {
        lock(&self.waiting).iter().map(|(name, (_, problem))| (name.clone(), problem.clone())).collect()
    }

    /// Starts, restarts and stops VMs to match `prepared`. Returns the startups to wait for.
    pub fn reconcile(&self, prepared: PreparedVms) -> Vec<VmStartup> {
        let mut handles = lock(&self.handles);
        let mut startups = Vec::new();
        for (name, one) in handles.iter() {
            let is_wanted = prepared.vms.iter().any(|wanted| wanted.spec.machine.name == *name);
            if !is_wanted && !prepared.waiting.contains_key(name) {
                one.dismiss();
            }
        }
        *lock(&self.waiting) = prepared.waiting;
        for wanted in prepared.vms {
            let name = wanted.spec.machine.name.clone();
            startups.extend(match handles.get(&name) {
                Some(one) => one.change(&wanted),
                None => {
                    let desired = wanted.desired();
                    let is_up = desired.is_up;
                    let (one, was_adopted) = self.control(&name, desired);
                    let startup = (is_up && !was_adopted).then(|| one.startup());
                    handles.insert(name, one);
                    startup
                }
            });
        }
        for spec in handles.values().filter_map(VmHandle::running_spec) {
            if let Err(error) = qemu::launch::hand_over(&spec) {
                tracing::warn!("vm {}: {error}", spec.machine.name);
            }
        }
        startups
    }

    /// The VMs that run or should run.
    #[must_use]
    pub fn up(&self) -> BTreeSet<String> {
        let handles = lock(&self.handles);
        let is_up = |one: &VmHandle| one.desired.borrow().is_up;
        handles.iter().filter(|(_, one)| is_up(one)).map(|(name, _)| name.clone()).collect()
    }

    /// Stops all VMs except `names`, to undo a failed change.
    pub fn keep_up_only(&self, names: &BTreeSet<String>) {
        for (_, one) in lock(&self.handles).iter().filter(|(name, _)| !names.contains(*name)) {
            if one.desired.borrow().is_up {
                one.stop(true);
            }
        }
    }

    /// Shuts down VMs of an earlier netvmd that the configuration no longer has. Call once, after the first
    /// [`Machines::reconcile`].
    pub fn stop_unconfigured(&self) {
        let mut handles = lock(&self.handles);
        for name in Folder::names(&self.run_dir) {
            if handles.contains_key(&name) {
                continue;
            }
            let desired = DesiredState { restart: Restart::Never, ..DesiredState::default() };
            let record = Folder::of(&self.run_dir, &name).read();
            let (one, was_adopted) = self.control(&name, desired);
            // One that waits runs already, and may go on: what is missing is needed for a start.
            if was_adopted && !lock(&self.waiting).contains_key(&name) {
                tracing::warn!("vm {name}: no longer configured; shutting it down");
                one.dismiss();
                handles.insert(name, one);
            } else if let Some(record) = record {
                tracing::warn!(
                    "vm {name}: no longer configured, but process {} still runs: stop it where it was started",
                    record.pid
                );
            }
        }
    }

    fn control(&self, name: &str, desired: DesiredState) -> (VmHandle, bool) {
        let folder = Folder::of(&self.run_dir, name);
        let record = folder.read();
        let before = record.as_ref().filter(|record| record.is_foreign).map(|record| record.pid);
        let record = record.filter(|record| !record.is_foreign);
        let adopted = record.as_ref().and_then(|record| match Machine::adopt(record) {
            Ok(machine) => Some(machine),
            Err(error) => {
                tracing::warn!("vm {name}: cannot take over process {}: {error}", record.pid);
                None
            }
        });
        if adopted.is_none() {
            folder.clear();
        }
        let was_adopted = adopted.is_some();
        let mut status = VmStatus::new(name);
        status.is_outdated = match (&record, &desired.spec) {
            (Some(record), Some(spec)) => was_adopted && is_outdated(record, spec),
            _ => false,
        };
        if status.is_outdated {
            tracing::warn!("vm {name}: runs with its old configuration until `netvm vm stop` and `start`");
        }
        let desired = DesiredState { is_up: desired.is_up || was_adopted, ..desired };
        let (desired, desired_states) = watch::channel(desired);
        let (status, view) = watch::channel(status);
        let confinement = Arc::clone(&self.confinement);
        let engine = self.engine.clone();
        let backoff = Backoff::default();
        let log = LogLimit::default();
        let controller =
            Controller { engine, folder, confinement, desired_states, status, backoff, log, before };
        tokio::spawn(controller.supervise(adopted));
        (VmHandle { desired, status: view }, was_adopted)
    }

    /// The status of every VM that is configured, or that still runs.
    #[must_use]
    pub fn status(&self) -> Vec<VmStatus> {
        let handles = lock(&self.handles);
        let known = handles.values().filter(|one| one.is_known());
        known.map(|one| one.status.borrow().clone()).collect()
    }

    /// Starts a stopped VM; `None` if the name is unknown.
    #[must_use]
    pub fn start(&self, name: &str) -> Option<VmStartup> {
        lock(&self.handles).get(name).filter(|one| one.desired.borrow().spec.is_some()).map(VmHandle::start)
    }

    /// Shuts a VM down, without asking the guest if `is_forced`; `None` if the name is unknown.
    #[must_use]
    pub fn stop(&self, name: &str, is_forced: bool) -> Option<VmStartup> {
        lock(&self.handles).get(name).filter(|one| one.is_known()).map(|one| one.stop(is_forced))
    }

    /// MiB of memory and processors of a running VM that the configuration no longer has.
    #[must_use]
    pub fn size_of_removed(&self, name: &str) -> (u32, u16) {
        let record = Folder::of(&self.run_dir, name).read();
        let arguments = record.map(|record| record.arguments).unwrap_or_default();
        let value = |key: &str| arguments.iter().skip_while(|argument| *argument != key).nth(1);
        let number = |key| {
            let digits = value(key)?.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u32>().ok()
        };
        (number("-m").unwrap_or(0), number("-smp").and_then(|cpus| cpus.try_into().ok()).unwrap_or(0))
    }

    /// The specification of a VM; `None` if the name is unknown.
    #[must_use]
    pub fn spec(&self, name: &str) -> Option<Arc<VmSpec>> {
        lock(&self.handles).get(name)?.desired.borrow().spec.clone()
    }

    /// How to start a VM by hand.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub async fn manual_start(&self, spec: &VmSpec) -> Result<ManualStart, EngineGone> {
        let folder = Folder::of(&self.run_dir, &spec.machine.name);
        let nf: Option<NfDevices> = match spec.nf.as_ref().filter(|_| spec.is_manual) {
            Some(nf) => qemu::listeners::devices(&self.engine, &folder, nf).await?,
            None => None,
        };
        let qmp = folder.qmp();
        let qmp = spec.is_manual.then_some(qmp.as_path());
        let mut arguments = spec.machine.arguments(spec.version, Sockets::Terminal { qmp });
        arguments.extend(nf.iter().flat_map(NfDevices::arguments));
        let mut command = vec![spec.qemu.display().to_string()];
        command.extend(arguments.iter().map(|argument| argument.to_string_lossy().into_owned()));
        let libvirt_xml = spec.machine.libvirt_xml(&Domain {
            emulator: &spec.qemu,
            version: spec.version,
            cores: &spec.pinned,
            qmp,
            nf: nf.as_ref(),
        });
        Ok(ManualStart { shell: shell_line(command.iter().map(String::as_str)), command, libvirt_xml })
    }

    /// Adds the NFs in VMs to `externals`.
    #[must_use]
    pub fn attached(&self, mut all: Externals) -> Externals {
        for status in self.status() {
            let Some(Attached { id, role, at }) = status.instance else { continue };
            let is_taken =
                |number: u32| all.values().any(|other| other.role == role && other.number == number);
            let number = (0..=u32::MAX).find(|number| !is_taken(*number)).unwrap_or(u32::MAX);
            all.insert(id, External { role, number, pid: status.pid, attached_at: at });
        }
        all
    }

    /// Stops the NFs in VMs and logs which guests keep running.
    pub async fn shut_down(&self) {
        let mut ending = Vec::new();
        for one in lock(&self.handles).values() {
            let is_nf = one.desired.borrow().spec.as_ref().is_some_and(|spec| spec.nf.is_some());
            if is_nf {
                ending.push(one.stop(false));
            }
        }
        for mut startup in ending {
            startup.stopped().await;
        }
        let status = self.status();
        let names: Vec<&str> =
            status.iter().filter(|status| status.pid.is_some()).map(|status| status.name.as_str()).collect();
        if !names.is_empty() {
            tracing::info!("VMs keep running for the next netvmd: {}", names.join(", "));
        }
    }

    /// The socket of a VM's console.
    #[must_use]
    pub fn console(&self, name: &str) -> PathBuf {
        Folder::of(&self.run_dir, name).serial()
    }
}

/// Whether guests run on KVM here: tries it once, for some 60 ms, as `netvm doctor` does. Without a QEMU to try it,
/// whether there is KVM at all.
pub(crate) fn guests_run_on_kvm() -> bool {
    let qemu = Path::new(netvm_vm::QEMU);
    let has_device = Path::new("/dev/kvm").exists();
    has_device && (spec::find::check_kvm(qemu).is_ok() || !spec::find::starts(qemu))
}

/// Whether a process was started with other arguments than the specification has now, apart from descriptor numbers.
fn is_outdated(record: &Record, spec: &VmSpec) -> bool {
    let sockets = Sockets::Inherited { qmp: 0, serial: 0, log: Some(0) };
    let now = spec.machine.arguments(spec.version, sockets);
    let now = now.iter().map(|argument| without_descriptors(&argument.to_string_lossy())).collect::<Vec<_>>();
    record.arguments.iter().map(|argument| without_descriptors(argument)).collect::<Vec<_>>() != now
}

fn without_descriptors(word: &str) -> String {
    let part = |part: &str| if part.starts_with("fd=") { "fd=".to_owned() } else { part.to_owned() };
    word.split(',').map(part).collect::<Vec<_>>().join(",")
}
