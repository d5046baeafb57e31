// SPDX-License-Identifier: Apache-2.0
//! Programs with two ports: any software as a hop of a chain. netvmd makes a network namespace for each instance and
//! runs the program there; the engine sends packets through it, probes it, and says whether it works.
//!
//! | step | by whom |
//! |---|---|
//! | namespace and interfaces, before the engine opens their ports | [`place`] |
//! | process, once the ports are open; restarted when it ends | [`hop`] |
//! | probes, state, bypass | the engine's manager (`pairs`) |

mod hop;
mod place;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netvm_model::{Host, NfConfig, PairConfig};
use tokio::time::timeout;

use crate::account::Account;
use crate::engine_thread::EngineHandle;
use crate::process::cores::CoreSet;
use crate::process::program::Program;
use crate::process::spawn::{ProcessSpec, ProcessSpecError, ProcessSpecProblem};
use crate::process::{Confinement, Rights};
use crate::runtime::{blocking, lock};
pub(crate) use hop::Status;
use hop::{Hop, Wanted};
use place::Place;
pub(crate) use place::PlaceError;

/// Time limit for all programs to end.
const SHUTDOWN: Duration = Duration::from_secs(6);

/// An instance: role and number.
type Key = (String, u16);

/// A namespace, and what it was made for.
#[derive(Debug)]
struct Made {
    place: Place,
    pair: PairConfig,
}

/// Why programs cannot be placed.
#[derive(Debug, thiserror::Error)]
#[error("nf {role}: {source}")]
pub struct ProgramPlaceError {
    /// The role.
    pub role: String,
    /// The reason and the remedy.
    source: PlaceError,
}

/// Finds what a process needs.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    confinement: Arc<Confinement>,
    /// The cores that netvmd may use.
    cores: Vec<u32>,
    is_root: bool,
}

impl Finder {
    /// How to start a program. `workers`: the cores that workers have.
    fn spec(&self, nf: &NfConfig, workers: &[u32]) -> Result<ProcessSpec, ProcessSpecProblem> {
        let pair = nf.pair().ok_or(ProcessSpecProblem::NoCommand)?;
        let account = if self.is_root { Some(Account::find(&pair.user)?) } else { None };
        let name = pair.command.first().ok_or(ProcessSpecProblem::NoCommand)?;
        Ok(ProcessSpec {
            role: nf.role.clone(),
            program: Program::find(name, account)?,
            command: pair.command.clone(),
            account,
            environment: pair.environment.clone(),
            threads: 1,
            cores: CoreSet::choose(&pair.cores, workers, &self.cores)?,
            limits: pair.limits.clone(),
        })
    }
}

/// The programs.
#[derive(Debug)]
pub(crate) struct Programs {
    engine: EngineHandle,
    finder: Finder,
    run_dir: PathBuf,
    places: Arc<Mutex<BTreeMap<Key, Made>>>,
    hops: Mutex<BTreeMap<Key, Hop>>,
    /// Instances that cannot be placed now, and why.
    problems: Mutex<BTreeMap<Key, String>>,
}

