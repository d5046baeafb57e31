// SPDX-License-Identifier: Apache-2.0
//! A running engine with NF processes; the benchmark acts as netvmd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use netvm_attach::{AttachError, FD_VARIABLE, Hello, Ready};
use netvm_engine::{Engine, Notice, NotifyMode, ReadyMessage, RouterView};
use netvm_model::{Host, RouterId};
use netvm_router::Update;
use rustix::io::FdFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::BenchError;
use crate::measure::harness::Plan;
use crate::measure::window::{Sample, Window};
use crate::nf::{NfProcess, NfSpec};
use crate::setup::guest::{BOOT, Guest};

/// Time limit for an NF to attach or to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the workers to adopt a new routing table.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for connections to be established.
const CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for all packets of the NFs to come back at the end.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the manager runs.
const MANAGER_INTERVAL: Duration = Duration::from_millis(5);

/// An engine and its NFs.
pub struct Rig {
    engine: Engine,
    nfs: Vec<NfProcess>,
}

impl Rig {
    /// Starts an engine with configuration `host`, and the NFs; all receive packets when this returns.
    ///
    /// # Errors
    /// [`BenchError`] names the part that did not start.
    pub fn start(host: &Host, nfs: &[NfSpec]) -> Result<Self, BenchError> {
        let mut engine = Engine::start(&host.engine, false)?;
        engine.apply(host)?;
        // Benchmarks do not export flows.
        drop(engine.take_flow_records());
        let mut rig = Self { engine, nfs: Vec::new() };
        for spec in nfs {
            rig.launch(spec)?;
        }
        Ok(rig)
    }

    /// Starts another NF.
    ///
    /// # Errors
    /// As for [`Rig::start`].
    pub fn launch(&mut self, spec: &NfSpec) -> Result<(), BenchError> {
        let process = launch(&mut self.engine, spec)?;
        self.nfs.push(process);
        Ok(())
    }

    /// Starts a program as an NF of `role`.
    ///
    /// # Errors
    /// As for [`Rig::start`].
    pub fn launch_program(&mut self, role: &str, command: Command) -> Result<(), BenchError> {
        let process = attach(&mut self.engine, role, command)?;
        self.nfs.push(process);
        Ok(())
    }

    /// Starts a VM as an NF of `role`, and waits until its guest has booted and is ready.
    ///
    /// # Errors
    /// [`BenchError::Guest`].
    pub fn launch_guest(&mut self, role: &str, guest: &Guest) -> Result<(), BenchError> {
        let fail = |problem: String| BenchError::Guest { problem };
        let instance = self.engine.admit_guest(role, 1, false, NotifyMode::Poll)?;
        let fds = self.engine.descriptors(instance).ok_or_else(|| fail("its group is gone".to_owned()))?;
        let child = guest.start(&fds)?;
        self.nfs.push(NfProcess { child, instance, role: role.to_owned(), _socket: None });
        let start = Instant::now();
        while start.elapsed() < BOOT {
            self.run(MANAGER_INTERVAL)?;
            match self.engine.guest_ready(instance) {
                Some(ReadyMessage::Ready { .. }) => return Ok(()),
                Some(ReadyMessage::Failed { reason }) => return Err(fail(reason)),
                None => {}
            }
        }
        Err(fail(format!("it did not attach within {} s", BOOT.as_secs())))
    }

    /// The engine.
    pub const fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Updates router 0 and waits until the workers have adopted its table.
    ///
    /// # Errors
    /// [`BenchError::NoRoutes`] after 30 s.
    pub fn load_routes(&mut self, update: &Update) -> Result<(), BenchError> {
        self.load_routes_of(RouterId(0), update)
    }

    /// As [`Rig::load_routes`], for any router.
    ///
    /// # Errors
    /// As for [`Rig::load_routes`].
    pub fn load_routes_of(&mut self, id: RouterId, update: &Update) -> Result<(), BenchError> {
        self.engine.update_router(id, update.clone())?;
        let is_adopted = |router: &RouterView| router.id == id && router.routes.0 == update.routes.len();
        let start = Instant::now();
        while start.elapsed() < ADOPTION_TIMEOUT {
            if self.engine.routers().iter().any(is_adopted) {
                return Ok(());
            }
            self.run(MANAGER_INTERVAL)?;
        }
        Err(BenchError::NoRoutes { routes: update.routes.len(), seconds: ADOPTION_TIMEOUT.as_secs_f64() })
    }

