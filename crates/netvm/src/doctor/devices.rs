// SPDX-License-Identifier: Apache-2.0
//! Checks of devices: NICs for DPDK, the IOMMU, Linux bridges, and DMA engines that copy to guests.

use super::Check;
use super::root::Root;

const PCI: &str = "sys/bus/pci/devices";
/// Intel DSA: devices such as `dsa0`, and their queues, such as `wq0.0` (Linux,
/// `Documentation/ABI/stable/sysfs-driver-dma-idxd`).
const DSA: &str = "sys/bus/dsa/devices";
/// PCI base class of network controllers (PCI Code and ID Assignment, 02h).
const NETWORK: &str = "0x02";
/// Drivers that give a device to userspace.
const USERSPACE: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

pub(super) fn check(root: &Root) -> Vec<Check> {
    [nics(root), iommu(root)].into_iter().chain(bridges(root)).chain(dma_engines(root)).collect()
}

/// A network controller.
struct Nic {
    address: String,
    driver: Option<String>,
    /// Its kernel interfaces.
    interfaces: Vec<String>,
}

impl Nic {
    fn read(root: &Root, address: &str) -> Option<Self> {
        let folder = format!("{PCI}/{address}");
        root.read(&format!("{folder}/class")).filter(|class| class.starts_with(NETWORK))?;
        // A virtio NIC's interfaces are one level deeper.
        let below = root.list(&folder).into_iter().filter(|name| name.starts_with("virtio"));
        let folders = below.map(|name| format!("{folder}/{name}/net")).chain([format!("{folder}/net")]);
        Some(Self {
            address: address.to_owned(),
            driver: root.link(&format!("{folder}/driver")),
            interfaces: folders.flat_map(|folder| root.list(&folder)).collect(),
        })
    }

    fn is_userspace(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| USERSPACE.contains(&driver))
    }

    fn describe(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        if self.interfaces.is_empty() {
            format!("{} by {driver}", self.address)
        } else {
            format!("{} by {driver} ({})", self.address, self.interfaces.join(", "))
        }
    }
}

