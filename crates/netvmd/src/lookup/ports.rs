//! Interfaces, devices, sockets and captures of ports.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use netvm_config::Missing;
use netvm_config::model::{ContainerConfig, Host, PortConfig, PortKind, VhostMode};
use netvm_xsk::OpenError;
use rustix::net::{AddressFamily, SocketType};

/// The folder that lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// The device that creates TAP interfaces.
const TUN: &str = "/dev/net/tun";

/// What a port needs and this machine lacks.
pub(super) fn missing(item: usize, port: &PortConfig, running: &Host) -> Vec<Missing> {
    let missing = |(key, message)| Missing { table: "port", item, key, message, is_shared: false };
    let found: Vec<Missing> = find(port, running).into_iter().map(missing).collect();
    if !found.is_empty() {
        return found;
    }
    let shared = |(key, message)| Missing { table: "port", item, key, message, is_shared: true };
    managed(port).map(shared).into_iter().collect()
}

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

/// Finds a port whose interface another program manages, too. Such programs manage the initial network namespace only.
fn managed(port: &PortConfig) -> Option<(&'static str, String)> {
    let (PortKind::AfXdp { interface, .. } | PortKind::AfPacket { interface }) = &port.kind else {
        return None;
    };
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if namespace("self")? != namespace("1")? {
        return None;
    }
    Some(("interface", manager(Path::new("/run"), interface, index(interface).ok()?)?))
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

fn find(port: &PortConfig, running: &Host) -> Vec<(&'static str, String)> {
    match &port.kind {
        PortKind::Pci { address } => pci(address).map(|message| ("address", message)).into_iter().collect(),
        PortKind::AfXdp { interface, .. } => match no_interface(interface) {
            Some(message) => vec![("interface", message)],
            None => {
                few_queues(interface, port.queues).map(|message| ("queues", message)).into_iter().collect()
            }
        },
        PortKind::AfPacket { interface } => {
            no_interface(interface).map(|message| ("interface", message)).into_iter().collect()
        }
        PortKind::Tap { interface } => {
            let is_own = |old: &PortConfig| old.kind == port.kind;
            let taken = if running.ports.iter().any(is_own) { None } else { no_tap(interface) };
            taken.map(|message| ("interface", message)).into_iter().collect()
        }
        PortKind::Container(container) => no_namespace(container).into_iter().collect(),
        PortKind::VhostUser { path, mode: VhostMode::Server, .. } | PortKind::E1000 { path, .. } => {
            no_socket(path).map(|message| ("path", message)).into_iter().collect()
        }
        PortKind::Pcap { input, output, .. } => {
            let input = input.as_ref().and_then(|path| Some(("input", no_capture(path)?)));
            let output = output.as_ref().and_then(|path| Some(("output", no_output(path)?)));
            input.into_iter().chain(output).collect()
        }
        PortKind::VhostUser { .. }
        | PortKind::Null { .. }
        | PortKind::Source(_)
        | PortKind::Patch { .. }
        | PortKind::Sink => Vec::new(),
    }
}

fn pci(address: &str) -> Option<String> {
    let exists = Path::new(PCI).join(address).exists();
    (!exists).then(|| format!("no PCI device {address}: `lspci -D` lists the devices"))
}

/// Index of an interface in this process's network namespace.
fn index(interface: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, interface)?)
}

fn no_interface(interface: &str) -> Option<String> {
    let error = index(interface).err()?;
    Some(match error.raw_os_error() {
        Some(libc::ENODEV) => format!(
            "no interface {interface} in netvmd's network namespace: `ip link` lists the interfaces, and \
             `ip netns exec NAMESPACE ip link set {interface} netns 1` moves one here"
        ),
        _ => format!("interface {interface}: {error}: correct the name (`ip link`)"),
    })
}

/// An AF_XDP port needs one receive and one transmit queue of its interface for each of its queues.
fn few_queues(interface: &str, queues: u16) -> Option<String> {
    let error = netvm_xsk::check_queues(interface, queues.into()).err()?;
    matches!(error, OpenError::Queues { .. }).then(|| error.to_string())
}

/// A container port creates its interface in a namespace that must exist.
fn no_namespace(container: &ContainerConfig) -> Option<(&'static str, String)> {
    if !Path::new(TUN).exists() {
        return Some(("namespace", format!("{TUN} does not exist: load the kernel's module `tun`")));
    }
    let file = container.namespace_file();
    if netvm_vnet::container::is_own(&file) {
        let problem = format!(
            "{} is netvm's own network namespace: give the container's, or use kind = \"tap\"",
            file.display()
        );
        return Some(("namespace", problem));
    }
    let error = fs::File::open(&file).err()?;
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "start the container first; `ip netns` and `lsns -t net` list network namespaces"
        }
        _ => "run netvmd as root",
    };
    Some(("namespace", format!("no network namespace {}: {error}: {remedy}", file.display())))
}

/// A TAP port creates its interface, or opens an existing TAP.
fn no_tap(interface: &str) -> Option<String> {
    if !Path::new(TUN).exists() {
        return Some(format!("{TUN} does not exist: load the kernel's module `tun`, or use af_packet"));
    }
    let entry = Path::new("/sys/class/net").join(interface);
    let is_other = index(interface).is_ok() && entry.exists() && !entry.join("tun_flags").exists();
    is_other.then(|| {
        format!("interface {interface} exists and is not a TAP: choose another name, or use af_packet for it")
    })
}

/// The path must be free or a socket. Folders that do not exist are made.
fn no_socket(path: &Path) -> Option<String> {
    use std::os::unix::fs::FileTypeExt;
    if fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Some(format!("{} is not a socket: remove it, or give another path", path.display()));
    }
    let folder = folder_of(path);
    let there = folder.ancestors().find(|folder| fs::symlink_metadata(folder).is_ok())?;
    (!there.is_dir()).then(|| {
        format!("{} is not a folder: {} cannot be made: give another path", there.display(), path.display())
    })
}

fn no_folder(path: &Path) -> Option<String> {
    let folder = folder_of(path);
    let problem = match fs::metadata(&folder) {
        Ok(metadata) if metadata.is_dir() => return None,
        Ok(_) => "is not a folder".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("folder {}: {problem}: create it (mkdir -p), or give another path", folder.display()))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn no_capture(path: &Path) -> Option<String> {
    let error = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => io::Error::from_raw_os_error(libc::EISDIR),
        // Opening a pipe would wait for a writer.
        Ok(metadata) if !metadata.is_file() => return None,
        Ok(_) => OpenOptions::new().read(true).open(path).err()?,
        Err(error) => error,
    };
    Some(format!("cannot read the capture {}: {error}: give one that netvmd's user may read", path.display()))
}

fn no_output(path: &Path) -> Option<String> {
    if path.is_dir() {
        return Some(format!("{} is a folder: name a file in it", path.display()));
    }
    no_folder(path)
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
}
