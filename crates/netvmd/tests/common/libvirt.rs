// SPDX-License-Identifier: Apache-2.0
//! A private libvirt: `libvirtd` as QEMU's user with all its files in a folder, and `virsh`.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use netvm_testing::within;

use super::guest::Shell;
use super::{Daemon, Folder};

/// QEMU's user if the test runs as root.
const NOBODY: u32 = 65534;
/// Limit for libvirtd to answer: it first probes every QEMU.
const TIMEOUT: Duration = Duration::from_secs(120);

pub struct Libvirt {
    home: PathBuf,
    daemon: Child,
}

impl Libvirt {
    /// Starts it; `None`, with the reason on standard output, if it is not installed.
    pub fn start(folder: &Folder) -> Option<Self> {
        Self::start_in(folder.0.join("libvirt"), command)
    }

    /// The same on another server, which has a name and an identity of its own.
    pub fn start_on(folder: &Folder, server: &str) -> Option<Self> {
        let home = folder.0.join(format!("libvirt-{server}"));
        Self::start_in(home, |home, program| {
            let as_user = "hostname $0 && user=$1 && shift && \
                           exec setpriv --reuid=$user --regid=$user --clear-groups \"$@\"";
            let mut command = Command::new("unshare");
            command.args(["--uts", "sh", "-c", as_user, server, &NOBODY.to_string(), program]);
            set_folders(&mut command, home);
            command
        })
    }

    fn start_in(home: PathBuf, daemon: impl FnOnce(&Path, &str) -> Command) -> Option<Self> {
        let missing = ["libvirtd", "virsh", "virt-xml-validate"].into_iter().find(|program| {
            let mut ask = Command::new(program);
            ask.arg("--help").env("PATH", search()).stdout(Stdio::null()).stderr(Stdio::null());
            ask.status().is_err()
        });
        if let Some(program) = missing {
            println!("SKIP: no {program} (docs/reference/testing.md says how to install libvirt)");
            return None;
        }
        let configuration = home.join("config/libvirt");
        std::fs::create_dir_all(&configuration).unwrap();
        // virtlogd, which would handle logs, does not run.
        std::fs::write(configuration.join("qemu.conf"), "stdio_handler = \"file\"\n").unwrap();
        // Without it, all libvirts of a machine are the same host.
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let host = format!("host_uuid = \"{}\"\n", uuid.trim());
        std::fs::write(configuration.join("libvirtd.conf"), host).unwrap();
        if rustix::process::geteuid().is_root() {
            for path in [&home, &home.join("config"), &configuration] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let log = std::fs::File::create(home.with_extension("log")).unwrap();
        // Ends without clients, such as after the test was killed.
        let mut libvirtd = daemon(&home, "libvirtd");
        libvirtd.args(["--timeout", "120"]).stdin(Stdio::null());
        libvirtd.stdout(log.try_clone().unwrap()).stderr(log);
        let libvirt = Self { daemon: libvirtd.spawn().unwrap(), home };
        let (mut answers, mut said) = (false, String::new());
        let has_said = within(TIMEOUT, || {
            let answer = libvirt.try_virsh(&["version"]);
            answers = answer.status.success();
            said = String::from_utf8_lossy(&answer.stderr).into_owned();
            answers || said.contains("no connection driver")
        });
        assert!(has_said, "libvirtd did not answer: {said}");
        if !answers {
            println!(
                "SKIP: libvirt has no driver for QEMU (docs/reference/testing.md says how to install it)"
            );
        }
        answers.then_some(libvirt)
    }

    fn try_virsh(&self, words: &[&str]) -> Output {
        command(&self.home, "virsh").args(["-q", "-c", "qemu:///session"]).args(words).output().unwrap()
    }

    /// Output of a virsh command that must succeed.
    pub fn virsh(&self, words: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.try_virsh(words);
        assert!(status.success(), "virsh {words:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }

    /// Its socket, by which other libvirts reach it on the same machine.
    pub fn socket(&self) -> PathBuf {
        self.home.join("run/libvirt/libvirt-sock")
    }

    /// Defines the domain that netvmd prints for this VM.
    pub fn define(&self, daemon: &Daemon, vm: &str) {
        let file = daemon.folder.0.join(format!("{vm}.xml"));
        std::fs::write(&file, daemon.manual_start(vm).libvirt_xml).unwrap();
        let file = file.to_str().unwrap();
        let valid = command(&self.home, "virt-xml-validate").args([file, "domain"]).output().unwrap();
        assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stderr));
        self.virsh(&["define", file]);
    }

    /// Waits until libvirt has noticed this VM's end.
    pub fn until_off(&self, daemon: &Daemon, vm: &str) {
        daemon.until_slowly("libvirt has noticed its end", |_| self.virsh(&["domstate", vm]) == "shut off");
    }

    /// The shell on the console of a running VM.
    pub fn shell(&self, vm: &str) -> Shell {
        Shell::on_terminal(self.virsh(&["ttyconsole", vm]).as_ref())
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // Domains that the test left running.
        let names = self.try_virsh(&["list", "--name"]).stdout;
        for name in String::from_utf8_lossy(&names).split_whitespace() {
            self.try_virsh(&["destroy", name]);
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// PATH with the folders of daemons.
fn search() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// A program of QEMU's user with its files in `home`.
fn command(home: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    set_folders(&mut command, home);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn set_folders(command: &mut Command, home: &Path) {
    command.env("PATH", search()).env("HOME", home).env("LC_ALL", "C").current_dir("/");
    for (variable, folder) in
        [("RUNTIME_DIR", "run"), ("CONFIG_HOME", "config"), ("CACHE_HOME", "cache"), ("DATA_HOME", "data")]
    {
        command.env(format!("XDG_{variable}"), home.join(folder));
    }
}
