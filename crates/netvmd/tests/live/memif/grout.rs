// SPDX-License-Identifier: Apache-2.0
//! grout, a router on DPDK, as the hop between two hosts: two of its ports are memifs of netvm.

use std::path::PathBuf;
use std::process::Output;

use super::*;
use crate::common::hosts::{Host, are_possible};

/// Mounts what grout needs in its root, with the sockets at /mnt, and starts grout there. It makes an interface for
/// each of its ports, and so gets a network namespace of its own.
const SCRIPT: &str = r#"set -e
mount --make-rprivate /
mount -t sysfs sysfs /sys
ip link set lo up
root=$1 sockets=$2
for folder in dev proc sys; do mount --rbind "/$folder" "$root/$folder"; done
mkdir -p "$root/mnt"
mount --bind "$sockets" "$root/mnt"
exec env LC_ALL=C chroot "$root" grout --test-mode --socket /mnt/grout.sock --metrics unix:/mnt/metrics.sock"#;

/// grout's ports, with an address in the network of each host.
const PORTS: &str = "\
interface add port a devargs net_memif0,role=client,socket=/mnt/a.sock,socket-abstract=no
interface add port b devargs net_memif1,role=client,socket=/mnt/b.sock,socket-abstract=no
address add 10.91.1.254/24 iface a
address add 10.91.2.254/24 iface b
";

/// The folder of grout; `None`, with the reason printed, if it is not there.
fn root() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let root = own.ancestors().nth(3)?.join("guest/grout/root");
    let has_memif = root.join("usr/lib/x86_64-linux-gnu/librte_net_memif.so.26").exists();
    if !has_memif || !root.join("usr/bin/grout").exists() {
        println!(
            "SKIP: no grout with net_memif here: ./dev setup --peers (remove an older target/guest/grout)"
        );
        return None;
    }
    Some(root)
}

/// Runs `grcli` beside a grout.
fn grcli(root: &Path, grout: u32, arguments: &[&str]) -> Output {
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{grout}/ns/mnt")).arg("chroot").arg(root);
    command.args(["grcli", "--err-exit", "--socket", "/mnt/grout.sock"]).args(arguments);
    command.env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn grout_routes_between_two_hosts_by_two_memifs() {
    if !are_possible() {
        return;
    }
    let Some(root) = root() else { return };
    let Some(_turn) = exclusive() else { return };
    let hosts = [Host::bare("ga"), Host::bare("gb")];
    let folder = Arc::new(Folder::new());
    let mut text = engine(ADAPTIVE);
    for (name, number, host) in [("a", 1, &hosts[0]), ("b", 2, &hosts[1])] {
        text += &format!(
            "\n[[port]]\nname = \"host-{name}\"\nkind = \"container\"\nnamespace = {:?}\n\
             addresses = [\"10.91.{number}.1/24\"]\ngateways = [\"10.91.{number}.254\"]\n\
             forward = {{ out = \"grout-{name}\" }}\n\
             \n[[port]]\nname = \"grout-{name}\"\nkind = \"memif\"\npath = {:?}\nforward = {{ out = \"host-{name}\" }}\n",
            host.namespace(),
            folder.0.join(format!("{name}.sock")),
        );
    }
    let daemon = Daemon::start_in(Arc::clone(&folder), &text);
    daemon.until("the sockets are there", |_| folder.0.join("b.sock").exists());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", SCRIPT, "sh"]).arg(&root).arg(&folder.0);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"));
    let grout = Testpmd::start_program(command);
    let pid = grout.child.id();
    assert!(
        within(Duration::from_secs(60), || grcli(&root, pid, &["interface", "show"]).status.success()),
        "grout does not answer"
    );
    std::fs::write(folder.0.join("commands"), PORTS).unwrap();
    let configured = grcli(&root, pid, &["--file", "/mnt/commands"]);
    assert!(configured.status.success(), "{}", String::from_utf8_lossy(&configured.stderr));
    for name in ["grout-a", "grout-b"] {
        daemon.until(name, |daemon| port(daemon, name).link);
    }
    assert!(hosts[0].pings("10.91.1.254"), "{}", daemon.log());
    assert!(hosts[0].pings("10.91.2.1") && hosts[1].pings("10.91.1.1"), "{}", daemon.log());
    let traced = hosts[0].output("busybox ping -c 1 -t 1 -W 2 10.91.2.1");
    assert!(!traced.status.success(), "grout lowers the TTL: {}", String::from_utf8_lossy(&traced.stdout));
}
