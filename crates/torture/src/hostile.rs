// SPDX-License-Identifier: Apache-2.0
//! NFs that misbehave: processes of this program.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use netlib::{NetworkFunction, Options, Packet, Verdict};
use netvm_attach::{Fds, Hello, Ready};
use rustix::fs::FallocateFlags;

/// How long an attack takes.
const ATTACK: Duration = Duration::from_millis(700);

/// How an NF misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Writes numbers into all memory that it shares.
    Scribble,
    /// Removes pages of it.
    Punch,
    /// Is admitted, and does nothing.
    Idle,
    /// Dies with packets.
    Crash,
    /// Takes memory and tasks until it is stopped.
    Glutton,
}

pub fn run(mode: Mode) -> ExitCode {
    let done = match mode {
        Mode::Scribble => attack(|fds, random| {
            let bytes: [u8; 64] = std::array::from_fn(|_| random.u8(..));
            let (fd, at) = place(fds, random);
            let _ = rustix::io::pwrite(fd, &bytes[..random.usize(1..64)], at);
        }),
        Mode::Punch => attack(|fds, random| {
            let (fd, at) = place(fds, random);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(fd, flags, at & !0xfff, random.u64(1..64) << 12);
        }),
        Mode::Idle => attack(|_, _| std::thread::sleep(Duration::from_millis(50))),
        Mode::Crash => netlib::run(&Options::new("hostile"), |_| Crash(0)).map_err(|error| error.to_string()),
        Mode::Glutton => gorge(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Attaches, and repeats an attack for a while.
fn attack(mut once: impl FnMut(&Fds<OwnedFd>, &mut fastrand::Rng)) -> Result<(), String> {
    let path = std::env::var(netvm_attach::PATH_VARIABLE).map_err(|error| error.to_string())?;
    let socket = netvm_attach::connect(path.as_ref()).map_err(|error| error.to_string())?;
    let hello = Hello {
        layout: netvm_region::LAYOUT_VERSION,
        role: "hostile".to_owned(),
        name: "hostile".to_owned(),
        threads: 1,
        counters: Vec::new(),
        offloads: false,
    };
    let fds = netvm_attach::handshake(&socket, &hello).map_err(|error| error.to_string())?;
    netvm_attach::send(&socket, &Ready { pid: std::process::id() }, &[])
        .map_err(|error| error.to_string())?;
    let mut random = fastrand::Rng::new();
    let start = Instant::now();
    while start.elapsed() < ATTACK {
        once(&fds, &mut random);
    }
    Ok(())
}

/// A random place in shared memory.
fn place<'a>(fds: &'a Fds<OwnedFd>, random: &mut fastrand::Rng) -> (impl AsFd + 'a, u64) {
    let all: Vec<&OwnedFd> = fds.regions.iter().chain([&fds.control]).collect();
    let fd = all[random.usize(..all.len())];
    let length = rustix::fs::fstat(fd).map_or(1, |there| there.st_size.cast_unsigned().max(1));
    (fd, random.u64(..length))
}

/// Dies with packets in its hands.
struct Crash(u32);

impl NetworkFunction for Crash {
    fn packet(&mut self, _: &mut Packet<'_>) -> Verdict {
        self.0 += 1;
        if self.0 == 1000 {
            std::process::abort();
        }
        Verdict::Next
    }
}

fn gorge() -> Result<(), String> {
    let sleep = || std::thread::sleep(Duration::from_secs(60));
    while std::thread::Builder::new().stack_size(64 << 10).spawn(sleep).is_ok() {}
    let memory = vec![1u8; 256 << 20];
    std::hint::black_box(&memory);
    Ok(())
}
