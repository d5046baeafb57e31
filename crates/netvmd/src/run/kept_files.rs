//! The process that keeps the files of guests' e1000 cards for the next netvmd.

use std::io::stdin;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netvm_fd_store::{Store, serve};
use rustix::fs::Mode;
use rustix::io::Errno;

/// How long files are kept without a netvmd. QEMU waits 5 s for a register before it takes the card for dead, and systemd starts
/// netvmd again after 1 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// The store of a run directory: this program, with the command `keep-files`.
pub(super) fn store_in(run_dir: &Path) -> Store {
    let socket = run_dir.join("files.sock");
    // The same program even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("netvmd").arg("keep-files").arg(&socket);
    Store::new(socket, command)
}

/// What that process does.
///
/// # Errors
/// Standard input is no listening socket.
pub fn keep_files() -> Result<(), Errno> {
    serve(stdin(), PATIENCE)
}

/// From now on, only owner and group may write to files and connect to sockets that this process creates, unless netvmd permits
/// more, whatever the umask of the process that started netvmd.
pub fn protect_new_files() {
    let before = rustix::process::umask(Mode::WOTH);
    rustix::process::umask(before | Mode::WOTH);
}
