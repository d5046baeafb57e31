// SPDX-License-Identifier: Apache-2.0
//! Interfaces that ports share with others: programs that manage them, and the kernel's own bridges, bonds and
//! addresses. In: a port. Out: warnings with the remedy.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use netvm_model::{Access, PortConfig, Resource};

/// The folder of interfaces.
const NET: &str = "/sys/class/net";

/// A program that manages interfaces: it may take them down or give them addresses.
struct Manager {
    name: &'static str,
    /// Folder below /run with a file for each interface, named by its index.
    folder: &'static str,
    /// Lines of the file that mean that the program manages the interface.
    active_lines: &'static [&'static str],
    /// The setting that makes it leave `INTERFACE` alone.
    remedy: &'static str,
}

const MANAGERS: &[Manager] = &[
    Manager {
        name: "NetworkManager",
        folder: "NetworkManager/devices",
        active_lines: &["managed=true"],
        remedy: "`nmcli device set INTERFACE managed no`",
    },
    Manager {
        name: "systemd-networkd",
        folder: "systemd/netif/links",
        active_lines: &["ADMIN_STATE=configuring", "ADMIN_STATE=configured"],
        remedy: "write [Match] Name=INTERFACE and [Link] Unmanaged=yes to a file in /etc/systemd/network, and \
                 `networkctl reload`",
    },
];

/// What else uses the interface of a port. `index`: of an interface that exists.
pub(super) fn shared(port: &PortConfig, index: impl Fn(&str) -> Option<u32>) -> Vec<(&'static str, String)> {
    let used = port.kind.info().resources().find_map(|resource| match resource {
        Resource::Interface(interface, access) => Some((interface, access == Access::Xdp)),
        _ => None,
    });
    let Some((interface, takes)) = used else { return Vec::new() };
    let Some(index) = index(interface) else { return Vec::new() };
    let forwards = in_kernel(Path::new(NET), interface, takes);
    // The addresses of a bridge are the host's, too: one warning is enough.
    let addresses = || with_addresses(interface, &netvm_netlink::addresses_of(index).ok()?, takes);
    let by_kernel = forwards.or_else(addresses);
    managed(interface, index).into_iter().chain(by_kernel).map(|text| ("interface", text)).collect()
}

/// The interface of a Linux bridge, a bond or the like. `takes`: the port takes the packets (AF_XDP), instead of
/// copies.
fn in_kernel(net: &Path, interface: &str, takes: bool) -> Option<String> {
    let folder = net.join(interface);
    if folder.join("bridge").exists() {
        return Some(format!(
            "interface {interface} is a Linux bridge: a port on it {}. Give the bridge a port of its own instead: `ip link add \
             nv0 type veth peer name nv1`, `ip link set nv1 master {interface} up`, `ip link set nv0 up`, and use nv0",
            if takes {
                "cuts this machine off from the bridge"
            } else {
                "gets what this machine receives, too"
            }
        ));
    }
    let master = fs::read_link(folder.join("master")).ok()?;
    let master = master.file_name()?.to_string_lossy();
    if !folder.join("brport").exists() {
        return Some(format!(
            "interface {interface} belongs to {master}: use {master} for the port, or take it out (ip link set {interface} \
             nomaster)"
        ));
    }
    let what = match takes {
        true => format!("bridge {master} gets none of its packets"),
        false => format!("bridge {master} forwards its packets, too, so they arrive twice"),
    };
    Some(format!(
        "interface {interface} is a port of a Linux bridge: {what}. Take it off the bridge (ip link set {interface} nomaster); \
         for a container, start it without a network and use kind = \"container\""
    ))
}

/// An interface with addresses of this machine.
fn with_addresses(interface: &str, addresses: &[IpAddr], takes: bool) -> Option<String> {
    let is_global = |address: &&IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let list: Vec<String> = addresses.iter().filter(is_global).map(ToString::to_string).collect();
    let what = match takes {
        _ if list.is_empty() => return None,
        true => "cannot be reached while netvm takes its packets",
        false => "answers, too, as its kernel gets the same packets",
    };
    Some(format!(
        "interface {interface} has addresses of this machine, which {what}: {}. Move them to a port of kind = \"host\"",
        list.join(", ")
    ))
}

