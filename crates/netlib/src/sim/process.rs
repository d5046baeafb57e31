// SPDX-License-Identifier: Apache-2.0
//! The simulator for an NF's program. In: a program to start, and packets. Out: its verdicts, counters and exit status.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netvm_attach::{Answer, AttachError, FD_VARIABLE, Hello, Ready};
use netvm_ids::PortId;
use netvm_region::{LAYOUT_VERSION, MAX_THREADS};
use netvm_ring::{Descriptor, Producer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::host::{Host, Returned, socket_error};
use super::{MAX_PACKET, Outcome};
use crate::attach::Error;
use crate::endpoint::BURST;

/// Limit for the program to attach, to return a burst, or to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a program failed as an NF.
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
        /// The kernel's error.
        source: io::Error,
    },
    /// The program did not attach: it ended early, took longer than ten seconds, or uses another protocol.
    #[error("{program} did not attach: {source}")]
    NotAttached {
        /// The program.
        program: String,
        /// The error of the handshake.
        source: AttachError,
    },
    /// The program requested what no engine grants.
    #[error("{program} requested {what}")]
    Refused {
        /// The program.
        program: String,
        /// The request.
        what: String,
    },
    /// The program ended while it owned packets.
    #[error("the NF ended ({status}) and did not return {missing} packets")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// Packets that it did not return.
        missing: usize,
    },
    /// The program did not return packets within ten seconds.
    #[error("the NF did not return {missing} packets within ten seconds")]
    Silent {
        /// Packets that it did not return.
        missing: usize,
    },
    /// The program returned a descriptor that an engine would reject.
    #[error("the NF returned {0:?}, which it did not own or which exceeds its buffer")]
    Corrupt(Descriptor),
}

/// An NF in a separate process; this process has the engine's ends of its rings. Drop kills the NF.
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
    /// Stays open to show the NF that the engine is alive.
    _socket: OwnedFd,
}

