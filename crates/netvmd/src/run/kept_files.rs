//! The process that keeps the files of guests' e1000 cards for the next netvmd.

use std::io::stdin;
use std::path::Path;
use std::time::Duration;

use netvm_fd_store::{Store, serve};
use rustix::io::Errno;

/// How long files are kept without a netvmd. QEMU waits 5 s for a register before it takes the card for dead, and systemd starts
/// netvmd again after 1 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// The store of a run directory: this program, with the command `keep-files`.
pub(super) fn store_in(run_dir: &Path) -> Store {
    let socket = run_dir.join("files.sock");
    let arguments = vec!["keep-files".into(), socket.clone().into()];
    // The same program even if its file was replaced.
    Store::new(socket, "/proc/self/exe".into(), arguments)
}

/// What that process does.
///
/// # Errors
/// Standard input is no listening socket.
pub fn keep_files() -> Result<(), Errno> {
    serve(stdin(), PATIENCE)
}
