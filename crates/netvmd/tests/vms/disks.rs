// SPDX-License-Identifier: Apache-2.0
//! Ordinary guests that boot from their disk, raw and qcow2, and disks that do not boot.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::guest::{Image, Reaper, Shell, skip};
use crate::common::{Daemon, ENGINE, is_root, status_field};
use netvm_api::{ApplyReply, Done, VmState, path};
use rustix::process::Signal;

/// QEMU's user if the test runs as root.
const NOBODY: u32 = 65534;

/// A guest that boots from `disk`.
fn from_disk(image: &Image, name: &str, disk: &Path, vm: &str) -> String {
    let disk = format!("image = \"{}\"\n{vm}", disk.display());
    let text = image.guest(name, "forward = { normal = true }", &disk);
    let is_kernels =
        |line: &&str| ["kernel", "initrd", "append"].contains(&line.trim().split(' ').next().unwrap());
    text.lines().filter(|line| !is_kernels(line)).fold(String::new(), |text, line| text + line + "\n")
}

fn config(guests: &[String; 2]) -> String {
    ENGINE.replace("2048", "8192") + &guests.concat()
}

/// Gives a disk to QEMU's user.
fn give(disk: &Path) {
    std::fs::set_permissions(disk, Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        chown(disk, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// The image's disk as qcow2; `None`, with the reason on standard output, without `qemu-img`.
fn as_qcow2(image: &Image) -> Option<PathBuf> {
    let (raw, qcow2) = (image.folder.0.join("disk.img"), image.folder.0.join("disk.qcow2"));
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&raw, &qcow2]);
    let Ok(made) = convert.output() else {
        skip("qemu-img is not installed (./dev setup installs it)");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(qcow2)
}

/// Writes to the last sector of a guest's disk, which the file system does not use.
fn keep(guest: &mut Shell, word: &str) {
    guest.must("echo $(($(cat /sys/block/vda/size) - 1)) >/tmp/last");
    guest.must(&format!("echo {word} | dd of=/dev/vda bs=512 seek=$(cat /tmp/last) conv=fsync 2>/dev/null"));
}

fn kept(guest: &mut Shell, word: &str) {
    let read = "dd if=/dev/vda bs=512 skip=$(($(cat /sys/block/vda/size) - 1)) 2>/dev/null";
    guest.must(&format!("{read} | grep -q '^{word}$'"));
}

#[test]
fn guests_boot_from_disks_and_their_writes_persist() {
    let Some(image) = Image::on_disk(2) else { return };
    let Some(qcow2) = as_qcow2(&image) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let raw = image.folder.0.join("disk.img");
    [&raw, &qcow2].into_iter().for_each(|disk| give(disk));
    let text = config(&[from_disk(&image, "a", &raw, ""), from_disk(&image, "b", &qcow2, "")]);
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let (mut a, mut b) = (daemon.shell("a"), daemon.shell("b"));
    if is_root() {
        for pid in ["a", "b"].map(|name| daemon.vm(name).pid.unwrap()) {
            assert_eq!(status_field(pid, "Uid"), "65534\t65534\t65534\t65534");
            assert_eq!(status_field(pid, "CapEff"), "0".repeat(16));
        }
    }
    a.address(1);
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");
    b.must("ping -c 3 fd00:9::1");
    daemon.until_slowly("both have booted", |daemon| {
        ["a", "b"].iter().all(|name| daemon.vm(name).trouble.is_none())
    });
    keep(&mut a, "of-a");
    keep(&mut b, "of-b");

    // One is killed and restarted; the other is stopped and started.
    let pid = daemon.vm("a").pid.unwrap();
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let _: Done = daemon.post(&path::VM_STOP.replace("{vm}", "b"), "{\"force\": true}");
    assert_eq!(daemon.vm("b").state, VmState::Stopped);
    let _: Done = daemon.post(&path::VM_START.replace("{vm}", "b"), "");
    daemon.until_slowly("a has restarted", |daemon| daemon.vm("a").restarts == 1);
    let (mut a, mut b) = (daemon.shell("a"), daemon.shell("b"));
    kept(&mut a, "of-a");
    kept(&mut b, "of-b");
    a.address(1);
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");
}

#[test]
fn a_disk_that_does_not_boot_is_reported() {
    let Some(image) = Image::make(2) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let [empty, junk, foreign] =
        ["empty.img", "junk.qcow2", "foreign.img"].map(|name| image.folder.0.join(name));
    for file in [&empty, &junk, &foreign] {
        std::fs::write(file, vec![0; 1 << 20]).unwrap();
    }
    [&empty, &junk].into_iter().for_each(|disk| give(disk));
    std::fs::set_permissions(&foreign, Permissions::from_mode(0o600)).unwrap();
    let guest = |name, disk, vm| from_disk(&image, name, disk, vm);
    let a = guest("a", &empty, "boot_timeout = 20");
    let other = image.folder.0.join("other.img");
    std::fs::copy(&empty, &other).unwrap();
    give(&other);
    let good = config(&[a.clone(), guest("b", &other, "start = false")]);
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &good);
    daemon.until_slowly("it is late", |daemon| daemon.vm("a").trouble.is_some());
    let trouble = daemon.vm("a").trouble.unwrap();
    assert!(
        trouble.contains("last console output: ") && trouble.contains("No bootable device."),
        "{trouble}"
    );

    let mut cases =
        vec![(&junk, 500, "not in qcow2 format"), (&empty, 500, "Is another process using the image")];
    if is_root() {
        cases.push((&foreign, 422, "is not readable and writable for QEMU's user (uid 65534)"));
    }
    for (disk, status, words) in cases {
        let failed = daemon.post_failing(path::APPLY, config(&[a.clone(), guest("b", disk, "")]));
        let found = failed.1.diagnostics.iter().map(|found| &found.message);
        let said = found.chain([&failed.1.message]).any(|text| text.contains(words));
        assert!(failed.0 == status && said, "{failed:?}");
    }
    let _: ApplyReply = daemon.post(path::APPLY, &good);
    assert_eq!((daemon.vm("a").state, daemon.vm("b").state), (VmState::Running, VmState::Stopped));
}