impl Programs {
    pub(crate) fn new(
        engine: EngineHandle,
        run_dir: PathBuf,
        confinement: Arc<Confinement>,
        cores: Vec<u32>,
    ) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let finder = Finder { confinement, cores, is_root };
        let (places, hops, problems) = (Arc::default(), Mutex::default(), Mutex::default());
        Self { engine, finder, run_dir, places, hops, problems }
    }

    /// Looks up the programs and users of a configuration. Starts nothing.
    ///
    /// # Errors
    /// [`ProcessSpecError`] names the first program that cannot be started, and the reason.
    pub(crate) async fn check(&self, host: &Host) -> Result<(), ProcessSpecError> {
        let (finder, workers) = (self.finder.clone(), host.engine.workers(&self.finder.cores).to_vec());
        let nfs: Vec<NfConfig> = host.nfs.iter().filter(|nf| has_command(nf)).cloned().collect();
        blocking(move || {
            nfs.iter().try_for_each(|nf| {
                let found = finder.spec(nf, &workers).map(drop);
                found.map_err(|problem| ProcessSpecError { role: nf.role.clone(), problem })
            })
        })
        .await
    }

    /// Makes the namespaces that a configuration needs and that are not there, before the engine opens ports in them.
    /// Those that differ are made again, and their programs end first.
    ///
    /// # Errors
    /// The first that cannot be made; the others are there.
    pub(crate) async fn make(&self, host: &Host) -> Result<(), ProgramPlaceError> {
        let wanted: Vec<(Key, PairConfig)> = instances(host)
            .filter(|(_, _, pair)| pair.attach.info().has_namespace)
            .map(|(nf, instance, pair)| ((nf.role.clone(), instance), pair.clone()))
            .collect();
        let mut first = Ok(());
        for (key, pair) in wanted {
            let is_same = lock(&self.places).get(&key).map(|made| is_same_place(&made.pair, &pair));
            if is_same == Some(true) {
                continue;
            }
            if is_same == Some(false) {
                self.stop(&key).await;
                self.remove_place(&key).await;
            }
            let (run_dir, of) = (self.run_dir.clone(), key.clone());
            let made = blocking(move || {
                let wanted = place::Wanted { role: &of.0, instance: of.1, pair: &pair, run_dir: &run_dir };
                Place::make(wanted).map(|place| Made { place, pair })
            });
            match made.await {
                Ok(made) => {
                    lock(&self.problems).remove(&key);
                    lock(&self.places).insert(key, made);
                }
                Err(source) => {
                    lock(&self.problems).insert(key.clone(), source.to_string());
                    first = first.and(Err(ProgramPlaceError { role: key.0, source }));
                }
            }
        }
        first
    }

    /// Starts, restarts and stops programs to match a configuration that the engine has, and removes namespaces that it
    /// does not have.
    pub(crate) async fn settle(&self, host: &Host) {
        let workers = host.engine.workers(&self.finder.cores).to_vec();
        let mut wanted = BTreeMap::new();
        for (nf, instance, pair) in instances(host).filter(|(nf, ..)| has_command(nf)) {
            let key = (nf.role.clone(), instance);
            let rights = lock(&self.places).get(&key).map(|made| Rights {
                namespace: made.place.descriptor(),
                keeps: pair.user == "root" || pair.user == "0",
            });
            if pair.attach.info().has_namespace && rights.is_none() {
                continue;
            }
            wanted.insert(key, Wanted { nf: nf.clone(), instance, rights, workers: workers.clone() });
        }
        let gone: Vec<Key> = {
            let hops = lock(&self.hops);
            let is_outdated =
                |key: &Key, hop: &Hop| wanted.get(key).is_none_or(|wanted| wanted.needs_restart(&hop.wanted));
            hops.iter().filter(|(key, hop)| is_outdated(key, hop)).map(|(key, _)| key.clone()).collect()
        };
        for key in gone {
            // The old one has ended before a new one starts.
            self.stop(&key).await;
        }
        {
            let mut hops = lock(&self.hops);
            for (key, wanted) in wanted {
                let start = || Hop::start(self.engine.clone(), self.finder.clone(), wanted);
                hops.entry(key).or_insert_with(start);
            }
        }
        let keep: Vec<Key> = instances(host).map(|(nf, instance, _)| (nf.role.clone(), instance)).collect();
        let left: Vec<Key> = lock(&self.places).keys().filter(|key| !keep.contains(key)).cloned().collect();
        for key in left {
            self.remove_place(&key).await;
        }
        lock(&self.problems).retain(|key, _| keep.contains(key));
    }

    /// Stops a program, and waits for its end.
    async fn stop(&self, key: &Key) {
        let hop = lock(&self.hops).remove(key);
        if let Some(hop) = hop {
            hop.stop();
            // An error means that the task has ended already.
            let _ = hop.task.await;
        }
    }

    async fn remove_place(&self, key: &Key) {
        let made = lock(&self.places).remove(key);
        if let Some(made) = made {
            blocking(move || made.place.remove()).await;
        }
    }

    /// Restarts the programs of a role; false if it has none.
    pub(crate) fn restart(&self, role: &str) -> bool {
        let hops = lock(&self.hops);
        let own = hops.iter().filter(|((of, _), _)| of == role);
        own.map(|(_, hop)| hop.restart()).count() > 0
    }

    /// The state of the process of an instance, and why it cannot be placed.
    pub(crate) fn status(&self, role: &str, instance: u16) -> Status {
        let key = (role.to_owned(), instance);
        let status = lock(&self.hops).get(&key).map(|hop| hop.status.borrow().clone()).unwrap_or_default();
        let problem = lock(&self.problems).get(&key).cloned();
        Status { problem, ..status }
    }

    /// Ends all programs.
    pub(crate) async fn shut_down(&self) {
        let hops = std::mem::take(&mut *lock(&self.hops));
        hops.values().for_each(Hop::stop);
        let all = async {
            for hop in hops.into_values() {
                let _ = hop.task.await;
            }
        };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("some programs did not end in time");
        }
    }

    /// Removes all namespaces, once the engine has closed its ports.
    pub(crate) fn remove_places(&self) {
        std::mem::take(&mut *lock(&self.places)).into_values().for_each(|made| made.place.remove());
    }
}

/// The instances of all programs of a host.
fn instances(host: &Host) -> impl Iterator<Item = (&NfConfig, u16, &PairConfig)> {
    let programs = host.nfs.iter().filter_map(|nf| Some((nf, nf.pair()?)));
    programs.flat_map(|(nf, pair)| (0..pair.instances()).map(move |instance| (nf, instance, pair)))
}

fn has_command(nf: &NfConfig) -> bool {
    nf.pair().is_some_and(|pair| !pair.command.is_empty())
}

/// Whether a namespace is right for another configuration, too.
fn is_same_place(before: &PairConfig, after: &PairConfig) -> bool {
    let place =
        |pair: &PairConfig| (pair.attach, pair.mtu, pair.offloads, pair.port_count, pair.rewrite_macs);
    place(before) == place(after)
}