impl Process {
    /// Starts the program and lets it attach. Ports and roles are numbered in the order of the lists.
    ///
    /// # Errors
    /// [`ProcessError`] says what failed in the program, or on this machine.
    pub fn spawn(mut command: Command, ports: &[&str], roles: &[&str]) -> Result<Self, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (socket, nf_end) = netvm_attach::pair().map_err(socket_error)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT)).map_err(socket_error)?;
        command.env(FD_VARIABLE, nf_end.as_raw_fd().to_string());
        // SAFETY: between fork and exec the closure makes one system call, on a descriptor that it owns, and does not
        // allocate.
        unsafe { command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&nf_end, FdFlags::empty())?)) };
        let spawned = command.spawn();
        // Closes this process's copy of the NF's end, so that the socket closes when the NF ends.
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

    /// The program's first message: name, role, threads, counters.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Gives chains names, numbered in the order of the list; the NF learns them before the next packet.
    pub fn name_chains(&mut self, chains: &[&str]) {
        self.host.name_chains(chains);
    }

    /// The program's process id, for signals.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The NF's own counter `name`, summed over its threads; `None` if the NF did not announce it. NFs publish their
    /// counters before they sleep, ten times a second, and when they end.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let index = self.hello.counters.iter().position(|counter| counter == name)?;
        let of = |thread| self.host.control.thread(thread).own.get(index).map(|c| c.load(Ordering::Relaxed));
        (0..self.hello.threads).map(of).sum()
    }

    /// Sends one packet with ingress port `ingress` to the NF, and returns the outcome.
    ///
    /// # Errors
    /// As for [`Process::inject_all`].
    ///
    /// # Panics
    /// If the packet is longer than [`MAX_PACKET`].
    pub fn inject(&mut self, ingress: PortId, frame: &[u8]) -> Result<Outcome, ProcessError> {
        self.inject_all(&[(ingress, frame)])?.pop().ok_or(ProcessError::Silent { missing: 1 })
    }

    /// Sends packets to the NF's threads in turn, and returns the outcomes in the order of the packets.
    ///
    /// # Errors
    /// [`ProcessError::Ended`], [`ProcessError::Silent`] or [`ProcessError::Corrupt`]; the process is unusable
    /// afterwards.
    ///
    /// # Panics
    /// If a packet is longer than [`MAX_PACKET`].
    pub fn inject_all(&mut self, frames: &[(PortId, &[u8])]) -> Result<Vec<Outcome>, ProcessError> {
        debug_assert!(frames.iter().all(|(_, frame)| frame.len() <= MAX_PACKET));
        let mut outcomes = Vec::with_capacity(frames.len());
        for burst in frames.chunks(BURST) {
            let mut descriptors = Vec::with_capacity(burst.len());
            for (port, frame) in burst {
                let Some(descriptor) = self.host.write_frame(*port, frame) else {
                    return Err(ProcessError::Silent { missing: burst.len() });
                };
                descriptors.push(descriptor);
            }
            let threads = self.host.rings.len();
            for (thread, (to, _)) in self.host.rings.iter_mut().enumerate() {
                let share: Vec<_> = descriptors.iter().skip(thread).step_by(threads).copied().collect();
                // There is room: the ring is empty now, and larger than a burst.
                to.push(&share);
            }
            self.wake(Producer::needs_wakeup);
            let buffers: Vec<_> = descriptors.iter().map(|descriptor| descriptor.buffer()).collect();
            outcomes.extend(self.collect(&buffers)?);
        }
        Ok(outcomes)
    }

    fn wake(&self, needs_wakeup: impl Fn(&Producer) -> bool) {
        for ((producer, _), nf_thread) in self.host.rings.iter().zip(self.host.nf_threads.iter().skip(1)) {
            if needs_wakeup(producer) {
                // A full count is harmless, since the eventfd is readable.
                let _ = rustix::io::write(nf_thread, &1u64.to_ne_bytes());
            }
        }
    }

    /// Waits for the verdicts on the packets in these buffers. Returns the outcomes in their order, without those of
    /// packets that the NF holds, and then other packets that the NF has sent meanwhile.
    fn collect(&mut self, buffers: &[u32]) -> Result<Vec<Outcome>, ProcessError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; buffers.len()];
        let mut missing = buffers.len();
        let mut others = Vec::new();
        loop {
            let mut returned = [Descriptor::default(); BURST];
            for n in 0..self.host.rings.len() {
                let taken = self.host.rings[n].1.pop(&mut returned);
                for descriptor in &returned[..taken] {
                    let place = buffers.iter().position(|buffer| *buffer == descriptor.buffer());
                    match self.host.take_back(n, *descriptor) {
                        Returned::Packet(outcome) => match place {
                            Some(place) if outcomes[place].is_none() => {
                                outcomes[place] = Some(outcome);
                                missing -= 1;
                            }
                            _ => others.push(outcome),
                        },
                        Returned::Held => missing -= 1,
                        Returned::Withdrawal | Returned::Message => {}
                        Returned::Corrupt => return Err(ProcessError::Corrupt(*descriptor)),
                    }
                }
            }
            if missing == 0 {
                return Ok(outcomes.into_iter().flatten().chain(others).collect());
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
            let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let mut fds = [PollFd::new(&self.host.worker, PollFlags::IN)];
            // An error (a signal) ends the sleep early, which is harmless.
            let _ = poll(&mut fds, Some(&timeout));
            // Resets the count; the descriptor does not block.
            let _ = rustix::io::read(&self.host.worker, &mut [0; 8]);
        }
        for (_, from) in &mut self.host.rings {
            from.end_wait();
        }
    }

    /// Asks the NF to stop, and kills it if it does not end within ten seconds. Its counters stay readable.
    ///
    /// # Errors
    /// The kernel's error, if the process cannot be waited for.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        self.host.control.request_stop();
        self.wake(|_| true);
        let deadline = Instant::now() + TIMEOUT;
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

/// Kills the process and reaps it. Ignores a process that is gone already.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// netvmd's side of the handshake.
fn admit(
    socket: &OwnedFd,
    ports: &[&str],
    roles: &[&str],
    program: String,
) -> Result<(Host, Hello), ProcessError> {
    let not_attached = |source| ProcessError::NotAttached { program: program.clone(), source };
    let (hello, _) = netvm_attach::receive::<Hello>(socket).map_err(not_attached)?;
    // As an engine of this version: one of an older layout has no empty buffers, and the simulator has only one layout.
    if hello.layout != LAYOUT_VERSION || !(1..=MAX_THREADS).contains(&usize::from(hello.threads)) {
        let what = format!("layout {} with {} threads", hello.layout, hello.threads);
        let reason = format!("an NF must have layout {LAYOUT_VERSION} and 1 to {MAX_THREADS} threads");
        netvm_attach::send(socket, &Answer::Refused { reason }, &[]).map_err(not_attached)?;
        return Err(ProcessError::Refused { program, what });
    }
    let host = Host::new(ports, roles, hello.threads)?;
    netvm_attach::welcome(socket.as_fd(), &host.fds()).map_err(not_attached)?;
    netvm_attach::receive::<Ready>(socket).map_err(not_attached)?;
    Ok((host, hello))
}
