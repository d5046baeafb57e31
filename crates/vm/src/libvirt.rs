// SPDX-License-Identifier: Apache-2.0
//! Renders a VM as libvirt's domain XML (<https://libvirt.org/formatdomain.html>).

use std::fmt::Write;
use std::path::Path;

use crate::machine::{
    Accel, Boot, Card, CardKind, FIRMWARE_ON_SERIAL, Machine, command_line, monitor, vectors,
    vfio_user_device,
};
use crate::qmp::Version;
use crate::served::{NfDevices, escape, escape_path};

/// Settings of a domain besides the machine.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'a> {
    /// Path of QEMU.
    pub emulator: &'a Path,
    /// Version of QEMU.
    pub version: Version,
    /// Cores for its processors; empty: any.
    pub cores: &'a [u32],
    /// A socket that QEMU connects to for QMP, in addition to libvirt's own.
    pub qmp: Option<&'a Path>,
    /// Devices of a VM that is an NF.
    pub nf: Option<&'a NfDevices>,
}

impl Machine {
    /// The domain XML for `virsh define`.
    #[must_use]
    pub fn libvirt_xml(&self, domain: &Domain<'_>) -> String {
        let mut xml = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write(&mut xml, domain);
        xml
    }

    fn write(&self, xml: &mut String, domain: &Domain<'_>) -> std::fmt::Result {
        let Domain { emulator, version, cores, qmp, nf } = *domain;
        let kind = match self.accel {
            Accel::Kvm | Accel::KvmOrTcg => "kvm",
            Accel::Tcg => "qemu",
        };
        let mut words: Vec<String> = qmp.map(|qmp| monitor(qmp, version)).into_iter().flatten().collect();
        let (passed, cards): (Vec<_>, Vec<_>) =
            self.cards.iter().partition(|card| card.kind == CardKind::VfioUser);
        for card in passed {
            words.extend(["-device".to_owned(), vfio_user_device(&card.socket)]);
        }
        let has_no_vectors = vectors(self.accel, version, 1) == Some(0);
        if !cards.is_empty() && has_no_vectors {
            words.extend(["-global".to_owned(), "virtio-net-pci.vectors=0".to_owned()]);
        }
        let overridden: Vec<String> =
            cards.iter().filter_map(|card| frontend(card, has_no_vectors)).collect();
        if matches!(self.boot, Boot::Image { .. }) {
            words.extend(FIRMWARE_ON_SERIAL.map(str::to_owned));
        }
        let is_plain = words.is_empty() && overridden.is_empty();
        let space = if is_plain { "" } else { " xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'" };
        writeln!(xml, "<domain type='{kind}'{space}>")?;
        writeln!(xml, "  <name>{}</name>", escape(&self.name))?;
        writeln!(xml, "  <memory unit='MiB'>{}</memory>", self.memory)?;
        writeln!(
            xml,
            "  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>"
        )?;
        // With only one possible processor, TCG turns locked instructions into plain ones.
        let most = self.cpus.max(2);
        writeln!(xml, "  <vcpu placement='static' current='{}'>{most}</vcpu>", self.cpus)?;
        if !cores.is_empty() {
            let list = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            writeln!(xml, "  <cputune>")?;
            for cpu in 0..self.cpus {
                writeln!(xml, "    <vcpupin vcpu='{cpu}' cpuset='{list}'/>")?;
            }
            writeln!(xml, "    <emulatorpin cpuset='{list}'/>\n  </cputune>")?;
        }
        if let Some(node) = self.node {
            writeln!(xml, "  <numatune>\n    <memory mode='strict' nodeset='{node}'/>\n  </numatune>")?;
        }
        writeln!(xml, "  <os>\n    <type arch='x86_64' machine='q35'>hvm</type>")?;
        if let Boot::Kernel { kernel, initrd, append } = &self.boot {
            writeln!(xml, "    <kernel>{}</kernel>", escape_path(kernel))?;
            if let Some(initrd) = initrd {
                writeln!(xml, "    <initrd>{}</initrd>", escape_path(initrd))?;
            }
            writeln!(xml, "    <cmdline>{}</cmdline>", escape(&command_line(append, self.accel)))?;
        }
        writeln!(xml, "  </os>\n  <features>\n    <acpi/>\n  </features>")?;
        let mode = match self.accel {
            Accel::Kvm | Accel::KvmOrTcg => "host-passthrough",
            Accel::Tcg => "maximum",
        };
        writeln!(xml, "  <cpu mode='{mode}'/>")?;
        if nf.is_some() {
            // A rebooted guest would find its NF slot taken.
            writeln!(xml, "  <on_reboot>destroy</on_reboot>")?;
        }
        writeln!(xml, "  <on_crash>destroy</on_crash>\n  <devices>")?;
        writeln!(xml, "    <emulator>{}</emulator>", escape_path(emulator))?;
        if let Boot::Image { path, is_qcow2 } = &self.boot {
            let format = if *is_qcow2 { "qcow2" } else { "raw" };
            writeln!(xml, "    <disk type='file' device='disk'>")?;
            writeln!(xml, "      <driver name='qemu' type='{format}'/>")?;
            writeln!(xml, "      <source file='{}'/>", escape_path(path))?;
            writeln!(xml, "      <target dev='vda' bus='virtio'/>\n      <boot order='1'/>\n    </disk>")?;
        }
        for card in cards {
            Self::write_card(xml, card)?;
        }
        writeln!(xml, "    <serial type='pty'>\n      <target type='isa-serial' port='0'/>\n    </serial>")?;
        if let Some(nf) = nf {
            nf.write_xml(xml)?;
        }
        writeln!(xml, "    <rng model='virtio'>\n      <backend model='builtin'/>\n    </rng>")?;
        writeln!(xml, "    <panic model='isa'/>\n    <memballoon model='none'/>\n  </devices>")?;
        if !words.is_empty() {
            // libvirt has no elements for these arguments.
            writeln!(xml, "  <qemu:commandline>")?;
            for word in words {
                writeln!(xml, "    <qemu:arg value='{}'/>", escape(&word))?;
            }
            writeln!(xml, "  </qemu:commandline>")?;
        }
        if !overridden.is_empty() {
            writeln!(xml, "  <qemu:override>")?;
            overridden.iter().for_each(|device| xml.push_str(device));
            writeln!(xml, "  </qemu:override>")?;
        }
        writeln!(xml, "</domain>")
    }

