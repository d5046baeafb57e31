//! Virtual machines that netvmd starts. Ordinary guests live on when netvmd ends, and the next netvmd takes them over as
//! they run: it finds them by their folder in the run directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_config::model::{Host, Restart, VmStart};
use netvm_vm::{Domain, NfDevices, Sockets, shell_line};
use tokio::sync::watch;

mod boot;
mod by_hand;
mod console;
mod controller;
mod folder;
mod handle;
mod instance;
mod launch;
mod listeners;
mod monitor;
mod process;
mod qemu;
mod recipe;
mod report;
mod status;

pub use recipe::{VmRecipe, VmRecipeError};
pub use status::{Attached, VmNews, VmPhase, VmStatus};

use crate::attach_server::{External, Externals};
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::supervisor::Confinement;
use crate::supervisor::backoff::Backoff;
use controller::Controller;
use folder::{Folder, Record};
use handle::{DesiredState, Prepared, VmHandle};
use process::Machine;

/// The VMs of a host, checked and found.
#[derive(Debug)]
pub struct PreparedVms(Vec<Prepared>);

/// How to run a VM without netvmd.
#[derive(Clone, Debug)]
pub struct ByHand {
    /// QEMU's command line, quoted for a shell.
    pub shell: String,
    /// Its words.
    pub command: Vec<String>,
    /// The domain for libvirt.
    pub libvirt_xml: String,
}

/// The VMs.
#[derive(Debug)]
pub struct Machines {
    engine: EngineHandle,
    run_dir: PathBuf,
    confinement: Arc<Confinement>,
    /// Cores that this process may use.
    cores: Vec<u32>,
    /// Whether QEMU can be given another user.
    is_root: bool,
    kept: Mutex<BTreeMap<String, VmHandle>>,
}

