// SPDX-License-Identifier: Apache-2.0
//! VMs that libvirt starts from the domains that netvmd prints: an NF and an ordinary guest.

use std::sync::Arc;

use crate::common::guest::{Image, Reaper};
use crate::common::libvirt::Libvirt;
use crate::common::page::blocks;
use crate::common::vm_nf::{config, no_buffer_is_out, until_flowing};
use crate::common::{Daemon, ENGINE};
use crate::migration::PAGE;
use netvm_api::{NfState, PortInfo, VmState, path};
use rustix::process::Signal;

/// More than a guest has by itself, and no more than the group's buffers hold.
const MTU: u16 = 1700;

/// The process of a VM, which must be libvirt's.
fn process_of_libvirt(daemon: &Daemon, vm: &str) -> rustix::process::Pid {
    let pid = daemon.vm(vm).pid.unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(arguments.contains("id=charmonitor"), "not started by libvirt: {arguments:?}");
    rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

/// Whether the link of a port is up.
fn link(daemon: &Daemon, name: &str) -> bool {
    daemon.get::<Vec<PortInfo>>(path::PORTS).into_iter().any(|port| port.name == name && port.link)
}

fn until_awaited(daemon: &Daemon, vm: &str) {
    daemon.until_slowly("it is awaited", |daemon| daemon.vm(vm).state == VmState::Awaited);
}

#[test]
fn libvirt_starts_an_nf() {
    let Some(image) = Image::of_this_program() else { return };
    let Some(libvirt) = Libvirt::start(&image.folder) else { return };
    let text = config(&image, "doorbell") + "start = \"manual\"\n";
    let daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    until_awaited(&daemon, "box");
    libvirt.define(&daemon, "box");
    libvirt.virsh(&["start", "box"]);
    until_flowing(&daemon);
    let (vm, nf) = (daemon.vm("box"), daemon.nf("a-nf"));
    assert_eq!((vm.state, nf.state, nf.pid), (VmState::Running, NfState::Running, vm.pid));

    // Killed: netvmd reclaims its buffers, and libvirt can start it again.
    rustix::process::kill_process(process_of_libvirt(&daemon, "box"), Signal::KILL).unwrap();
    until_awaited(&daemon, "box");
    no_buffer_is_out(&daemon);
    libvirt.until_off(&daemon, "box");
    libvirt.virsh(&["start", "box"]);
    until_flowing(&daemon);
    libvirt.virsh(&["destroy", "box"]);
    until_awaited(&daemon, "box");
    no_buffer_is_out(&daemon);
}

#[test]
fn libvirt_starts_a_guest_with_a_network() {
    let Some(image) = Image::make(2) else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let Some(libvirt) = Libvirt::start(&image.folder) else { return };
    let normal = "forward = { normal = true }";
    let text = format!(
        "{}{}{}",
        ENGINE.replace("2048", "8192"),
        // libvirt itself chooses interrupt vectors for several queues, of which QEMU 7.2 would die under TCG.
        image.guest("a", &format!("queues = 2\nmtu = {MTU}\n{normal}"), "start = \"manual\""),
        image.guest("b", &format!("mtu = {MTU}\n{normal}"), "")
    );
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    until_awaited(&daemon, "a");
    libvirt.define(&daemon, "a");
    libvirt.virsh(&["start", "a"]);
    let (mut a, mut b) = (libvirt.shell("a"), daemon.shell("b"));
    let process = process_of_libvirt(&daemon, "a");
    a.address(1);
    b.address(2);
    a.until("ping -c 1 -W 1 10.9.0.2");
    b.must("ping -c 3 10.9.0.1");
    b.must("ping -c 3 fd00:9::1");
    // Both guests have learned the MTU of their ports.
    for guest in [&mut a, &mut b] {
        guest.must(&format!("grep -qx {MTU} /sys/class/net/eth0/mtu"));
    }
    b.must(&format!("ping -c 1 -s {} 10.9.0.1", MTU - 28));

    // Another netvmd takes it over.
    daemon.signal(Signal::TERM);
    daemon.wait();
    daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    a.until("ping -c 1 -W 1 10.9.0.2");
    daemon.until_slowly("it is taken over", |daemon| daemon.vm("a").adopted);
    assert_eq!(process_of_libvirt(&daemon, "a"), process);

    // Saved and restored, as docs/how-to/move-a-guest.md says.

    a.must("echo kept >/tmp/kept");
    drop(a);
    for line in blocks(PAGE, "sh")[4].lines() {
        let saved = daemon.folder.0.join("libvirt/guest.saved").display().to_string();
        let line = line.replace("/var/lib/libvirt/images/guest.saved", &saved).replace(" guest ", " a ");
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        libvirt.virsh(&words);
        if words[0] == "save" {
            until_awaited(&daemon, "a");
            assert!(std::fs::metadata(saved).unwrap().len() > 0 && !link(&daemon, "a"));
        }
    }
    let mut a = libvirt.shell("a");
    a.must("grep -qx kept /tmp/kept");
    daemon.until_slowly("its port is up", |daemon| link(daemon, "a"));
    a.until("ping -c 1 -W 1 10.9.0.2");
    a.until("ping -c 1 -W 1 fd00:9::2");

    libvirt.virsh(&["destroy", "a"]);
    until_awaited(&daemon, "a");
}
