// SPDX-License-Identifier: Apache-2.0
//! A QEMU of the test's own, and QMP.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::PAGE;
use crate::common::guest::Shell;
use crate::common::page::blocks;

/// Limit for anything that QEMU does.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How a guest's card is connected.
pub enum Net {
    /// To a port of netvmd, with further properties of the card.
    VhostUser { socket: PathBuf, card: &'static str },
    /// To a TAP device in a network namespace.
    Tap { namespace: String },
}

/// The QEMU of the page at the first and at the second server.
#[derive(Clone, Copy)]
pub enum End {
    First,
    Second,
}

/// A QEMU; killed when it is dropped.
pub struct Qemu {
    child: Child,
    folder: PathBuf,
    qmp: BufReader<UnixStream>,
}

fn connect(path: &Path) -> UnixStream {
    let mut stream = None;
    let connects = || stream.insert(UnixStream::connect(path)).is_ok();
    assert!(netvm_testing::within(TIMEOUT, connects), "{}: {stream:?}", path.display());
    stream.unwrap().unwrap()
}

impl Qemu {
    /// Starts one as the page says, for a guest of this image; its sockets are in a new folder there.
    pub fn start(image: &Path, name: &str, net: &Net, end: End) -> Self {
        let folder = image.join(name);
        std::fs::create_dir(&folder).unwrap();
        let at = |file: &str| folder.join(file).display().to_string();
        let adapted = |text: &str, pairs: &[(&str, String)]| {
            pairs.iter().fold(text.to_owned(), |text, (from, to)| {
                assert!(text.contains(from), "{from}: {text}");
                text.replace(from, to)
            })
        };
        let block = match end {
            End::First => &blocks(PAGE, "sh")[0],
            End::Second => &blocks(PAGE, "sh")[1],
        };
        let image = image.display();
        let mut line = adapted(
            block,
            &[
                ("accel=kvm:tcg", "accel=tcg".to_owned()),
                ("/run/guest-console.sock", at("serial.sock")),
                (
                    "-drive if=virtio,format=qcow2,file=/srv/guests/guest.qcow2",
                    format!(
                        "-kernel {image}/kernel -initrd {image}/initrd -append 'console=ttyS0 quiet panic=-1 \
                     no_timer_check' -qmp unix:{},server=on,wait=off",
                        at("qmp.sock")
                    ),
                ),
            ],
        );
        if matches!(end, End::Second) {
            line = adapted(&line, &[("tcp:0.0.0.0:4444", format!("unix:{}", at("incoming.sock")))]);
        }
        let card = match net {
            Net::VhostUser { socket, card } => {
                line = adapted(&line, &[("/run/netvm/guest.sock", socket.display().to_string())]);
                *card
            }
            Net::Tap { namespace } => {
                let tap = "-netdev tap,id=net0,ifname=tap0,script=no,downscript=no,vhost=off".to_owned();
                let vhost = "-chardev socket,id=net,path=/run/netvm/guest.sock,reconnect=1 \
                             -netdev vhost-user,id=net0,chardev=net";
                let program = format!("ip netns exec {namespace} qemu-system-x86_64");
                line = adapted(&line, &[(vhost, tap), ("qemu-system-x86_64", program)]);
                ""
            }
        };
        // QEMU 7.2 crashes with vectors under its translator.
        line = adapted(&line, &[("mac=02:00:00:00:00:02", format!("mac=02:00:00:00:00:02,vectors=0{card}"))]);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {line}")]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let stream = connect(&folder.join("qmp.sock"));
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut qemu = Self { child, folder, qmp: BufReader::new(stream) };
        qemu.command("qmp_capabilities");
        qemu
    }

    /// The answer to a command.
    pub fn command(&mut self, command: &str) -> Value {
        let line = json!({ "execute": command });
        self.qmp.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.qmp.read_line(&mut line).unwrap(), 0, "QEMU has ended");
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(answer.get("error"), None, "{command}: {answer}");
            if let Some(found) = answer.get_mut("return") {
                return found.take();
            }
        }
    }

    /// The shell on its console.
    pub fn shell(&self) -> Shell {
        drop(connect(&self.folder.join("serial.sock")));
        Shell::attach(&self.folder.join("serial.sock"))
    }

    /// Moves the guest to another QEMU; returns QEMU's own words about it.
    pub fn migrate_to(&mut self, other: &Self) -> Value {
        let to = format!("unix:{}", other.folder.join("incoming.sock").display());
        let line = blocks(PAGE, "text")[0].replace("tcp:server-b:4444", &to);
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut state = Value::Null;
        netvm_testing::within(TIMEOUT, || {
            state = self.command("query-migrate");
            // Else it has not begun, or is under way.
            matches!(state["status"].as_str(), Some("completed" | "failed" | "cancelled"))
        });
        assert_eq!(state["status"], "completed", "{state}");
        state
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}