impl Machines {
    /// No VMs yet. They have their folders in `run_dir`.
    #[must_use]
    pub fn new(
        engine: EngineHandle,
        run_dir: PathBuf,
        confinement: Arc<Confinement>,
        cores: Vec<u32>,
    ) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        // For those who run a VM elsewhere.
        let run_dir = std::path::absolute(&run_dir).unwrap_or(run_dir);
        Self { engine, run_dir, confinement, cores, is_root, kept: Mutex::default() }
    }

    /// Finds programs, files, users, cores and memory of all VMs. Starts nothing.
    ///
    /// # Errors
    /// [`VmRecipeError`] names the first VM that cannot be started, and why.
    pub fn prepare(&self, host: &Host) -> Result<PreparedVms, VmRecipeError> {
        let workers = if host.engine.cores.is_empty() {
            self.cores.iter().take(1).copied().collect()
        } else {
            host.engine.cores.clone()
        };
        let prepare = |vm: &netvm_config::model::VmConfig| {
            let recipe = VmRecipe::find(host, vm, self.is_root, &workers, &self.cores);
            let recipe = recipe.map_err(|problem| VmRecipeError { vm: vm.name.clone(), problem })?;
            Ok(Prepared {
                recipe: Arc::new(recipe),
                restart: vm.restart,
                boot_timeout: Duration::from_secs(vm.boot_timeout.into()),
                is_up: vm.start == VmStart::WithNetvmd,
            })
        };
        host.vms.iter().map(prepare).collect::<Result<_, _>>().map(PreparedVms)
    }

    /// Starts, restarts and stops VMs until they are those of `prepared`. Returns where to see how those that are new
    /// fare.
    pub fn reconcile(&self, prepared: PreparedVms) -> Vec<VmNews> {
        let mut kept = self.lock();
        let mut news = Vec::new();
        for (name, one) in kept.iter() {
            if !prepared.0.iter().any(|wanted| wanted.recipe.machine.name == *name) {
                one.dismiss();
            }
        }
        for wanted in prepared.0 {
            let name = wanted.recipe.machine.name.clone();
            news.extend(match kept.get(&name) {
                Some(one) => one.change(&wanted),
                None => {
                    let desired = wanted.desired();
                    let is_up = desired.is_up;
                    let (one, was_there) = self.keep(&name, desired);
                    let news = (is_up && !was_there).then(|| one.news());
                    kept.insert(name, one);
                    news
                }
            });
        }
        for recipe in kept.values().filter_map(VmHandle::recipe_of_running) {
            if let Err(error) = launch::hand_over(&recipe) {
                tracing::warn!("vm {}: {error}", recipe.machine.name);
            }
        }
        news
    }

    /// The VMs that run, or are to.
    #[must_use]
    pub fn up(&self) -> BTreeSet<String> {
        let kept = self.lock();
        let is_up = |one: &VmHandle| one.desired.borrow().is_up;
        kept.iter().filter(|(_, one)| is_up(one)).map(|(name, _)| name.clone()).collect()
    }

    /// Has no others run than those: what a change has started, and is undone.
    pub fn keep_up_only(&self, names: &BTreeSet<String>) {
        for (_, one) in self.lock().iter().filter(|(name, _)| !names.contains(*name)) {
            if one.desired.borrow().is_up {
                one.stop(true);
            }
        }
    }

    /// Shuts down what an earlier netvmd has left running and the configuration does not know any more. To be called once,
    /// after the first [`Machines::reconcile`].
    pub fn dismiss_strangers(&self) {
        let mut kept = self.lock();
        for name in Folder::names(&self.run_dir) {
            if kept.contains_key(&name) {
                continue;
            }
            let desired = DesiredState {
                recipe: None,
                restart: Restart::Never,
                boot_timeout: Duration::ZERO,
                is_started: false,
                is_up: false,
                is_forced: false,
                generation: 0,
            };
            let (one, was_there) = self.keep(&name, desired);
            if was_there {
                tracing::warn!("vm {name}: is not configured any more: shut down");
                one.dismiss();
            }
            kept.insert(name, one);
        }
    }

    fn keep(&self, name: &str, desired: DesiredState) -> (VmHandle, bool) {
        let folder = Folder::of(&self.run_dir, name);
        let record = folder.read();
        let before = record.as_ref().filter(|record| record.is_foreign).map(|record| record.pid);
        let record = record.filter(|record| !record.is_foreign);
        let adopted = record.as_ref().and_then(|record| match Machine::adopt(record) {
            Ok(machine) => Some(machine),
            Err(error) => {
                tracing::warn!("vm {name}: process {} cannot be taken over: {error}", record.pid);
                None
            }
        });
        if adopted.is_none() {
            folder.clear();
        }
        let was_there = adopted.is_some();
        let mut status = VmStatus::new(name);
        status.is_outdated = match (&record, &desired.recipe) {
            (Some(record), Some(recipe)) => was_there && is_outdated(record, recipe),
            _ => false,
        };
        if status.is_outdated {
            tracing::warn!(
                "vm {name}: runs as it was configured before; `netvm vm stop` and `start` make it new"
            );
        }
        let desired = DesiredState { is_up: desired.is_up || was_there, ..desired };
        let (desired, desired_states) = watch::channel(desired);
        let (status, view) = watch::channel(status);
        let confinement = Arc::clone(&self.confinement);
        let engine = self.engine.clone();
        let backoff = Backoff::default();
        let controller = Controller { engine, folder, confinement, desired_states, status, backoff, before };
        tokio::spawn(controller.keep(adopted));
        (VmHandle { desired, status: view }, was_there)
    }

    /// What is known of every VM that is configured.
    #[must_use]
    pub fn status(&self) -> Vec<VmStatus> {
        let kept = self.lock();
        let configured = kept.values().filter(|one| one.desired.borrow().recipe.is_some());
        configured.map(|one| one.status.borrow().clone()).collect()
    }

    /// Starts a VM that does not run; `None` when there is none of that name.
    #[must_use]
    pub fn start(&self, name: &str) -> Option<VmNews> {
        self.lock().get(name).filter(|one| one.desired.borrow().recipe.is_some()).map(VmHandle::start)
    }

    /// Shuts a VM down, without asking the guest if `is_forced`; `None` when there is none of that name.
    #[must_use]
    pub fn stop(&self, name: &str, is_forced: bool) -> Option<VmNews> {
        self.lock()
            .get(name)
            .filter(|one| one.desired.borrow().recipe.is_some())
            .map(|one| one.stop(is_forced))
    }

    /// What is to be started; `None` when there is no VM of that name.
    #[must_use]
    pub fn recipe(&self, name: &str) -> Option<Arc<VmRecipe>> {
        self.lock().get(name)?.desired.borrow().recipe.clone()
    }

    /// How others start a VM.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub async fn by_hand(&self, recipe: &VmRecipe) -> Result<ByHand, EngineGone> {
        let folder = Folder::of(&self.run_dir, &recipe.machine.name);
        let nf: Option<NfDevices> = match recipe.nf.as_ref().filter(|_| recipe.is_manual) {
            Some(nf) => by_hand::devices(&self.engine, &folder, nf).await?,
            None => None,
        };
        let qmp = folder.qmp();
        let qmp = recipe.is_manual.then_some(qmp.as_path());
        let mut words = recipe.machine.arguments(recipe.version, Sockets::Terminal { qmp });
        words.extend(nf.iter().flat_map(NfDevices::arguments));
        let mut command = vec![recipe.qemu.display().to_string()];
        command.extend(words.iter().map(|word| word.to_string_lossy().into_owned()));
        let libvirt_xml = recipe.machine.libvirt_xml(&Domain {
            emulator: &recipe.qemu,
            version: recipe.version,
            cores: &recipe.pinned,
            qmp,
            nf: nf.as_ref(),
        });
        Ok(ByHand { shell: shell_line(command.iter().map(String::as_str)), command, libvirt_xml })
    }

    /// NFs that have attached from VMs, besides those that have by themselves.
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

    /// Ends NFs in VMs, and says which guests live on when netvmd ends.
    pub async fn say_farewell(&self) {
        let mut ending = Vec::new();
        for one in self.lock().values() {
            let is_nf = one.desired.borrow().recipe.as_ref().is_some_and(|recipe| recipe.nf.is_some());
            if is_nf {
                ending.push(one.stop(false));
            }
        }
        for mut news in ending {
            news.stopped().await;
        }
        let status = self.status();
        let names: Vec<&str> =
            status.iter().filter(|status| status.pid.is_some()).map(|status| status.name.as_str()).collect();
        if !names.is_empty() {
            tracing::info!("VMs live on, for the next netvmd to take over: {}", names.join(", "));
        }
    }

    /// The console's socket of a VM.
    #[must_use]
    pub fn console(&self, name: &str) -> PathBuf {
        Folder::of(&self.run_dir, name).serial()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, VmHandle>> {
        // What a panic left half done is still a list of VMs.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a process was started otherwise than it would be now, but for the numbers of descriptors.
fn is_outdated(record: &Record, recipe: &VmRecipe) -> bool {
    let sockets = Sockets::Inherited { qmp: 0, serial: 0, log: Some(0) };
    let now = recipe.machine.arguments(recipe.version, sockets);
    let now = now.iter().map(|word| without_descriptors(&word.to_string_lossy())).collect::<Vec<_>>();
    record.arguments.iter().map(|word| without_descriptors(word)).collect::<Vec<_>>() != now
}

fn without_descriptors(word: &str) -> String {
    let part = |part: &str| if part.starts_with("fd=") { "fd=".to_owned() } else { part.to_owned() };
    word.split(',').map(part).collect::<Vec<_>>().join(",")
}
