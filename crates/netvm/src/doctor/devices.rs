//! Devices: NICs for DPDK, and KVM for virtual machines.

use std::fs::OpenOptions;
use std::io;

use super::Check;
use super::root::Root;

const PCI: &str = "sys/bus/pci/devices";
/// PCI base class of network controllers (PCI Code and ID Assignment, 02h).
const NETWORK: &str = "0x02";
/// Drivers that hand a device to a program.
const USERSPACE: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

pub(super) fn check(root: &Root) -> Vec<Check> {
    vec![nics(root), iommu(root), kvm(root)]
}

fn nics(root: &Root) -> Check {
    let mut bound = Vec::new();
    let mut others = Vec::new();
    for address in root.list(PCI) {
        let is_nic =
            root.read(&format!("{PCI}/{address}/class")).is_some_and(|class| class.starts_with(NETWORK));
        if !is_nic {
            continue;
        }
        let driver = root.link(&format!("{PCI}/{address}/driver"));
        match driver {
            Some(driver) if USERSPACE.contains(&driver.as_str()) => {
                bound.push(format!("{address} by {driver}"));
            }
            driver => others.push((address, driver.unwrap_or_else(|| "no driver".to_owned()))),
        }
    }
    let list: Vec<String> = others.iter().map(|(address, driver)| format!("{address} by {driver}")).collect();
    match (bound.is_empty(), others.first()) {
        (false, _) => Check::ok("NICs", [bound, list].concat().join("; "), "those by vfio-pci or uio can be ports with kind = \"pci\""),
        (true, Some((address, _))) => Check::note(
            "NICs",
            list.join("; "),
            "ports with kind = \"af_xdp\"; for kind = \"pci\" a NIC is taken from the kernel, which then has it no more",
        )
        .command(format!("sudo modprobe vfio-pci && sudo dpdk-devbind.py -b vfio-pci {address}")),
        (true, None) => Check::note("NICs", "no network controller on PCI", "interfaces of the kernel are ports with kind = \"af_xdp\" or \"af_packet\""),
    }
}

fn iommu(root: &Root) -> Check {
    if root.list("sys/kernel/iommu_groups").is_empty() {
        Check::note("IOMMU", "none in use", "vfio-pci works without protection only: a NIC could write anywhere")
            .command("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /' /etc/default/grub && sudo update-grub  # then reboot")
    } else {
        Check::ok("IOMMU", "in use", "NICs reach packet memory only")
    }
}

fn kvm(root: &Root) -> Check {
    let meaning = "virtual machines run at full speed";
    match OpenOptions::new().read(true).write(true).open(root.path("dev/kvm")) {
        Ok(_) => Check::ok("KVM", "/dev/kvm opens", meaning),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Check::note(
            "KVM",
            "/dev/kvm is not for this user",
            "virtual machines are emulated, ten times slower and more",
        )
        .command("sudo usermod -aG kvm $USER  # then log in again"),
        Err(error) => Check::note(
            "KVM",
            format!("/dev/kvm: {error}"),
            "virtual machines are emulated, ten times slower and more; process NFs do not need it",
        )
        .command("sudo modprobe -a kvm_intel kvm_amd"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn nics_are_told_by_class_and_driver() {
        let kernel = Tree::new(&[
            ("sys/bus/pci/devices/0000:00:01.0/class", "0x010802\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:3b:00.1/class", "0x020000\n"),
        ])
        .link("sys/bus/pci/devices/0000:3b:00.0/driver", "../../../drivers/ice");
        let check = nics(&kernel.root());
        assert_eq!(
            (check.level, check.found.as_str()),
            (Level::Note, "0000:3b:00.0 by ice; 0000:3b:00.1 by no driver")
        );
        assert!(check.command.unwrap().ends_with("-b vfio-pci 0000:3b:00.0"));
        let bound = kernel.link("sys/bus/pci/devices/0000:3b:00.1/driver", "../../../drivers/vfio-pci");
        let check = nics(&bound.root());
        assert_eq!(
            (check.level, check.found.as_str()),
            (Level::Ok, "0000:3b:00.1 by vfio-pci; 0000:3b:00.0 by ice")
        );
        assert_eq!(nics(&Tree::new(&[]).root()).found, "no network controller on PCI");
    }

    #[test]
    fn kvm_and_iommu_are_looked_for() {
        let without = Tree::new(&[]);
        assert!(kvm(&without.root()).command.unwrap().contains("modprobe"));
        assert_eq!(iommu(&without.root()).level, Level::Note);
        let with = Tree::new(&[("dev/kvm", ""), ("sys/kernel/iommu_groups/0/type", "DMA")]);
        assert_eq!([kvm(&with.root()).level, iommu(&with.root()).level], [Level::Ok, Level::Ok]);
    }
}
