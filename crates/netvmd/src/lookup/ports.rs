// SPDX-License-Identifier: Apache-2.0
//! Interfaces, devices, sockets and captures of ports.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use netvm_config::{Missing, MissingKind};
use netvm_model::{Access, ContainerConfig, Host, PortConfig, Resource};
use netvm_xsk::OpenError;
use rustix::net::{AddressFamily, SocketType};

use super::shared;

/// The folder that lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// The device that creates TAP interfaces.
const TUN: &str = "/dev/net/tun";

/// What a port needs and this machine lacks.
pub(super) fn missing(item: usize, port: &PortConfig, running: &Host) -> Vec<Missing> {
    let kind = if is_mistake(port) { MissingKind::Missing } else { MissingKind::Absent };
    let missing = |(key, message)| Missing { table: "port", item, key, message, kind };
    let found: Vec<Missing> = find(port, running).into_iter().map(missing).collect();
    if !found.is_empty() {
        return found;
    }
    let shared_by = |(key, message)| Missing { table: "port", item, key, message, kind: MissingKind::Shared };
    shared::shared(port, |interface| index(interface).ok()).into_iter().map(shared_by).collect()
}

/// Whether the file is wrong: waiting for what is missing would not help.
fn is_mistake(port: &PortConfig) -> bool {
    port.kind.info().resources().any(|resource| match resource {
        Resource::Interface(interface, Access::Xdp) => few_queues(interface, port.queues).is_some(),
        Resource::ContainerTap(container) => netvm_vnet::container::is_own(&container.namespace_file()),
        _ => false,
    })
}

/// The keys whose values are missing here, and why.
fn find(port: &PortConfig, running: &Host) -> Vec<(&'static str, String)> {
    let find = |resource| match resource {
        Resource::PciDevice(address) => Some(("address", pci(address)?)),
        Resource::Interface(interface, access) => match no_interface(interface) {
            Some(message) => Some(("interface", message)),
            None if access == Access::Xdp => Some(("queues", few_queues(interface, port.queues)?)),
            None => None,
        },
        Resource::Tap(interface) => {
            // With a fast path, it is no TAP device.
            let is_own = |old: &PortConfig| {
                let is_pair = old.has_fast_path() && old.kind.info().interface() == Some(interface);
                old.kind == port.kind || is_pair
            };
            let is_taken = !running.ports.iter().any(is_own);
            is_taken.then(|| no_tap(interface)).flatten().map(|message| ("interface", message))
        }
        Resource::ContainerTap(container) => no_namespace(container),
        Resource::OwnSocket(path) => Some(("path", no_socket(path)?)),
        Resource::PeerSocket(_) | Resource::PeerInterface(..) => None,
        Resource::Input(path) => Some(("input", no_capture(path)?)),
        Resource::Output(path) => Some(("output", no_output(path)?)),
    };
    port.kind.info().resources().filter_map(find).collect()
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
            "{} is netvm's own network namespace: give the container's, or use kind = \"host\"",
            file.display()
        );
        return Some(("namespace", problem));
    }
    let Err(error) = fs::File::open(&file) else { return taken(container, &file) };
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "start the container first; `ip netns` and `lsns -t net` list network namespaces"
        }
        _ => "run netvmd as root",
    };
    Some(("namespace", format!("no network namespace {}: {error}: {remedy}", file.display())))
}

/// The container may have an interface of that name. One with the port's MAC address is that of a netvmd that runs.
fn taken(container: &ContainerConfig, file: &Path) -> Option<(&'static str, String)> {
    let name = &container.interface;
    // Without the right to enter the namespace nothing is known.
    let mac = netvm_vnet::container::mac_in(file, name).ok().flatten()?;
    (mac != container.own_mac().0).then(|| {
        let file = file.display();
        let problem = format!(
            "network namespace {file} has an interface {name} already: remove it (nsenter --net={file} ip link delete \
             {name}), start the container without a network, or give another `interface`"
        );
        ("interface", problem)
    })
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
