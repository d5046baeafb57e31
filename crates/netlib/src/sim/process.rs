//! The simulator for an NF's program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netvm_attach::{Answer, AttachError, FD_VARIABLE, Hello, Ready};
use netvm_region::{LAYOUT_VERSION, MAX_THREADS};
use netvm_ring::{Descriptor, Producer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::host::{Host, socket_error};
use super::{MAX_PACKET, Outcome};
use crate::attach::Error;
use crate::endpoint::BURST;
use crate::packet::PortId;

/// How long the program may take to attach, to give its verdicts on a burst, or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a program could not be tried as an NF.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Shared memory or a socket cannot be created.
    #[error(transparent)]
    Host(#[from] Error),
    /// The program could not be started.
    #[error("{program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program did not attach: it ended before, took longer than ten seconds, or speaks another protocol.
    #[error("{program} did not attach: {source}")]
    NotAttached {
        /// The program.
        program: String,
        /// What it said instead.
        source: AttachError,
    },
    /// The program wants what no engine grants.
    #[error("{program} asks for {what}")]
    Refused {
        /// The program.
        program: String,
        /// What it asked for.
        what: String,
    },
    /// The program ended while packets were with it.
    #[error("the NF ended ({status}) with {missing} packets in hand")]
    Ended {
        /// How.
        status: ExitStatus,
        /// Packets that it had.
        missing: usize,
    },
    /// No verdict came for ten seconds.
    #[error("the NF kept {missing} packets for ten seconds")]
    Silent {
        /// Packets that it had.
        missing: usize,
    },
    /// A descriptor came back that an engine would not follow.
    #[error("the NF returned {0:?}, which it did not hold or which lies outside of its buffer")]
    Corrupt(Descriptor),
}

/// An NF in a process of its own, with the engine's end of its rings here. Killed when dropped.
///
/// ```no_run
/// use netlib::PortId;
/// use netlib::sim::Process;
///
/// let mut nf = Process::spawn(std::process::Command::new("./my-nf"), &["lan", "wan"], &[])?;
/// let outcome = nf.inject(PortId(0), &[0; 60])?;
/// println!("{:?}", outcome.verdict);
/// # Ok::<(), netlib::sim::ProcessError>(())
/// ```
#[derive(Debug)]
pub struct Process {
    host: Host,
    child: Child,
    hello: Hello,
    /// Its other end shows the NF that the engine is alive.
    _socket: OwnedFd,
}

impl Process {
    /// Starts the program, and lets it attach; ports and roles have the numbers of their places in the lists.
    ///
    /// # Errors
    /// [`ProcessError`] says what was wrong with the program, or with this machine.
    pub fn spawn(mut command: Command, ports: &[&str], roles: &[&str]) -> Result<Self, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (socket, theirs) = netvm_attach::pair().map_err(socket_error)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(socket_error)?;
        command.env(FD_VARIABLE, theirs.as_raw_fd().to_string());
        // SAFETY: between fork and exec the closure makes one system call, on a descriptor that it owns, and allocates
        // nothing.
        unsafe { command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?)) };
        let spawned = command.spawn();
        // Closes this process's copy of the NF's end, so that the NF's death is seen.
        drop(command);
        let mut child = spawned.map_err(|source| ProcessError::Spawn { program: program.clone(), source })?;
        match admit(&socket, ports, roles, program) {
            Ok((host, hello)) => Ok(Self { host, child, hello, _socket: socket }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// How the program introduced itself: name, role, threads, counters.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The program's process number, for signals.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The NF's own counter `name`, summed over its threads; `None` if it did not announce it. NFs publish their counters before they sleep, ten times a
    /// second, and when they end.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let index = self.hello.counters.iter().position(|counter| counter == name)?;
        let of = |thread| self.host.control.thread(thread).own.get(index).map(|c| c.load(Ordering::Relaxed));
        (0..self.hello.threads).map(of).sum()
    }

    /// Lets the NF see one packet that came in by `ingress`, and returns what it made of it.
    ///
    /// # Errors
    /// As for [`Process::inject_all`].
    ///
    /// # Panics
    /// When the packet is longer than [`MAX_PACKET`].
    pub fn inject(&mut self, ingress: PortId, frame: &[u8]) -> Result<Outcome, ProcessError> {
        self.inject_all(&[(ingress, frame)])?.pop().ok_or(ProcessError::Silent { missing: 1 })
    }

    /// Lets the NF see packets, spread over its threads in turn, and returns what it made of each, in their order.
    ///
    /// # Errors
    /// [`ProcessError::Ended`], [`ProcessError::Silent`] or [`ProcessError::Corrupt`]; after one of these the process
    /// is of no further use.
    ///
    /// # Panics
    /// When a packet is longer than [`MAX_PACKET`].
    pub fn inject_all(&mut self, frames: &[(PortId, &[u8])]) -> Result<Vec<Outcome>, ProcessError> {
        debug_assert!(frames.iter().all(|(_, frame)| frame.len() <= MAX_PACKET));
        let mut outcomes = Vec::with_capacity(frames.len());
        for burst in frames.chunks(BURST) {
            let placed =
                burst.iter().zip(0..).map(|((port, frame), buffer)| self.host.place(buffer, *port, frame));
            let placed: Vec<_> = placed.collect();
            let threads = self.host.rings.len();
            for (thread, (to, _)) in self.host.rings.iter_mut().enumerate() {
                let share: Vec<_> = placed.iter().skip(thread).step_by(threads).copied().collect();
                // There is room: the ring is larger than a burst, and empty now.
                to.push(&share);
            }
            self.wake(Producer::needs_wakeup);
            outcomes.extend(self.collect(burst.len())?);
        }
        Ok(outcomes)
    }

    fn wake(&self, which: impl Fn(&Producer) -> bool) {
        for ((producer, _), nf_thread) in self.host.rings.iter().zip(self.host.nf_threads.iter().skip(1)) {
            if which(producer) {
                // A count that is full wakes as well.
                let _ = rustix::io::write(nf_thread, &1u64.to_ne_bytes());
            }
        }
    }

    /// Waits for the verdicts on buffers 0 to `count`.
    fn collect(&mut self, count: usize) -> Result<Vec<Outcome>, ProcessError> {
        let deadline = Instant::now() + PATIENCE;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; count];
        let mut missing = count;
        loop {
            let mut returned = [Descriptor::default(); BURST];
            for n in 0..self.host.rings.len() {
                let taken = self.host.rings[n].1.pop(&mut returned);
                for descriptor in &returned[..taken] {
                    if *descriptor == Descriptor::withdrawal(0) {
                        continue;
                    }
                    let outcome = self.host.outcome(*descriptor);
                    match outcomes.get_mut(descriptor.buffer() as usize) {
                        Some(slot @ None) if outcome.is_some() => *slot = outcome,
                        _ => return Err(ProcessError::Corrupt(*descriptor)),
                    }
                    missing -= 1;
                }
            }
            if missing == 0 {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(ProcessError::Ended { status, missing });
            }
            if Instant::now() > deadline {
                return Err(ProcessError::Silent { missing });
            }
            self.sleep();
        }
    }

    /// Sleeps until the NF sends something, or for a moment.
    fn sleep(&mut self) {
        let all_empty =
            self.host.rings.iter_mut().fold(true, |empty, (_, from)| from.prepare_wait() && empty);
        if all_empty {
            let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let mut fds = [PollFd::new(&self.host.worker, PollFlags::IN)];
            // An error (a signal) ends the sleep early, which is always right.
            let _ = poll(&mut fds, Some(&moment));
            // Takes the count back to zero; the descriptor does not block.
            let _ = rustix::io::read(&self.host.worker, &mut [0; 8]);
        }
        for (_, from) in &mut self.host.rings {
            from.end_wait();
        }
    }

    /// Tells the NF to stop, and waits for its end; kills it when it does not within ten seconds. Counters can still be
    /// read afterwards.
    ///
    /// # Errors
    /// The kernel's, when the process cannot be waited for.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        self.host.control.request_stop();
        self.wake(|_| true);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Kills, and takes the exit status, so that nothing is left behind. A process that is gone already is no error.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// netvmd's side of the ready_message.
fn admit(
    socket: &OwnedFd,
    ports: &[&str],
    roles: &[&str],
    program: String,
) -> Result<(Host, Hello), ProcessError> {
    let not_attached = |source| ProcessError::NotAttached { program: program.clone(), source };
    let (hello, _) = netvm_attach::receive::<Hello>(socket).map_err(not_attached)?;
    if hello.layout != LAYOUT_VERSION || !(1..=MAX_THREADS).contains(&usize::from(hello.threads)) {
        let what = format!("layout {} with {} threads", hello.layout, hello.threads);
        let reason = format!("layout {LAYOUT_VERSION} with 1 to {MAX_THREADS} threads is possible");
        netvm_attach::send(socket, &Answer::Refused { reason }, &[]).map_err(not_attached)?;
        return Err(ProcessError::Refused { program, what });
    }
    let host = Host::new(ports, roles, hello.threads)?;
    netvm_attach::welcome(socket.as_fd(), &host.fds()).map_err(not_attached)?;
    netvm_attach::receive::<Ready>(socket).map_err(not_attached)?;
    Ok((host, hello))
}
