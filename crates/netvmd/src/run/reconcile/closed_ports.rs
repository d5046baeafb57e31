// SPDX-License-Identifier: Apache-2.0
//! When closed ports are opened again. In: the ports, and what each needs of this machine: an interface, a namespace,
//! files. Out: the ports to open now.
//!
//! A port is tried as soon as what it needs appears or is another one, and then at growing intervals: an attempt may
//! make an interface and remove it again. While what it needs is not there, an attempt would be in vain.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netvm_engine::{InterfaceState, PortView};
use netvm_model::{Host, KindInfo, PortConfig, PortId, Resource};
use netvm_vnet::container::NSFS;
use rustix::fs::statfs;

/// Pause after the first attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Numbers of what a port needs, such as device and inode of a file; `None`: something is not there.
type Needed = Option<Vec<u64>>;

#[derive(Debug)]
struct Attempt {
    needed: Needed,
    next: Instant,
    pause: Duration,
}

/// The closed ports, and the last attempt to open each.
#[derive(Debug, Default)]
pub(super) struct ClosedPorts(BTreeMap<PortId, Attempt>);

impl ClosedPorts {
    /// The ports to close and open again, or to open: those that lost their interface, and closed ones that are due.
    pub(super) fn due(&mut self, host: &Host, ports: &[PortView], now: Instant) -> Vec<PortId> {
        self.0.retain(|id, _| ports.iter().any(|port| port.id == *id && !port.is_open));
        let is_due = |port: &&PortView| {
            if port.is_open && !has_lost_interface(port) {
                return false;
            }
            // The interface of a punt port, or of a program's port, is made for it.
            let is_made = host.is_implied(port.id);
            let needed =
                host.port(port.id).and_then(|port| needed(port.kind.info())).or(is_made.then(Vec::new));
            self.is_due(port.id, needed, now) || port.is_open
        };
        ports.iter().filter(is_due).map(|port| port.id).collect()
    }

    fn is_due(&mut self, port: PortId, needed: Needed, now: Instant) -> bool {
        let Some(last) = self.0.get_mut(&port) else {
            // It was tried when it was closed; what it needs may have come since then.
            let is_there = needed.is_some();
            self.0.insert(port, Attempt { needed, next: now + FIRST_PAUSE, pause: FIRST_PAUSE });
            return is_there;
        };
        if last.needed != needed {
            *last = Attempt { needed, next: now + FIRST_PAUSE, pause: FIRST_PAUSE };
            return true;
        }
        if last.needed.is_none() || now < last.next {
            return false;
        }
        last.pause = (last.pause * 2).min(MAX_PAUSE);
        last.next = now + last.pause;
        true
    }
}

/// Whether an open port must be closed: its interface is gone, or another one has its name.
pub(super) fn has_lost_interface(port: &PortView) -> bool {
    port.interface.as_ref().is_some_and(|interface| interface.state != InterfaceState::Same)
}

/// The folders in which files appear and go that ports need.
pub(super) fn folders(host: &Host) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        host.ports.iter().flat_map(files).filter_map(|file| Some(file.parent()?.to_owned())).collect();
    // Those of processes are made by nobody who tells it.
    folders.retain(|folder| !folder.starts_with("/proc"));
    folders.sort();
    folders.dedup();
    folders
}

/// Files that appear when a port can be opened, and folders in which they do.
fn files(port: &PortConfig) -> impl Iterator<Item = PathBuf> {
    port.kind.info().resources().filter_map(|resource| match resource {
        Resource::ContainerTap(container) => Some(container.namespace_file()),
        Resource::OwnSocket(path)
        | Resource::PeerSocket(path)
        | Resource::PeerInterface(path, _)
        | Resource::Output(path) => path.parent().map(Path::to_owned),
        Resource::Input(path) => Some(path.to_owned()),
        Resource::PciDevice(_) | Resource::Interface(..) | Resource::Tap(_) => None,
    })
}

fn needed(kind: KindInfo<'_>) -> Needed {
    let each: Option<Vec<_>> = kind.resources().map(needed_of).collect();
    Some(each?.concat())
}

fn needed_of(resource: Resource<'_>) -> Needed {
    match resource {
        Resource::PciDevice(address) => identity(&Path::new("/sys/bus/pci/devices").join(address)),
        Resource::Interface(interface, _) => Some(vec![index(interface)?]),
        Resource::Tap(interface) => Some(vec![index(interface).unwrap_or(0)]),
        Resource::ContainerTap(container) => {
            let file = container.namespace_file();
            // Until the namespace is mounted on it, it is an ordinary file.
            statfs(&file).ok().filter(|system| system.f_type as u64 == NSFS)?;
            identity(&file)
        }
        Resource::OwnSocket(path) => {
            // netvmd makes the folders that are missing.
            let mut needed = path.ancestors().skip(1).find_map(identity).unwrap_or_default();
            needed.extend(identity(path).unwrap_or_default());
            Some(needed)
        }
        Resource::PeerSocket(_) | Resource::PeerInterface(..) => Some(Vec::new()),
        Resource::Input(path) => {
            let mut needed = identity(path)?;
            needed.push(fs::metadata(path).ok()?.len());
            Some(needed)
        }
        Resource::Output(path) => identity(folder_of(path)),
    }
}

fn index(interface: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok()?.trim().parse().ok()
}

fn identity(path: &Path) -> Needed {
    let metadata = fs::metadata(path).ok()?;
    Some(vec![metadata.dev(), metadata.ino()])
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_tried_when_what_it_needs_appears_and_then_ever_less_often() {
        let (mut ports, port, start) = (ClosedPorts::default(), PortId(3), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert!(ports.is_due(PortId(4), Some(vec![1]), at(0.0)), "it may have come just now");
        assert!(!ports.is_due(port, None, at(0.0)), "it was tried when it was closed");
        assert!(!ports.is_due(port, None, at(100.0)), "what it needs is not there");
        assert!(ports.is_due(port, Some(vec![1]), at(100.1)), "it appeared");
        assert!(ports.is_due(port, Some(vec![2]), at(100.2)), "it is another one");
        let mut tried = Vec::new();
        for tenth in 0..400 {
            let now = 100.2 + f64::from(tenth) / 10.0;
            if ports.is_due(port, Some(vec![2]), at(now)) {
                tried.push(now.round());
            }
        }
        assert_eq!(tried, [101.0, 103.0, 107.0, 115.0, 125.0, 135.0]);
        assert!(ports.is_due(port, None, at(141.0)), "the reason is another one now");
        assert!(!ports.is_due(port, None, at(200.0)));
    }

    #[test]
    fn a_port_on_a_nic_is_tried_when_the_device_is_there() {
        let (mut ports, port, now) = (ClosedPorts::default(), PortId(0), Instant::now());
        let absent = needed_of(Resource::PciDevice("ffff:1f:1f.7"));
        assert!(!ports.is_due(port, absent.clone(), now));
        assert!(!ports.is_due(port, absent, now + MAX_PAUSE));
        // Any device that this machine has.
        let Some(Ok(device)) = fs::read_dir("/sys/bus/pci/devices").ok().and_then(|mut all| all.next())
        else {
            println!("SKIP: this machine has no PCI devices");
            return;
        };
        let present = needed_of(Resource::PciDevice(device.file_name().to_str().unwrap()));
        assert!(present.is_some() && ports.is_due(port, present, now));
    }
}