    /// Waits until so many connections are there, and have had an answer, if `are_answered`.
    ///
    /// # Errors
    /// [`BenchError::NoConnections`] after two minutes.
    pub fn await_connections(&mut self, count: u64, are_answered: bool) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let counts = self.engine.connection_counts();
            let unanswered = if are_answered { counts.unanswered } else { 0 };
            let connections = counts.connections.saturating_sub(unanswered);
            if connections >= count {
                return Ok(());
            }
            if start.elapsed() > CONNECTIONS_TIMEOUT {
                let seconds = CONNECTIONS_TIMEOUT.as_secs_f64();
                return Err(BenchError::NoConnections { connections, count, seconds });
            }
            self.run(MANAGER_INTERVAL)?;
        }
    }

    /// The process of an NF.
    pub fn pid(&self, index: usize) -> u32 {
        self.nfs[index].pid()
    }

    /// Removes an NF from the rig.
    pub fn remove(&mut self, index: usize) -> NfProcess {
        self.nfs.remove(index)
    }

    /// Runs the engine's manager for `time`.
    ///
    /// # Errors
    /// An NF ends.
    pub fn run(&mut self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        loop {
            self.engine.service();
            for nf in &mut self.nfs {
                let ended = nf.child.try_wait().map_err(BenchError::system("cannot wait for an NF"))?;
                if let Some(status) = ended {
                    return Err(BenchError::NfEnded { role: nf.role.clone(), status: status.to_string() });
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(MANAGER_INTERVAL));
        }
    }

    /// All current counters.
    pub fn sample(&self) -> Sample {
        Sample::take(&self.engine, &self.nfs)
    }

    /// Warms up, then measures until the worker had enough CPU time ([`Plan::is_over`]). Does not check the counters.
    ///
    /// # Errors
    /// An NF ends.
    pub fn watch(&mut self, plan: &Plan) -> Result<Window, BenchError> {
        self.run(plan.warm_up)?;
        let (start, began) = (self.sample(), Instant::now());
        loop {
            self.run(plan.window)?;
            let window = Window::between(start.clone(), self.sample());
            if plan.is_over(began.elapsed(), window.worker_cpu_time()) {
                return Ok(window);
            }
        }
    }

    /// Warms up, then measures for `window`.
    ///
    /// # Errors
    /// An NF ends, or a counter shows an event that no correct NF causes.
    pub fn measure(&mut self, what: &str, warm_up: Duration, window: Duration) -> Result<Window, BenchError> {
        self.run(warm_up)?;
        let start = self.sample();
        self.run(window)?;
        let window = Window::between(start, self.sample());
        window.check_sound(what)?;
        window.warn_if_disturbed(what);
        Ok(window)
    }
}

impl Drop for Rig {
    /// Ends the NFs before the engine. An engine that ends while NFs have packets never frees their pool, and a
    /// benchmark starts hundreds of engines.
    fn drop(&mut self) {
        for nf in &mut self.nfs {
            let _ = nf.kill();
            self.engine.departed(nf.instance);
        }
        let (mut left, start) = (self.nfs.len(), Instant::now());
        while left > 0 && start.elapsed() < RECLAIM_TIMEOUT {
            self.engine.service();
            let is_reclaimed = |notice: &Notice| matches!(notice, Notice::Reclaimed { .. });
            left = left.saturating_sub(self.engine.notices().filter(is_reclaimed).count());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn launch(engine: &mut Engine, spec: &NfSpec) -> Result<NfProcess, BenchError> {
    let mut command = Command::new(crate::machine::own_program()?);
    command.args(spec.arguments());
    attach(engine, &spec.role, command)
}

fn attach(engine: &mut Engine, role: &str, command: Command) -> Result<NfProcess, BenchError> {
    let role = role.to_owned();
    let attach = |source: AttachError| BenchError::Attach { role: role.clone(), source };
    let (mut child, socket) =
        spawn(command).map_err(BenchError::system(format!("cannot start NF {role}")))?;
    let mut handshake = || {
        let (hello, _) = netvm_attach::receive::<Hello>(&socket).map_err(attach)?;
        let instance = engine.admit(&hello, false)?;
        if let Some(fds) = engine.descriptors(instance) {
            netvm_attach::welcome(socket.as_fd(), &fds).map_err(attach)?;
        }
        netvm_attach::receive::<Ready>(&socket).map_err(attach)?;
        engine.activate(instance);
        Ok(instance)
    };
    match handshake() {
        Ok(instance) => Ok(NfProcess { child, instance, role, _socket: Some(socket) }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Starts a process that inherits one end of a new socket pair.
fn spawn(mut command: Command) -> io::Result<(Child, OwnedFd)> {
    let (socket, nf_end) = netvm_attach::pair()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    // No other child may start before this process closes its copy.
    rustix::io::fcntl_setfd(&nf_end, FdFlags::empty())?;
    command.env(FD_VARIABLE, nf_end.as_raw_fd().to_string());
    Ok((command.spawn()?, socket))
}