/// An interface that another program manages, too. Such programs manage the initial network namespace only.
fn managed(interface: &str, index: u32) -> Option<String> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if namespace("self")? != namespace("1")? {
        return None;
    }
    manager(Path::new("/run"), interface, index)
}

fn manager(run: &Path, interface: &str, index: u32) -> Option<String> {
    let manager = MANAGERS.iter().find(|manager| {
        let state = fs::read_to_string(run.join(manager.folder).join(index.to_string())).unwrap_or_default();
        state.lines().any(|line| manager.active_lines.contains(&line))
    })?;
    Some(format!(
        "interface {interface} is managed by {}, which may take it down or give it addresses while netvm uses it: {}",
        manager.name,
        manager.remedy.replace("INTERFACE", interface)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managers_of_interfaces_are_named_with_the_remedy() {
        let run = tempfile::tempdir().unwrap();
        for (file, state) in [
            ("NetworkManager/devices/2", "[device]\nmanaged=true\nnm-owned=false\n"),
            ("NetworkManager/devices/3", "[device]\nmanaged=false\n"),
            ("systemd/netif/links/3", "ADMIN_STATE=configured\nOPER_STATE=routable\n"),
            ("systemd/netif/links/4", "ADMIN_STATE=unmanaged\nOPER_STATE=off\n"),
        ] {
            let path = run.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, state).unwrap();
        }
        let says = |index| manager(run.path(), "eth1", index);
        let text = says(2).unwrap();
        assert!(
            text.contains("eth1 is managed by NetworkManager") && text.contains("nmcli device set eth1"),
            "{text}"
        );
        let text = says(3).unwrap();
        assert!(text.contains("by systemd-networkd") && text.contains("Name=eth1"), "{text}");
        assert_eq!(says(4), None);
        assert_eq!(says(5), None);
    }

    /// A bridge `br0` with the port `veth0`, a bond `bond0` with `eth0`, and a plain `eth1`.
    fn interfaces() -> tempfile::TempDir {
        let net = tempfile::tempdir().unwrap();
        for folder in ["br0/bridge", "veth0/brport", "bond0/bonding", "eth0", "eth1"] {
            fs::create_dir_all(net.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("../br0", net.path().join("veth0/master")).unwrap();
        std::os::unix::fs::symlink("../bond0", net.path().join("eth0/master")).unwrap();
        net
    }

    #[test]
    fn interfaces_that_the_kernel_forwards_by_are_named_with_the_consequence_and_the_remedy() {
        let net = interfaces();
        let says = |interface: &str, takes| in_kernel(net.path(), interface, takes).unwrap_or_default();
        let member = says("veth0", false);
        assert!(member.contains("arrive twice") && member.contains("ip link set veth0 nomaster"), "{member}");
        let member = says("veth0", true);
        assert!(member.contains("bridge br0 gets none of its packets"), "{member}");
        let bridge = says("br0", true);
        assert!(bridge.contains("cuts this machine off") && bridge.contains("master br0"), "{bridge}");
        assert!(says("eth0", true).contains("belongs to bond0"));
        assert_eq!(says("eth1", true), "");
    }

    #[test]
    fn addresses_of_the_host_are_named() {
        let own = |addresses: &[&str], takes| {
            with_addresses("eth1", &addresses.iter().map(|a| a.parse().unwrap()).collect::<Vec<_>>(), takes)
        };
        assert_eq!(own(&["fe80::1"], true), None);
        let text = own(&["fe80::1", "192.0.2.7", "2001:db8::7"], true).unwrap();
        assert!(text.contains("192.0.2.7, 2001:db8::7") && text.contains("kind = \"host\""), "{text}");
        assert!(own(&["192.0.2.7"], false).unwrap().contains("answers"));
    }
}
