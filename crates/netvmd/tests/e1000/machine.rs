// SPDX-License-Identifier: Apache-2.0
//! A guest with cards of ports of kind `e1000`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::common::Daemon;
use super::common::guest::Shell;

/// How the guest boots.
#[derive(Clone, Copy)]
pub enum Boot<'a> {
    /// The image's kernel.
    Kernel,
    /// iPXE, which boots from the network with its own driver of the card.
    Firmware(&'a Path),
}

/// A guest; killed with SIGKILL on drop.
pub struct Guest {
    child: Child,
    console: PathBuf,
}

impl Guest {
    pub fn start(qemu: &Path, image: &Path, cards: &[PathBuf], boot: Boot<'_>) -> Self {
        let console = image.join("console.sock");
        let _ = std::fs::remove_file(&console);
        let mut command = Command::new(qemu);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-cpu", "max", "-m", "256"]);
        command.args(["-machine", "q35,accel=tcg,memory-backend=ram", "-smp", "1,maxcpus=2"]);
        command.args(["-object", "memory-backend-memfd,id=ram,size=256M,share=on"]);
        for card in cards {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": card },
                "rombar": 0,
            });
            command.args(["-device", &device.to_string()]);
        }
        command.arg("-serial").arg(format!("unix:{},server=on,wait=off", console.display()));
        match boot {
            Boot::Kernel => {
                command.arg("-kernel").arg(image.join("kernel")).arg("-initrd").arg(image.join("initrd"));
                command.args(["-append", COMMAND_LINE]);
            }
            Boot::Firmware(program) => {
                command.arg("-kernel").arg(program);
            }
        }
        Self { child: command.stdin(Stdio::null()).spawn().unwrap(), console }
    }

    /// Waits until it has booted.
    pub fn shell(&mut self, daemon: &Daemon) -> Shell {
        daemon.until_slowly("QEMU listens for its console", |_| {
            assert!(self.child.try_wait().unwrap().is_none(), "QEMU ended");
            std::os::unix::net::UnixStream::connect(&self.console).is_ok()
        });
        let mut shell = Shell::attach(&self.console);
        shell.address(2);
        shell
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parameters of the image's kernel.
pub const COMMAND_LINE: &str = "console=ttyS0 no_timer_check quiet panic=-1";
