// SPDX-License-Identifier: Apache-2.0
//! Guests over vhost-user sockets.

mod device;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dpdk::{DmaChannel, DmaChannelStats, VhostMode, VhostOptions, VhostPort, VhostRefusal};
use netvm_model::{self as model, VhostDma};

use super::control::{Control, OpenProblem, Opened, Opening, PortMode, Queues, Reported};
use device::VhostDevice;

/// The control side.
struct VhostUser {
    port: VhostPort,
    path: PathBuf,
    /// Faults of guests: truncated memory, refused messages, refused guests.
    reported: Reported<3>,
}

impl Control for VhostUser {
    fn link(&self) -> Option<bool> {
        Some(self.port.status().connected)
    }

    fn fault(&self) -> Option<String> {
        let guest = self.port.status();
        if guest.truncated {
            return Some(SHRUNK.to_owned());
        }
        if let Some(why) = guest.refused {
            return Some(refused(&why));
        }
        let name = self.port.dma().filter(|dma| dma.stuck)?.name;
        Some(format!("{name} did not finish its copies and was stopped; the CPU copies instead"))
    }

    fn new_fault(&mut self) -> Option<String> {
        let ((refusals, why), (refused_peers, refused_peer)) =
            (self.port.refusals(), self.port.refused_peers());
        self.reported.first_new([
            (self.port.truncations(), Some(SHRUNK.to_owned())),
            (refusals, why.map(|why| refused(&why))),
            (refused_peers, refused_peer.map(|peer| peer.to_string())),
        ])
    }

    fn notes(&self) -> Vec<String> {
        let guest = self.port.status();
        let unshared = guest.unshared.then(|| UNSHARED.to_owned());
        let absent = guest.absent.then(|| absent(&self.path));
        let refused = self.port.refused_peer().map(|peer| peer.to_string());
        refused.into_iter().chain(unshared).chain(absent).collect()
    }

    fn copies(&self) -> Option<DmaChannelStats> {
        self.port.dma().map(|dma| dma.stats)
    }
}

pub(super) fn open(
    opening: &Opening<'_>,
    path: &Path,
    mode: model::VhostMode,
    dma: &VhostDma,
) -> Result<Opened, OpenProblem> {
    let mode = match mode {
        model::VhostMode::Server => VhostMode::Server,
        model::VhostMode::Client => VhostMode::Client,
    };
    let options = VhostOptions { path: path.to_owned(), mode, queues: opening.queues() };
    let (dma, fallback) = match dma {
        VhostDma::Off => (None, None),
        VhostDma::Auto => match DmaChannel::any(opening.eal) {
            Ok(Some(dma)) => (Some(dma), None),
            Ok(None) => (None, Some("no DMA device is free".to_owned())),
            Err(error) => (None, Some(error.to_string())),
        },
        VhostDma::Device(name) => (Some(DmaChannel::open(opening.eal, name, None)?), None),
    };
    let driver = dma
        .as_ref()
        .map_or_else(|| "vhost-user".to_owned(), |dma| format!("vhost-user, copies by {}", dma.name()));
    let (port, opened) = VhostPort::open(opening.eal, &options, dma)?;
    let mut queues = Queues::new();
    for (n, queue) in opened.into_iter().enumerate() {
        let (worker, memory) = opening.queue(n);
        queues.push((worker, Box::new(VhostDevice::new(queue, Arc::clone(memory)))));
    }
    let control = VhostUser { port, path: path.to_owned(), reported: Reported::new() };
    Ok(Opened::new(queues, PortMode { driver, fallback }, control))
}

const SHRUNK: &str =
    "the guest truncated memory that it shares; it stays disconnected until it connects again";

const UNSHARED: &str = "a guest is connected and its driver has begun, but its memory is not shared with netvm: give \
                        QEMU -object memory-backend-memfd,id=ram,size=…,share=on and -machine memory-backend=ram \
                        (see docs/how-to/vhost-user-guests.md)";

/// What a port waits for whose guest creates the socket.
fn absent(path: &Path) -> String {
    format!(
        "no guest has created {}, which netvmd tries once a second: start the guest, with `server=on,wait=off` of its \
         chardev (see docs/how-to/vhost-user-guests.md, Keys)",
        path.display()
    )
}

/// Why a guest was disconnected, and the remedy.
fn refused(why: &VhostRefusal) -> String {
    let what = match why {
        VhostRefusal::Protocol => "its messages violate the protocol".to_owned(),
        VhostRefusal::NotAnEventfd => "its kick or call descriptor is not an eventfd".to_owned(),
        VhostRefusal::ServedMemory { file_system } => {
            let file_system = file_system.as_deref().unwrap_or("a file system that is not mounted here");
            format!(
                "its memory is a file on {file_system}, whose page faults could block netvm: use a memfd, or a \
                 file on hugetlbfs or tmpfs (QEMU: -object memory-backend-memfd,share=on)"
            )
        }
    };
    format!("the guest was disconnected: {what} (see docs/how-to/vhost-user-guests.md, Trust)")
}
