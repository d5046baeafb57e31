//! What VMs need: QEMU, and KVM where they are to be fast.

use std::path::Path;
use std::process::Command;

use netvm_vm::{OLDEST, Version};
use rustix::fs::{Access, access};

use super::Check;
use super::kernel::output_of;
use super::root::Root;

const QEMU: &str = "qemu-system-x86_64";
const INSTALL: &str = "sudo apt-get install --no-install-recommends qemu-system-x86";

pub(super) fn check(root: &Root) -> Vec<Check> {
    let text = output_of(Command::new(QEMU).arg("--version"));
    vec![qemu(text.as_deref()), kvm(root)]
}

/// What `qemu-system-x86_64 --version` prints, if it does.
fn qemu(text: Option<&str>) -> Check {
    match text.map(Version::parse) {
        Some(Some(version)) if version >= OLDEST => {
            Check::ok("QEMU", version.to_string(), "VMs of the configuration can be started")
        }
        Some(Some(version)) => Check::note(
            "QEMU",
            format!("{version}, older than {OLDEST}"),
            "configurations with [[vm]] are refused",
        )
        .command(INSTALL),
        Some(None) => {
            Check::note("QEMU", "does not say its version", "configurations with [[vm]] are refused")
                .command(INSTALL)
        }
        None => {
            Check::note("QEMU", "not installed", "configurations with [[vm]] are refused").command(INSTALL)
        }
    }
}

fn kvm(root: &Root) -> Check {
    let device = root.path("dev/kvm");
    let meaning = "VMs run under QEMU's translator, many times slower";
    if !device.exists() {
        let cpu = root.read("proc/cpuinfo").unwrap_or_default();
        let flag = |flag: &str| cpu.split_whitespace().any(|word| word == flag);
        return match (flag("vmx"), flag("svm")) {
            (true, _) => Check::note("KVM", "not loaded", meaning).command("sudo modprobe kvm_intel"),
            (_, true) => Check::note("KVM", "not loaded", meaning).command("sudo modprobe kvm_amd"),
            _ => Check::note("KVM", "this processor does not offer it", meaning).command(
                "# switch virtualization on in the firmware, or nested virtualization in the hypervisor",
            ),
        };
    }
    if may_use(&device) {
        return Check::ok("KVM", "there", "VMs run at the processor's speed");
    }
    Check::note("KVM", "not for this user", "a netvmd of this user starts VMs under QEMU's translator")
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
    fn qemu_is_looked_at_by_its_version() {
        assert_eq!(qemu(Some("QEMU emulator version 7.2.22 (Debian)")).level, Level::Ok);
        let old = qemu(Some("QEMU emulator version 4.2.1"));
        assert!(old.level == Level::Note && old.found.contains("older than 7.2.0"), "{old:?}");
        assert!(old.command.is_some_and(|command| command.contains("qemu-system-x86")));
        assert_eq!(qemu(Some("hello")).level, Level::Note);
        assert_eq!(qemu(None).found, "not installed");
    }

    #[test]
    fn kvm_is_loaded_or_says_how() {
        let without =
            |flags: &str| kvm(&Tree::new(&[("proc/cpuinfo", &format!("flags\t: fpu {flags} sse\n"))]).root());
        assert_eq!(without("vmx").command.as_deref(), Some("sudo modprobe kvm_intel"));
        assert_eq!(without("svm").command.as_deref(), Some("sudo modprobe kvm_amd"));
        assert!(without("").found.contains("does not offer"));
        assert_eq!(kvm(&Tree::new(&[("dev/kvm", "")]).root()).level, Level::Ok);
    }
}
