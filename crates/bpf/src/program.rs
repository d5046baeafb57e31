// SPDX-License-Identifier: Apache-2.0
//! Programs.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::c_int;

use crate::assembler::AssemblyError;
use crate::instruction::Instruction;
use crate::sys::{NAME, bpf_fd};

const PROG_LOAD: c_int = 5;
/// Attempts to load a program, as in libbpf: the kernel's verifier gives up with `EAGAIN` when a signal is pending.
const ATTEMPTS: u32 = 5;
/// What the verifier says of a program that it refuses.
const LOG_BYTES: usize = 64 << 10;
const LOG_LINES: usize = 4;

/// Kinds of programs, of `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Says a number for a packet: its context is a `struct __sk_buff`.
    SocketFilter = 1,
    /// A classifier with actions: its context is a `struct __sk_buff`.
    Tc = 3,
    /// Runs on what a driver receives: its context is a `struct xdp_md`.
    Xdp = 6,
}

impl ProgramKind {
    /// Of `enum bpf_attach_type`, which the kernel compares for XDP.
    const fn expected(self) -> u32 {
        match self {
            Self::SocketFilter | Self::Tc => 0,
            Self::Xdp => 37,
        }
    }
}

/// The kernel refuses a program.
#[derive(Debug)]
pub struct LoadError {
    /// Its error.
    pub source: io::Error,
    /// The last lines of its verifier; empty if that has said nothing.
    pub log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.log[..] {
            "" => self.source.fmt(f),
            log => write!(f, "{}; the kernel's verifier says: {log}", self.source),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<AssemblyError> for LoadError {
    fn from(error: AssemblyError) -> Self {
        Self { source: error.into(), log: String::new() }
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program. Its maps may be closed afterwards.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(kind: ProgramKind, instructions: &[Instruction]) -> Result<Self, LoadError> {
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match load(kind, instructions, &mut []) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && left > 0 => {}
                Err(source) => return Err(LoadError { log: log(kind, instructions), source }),
                Ok(program) => return Ok(Self(program)),
            }
        }
    }
}

/// The last lines that the verifier says when it is asked to.
fn log(kind: ProgramKind, instructions: &[Instruction]) -> String {
    let mut log = vec![0; LOG_BYTES];
    let _ = load(kind, instructions, &mut log);
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.trim_end_matches('\0').trim_end().lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("; ")
}

fn load(kind: ProgramKind, instructions: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let license = c"Apache-2.0";
    let attributes = Attributes {
        prog_type: kind as u32,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr().addr() as u64 },
        kern_version: 0,
        prog_flags: 0,
        name: NAME,
        prog_ifindex: 0,
        expected_attach_type: kind.expected(),
    };
    // SAFETY: the attributes of BPF_PROG_LOAD without padding; instructions, license and log outlive the call, their
    // lengths are right, the license ends in zero; the command returns a descriptor.
    unsafe { bpf_fd(PROG_LOAD, &attributes) }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