    fn write_card(xml: &mut String, card: &Card) -> std::fmt::Result {
        let mode = if card.connects { "client" } else { "server" };
        writeln!(xml, "    <interface type='vhostuser'>")?;
        writeln!(xml, "      <mac address='{}'/>", card.mac)?;
        write!(xml, "      <source type='unix' path='{}' mode='{mode}'", escape_path(&card.socket))?;
        if card.connects {
            writeln!(xml, ">\n        <reconnect enabled='yes' timeout='1'/>\n      </source>")?;
        } else {
            writeln!(xml, "/>")?;
        }
        let queues = if card.queues > 1 { format!(" queues='{}'", card.queues) } else { String::new() };
        writeln!(xml, "      <model type='virtio'/>")?;
        writeln!(xml, "      <driver{queues} rx_queue_size='1024' tx_queue_size='1024'/>")?;
        writeln!(xml, "      <alias name='{}'/>", alias(card))?;
        writeln!(xml, "    </interface>")
    }
}

/// Properties of a card that libvirt (since 8.2) takes only so: it gives cards with several queues vectors of its own,
/// and wants to set the `<mtu>` of a vhost-user card on an interface of the host, which there is not.
fn frontend(card: &Card, has_no_vectors: bool) -> Option<String> {
    let vectors = (has_no_vectors && card.queues > 1).then_some(("vectors", 0));
    let properties: Vec<_> = vectors.into_iter().chain(card.mtu.map(|mtu| ("host_mtu", mtu))).collect();
    let line = |(name, value): &(&str, u16)| {
        format!("        <qemu:property name='{name}' type='unsigned' value='{value}'/>\n")
    };
    let lines = properties.iter().map(line).collect::<String>();
    (!lines.is_empty()).then(|| {
        let alias = alias(card);
        format!(
            "    <qemu:device alias='{alias}'>\n      <qemu:frontend>\n{lines}      </qemu:frontend>\n    </qemu:device>\n"
        )
    })
}

