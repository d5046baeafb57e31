//! `vm console`: this terminal becomes the guest's.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;

use netvm_api::VmInfo;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// ^], which leaves, as telnet and virsh have it.
const LEAVE: u8 = 0x1d;

/// Why there is no console.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Its socket.
    #[error("the console of vm {vm} at {}: {source} (it is there while the VM runs: see `netvm vm list`)", path.display())]
    Connect {
        /// The VM.
        vm: String,
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The terminal, or the socket once it was connected.
    #[error("the console: {0}")]
    Stream(#[from] io::Error),
}

/// Attaches standard input and output to a guest's serial console, until ^] is read, the input ends or the guest does.
pub async fn attach(vm: &VmInfo) -> Result<(), ConsoleError> {
    let fail = |source| ConsoleError::Connect { vm: vm.name.clone(), path: vm.console.clone(), source };
    let stream = UnixStream::connect(&vm.console).await.map_err(fail)?;
    let raw = Raw::enter()?;
    if raw.is_some() {
        eprint!("console of vm {}; ^] leaves\r\n", vm.name);
    }
    let outcome = carry(stream).await;
    drop(raw);
    outcome
}

async fn carry(stream: UnixStream) -> Result<(), ConsoleError> {
    let (mut from_guest, mut to_guest) = stream.into_split();
    let mut keys = keys();
    let (mut output, mut takes_keys) = ([0; 4096], true);
    loop {
        tokio::select! {
            read = from_guest.read(&mut output) => match read? {
                0 => return Ok(()),
                read => {
                    let mut stdout = io::stdout().lock();
                    io::Write::write_all(&mut stdout, &output[..read])?;
                    io::Write::flush(&mut stdout)?;
                }
            },
            typed = keys.recv(), if takes_keys => match typed {
                Some(typed) => {
                    let leaves = typed.iter().position(|key| *key == LEAVE);
                    to_guest.write_all(&typed[..leaves.unwrap_or(typed.len())]).await?;
                    if leaves.is_some() {
                        return Ok(());
                    }
                }
                // The end of a file that was typed: the guest may still answer.
                None => takes_keys = false,
            },
        }
    }
}

/// What is typed, from a thread of its own: a blocked read of a terminal cannot be given up.
fn keys() -> tokio::sync::mpsc::Receiver<Vec<u8>> {
    let (typed, keys) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(read @ 1..) = io::Read::read(&mut io::stdin(), &mut bytes) {
            if typed.blocking_send(bytes[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    keys
}

/// A terminal that hands on every key; as it was again when this is dropped.
struct Raw(Termios);

impl Raw {
    /// `None` when standard input is no terminal.
    fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(stdin.as_fd())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}
