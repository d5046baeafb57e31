// SPDX-License-Identifier: Apache-2.0
//! Starts VMs by the commands that netvmd prints, as a user would.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use netvm_api::{VmManualStart, path};

use super::Daemon;

/// A program of QEMU's user and its terminal; killed on drop.
pub struct UserProgram {
    pub child: Child,
}

impl UserProgram {
    pub fn start(program: &str, arguments: &[&str], home: &Path) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).env("HOME", home).stdin(Stdio::piped()).stdout(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        Self { child: command.spawn().unwrap() }
    }

    /// Runs the command printed for this VM.
    pub fn shell(daemon: &Daemon, vm: &str) -> Self {
        Self::start("sh", &["-c", &format!("exec {}", daemon.manual_start(vm).shell)], Path::new("/"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn type_in(&mut self, keys: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(keys).unwrap();
    }

    pub fn until_ended(&mut self, daemon: &Daemon) -> ExitStatus {
        let mut status = None;
        daemon.until_slowly("QEMU ends", |_| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for UserProgram {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    pub fn manual_start(&self, vm: &str) -> VmManualStart {
        self.get(&path::VM_MANUAL_START.replace("{vm}", vm))
    }
}