/// The name of a card in the domain: of the letters that libvirt allows, and different for each port.
fn alias(card: &Card) -> String {
    let mac: String = card.mac.chars().filter(char::is_ascii_hexdigit).collect();
    format!("ua-netvm-{mac}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{NEW, OLD, machine};
    use netvm_region::NotifyMode;

    #[test]
    fn a_domain_matches_the_arguments() {
        let mut machine = machine();
        machine.name = "a<b".to_owned();
        let emulator = Path::new("/usr/bin/qemu-system-x86_64");
        let domain = Domain { emulator, version: NEW, cores: &[1, 3], qmp: None, nf: None };
        let xml = machine.libvirt_xml(&domain);
        for part in [
            "<domain type='qemu'>",
            "<name>a&lt;b</name>",
            "<access mode='shared'/>",
            "<vcpu placement='static' current='1'>2</vcpu>",
            "<vcpupin vcpu='0' cpuset='1,3'/>",
            "path='/run/netvm/guest1,a.sock' mode='client'>",
            "<reconnect enabled='yes' timeout='1'/>",
            "<cmdline>console=ttyS0 no_timer_check quiet</cmdline>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains("vectors") && !xml.contains("on_reboot") && !xml.contains("override"), "{xml}");
        machine.cards[0].connects = false;
        let xml = machine.libvirt_xml(&Domain { version: OLD, cores: &[], ..domain });
        assert!(xml.contains("value='virtio-net-pci.vectors=0'"), "{xml}");
        assert!(xml.contains("mode='server'/>") && !xml.contains("cputune"), "{xml}");
    }

    #[test]
    fn several_queues_have_no_vectors_where_qemu_would_crash_and_the_mtu_is_passed_on() {
        let mut machine = machine();
        (machine.cards[0].queues, machine.cards[0].mtu) = (2, Some(9000));
        let emulator = Path::new("/usr/bin/qemu-system-x86_64");
        let domain = Domain { emulator, version: OLD, cores: &[], qmp: None, nf: None };
        let xml = machine.libvirt_xml(&domain);
        for part in [
            "      <alias name='ua-netvm-020000000001'/>\n    </interface>",
            "  <qemu:override>\n    <qemu:device alias='ua-netvm-020000000001'>\n      <qemu:frontend>\n        \
             <qemu:property name='vectors' type='unsigned' value='0'/>\n        \
             <qemu:property name='host_mtu' type='unsigned' value='9000'/>\n      </qemu:frontend>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        let xml = machine.libvirt_xml(&Domain { version: NEW, ..domain });
        assert!(!xml.contains("vectors") && xml.contains("queues='2'") && xml.contains("host_mtu"), "{xml}");
    }

    #[test]
    fn a_domain_boots_from_its_disk_with_firmware_output_on_the_console() {
        let mut machine = machine();
        machine.boot = Boot::Image { path: "/var/a&b.qcow2".into(), is_qcow2: true };
        let emulator = Path::new("/usr/bin/qemu-system-x86_64");
        let domain = Domain { emulator, version: NEW, cores: &[], qmp: None, nf: None };
        let xml = machine.libvirt_xml(&domain);
        for part in [
            "<driver name='qemu' type='qcow2'/>",
            "<source file='/var/a&amp;b.qcow2'/>",
            "<boot order='1'/>",
            "<qemu:arg value='-machine'/>\n    <qemu:arg value='graphics=off'/>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains("<cmdline>"), "{xml}");
    }

    #[test]
    fn a_card_over_vfio_user_is_an_argument() {
        let mut machine = machine();
        machine.cards[0].kind = CardKind::VfioUser;
        let emulator = Path::new("/qemu");
        let xml = machine.libvirt_xml(&Domain { emulator, version: NEW, cores: &[], qmp: None, nf: None });
        assert!(xml.contains("<qemu:arg value='{&quot;driver&quot;:&quot;vfio-user-pci&quot;,"), "{xml}");
        assert!(!xml.contains("<interface"), "{xml}");
    }

    #[test]
    fn the_domain_of_an_nf_has_its_sockets() {
        let mut machine = machine();
        machine.cards.clear();
        let devices =
            NfDevices { folder: "/run/nf".into(), regions: 1, vectors: 65, notify: NotifyMode::Doorbell };
        let xml = machine.libvirt_xml(&Domain {
            emulator: Path::new("/qemu"),
            version: OLD,
            cores: &[],
            qmp: Some(Path::new("/run/nf/qmp.sock")),
            nf: Some(&devices),
        });
        for part in [
            "<on_reboot>destroy</on_reboot>",
            "<server path='/run/nf/region0.sock'/>",
            "<source mode='connect' path='/run/nf/wake.sock'/>",
            "value='socket,id=netvm-qmp,path=/run/nf/qmp.sock,reconnect=1'",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains("virtio-net"), "{xml}");
    }
}
