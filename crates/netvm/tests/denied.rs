// SPDX-License-Identifier: Apache-2.0
//! A user without permission for the socket. In a test binary of its own, because a file open for writing cannot be
//! executed (ETXTBSY), and other threads that fork inherit the open file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Server, folder, run};

#[test]
fn a_user_without_permission_gets_a_remedy() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: needs root, to become another user");
        return;
    }
    let server = Server::start(axum::Router::new());
    // The user `nobody` must be able to reach the program and the socket.
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
    assert!(error.contains("cannot use ") && error.contains("run as root"), "{error}");
}
