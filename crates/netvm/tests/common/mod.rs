// SPDX-License-Identifier: Apache-2.0
//! Runs netvm, and a server with canned answers.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use axum::Router;
use tempfile::TempDir;

/// The result of a run.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Standard output; panics unless the run succeeded.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Standard error; panics unless the run failed with this status.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self.err
    }
}

/// The program, without the environment of the tests.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    command.env_remove("NETVM_API").env_remove("NETVM_HOST").stdin(Stdio::null());
    command
}

/// Runs the program with arguments.
pub fn netvm(arguments: &[&str]) -> Run {
    Run::new(program().args(arguments).output().unwrap())
}

/// Runs a prepared command.
pub fn run(command: &mut Command) -> Run {
    Run::new(command.output().unwrap())
}

/// A new temporary folder.
pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a file into it and returns the path.
pub fn file(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A server on a Unix socket, on a thread that runs until the tests end.
pub struct Server {
    folder: PathBuf,
    _temporary: Option<TempDir>,
}

impl Server {
    pub fn start(router: Router) -> Self {
        let temporary = folder();
        let server = Self::start_in(temporary.path().to_owned(), router);
        Self { _temporary: Some(temporary), ..server }
    }

    pub fn start_in(folder: PathBuf, router: Router) -> Self {
        let listener = std::os::unix::net::UnixListener::bind(folder.join("api.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                axum::serve(listener, router).await.unwrap();
            });
        });
        Self { folder, _temporary: None }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("api.sock")
    }

    /// Runs the program against this server.
    pub fn netvm(&self, arguments: &[&str]) -> Run {
        run(program().arg("--socket").arg(self.socket()).args(arguments))
    }
}

/// Writes an executable shell script.
pub fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
