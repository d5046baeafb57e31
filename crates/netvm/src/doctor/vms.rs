// SPDX-License-Identifier: Apache-2.0
//! Checks for VMs: QEMU, its vfio-user client, and KVM.

use std::path::Path;
use std::process::Command;

use netvm_vm::{KvmError, OLDEST, QEMU, Version, check_kvm, is_vfio_user_client};
use rustix::fs::{Access, access};

use super::Check;
use super::kernel::output_of;
use super::root::Root;

const INSTALL: &str = "sudo apt-get install --no-install-recommends qemu-system-x86";

pub(super) fn check(root: &Root) -> Vec<Check> {
    let text = output_of(Command::new(QEMU).arg("--version"));
    let cards = text.as_ref().map(|_| e1000(is_vfio_user_client(Path::new(QEMU))));
    [qemu(text.as_deref())].into_iter().chain(cards).chain([kvm(root)]).collect()
}

/// `has_client`: QEMU knows the device `vfio-user-pci`.
fn e1000(has_client: bool) -> Check {
    const NAME: &str = "vfio-user";
    if has_client {
        return Check::ok(NAME, "in this QEMU", "guests can have e1000 cards (kind = \"e1000\")");
    }
    let meaning = "guests with e1000 cards need QEMU 10.1 or later: that of Debian's trixie-backports works";
    Check::note(NAME, "not in this QEMU", meaning).command("./dev setup --guests")
}

/// `text`: output of `qemu-system-x86_64 --version`.
fn qemu(text: Option<&str>) -> Check {
    match text.map(Version::parse) {
        Some(Some(version)) if version >= OLDEST => Check::ok("QEMU", version.to_string(), "[[vm]] works"),
        Some(Some(version)) => Check::note(
            "QEMU",
            format!("{version}, older than {OLDEST}"),
            "netvmd refuses configurations with [[vm]]",
        )
        .command(INSTALL),
        Some(None) => {
            Check::note("QEMU", "its version is unreadable", "netvmd refuses configurations with [[vm]]")
                .command(INSTALL)
        }
        None => {
            Check::note("QEMU", "not installed", "netvmd refuses configurations with [[vm]]").command(INSTALL)
        }
    }
}

fn kvm(root: &Root) -> Check {
    let device = root.path("dev/kvm");
    let meaning = "QEMU emulates the processor, many times slower";
    if !device.exists() {
        let cpu = root.read("proc/cpuinfo").unwrap_or_default();
        let flag = |flag: &str| cpu.split_whitespace().any(|word| word == flag);
        return match (flag("vmx"), flag("svm")) {
            (true, _) => Check::note("KVM", "not loaded", meaning).command("sudo modprobe kvm_intel"),
            (_, true) => Check::note("KVM", "not loaded", meaning).command("sudo modprobe kvm_amd"),
            _ => Check::note("KVM", "not offered by this processor", meaning).command(
                "# enable virtualization in the firmware, or nested virtualization in the hypervisor",
            ),
        };
    }
    if may_use(&device) {
        return match check_kvm(Path::new(QEMU)) {
            Ok(()) => Check::ok("KVM", "runs guests", "VMs run at the processor's speed"),
            Err(KvmError::Start(_)) => Check::note("KVM", "not tried, without QEMU", "see QEMU"),
            Err(error @ (KvmError::Fails(_) | KvmError::NoVirtualization)) => {
                Check::note("KVM", error.to_string(), meaning)
            }
        };
    }
    Check::note(
        "KVM",
        "no permission for this user",
        "for a netvmd of this user, QEMU emulates the processor, many times slower",
    )
    .command("sudo usermod --append --groups kvm $USER  # then log in again")
}

fn may_use(device: &Path) -> bool {
    access(device, Access::READ_OK | Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn a_qemu_without_vfio_user_has_a_remedy() {
        assert_eq!((e1000(true).level, e1000(true).command), (Level::Ok, None));
        assert!(e1000(false).command.is_some_and(|command| command.contains("--guests")));
    }

    #[test]
    fn old_qemu_is_refused() {
        assert_eq!(qemu(Some("QEMU emulator version 7.2.22 (Debian)")).level, Level::Ok);
        let old = qemu(Some("QEMU emulator version 4.2.1"));
        assert!(old.level == Level::Note && old.found.contains("older than 7.2.0"), "{old:?}");
        assert!(old.command.is_some_and(|command| command.contains("qemu-system-x86")));
        assert_eq!(qemu(Some("hello")).level, Level::Note);
        assert_eq!(qemu(None).found, "not installed");
    }

    #[test]
    fn missing_kvm_has_a_remedy() {
        let without =
            |flags: &str| kvm(&Tree::new(&[("proc/cpuinfo", &format!("flags\t: fpu {flags} sse\n"))]).root());
        assert_eq!(without("vmx").command.as_deref(), Some("sudo modprobe kvm_intel"));
        assert_eq!(without("svm").command.as_deref(), Some("sudo modprobe kvm_amd"));
        assert!(without("").found.contains("not offered"));
        // A file that can be opened is not enough: a guest must run.
        let there = kvm(&Tree::new(&[("dev/kvm", "")]).root());
        assert_eq!(there.level == Level::Ok, check_kvm(Path::new(QEMU)).is_ok(), "{there:?}");
    }
}
