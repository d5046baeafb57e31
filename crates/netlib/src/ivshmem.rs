// SPDX-License-Identifier: Apache-2.0
//! Finds the engine's memories from within a VM. They are PCI devices there (QEMU's `ivshmem-plain`) and need no
//! driver: Linux shows the memory of a device as a file in sysfs. In: this VM's devices. Out: the memories of the NF,
//! and what wakes its peers.
//!
//! ```text
//!  /sys/bus/pci/devices/0000:00:03.0/  vendor 0x1af4, device 0x1110
//!     enable       "1" enables the device's memory
//!     resource0    registers; in `ivshmem-doorbell` devices, one of them wakes workers and NFs on the host
//!     resource2    the memory: control, next-hop table or region, by its first words (netvm_region::Kind)
//! ```
//!
//! The control memory replaces the socket of a process: its header has the NF's identity, in a ready message the NF
//! reports that it is ready, or why not, and a mailbox carries messages.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use netvm_region::{
    Control, GROUP_LAYOUT, Kind, LAYOUT_VERSION, Mailbox, Mapping, NotifyMode, OLDEST_LAYOUT, Side,
};

use crate::shared::doorbell::Doorbell;
use crate::shared::messages::Transport;
use crate::shared::{Eventfds, Memories};

mod wake_line;

/// Value of `NETVM_ATTACH` that selects the devices of this VM.
pub(crate) const KEYWORD: &str = "ivshmem";

const DEVICES: &str = "/sys/bus/pci/devices";
/// "Inter-VM shared memory" (QEMU's `docs/specs/ivshmem-spec`).
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Why an NF in a VM could not attach.
#[derive(Debug, thiserror::Error)]
pub enum IvshmemError {
    /// A device is unusable.
    #[error(
        "PCI device {device}: {step}: {source} (run the NF as root; a kernel in lockdown mode forbids this)"
    )]
    Device {
        /// Its PCI address.
        device: String,
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A memory is missing.
    #[error(
        "this VM has no ivshmem device with {0}: netvmd adds them to a VM with a `role` when it starts the VM"
    )]
    Missing(&'static str),
    /// The VM has the memories of two NFs.
    #[error(
        "PCI device {device} holds {what} a second time: a VM is one NF, so give it the devices of one NF only"
    )]
    Twice {
        /// Its PCI address.
        device: String,
        /// Its contents.
        what: &'static str,
    },
    /// The engine uses another layout.
    #[error(
        "PCI device {device} has layout {found}, this NF layout {LAYOUT_VERSION}: build the NF from the netvm version of the host"
    )]
    Layout {
        /// Its PCI address.
        device: String,
        /// Its layout version.
        found: u64,
    },
    /// An emulated VM has one possible processor: QEMU then translates atomic instructions into ordinary ones.
    #[error(
        "QEMU emulates this VM with a single processor, so its atomic instructions are not atomic for the host: start QEMU with `-smp 1,maxcpus=2` (two possible processors) or with `-accel kvm`"
    )]
    OneProcessor,
    /// An NF of this VM attached before.
    #[error("an NF has attached from this VM before, and a VM can attach only once: restart the VM")]
    Again,
}

/// Whether this machine has `ivshmem` devices.
pub(crate) fn is_present() -> bool {
    !paths().is_empty()
}

/// The memories that the devices hold.
#[derive(Default)]
pub(crate) struct Devices {
    control: Option<OwnedFd>,
    /// The sysfs folder of the device with the control memory.
    control_path: PathBuf,
    table: Option<OwnedFd>,
    /// By group and index.
    regions: BTreeMap<(u32, u16), OwnedFd>,
    /// A device with a layout that this netlib does not support.
    unsupported: Option<(String, u64)>,
}

