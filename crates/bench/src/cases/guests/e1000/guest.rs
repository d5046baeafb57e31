// SPDX-License-Identifier: Apache-2.0
//! The guest: QEMU with all cards, and a program that reads commands from the console.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use netvm_vm::{Accel, Boot, CardKind, Machine, Sockets, Version};

use super::card::{Card, GuestCard};
use crate::error::BenchError;
use crate::setup::guest::{BOOT, beside, make_image, version_of, vfio_user_client};
use crate::setup::rig::Rig;

/// MiB of memory.
const MEMORY: u32 = 192;
/// Interval at which the engine's manager runs while the benchmark waits for the guest.
const MANAGER_INTERVAL: Duration = Duration::from_millis(5);

/// A kernel, an initramfs, and the QEMU that boots them.
pub struct Image {
    folder: tempfile::TempDir,
    qemu: PathBuf,
    version: Version,
    parts: ImageParts,
}

/// What guests have.
pub struct ImageParts {
    /// Virtual processors of a guest.
    pub cpus: u16,
    /// How QEMU runs them.
    pub accel: Accel,
    /// Whether they have the changed e1000 driver (send combining, CSB), too.
    pub has_changed_driver: bool,
    /// The cards of each.
    pub cards: Vec<Card>,
}

impl Image {
    /// Makes the image.
    ///
    /// # Errors
    /// [`BenchError::Guest`] if no QEMU supports netvm's cards, or the image cannot be made.
    pub fn make(parts: ImageParts) -> Result<Self, BenchError> {
        let qemu = vfio_user_client()?;
        let version = version_of(&qemu)?;
        let program = beside("netvm-bench-packet", "netvm-bench")?;
        let mut file = program.as_os_str().to_owned();
        file.push(":bin/netvm-bench-packet");
        let mut words: Vec<std::ffi::OsString> = vec!["--drivers".into(), "--file".into(), file];
        if parts.has_changed_driver {
            words.push("--e1000-csb".into());
        }
        for module in ["e1000", "e1000e", "virtio_pci", "virtio_net"] {
            words.extend(["--module".into(), module.into()]);
        }
        let start = "cd /sys/class/net; for name in eth*; do \
                     echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6; ip link set $name promisc on up; done; \
                     exec netvm-bench-packet";
        words.extend(["busybox", "sh", "-c", start].map(Into::into));
        let words: Vec<_> = words.iter().map(std::ffi::OsString::as_os_str).collect();
        Ok(Self { folder: make_image(&program, &words)?, qemu, version, parts })
    }

    /// The folder of its files and sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A card that netvm serves.
    fn card(&self, guest_card: GuestCard) -> netvm_vm::Card {
        let kind = if guest_card.card == Card::VhostUser { CardKind::VhostUser } else { CardKind::VfioUser };
        let (name, mac) = (guest_card.card.name().to_owned(), guest_card.mac().to_string());
        let socket = self.folder().join(guest_card.socket());
        netvm_vm::Card { name, kind, socket, connects: true, mac, queues: 1, mtu: None }
    }

    fn arguments(&self, guest: usize) -> Vec<std::ffi::OsString> {
        let boot = Boot::Kernel {
            kernel: self.folder().join("kernel"),
            initrd: Some(self.folder().join("initrd")),
            append: "quiet panic=-1".to_owned(),
        };
        let machine = Machine {
            name: "netvm-bench".to_owned(),
            memory: MEMORY,
            cpus: self.parts.cpus,
            node: None,
            accel: self.parts.accel,
            boot,
            cards: self
                .parts
                .cards
                .iter()
                .filter(|card| card.is_netvm())
                .map(|card| self.card(GuestCard { guest, card: *card }))
                .collect(),
        };
        let mut arguments = machine.arguments(self.version, Sockets::Terminal { qmp: None });
        let mut pair = |key: &str, value: String| arguments.extend([key.into(), value.into()]);
        // Slots share INTx lines with every fourth one: in this order an 82540EM shares with cards that use MSI-X.
        for (card, model) in
            [(Card::QemuE1000e, "e1000e"), (Card::QemuVirtio, "virtio-net-pci"), (Card::QemuE1000, "e1000")]
        {
            if !self.parts.cards.contains(&card) {
                continue;
            }
            let guest_card = GuestCard { guest, card };
            let (name, tap) = (card.name(), guest_card.tap().unwrap_or_default());
            pair("-netdev", format!("tap,id={name},ifname={tap},script=no,downscript=no,vhost=off"));
            pair("-device", format!("{model},netdev={name},mac={},romfile=", guest_card.mac()));
        }
        arguments
    }
}

