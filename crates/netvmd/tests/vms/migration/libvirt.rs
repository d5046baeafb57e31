// SPDX-License-Identifier: Apache-2.0
//! The same by libvirt: `virsh migrate` between two libvirts, each with a netvmd. The second libvirt is another host
//! for the first one, as it has its own host name and identity.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{CONNECTIONS, Crashed, GuestMove, PAGE, Server, Site, image, move_guest, once_more, prepare};
use crate::common::guest::Image;
use crate::common::libvirt::Libvirt;
use crate::common::page::blocks;

/// The domain, with its card on this socket.
fn domain(image: &Path, socket: &Path) -> String {
    let card = &blocks(PAGE, "xml")[0].replace("/run/netvm/guest.sock", &socket.display().to_string());
    let image = image.display();
    // QEMU 7.2 crashes with vectors under its translator.
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n\
         <name>guest</name><uuid>4dea22b3-1d52-d8f3-2516-782e98ab3fa0</uuid><memory unit='MiB'>192</memory>\n\
         <vcpu current='1'>2</vcpu>\n\
         <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{image}/kernel</kernel><initrd>{image}/initrd</initrd>\n\
         <cmdline>console=ttyS0 quiet panic=-1 no_timer_check</cmdline></os>\n\
         <features><acpi/></features><cpu mode='maximum'/><on_crash>destroy</on_crash>\n\
         {card}\
         <qemu:commandline><qemu:arg value='-global'/><qemu:arg value='virtio-net-pci.vectors=0'/></qemu:commandline>\n\
         </domain>\n"
    )
}

/// A guest of the first libvirt that moves to the second one.
struct ByVirsh<'a> {
    image: &'a Path,
    servers: [&'a Server; 2],
    libvirts: [&'a Libvirt; 2],
}

impl ByVirsh<'_> {
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.image.join(name);
        std::fs::write(&file, text).unwrap();
        file
    }
}

impl GuestMove for ByVirsh<'_> {
    fn moves(&mut self) -> Value {
        let [a, b] = self.servers;
        assert!(a.hand_over(b) >= CONNECTIONS as u64);
        let [here, there] = self.libvirts;
        // As the page says, but the servers are one machine: the sockets have other paths.
        let uri = format!("qemu+unix:///session?socket={}", there.socket().display());
        let memory = format!("unix://{}", self.image.join("sockets/migration.sock").display());
        let xml = self.file("there.xml", &domain(self.image, &b.socket));
        let line = blocks(PAGE, "sh")[5].trim().replace("qemu+ssh://server-b/system", &uri);
        let mut words: Vec<&str> = line.split(' ').skip(1).collect();
        words.extend(["--migrateuri", &memory, "--xml", xml.to_str().unwrap()]);
        here.virsh(&words);
        assert_eq!(here.virsh(&["list", "--all", "--name"]), "");
        // In milliseconds.
        let said = there.virsh(&["domjobinfo", "guest", "--completed"]);
        let of = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        };
        json!({ "downtime": of("Total downtime:"), "total-time": of("Time elapsed:") })
    }

    fn says(&self, has_moved: bool) -> String {
        self.libvirts[usize::from(has_moved)].shell("guest").run("cat /tmp/log; dmesg | tail -n 30; free").0
    }
}

#[test]
fn a_guest_of_libvirt_moves_to_another_host() {
    let Some(image) = image() else { return };
    let folder = &image.folder;
    let Some(here) = Libvirt::start_on(folder, "server-a") else { return };
    let Some(there) = Libvirt::start_on(folder, "server-b") else { return };
    once_more(|_| moves_by_virsh(&image, [&here, &there]));
}

fn moves_by_virsh(image: &Image, libvirts: [&Libvirt; 2]) -> Result<(), Crashed> {
    let [here, there] = libvirts;
    let folder = &image.folder;
    let site = Site::new("ml");
    let [a, b] = Server::start_both(&site, "connections = { pick_up = false }\n");
    let mut guest = ByVirsh { image: &folder.0, servers: [&a, &b], libvirts };
    let xml = guest.file("here.xml", &domain(&folder.0, &a.socket));
    here.virsh(&["define", xml.to_str().unwrap()]);
    here.virsh(&["start", "guest"]);
    prepare(&mut here.shell("guest"));
    let moved = move_guest(&site.client, CONNECTIONS, &mut guest);
    if moved.is_err() {
        there.virsh(&["destroy", "guest"]);
    }
    let moved = moved?;
    moved.print("virsh migrate");
    assert_eq!(moved.datagrams.twice, 0);
    assert!(moved.datagrams.lost < moved.datagrams.sent / 2 && moved.exchanged[1] > 0);
    b.daemon.until("the port is up", |_| b.port().link);
    a.daemon.until("the other port is down", |_| !a.port().link);
    there.virsh(&["destroy", "guest"]);
    Ok(())
}