/// The interface of the default route: binding its NIC to DPDK cuts the machine off.
fn default_interface(root: &Root) -> Option<String> {
    let routes = root.read("proc/net/route")?;
    let mut fields = routes.lines().map(str::split_whitespace);
    fields.find_map(|mut fields| {
        let (interface, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then(|| interface.to_owned())
    })
}

fn nics(root: &Root) -> Check {
    let nics: Vec<Nic> = root.list(PCI).iter().filter_map(|address| Nic::read(root, address)).collect();
    let found = nics.iter().map(Nic::describe).collect::<Vec<_>>().join("; ");
    if nics.is_empty() {
        return Check::note(
            "NICs",
            "no network controller on PCI",
            "use kernel interfaces as ports with kind = \"af_xdp\" or \"af_packet\"",
        );
    }
    if nics.iter().any(Nic::is_userspace) {
        return Check::ok("NICs", found, "NICs bound to vfio-pci or uio can be ports with kind = \"pci\"");
    }
    let default = default_interface(root);
    let check = |meaning: &str| Check::note("NICs", found.clone(), meaning);
    match nics.iter().find(|nic| !nic.interfaces.iter().any(|name| Some(name) == default.as_ref())) {
        Some(spare) => check("use them as ports with kind = \"af_xdp\"; a port with kind = \"pci\" takes a NIC away from the kernel")
            .command(format!("sudo modprobe vfio-pci && sudo dpdk-devbind.py -b vfio-pci {}", spare.address)),
        None => check("use it as a port with kind = \"af_xdp\"; do not bind it to DPDK: it carries this machine's default route"),
    }
}

fn iommu(root: &Root) -> Check {
    if root.list("sys/kernel/iommu_groups").is_empty() {
        Check::note(
            "IOMMU",
            "none in use",
            "vfio-pci works only unprotected: a NIC could write to any memory",
        )
        .command(root.kernel_arguments("intel_iommu=on iommu=pt"))
    } else {
        Check::ok("IOMMU", "in use", "NICs can access packet memory only")
    }
}

/// Linux bridges, whose interfaces are no good ports. Machines without one lack nothing.
fn bridges(root: &Root) -> Option<Check> {
    const NET: &str = "sys/class/net";
    let interfaces = root.list(NET);
    let bridges = interfaces.iter().filter(|name| root.path(&format!("{NET}/{name}/bridge")).exists());
    let describe = |bridge: &String| match root.list(&format!("{NET}/{bridge}/brif")).join(", ") {
        none if none.is_empty() => bridge.clone(),
        members => format!("{bridge} with {members}"),
    };
    let found: Vec<String> = bridges.map(describe).collect();
    (!found.is_empty()).then(|| {
        Check::note(
            "bridges",
            found.join("; "),
            "a port on such a bridge cuts this machine off from it, and one on its members gets packets that the bridge \
             forwards, too: see docs/how-to/host-interface.md",
        )
    })
}

/// DPDK finds queues that are enabled and named `dpdk_*`. Machines without a DMA engine lack nothing.
fn dma_engines(root: &Root) -> Option<Check> {
    let known = root.list(DSA);
    let engine = known.iter().find(|name| name.starts_with("dsa"))?;
    let is_ready = |queue: &&String| {
        let read = |file| root.read(&format!("{DSA}/{queue}/{file}")).unwrap_or_default();
        queue.starts_with("wq") && read("state") == "enabled" && read("name").starts_with("dpdk_")
    };
    let ready: Vec<&str> = known.iter().filter(is_ready).map(String::as_str).collect();
    Some(if ready.is_empty() {
        Check::note(
            "DMA",
            format!("{engine}, no queue for DPDK"),
            "a queue can copy packets to guests: see docs/how-to/vhost-user-guests.md",
        )
    } else {
        Check::ok(
            "DMA",
            ready.join(", "),
            "a vhost-user port with `dma` uses it to copy packets to its guest",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::root::tests::Tree;

    #[test]
    fn nics_are_listed_by_class_and_driver() {
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
            (Level::Ok, "0000:3b:00.0 by ice; 0000:3b:00.1 by vfio-pci")
        );
        assert_eq!(nics(&Tree::new(&[]).root()).found, "no network controller on PCI");
    }

    #[test]
    fn the_nic_of_the_default_route_is_not_offered() {
        let routes = "Iface\tDestination\tGateway\neth1\t0000A8C0\t00000000\neth0\t00000000\t0100A8C0\n";
        let one = [
            ("sys/bus/pci/devices/0000:00:03.0/class", "0x020000"),
            ("sys/bus/pci/devices/0000:00:03.0/virtio1/net/eth0/mtu", "1500"),
            ("proc/net/route", routes),
        ];
        let check = nics(&Tree::new(&one).root());
        assert_eq!((check.found.as_str(), check.command), ("0000:00:03.0 by no driver (eth0)", None));
        let spare = [
            ("sys/bus/pci/devices/0000:00:04.0/class", "0x020000"),
            ("sys/bus/pci/devices/0000:00:04.0/net/eth1/mtu", "1500"),
        ];
        let check = nics(&Tree::new(&[&one[..], &spare[..]].concat()).root());
        assert!(check.command.unwrap().ends_with(" 0000:00:04.0"));
    }

    #[test]
    fn bridges_are_listed_with_their_ports() {
        let files = [
            ("sys/class/net/docker0/bridge/bridge_id", "8000"),
            ("sys/class/net/docker0/brif/veth1/state", "3"),
            ("sys/class/net/veth1/brport/state", "3"),
            ("sys/class/net/br1/bridge/bridge_id", "8000"),
        ];
        let check = bridges(&Tree::new(&files).root()).unwrap();
        assert_eq!((check.level, check.found.as_str()), (Level::Note, "br1; docker0 with veth1"));
        assert!(bridges(&Tree::new(&files[2..3]).root()).is_none());
    }

    #[test]
    fn the_iommu_is_found() {
        assert_eq!(iommu(&Tree::new(&[]).root()).level, Level::Note);
        let with = Tree::new(&[("sys/kernel/iommu_groups/0/type", "DMA")]);
        assert_eq!(iommu(&with.root()).level, Level::Ok);
    }

    #[test]
    fn dma_engines_are_reported_where_present() {
        let mut files = vec![
            ("sys/bus/dsa/devices/dsa0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq0.0/state", "enabled\n"),
            ("sys/bus/dsa/devices/wq0.0/name", "others\n"),
            ("sys/bus/dsa/devices/wq0.1/state", "disabled\n"),
            ("sys/bus/dsa/devices/wq0.1/name", "dpdk_0\n"),
        ];
        let check = dma_engines(&Tree::new(&files).root()).unwrap();
        assert_eq!((check.level, check.found.as_str()), (Level::Note, "dsa0, no queue for DPDK"));
        files[3].1 = "enabled";
        let check = dma_engines(&Tree::new(&files).root()).unwrap();
        assert_eq!((check.level, check.found.as_str()), (Level::Ok, "wq0.1"));
        assert!(dma_engines(&Tree::new(&[]).root()).is_none());
    }
}
