// SPDX-License-Identifier: Apache-2.0
//! The order in which netvmd's services start, and in which they stop: the opposite one.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use netvm_api::EventKind;
use netvm_engine::{Engine, close_left_interfaces, keep_cards_in};
use netvm_fd_store::Store;
use netvm_model::{Host, NfStart};
use netvm_wire::MacAddr;

use super::DaemonError;
use super::adapt::adapt;
use super::reconcile::reconcile;
use super::rundir::RunDir;
use super::service::{self, Request, Signals};
use crate::api;
use crate::attach::AttachServer;
use crate::daemon::{
    Configuration, ConnectionLog, Daemon, First, FlowExport, LACP_SYSTEM, MAPPING_KEY, Reclaims, Services,
    Statistics, kept_number,
};
use crate::engine_thread::{EngineGone, EngineHandle, EngineThread};
use crate::events::Events;
use crate::fleet;
use crate::process::Confinement;
use crate::process::cores::allowed;
use crate::programs::Programs;
use crate::routers::Routers;
use crate::supervisor::Supervisor;
use crate::vms::Machines;

/// The running daemon.
#[derive(Debug)]
pub(super) struct RunningDaemon {
    // Dropped in this order.
    daemon: Arc<Daemon>,
    thread: EngineThread,
    flows: FlowExport,
    connections: ConnectionLog,
    store: Arc<Store>,
    run_dir: RunDir,
}

impl RunningDaemon {
    /// Starts the engine, and the services that use it.
    ///
    /// # Errors
    /// [`DaemonError`]; what had started has stopped.
    pub(super) async fn start(
        run_dir: RunDir,
        configuration: Configuration,
        first: &Host,
    ) -> Result<Self, DaemonError> {
        let store = Arc::new(store_in(run_dir.path()));
        keep_cards_in(Arc::clone(&store));
        let cores = allowed().map_err(DaemonError::of("cannot read the CPU affinity"))?;
        let confinement = Arc::new(Confinement::prepare()?);
        if first.nfs.iter().any(|nf| !matches!(nf.start, NfStart::External { .. })) {
            confinement.warn();
        }
        let (events, reclaims) = (Events::default(), Reclaims::default());
        tokio::spawn(events.clone().keep_flushing());
        let (noted, recorder) = (events.clone(), reclaims.clone());
        let on_notice = move |engine: &Engine, notice| recorder.record(&noted, engine, notice);
        let thread = EngineThread::start(first.engine.clone(), may_have_nics(), events, on_notice).await?;
        let engine = thread.handle();
        keep_numbers(engine, &configuration.options().state_dir()).await?;
        let interfaces = Arc::clone(&store);
        engine.call(move |engine| engine.keep_interfaces_in(interfaces)).await?;
        let flows = FlowExport::start(first.engine.flow_monitor.as_ref(), engine).await?;
        let connections = ConnectionLog::start(&first.engine.connections, engine)
            .map_err(DaemonError::of("cannot start the threads of the log of connections"))?;
        let machines =
            Machines::new(engine.clone(), run_dir.path().to_owned(), Arc::clone(&confinement), cores.clone());
        let programs =
            Programs::new(engine.clone(), run_dir.path().to_owned(), Arc::clone(&confinement), cores.clone());
        let supervisor = Supervisor::new(engine.clone(), confinement, cores);
        let routers = Routers::new(engine.clone(), run_dir.path(), run_dir.record_lock())
            .map_err(DaemonError::of("cannot start the thread that follows routers"))?;
        let attach = AttachServer::start(engine.clone(), &configuration.options().attach_socket())?;
        let services = Services { supervisor, attach, machines, routers, programs };
        let statistics = Statistics::start(engine, reclaims, flows.view(), connections.events()).await?;
        let daemon = Arc::new(Daemon::new(engine.clone(), configuration, services, statistics));
        Ok(Self { daemon, thread, flows, connections, store, run_dir })
    }

    /// Applies the first configuration, and serves the API until a signal or a client ends the daemon.
    ///
    /// # Errors
    /// [`DaemonError`]; the API is not served any more, but all else still runs.
    pub(super) async fn serve(&mut self, first: &First, signals: &mut Signals) -> Result<(), DaemonError> {
        self.daemon.apply_first(first).await?;
        let adopted = self.daemon.engine().call(|engine| engine.close_left_interfaces()).await?;
        if adopted > 0 {
            tracing::info!("took over {adopted} interfaces of containers from the netvmd before");
        }
        self.daemon.audit().write_to(first.host.api.audit.as_ref());
        let socket = self.daemon.configuration().options().api_socket();
        let server = api::serve(Arc::clone(&self.daemon), &socket)?;
        let message = format!("netvmd {} serves its API on {}", env!("CARGO_PKG_VERSION"), socket.display());
        self.daemon.engine().events().push(EventKind::Started, "", message);
        service::notify(service::READY);
        let outcome = self.until_end(signals).await;
        tracing::info!("netvmd stops");
        server.stop().await;
        outcome
    }

    async fn until_end(&mut self, signals: &mut Signals) -> Result<(), DaemonError> {
        let daemon = &self.daemon;
        let work = async {
            let compiles = daemon.rules().keep_compiled();
            let followers = async { tokio::join!(api::follow(daemon), fleet::follow(daemon)) };
            tokio::join!(compiles, adapt(daemon), reconcile(daemon), followers);
        };
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => {}
                request = signals.next() => match request {
                    Request::End => return Ok(()),
                    Request::Reload => {
                        self.flows.reopen();
                        self.connections.reopen();
                        let daemon = Arc::clone(daemon);
                        tokio::spawn(async move { daemon.reload().await });
                    }
                },
                () = daemon.end_requested() => return Ok(()),
                () = self.thread.ended() => return Err(EngineGone.into()),
            }
        }
    }

    /// Stops everything.
    pub(super) async fn stop(self) {
        let Self { daemon, thread, flows, connections, store, run_dir } = self;
        service::notify(service::STOPPING);
        // The engine closes its ports.
        let _expedited = daemon.routers().expedite(&[]);
        daemon.end_nfs().await;
        let closed = thread.stop();
        if daemon.purges() {
            close_left_interfaces(&store);
        }
        flows.end(closed).await;
        connections.end(closed);
        daemon.end_routers(closed);
        daemon.audit().end();
        drop(run_dir);
    }
}

