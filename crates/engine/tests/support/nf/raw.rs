// SPDX-License-Identifier: Apache-2.0
//! An NF that attaches without netlib, and has its rings to itself.

use std::os::fd::{FromRawFd, OwnedFd};

use netvm_attach::{Hello, Ready};
use netvm_region::{Control, Mapping, Region};
use netvm_ring::{Consumer, Producer};

/// Descriptors and memory of an NF that attached without netlib.
pub struct Attached {
    pub fds: Wakes,
    /// The rings of its thread with each worker: from the worker, and to it.
    pub rings: Vec<(Consumer, Producer)>,
    pub control: Control,
    pub region: Region,
    pub socket: OwnedFd,
}

pub struct Wakes {
    pub workers: Vec<OwnedFd>,
    pub nf_threads: Vec<OwnedFd>,
}

pub fn attach(name: &str) -> Attached {
    attach_as(netvm_region::LAYOUT_VERSION, name)
}

/// As an NF that was built for this layout.
pub fn attach_as(layout: u32, name: &str) -> Attached {
    let number: i32 = std::env::var(netvm_attach::FD_VARIABLE).unwrap().parse().unwrap();
    // SAFETY: passed to this process for this use.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let role = std::env::var(netvm_attach::ROLE_VARIABLE).unwrap();
    let hello = Hello { layout, role, name: name.into(), threads: 1, counters: vec![], offloads: false };
    let fds = netvm_attach::handshake(&socket, &hello).unwrap();
    let control = Control::open(fds.control).unwrap();
    let geometry = control.header().geometries[0];
    let region = Region::open(name, fds.regions.into_iter().next().unwrap(), geometry).unwrap();
    assert!(Mapping::open("table", fds.table, 4096, true).is_err(), "the table must not be writable");
    netvm_attach::send(&socket, &Ready { pid: std::process::id() }, &[]).unwrap();
    // SAFETY: this process's ends; it has no others.
    let rings = (0..control.header().workers).map(|worker| unsafe { ends(&control, worker) }).collect();
    let fds = Wakes { workers: fds.workers, nf_threads: fds.nf_threads };
    Attached { fds, rings, control, region, socket }
}

/// This side's ends of the rings with a worker.
///
/// # Safety
/// No others of this side are used any more.
pub unsafe fn ends(control: &Control, worker: u16) -> (Consumer, Producer) {
    // SAFETY: as the caller promises; the other side is a worker's.
    unsafe { (control.ring_to_nf(0, worker).consumer(), control.ring_from_nf(0, worker).producer()) }
}
