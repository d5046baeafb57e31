//! A running engine with NF processes: the bench plays netvmd's part.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use netvm_attach::{AttachError, FD_VARIABLE, Hello, Ready};
use netvm_config::model::Host;
use netvm_engine::{Engine, InstanceId, Notify, ReadyMessage};
use rustix::io::FdFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::BenchError;
use crate::guest::{BOOT, Guest};
use crate::harness::Plan;
use crate::nf::NfSpec;
use crate::window::{Sample, Window};

/// How long an NF may take to attach or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the manager is served.
const TICK: Duration = Duration::from_millis(5);

/// An NF process. Killed when dropped.
pub struct NfProcess {
    child: Child,
    /// The engine's number for it.
    pub instance: InstanceId,
    /// Its role.
    pub role: String,
    /// Its end tells the NF that the engine is gone; a VM has none, and is killed.
    _socket: Option<OwnedFd>,
}

impl NfProcess {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it at once, and waits until it is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn kill(&mut self) -> Result<(), BenchError> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(BenchError::system("killing an NF"))
            .map(drop)
    }
}

impl Drop for NfProcess {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An engine and its NFs.
pub struct Rig {
    // Before the NFs, so that they see it go; then they are killed.
    engine: Engine,
    nfs: Vec<NfProcess>,
}

impl Rig {
    /// Starts an engine that is `host`, and its NFs; all of them take packets when this returns.
    ///
    /// # Errors
    /// [`BenchError`] says which part did not start.
    pub fn start(host: &Host, nfs: &[NfSpec]) -> Result<Self, BenchError> {
        let mut engine = Engine::start(&host.engine, false)?;
        engine.apply(host)?;
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
    /// [`BenchError::Guest`] in its words.
    pub fn launch_guest(&mut self, role: &str, guest: &Guest) -> Result<(), BenchError> {
        let fail = |problem: String| BenchError::Guest { problem };
        let instance = self.engine.admit_guest(role, 1, false, Notify::Poll)?;
        let fds = self.engine.descriptors(instance).ok_or_else(|| fail("its group is gone".to_owned()))?;
        let child = guest.start(&fds)?;
        self.nfs.push(NfProcess { child, instance, role: role.to_owned(), _socket: None });
        let start = Instant::now();
        while start.elapsed() < BOOT {
            self.run(TICK)?;
            match self.engine.hear_guest(instance) {
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

    /// Takes an NF out of the rig.
    pub fn remove(&mut self, index: usize) -> NfProcess {
        self.nfs.remove(index)
    }

    /// Lets the engine run for a while, with everything a manager does.
    ///
    /// # Errors
    /// When an NF ends meanwhile.
    pub fn run(&mut self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        loop {
            self.engine.service();
            for nf in &mut self.nfs {
                let ended = nf.child.try_wait().map_err(BenchError::system("waiting for an NF"))?;
                if let Some(status) = ended {
                    return Err(BenchError::NfEnded { role: nf.role.clone(), status: status.to_string() });
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    /// All counters as of now.
    pub fn sample(&self) -> Sample {
        Sample::take(&self.engine, &self.nfs)
    }

    /// Warms up, then watches until the worker had its core for long enough ([`Plan::is_over`]); checks nothing.
    ///
    /// # Errors
    /// When an NF ends.
    pub fn watch(&mut self, plan: &Plan) -> Result<Window, BenchError> {
        self.run(plan.warm_up)?;
        let (start, began) = (self.sample(), Instant::now());
        loop {
            self.run(plan.window)?;
            let window = Window::between(start.clone(), self.sample());
            if plan.is_over(began.elapsed(), window.had_core()) {
                return Ok(window);
            }
        }
    }

    /// Warms up, then watches for `window`.
    ///
    /// # Errors
    /// When an NF ends, or anything was counted that no honest NF causes.
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

fn launch(engine: &mut Engine, spec: &NfSpec) -> Result<NfProcess, BenchError> {
    let starting = |source| BenchError::System { what: format!("starting NF {}", spec.role), source };
    let mut command = Command::new(std::env::current_exe().map_err(starting)?);
    command.args(spec.arguments());
    attach(engine, &spec.role, command)
}

fn attach(engine: &mut Engine, role: &str, command: Command) -> Result<NfProcess, BenchError> {
    let role = role.to_owned();
    let attach = |source: AttachError| BenchError::Attach { role: role.clone(), source };
    let (mut child, socket) = spawn(command).map_err(BenchError::system(format!("starting NF {role}")))?;
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

/// Starts the process, with one end of a new connection left open for it.
fn spawn(mut command: Command) -> io::Result<(Child, OwnedFd)> {
    let (socket, theirs) = netvm_attach::pair()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    // Nothing else is started until this process's copy is closed, so that no other child gets it.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    command.env(FD_VARIABLE, theirs.as_raw_fd().to_string());
    Ok((command.spawn()?, socket))
}