/// The process that keeps the files of guests' e1000 cards and of containers' interfaces for the next netvmd: this
/// program, with the command `keep-files`.
fn store_in(run_dir: &Path) -> Store {
    let socket = run_dir.join("files.sock");
    // The same program even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("netvmd").arg("keep-files").arg(&socket);
    Store::new(socket, command)
}

/// Whether the EAL should probe PCI devices.
fn may_have_nics() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/sys/bus/pci/devices").is_dir()
}

/// Gives the engine the random numbers that are to be the same after a restart.
async fn keep_numbers(engine: &EngineHandle, state_dir: &Path) -> Result<(), EngineGone> {
    match kept_number(state_dir, MAPPING_KEY) {
        Ok(key) => engine.call(move |engine| engine.set_mapping_key(key)).await?,
        Err(error) => {
            tracing::warn!("NAT chooses other ports after a restart: cannot keep its key: {error}");
        }
    }
    let system = kept_number(state_dir, LACP_SYSTEM).unwrap_or_else(|error| {
        tracing::warn!("bonds have another LACP system after a restart: cannot keep it: {error}");
        std::process::id().into()
    });
    let [a, b, c, d, e, ..] = system.to_le_bytes();
    // Locally administered.
    let system = MacAddr([0x02, a, b, c, d, e]);
    engine.call(move |engine| engine.set_system_address(system)).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::daemon::Options;
    use crate::engine_thread::EngineHandle;
    use crate::lookup::Lookup;

    const PAUSE: Duration = Duration::from_millis(5);

    const CONFIG: &str = "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n[[group]]\nname = \"edge\"\nbuffers = 1024\n\
         [[nf]]\nrole = \"nf\"\ngroup = \"edge\"\nattach_users = []\n";

    /// The steps before the start, in a folder.
    fn prepare(folder: &Path) -> (RunDir, Configuration, First) {
        let config = folder.join("host.toml");
        std::fs::write(&config, CONFIG).unwrap();
        let state_dir = Some(folder.join("state"));
        let options = Options {
            config,
            run_dir: folder.join("run"),
            state_dir,
            socket: None,
            attach: None,
            fleet: None,
        };
        let lookup = Lookup::new().unwrap();
        let first = First::read(&options, &lookup).unwrap();
        let run_dir = RunDir::take(&options.run_dir).unwrap();
        (run_dir, Configuration::open(options, lookup, None).unwrap(), first)
    }

    /// An NF that, when it is told to end, first finds out whether the engine runs, and whether other NFs can attach.
    fn nf(socket: &Path, engine: &EngineHandle) -> [bool; 2] {
        let options = netlib::Options { socket: Some(socket.to_owned()), ..netlib::Options::new("nf") };
        let mut endpoints = netlib::attach(&options).unwrap().into_endpoints();
        while endpoints[0].receive().is_some() {}
        [engine.call_blocking(|_| ()).is_ok(), netvm_attach::connect(socket).is_ok()]
    }

    #[tokio::test]
    async fn the_api_closes_before_nfs_end_and_these_before_the_engine() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root may attach");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (run_dir, configuration, first) = prepare(folder.path());
        let mut running = RunningDaemon::start(run_dir, configuration, &first.host).await.unwrap();
        let daemon = Arc::clone(&running.daemon);
        let options = daemon.configuration().options();
        let client = async {
            while UnixStream::connect(options.api_socket()).is_err() {
                sleep(PAUSE).await;
            }
            let (socket, engine) = (options.attach_socket(), daemon.engine().clone());
            let nf = std::thread::spawn(move || nf(&socket, &engine));
            while daemon.externals().is_empty() {
                sleep(PAUSE).await;
            }
            daemon.end(false);
            nf
        };
        let mut signals = Signals::listen().unwrap();
        let both = async { tokio::join!(running.serve(&first, &mut signals), client) };
        let (served, nf) = timeout(Duration::from_secs(30), both).await.unwrap();
        served.unwrap();
        assert!(UnixStream::connect(options.api_socket()).is_err(), "the API is still served");
        assert!(!nf.is_finished() && daemon.externals().len() == 1, "the NF was told to end too early");
        assert!(RunDir::take(&options.run_dir).is_err(), "the run directory is unlocked too early");
        running.stop().await;
        assert_eq!(nf.join().unwrap(), [true, false], "the engine runs, no other NF can attach");
        assert_eq!(daemon.engine().call(|_| ()).await, Err(EngineGone));
        RunDir::take(&options.run_dir).unwrap();
    }

    #[tokio::test]
    async fn the_engine_closes_with_the_owner_of_its_thread() {
        let folder = tempfile::tempdir().unwrap();
        let (_, _, first) = prepare(folder.path());
        let started =
            EngineThread::start(first.host.engine, may_have_nics(), Events::default(), |_, _| {}).await;
        let thread = started.unwrap();
        let engine = thread.handle().clone();
        assert_eq!(engine.call(|_| ()).await, Ok(()));
        drop(thread);
        assert_eq!(engine.call(|_| ()).await, Err(EngineGone));
    }
}
