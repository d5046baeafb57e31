// SPDX-License-Identifier: Apache-2.0
//! iPXE in a guest, and the DHCP and HTTP servers behind the switch that it boots from.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::common::hosts::{Host, succeeds};
use super::machine::COMMAND_LINE;

/// The folder where distributions install it.
const IPXE: [&str; 2] = ["/usr/lib/ipxe/ipxe.lkrn", "/boot/ipxe.lkrn"];

/// iPXE, if this machine can boot a guest with it; if not, prints that this is skipped.
pub fn find() -> Option<PathBuf> {
    let found = IPXE.into_iter().map(PathBuf::from).find(|path| path.exists());
    if found.is_none() {
        println!(
            "SKIP: booting from the network: the package ipxe is not installed (./dev setup installs it)"
        );
    } else if !succeeds("busybox udhcpd --help") {
        println!("SKIP: booting from the network: busybox has no udhcpd");
        return None;
    }
    found
}

/// Servers of a host, for guests that boot from it: addresses by DHCP, files of a folder by HTTP.
pub struct Servers([Child; 2]);

impl Servers {
    /// Starts them; the guest is to boot the folder's kernel and initramfs.
    pub fn start(host: &Host, folder: &Path) -> Self {
        let script = format!(
            "#!ipxe\nkernel http://10.9.0.1/kernel {COMMAND_LINE} netboot\ninitrd http://10.9.0.1/initrd\nboot\n"
        );
        std::fs::write(folder.join("boot.ipxe"), script).unwrap();
        std::fs::write(folder.join("leases"), "").unwrap();
        let config = format!(
            "start 10.9.0.100\nend 10.9.0.120\ninterface eth0\nmax_leases 20\nlease_file {folder}/leases\n\
             pidfile {folder}/udhcpd.pid\nboot_file http://10.9.0.1/boot.ipxe\nopt subnet 255.255.255.0\n",
            folder = folder.display()
        );
        std::fs::write(folder.join("udhcpd.conf"), config).unwrap();
        let start = |words: &[&str], last: &Path| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", host.namespace(), "busybox"]).args(words).arg(last);
            command.stdin(Stdio::null()).spawn().unwrap()
        };
        Self([
            start(&["udhcpd", "-f"], &folder.join("udhcpd.conf")),
            start(&["httpd", "-f", "-p", "80", "-h"], folder),
        ])
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