impl Devices {
    /// Looks at all `ivshmem` devices of this VM.
    pub(crate) fn search() -> Result<Self, IvshmemError> {
        let mut found = Self::default();
        for path in paths() {
            let device = name_of(&path);
            let fail = |step| {
                let device = device.clone();
                move |source| IvshmemError::Device { device, step, source }
            };
            if fs::read_to_string(path.join("enable")).is_ok_and(|text| text.trim() == "0") {
                fs::write(path.join("enable"), "1").map_err(fail("enable"))?;
            }
            let file = OpenOptions::new().read(true).write(true).open(path.join("resource2"));
            let file: OwnedFd = file.map(File::into).map_err(fail("open resource2"))?;
            let Some((kind, layout)) = kind_of(&file).map_err(fail("map resource2"))? else { continue };
            let is_supported = match kind {
                Kind::Control => (OLDEST_LAYOUT.into()..=LAYOUT_VERSION.into()).contains(&layout),
                Kind::Table | Kind::Region { .. } => layout == u64::from(GROUP_LAYOUT),
            };
            if !is_supported {
                found.unsupported = Some((device.clone(), layout));
            }
            let (what, before) = match kind {
                Kind::Control => {
                    found.control_path = path;
                    ("control memory", found.control.replace(file))
                }
                Kind::Table => ("a next-hop table", found.table.replace(file)),
                Kind::Region { group, number } => {
                    ("the same region", found.regions.insert((group, number), file))
                }
            };
            if before.is_some() {
                return Err(IvshmemError::Twice { device, what });
            }
        }
        Ok(found)
    }

    /// The control memory, once.
    pub(crate) fn take_control(&mut self) -> Result<OwnedFd, IvshmemError> {
        self.control.take().ok_or(IvshmemError::Missing("control memory"))
    }

    /// The memories of the NF with this control memory.
    pub(crate) fn into_memories(mut self, control: Control) -> Result<Memories, IvshmemError> {
        if let Some((device, found)) = self.unsupported {
            return Err(IvshmemError::Layout { device, found });
        }
        let header = *control.header();
        let table = self.table.take().ok_or(IvshmemError::Missing("a next-hop table"))?;
        let mut regions = Vec::new();
        for number in 0..header.regions {
            let region = self.regions.remove(&(header.group, number));
            regions.push(region.ok_or(IvshmemError::Missing("every region of the NF's trust group"))?);
        }
        let eventfds = match control.notify() {
            NotifyMode::Poll => Eventfds::Silent,
            NotifyMode::Doorbell => {
                let nf_threads = &header.nf_threads[..usize::from(header.threads)];
                // Without the wake line the threads sleep for short times and poll, which only adds latency.
                let own = wake_line::listen(nf_threads).unwrap_or_default();
                Eventfds::Doorbell(self.doorbell(usize::from(header.workers))?, own)
            }
        };
        let mailbox = Mailbox::of(&control, Side::Nf);
        let transport = mailbox.map_or(Transport::None, |mailbox| Transport::Mailbox(Mutex::new(mailbox)));
        Ok(Memories { control, table, regions, eventfds, transport })
    }

    fn doorbell(&self, workers: usize) -> Result<Doorbell, IvshmemError> {
        Doorbell::open(&self.control_path, workers).map_err(|source| {
            let device = name_of(&self.control_path);
            IvshmemError::Device { device, step: "map resource0", source }
        })
    }
}

fn kind_of(file: &OwnedFd) -> io::Result<Option<(Kind, u64)>> {
    let page = Mapping::open("device", file.try_clone()?, 4096, false).map_err(io::Error::other)?;
    Ok(Kind::of(&page))
}

fn name_of(device: &Path) -> String {
    device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The sysfs folders of the devices, in the order of their PCI addresses.
fn paths() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DEVICES) else { return Vec::new() };
    let is = |path: &Path, file: &str, id: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.trim() == id)
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| is(path, "vendor", VENDOR) && is(path, "device", DEVICE)).collect();
    paths.sort();
    paths
}

/// QEMU translates atomic instructions into atomic ones only if the VM may run two processors at a time. With KVM the
/// VM runs on the real processor and needs no second one.
pub(crate) fn check_processors() -> Result<(), IvshmemError> {
    let possible = fs::read_to_string(POSSIBLE).unwrap_or_default();
    if possible.trim() == "0" && !is_kvm() { Err(IvshmemError::OneProcessor) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
fn is_kvm() -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
    let cpuid = |leaf| {
        // SAFETY: every x86-64 processor has CPUID, which only reads.
        unsafe { core::arch::x86_64::__cpuid(leaf) }
    };
    if cpuid(1).ecx & HYPERVISOR == 0 {
        return false;
    }
    let name = cpuid(0x4000_0000);
    let words = [name.ebx, name.ecx, name.edx].map(u32::to_le_bytes);
    words.as_flattened() == b"KVMKVMKVM\0\0\0"
}

/// Other architectures have no such instruction, so a VM needs two processors there.
#[cfg(not(target_arch = "x86_64"))]
fn is_kvm() -> bool {
    false
}
