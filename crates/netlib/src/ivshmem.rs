//! Becoming an NF from within a VM: the engine's memories are PCI devices there (QEMU's `ivshmem-plain`), and no driver is
//! needed to map them: Linux shows the memory of a device as a file in sysfs.
//!
//! ```text
//!  /sys/bus/pci/devices/0000:00:03.0/  vendor 0x1af4, device 0x1110
//!     enable       "1" switches the device's memory on
//!     resource0    registers; with `ivshmem-doorbell`, one that wakes others on the host
//!     resource2    the memory: control, next-hop table or region, as its first words say (netvm_region::Kind)
//! ```
//!
//! The control memory replaces the socket of a process: its header has the NF's identity; the NF reports in a [`ReadyMessage`] that it is ready, or why
//! not.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use netvm_region::{Control, Kind, LAYOUT_VERSION, Mapping, Notify, ReadyMessage};

use crate::attach::{Attachment, Error, Options};
use crate::doorbell::Doorbell;
use crate::eventfds::Eventfds;
use crate::wake_line;

/// In place of a socket's path: attach by the devices of this VM.
pub(crate) const WORD: &str = "ivshmem";

const DEVICES: &str = "/sys/bus/pci/devices";
/// "Inter-VM shared memory" (QEMU's `docs/specs/ivshmem-spec`).
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Why an NF in a VM could not attach.
#[derive(Debug, thiserror::Error)]
pub enum IvshmemError {
    /// A device cannot be used.
    #[error(
        "PCI device {device}: {step}: {source} (the NF must be root in its VM; a kernel in lockdown mode forbids it)"
    )]
    Device {
        /// Its address.
        device: String,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A memory is missing.
    #[error(
        "this VM has no ivshmem device with {0}: netvmd gives a VM with a `role` all of them when it starts it"
    )]
    Missing(&'static str),
    /// Memories of two VMs.
    #[error("PCI device {device} holds {what} a second time: a VM is one NF, with the devices of one only")]
    Twice {
        /// Its address.
        device: String,
        /// What it holds.
        what: &'static str,
    },
    /// Memories of two engines.
    #[error(
        "PCI device {device} has layout {theirs}, this NF layout {LAYOUT_VERSION}: build the NF in the image from the netvm that runs on the host"
    )]
    Layout {
        /// Its address.
        device: String,
        /// Its version.
        theirs: u64,
    },
    /// An emulated VM with one possible processor: QEMU's translator then makes no atomic instructions, as seen by others.
    #[error(
        "this VM can have one processor only, and QEMU emulates it: its atomic instructions would not be atomic for the host. Start QEMU with `-smp 1,maxcpus=2` (two possible processors) or with `-accel kvm`"
    )]
    OneProcessor,
    /// An NF of this VM attached before.
    #[error(
        "an NF has attached from this VM before, and its place is taken until the VM ends: restart the VM"
    )]
    Again,
}

/// Whether this machine has such a device.
pub(crate) fn is_present() -> bool {
    !devices().is_empty()
}

/// Attaches through the devices of this VM, and reports the result to the engine.
pub(crate) fn attach(options: &Options) -> Result<Attachment, Error> {
    let mut found = Found::search()?;
    let control = found.control.take().ok_or(IvshmemError::Missing("control memory"))?;
    // For the ready_message, which has its place whatever the layout.
    let page =
        Mapping::open("control", control.try_clone().map_err(netvm_attach::AttachError::from)?, 4096, true)?;
    if ReadyMessage::is_said(&page) {
        return Err(IvshmemError::Again.into());
    }
    let outcome = check_processors().map_err(Error::from).and_then(|()| found.attach(control, options));
    match &outcome {
        Ok(_) => ReadyMessage::Ready { name: options.name.clone(), counters: options.counters.clone() },
        Err(error) => ReadyMessage::Failed { reason: error.to_string() },
    }
    .say(&page);
    outcome
}

/// What the devices hold.
#[derive(Default)]
struct Found {
    control: Option<OwnedFd>,
    /// The folder of the device with the control memory.
    home: PathBuf,
    table: Option<OwnedFd>,
    /// By group and number.
    regions: BTreeMap<(u32, u16), OwnedFd>,
    /// Of a table or region, where it is not this netlib's.
    layout: Option<(String, u64)>,
}

impl Found {
    fn search() -> Result<Self, IvshmemError> {
        let mut found = Self::default();
        for path in devices() {
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
            if layout != u64::from(LAYOUT_VERSION) {
                found.layout = Some((device.clone(), layout));
            }
            let (what, before) = match kind {
                Kind::Control => {
                    found.home = path;
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

    fn attach(mut self, control: OwnedFd, options: &Options) -> Result<Attachment, Error> {
        let control = Control::open(control)?;
        if let Some((device, theirs)) = self.layout {
            return Err(IvshmemError::Layout { device, theirs }.into());
        }
        let header = *control.header();
        let table = self.table.take().ok_or(IvshmemError::Missing("a next-hop table"))?;
        let mut regions = Vec::new();
        for number in 0..header.regions {
            let region = self.regions.remove(&(header.group, number));
            regions.push(region.ok_or(IvshmemError::Missing("every region of the NF's trust group"))?);
        }
        let eventfds = match control.notify() {
            Notify::Poll => Eventfds::Silent,
            Notify::Doorbell => {
                let nf_threads = &header.nf_threads[..usize::from(header.threads)];
                // Without the line the threads nap, and nothing is lost but some time.
                let own = wake_line::listen(nf_threads).unwrap_or_default();
                Eventfds::Doorbell(self.doorbell(usize::from(header.workers))?, own)
            }
        };
        Attachment::over(control, &table, regions, eventfds, None, options.waiting, options.stop.clone())
    }

    fn doorbell(&self, workers: usize) -> Result<Doorbell, IvshmemError> {
        Doorbell::open(&self.home, workers).map_err(|source| {
            let device = name_of(&self.home);
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

/// In the order of their addresses.
fn devices() -> Vec<PathBuf> {
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

/// QEMU's translator makes atomic instructions atomic only where it may run two processors at a time. A VM that runs on
/// the real processor (KVM) needs no second one.
fn check_processors() -> Result<(), IvshmemError> {
    let possible = fs::read_to_string(POSSIBLE).unwrap_or_default();
    if possible.trim() == "0" && !is_kvm() { Err(IvshmemError::OneProcessor) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
fn is_kvm() -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
    let cpuid = |leaf| {
        // SAFETY: every x86-64 processor has the instruction, and it only reads.
        unsafe { core::arch::x86_64::__cpuid(leaf) }
    };
    if cpuid(1).ecx & HYPERVISOR == 0 {
        return false;
    }
    let name = cpuid(0x4000_0000);
    let words = [name.ebx, name.ecx, name.edx].map(u32::to_le_bytes);
    words.as_flattened() == b"KVMKVMKVM\0\0\0"
}

/// Other processors have no such instruction: there, a VM needs two.
#[cfg(not(target_arch = "x86_64"))]
fn is_kvm() -> bool {
    false
}