/// Frames for a guest's card.
#[derive(Clone, Copy)]
pub struct Stream {
    /// The card.
    pub receiver: GuestCard,
    /// The length of a frame.
    pub bytes: u16,
    /// Frames per second.
    pub rate: u64,
}

/// Sends frames to a guest's card by its TAP interface, for `time` or until the sender is dropped.
///
/// # Errors
/// [`BenchError::System`].
pub fn sender(tap: &str, stream: Stream, time: Duration) -> Result<Sender, BenchError> {
    let Stream { receiver, bytes, rate } = stream;
    let starting = || BenchError::system("cannot start a sender");
    let mac = std::fs::read_to_string(format!("/sys/class/net/{tap}/address")).map_err(starting())?;
    let mut command = Command::new(beside("netvm-bench-packet", "netvm-bench")?);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut sender = Sender(command.spawn().map_err(starting())?);
    let line = format!("send {} {} {bytes} {} {rate}\n", mac.trim(), receiver.mac(), time.as_millis());
    if let Some(input) = &mut sender.0.stdin {
        input.write_all(line.as_bytes()).map_err(starting())?;
    }
    Ok(sender)
}

/// A sending process; killed on drop.
pub struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running guest; killed on drop.
pub struct Guest {
    child: Child,
    input: ChildStdin,
    /// Lines of the console.
    lines: Receiver<String>,
}

impl Guest {
    /// Starts a guest, and waits until it reads commands.
    ///
    /// # Errors
    /// [`BenchError::Guest`].
    pub fn start(image: &Image, number: usize, rig: &mut Rig) -> Result<Self, BenchError> {
        let mut command = Command::new(&image.qemu);
        command.args(image.arguments(number));
        Self::run(command, rig)
    }

    /// Runs the guests' program, or QEMU with one, and waits until it reads commands.
    ///
    /// # Errors
    /// [`BenchError::Guest`].
    pub fn run(mut command: Command, rig: &mut Rig) -> Result<Self, BenchError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let what = format!("cannot start {}", command.get_program().display());
        let mut child = command.spawn().map_err(BenchError::system(what))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(BenchError::Guest { problem: "it has no standard streams".to_owned() });
        };
        let (sender, lines) = channel();
        let read = move || {
            // The console may print anything.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(read);
        thread.map_err(BenchError::system("cannot start a thread"))?;
        let mut guest = Self { child, input, lines };
        guest.answer(rig, "ready for commands", BOOT)?;
        Ok(guest)
    }

    /// Types a command.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn command(&mut self, command: &str) -> Result<(), BenchError> {
        let line = format!("{command}\n");
        self.input.write_all(line.as_bytes()).map_err(BenchError::system("cannot write to the guest"))
    }

    /// Runs the engine until the guest prints a line that begins with `start`; returns the rest of the line.
    ///
    /// # Errors
    /// [`BenchError::Guest`] if no such line arrives, or the guest's command failed.
    pub fn answer(&mut self, rig: &mut Rig, start: &str, limit: Duration) -> Result<String, BenchError> {
        let (asked, mut last) = (Instant::now(), String::new());
        while asked.elapsed() < limit {
            rig.run(Duration::ZERO)?;
            match self.lines.recv_timeout(MANAGER_INTERVAL) {
                Ok(line) if line.starts_with("failed: ") => return Err(BenchError::Guest { problem: line }),
                Ok(line) => match line.strip_prefix(start) {
                    Some(rest) => return Ok(rest.to_owned()),
                    None => last = line,
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let problem = format!("it did not say {start:?}; its last line: {last:?}");
        Err(BenchError::Guest { problem })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
