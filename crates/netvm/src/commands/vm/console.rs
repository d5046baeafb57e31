// SPDX-License-Identifier: Apache-2.0
//! `netvm vm console`: copies bytes between this terminal and the guest's serial console.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use netvm_api::VmInfo;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::error::ConsoleError;

/// ^], which detaches, as in telnet and virsh.
const DETACH: u8 = 0x1d;

/// Attaches standard input and output to a guest's serial console, until ^], the end of the input, or the end
/// of the guest.
pub async fn attach(vm: &VmInfo) -> Result<(), ConsoleError> {
    let fail = |source| ConsoleError::Connect { vm: vm.name.clone(), path: vm.console.clone(), source };
    let stream = UnixStream::connect(&vm.console).await.map_err(fail)?;
    let raw = RawMode::enter()?;
    if raw.is_some() {
        eprint!("attached to the console of VM {}; ^] detaches\r\n", vm.name);
    }
    let outcome = copy(stream).await;
    drop(raw);
    outcome
}

async fn copy(stream: UnixStream) -> Result<(), ConsoleError> {
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
                    let detach_at = typed.iter().position(|key| *key == DETACH);
                    to_guest.write_all(&typed[..detach_at.unwrap_or(typed.len())]).await?;
                    if detach_at.is_some() {
                        return Ok(());
                    }
                }
                // Standard input has ended; the guest may still send output.
                None => takes_keys = false,
            },
        }
    }
}

/// The keys typed, read by a separate thread because a blocking read of a terminal cannot be cancelled.
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

/// A terminal in raw mode; dropping this restores its mode.
struct RawMode(Termios);

impl RawMode {
    /// `None` if standard input is not a terminal.
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

impl Drop for RawMode {
    fn drop(&mut self) {
        // The terminal may be closed already.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}
