//! A user whom the socket does not let in. Alone in its program: a file that is being written cannot be run while another
//! thread starts a process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Server, folder, run};

#[test]
fn who_may_not_use_the_socket_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: needs root, to become another user");
        return;
    }
    let server = Server::start(axum::Router::new());
    // nobody must be able to come as far as the program and the socket.
    let folder = folder();
    let copy = folder.path().join("netvm");
    std::fs::copy(env!("CARGO_BIN_EXE_netvm"), &copy).unwrap();
    for path in [folder.path(), server.socket().parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(server.socket(), std::fs::Permissions::from_mode(0o660)).unwrap();
    let mut command = Command::new(copy);
    let error =
        run(command.uid(65_534).gid(65_534).arg("--socket").arg(server.socket()).arg("status")).failed(1);
    assert!(error.contains("this user may not use") && error.contains("Run as root"), "{error}");
}
