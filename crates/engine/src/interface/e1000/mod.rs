// SPDX-License-Identifier: Apache-2.0
//! Guests with an Intel network card (e1000) over vfio-user sockets.

mod device;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_e1000::{Counts, Fault, Model, Options, Port};
use netvm_model::{CardModel, Doorbells};

use super::control::{Control, OpenProblem, Opened, Opening, PortMode, Reported};
use device::E1000Device;

/// Whether guests run on KVM here: see [`note_kvm`].
static HAS_KVM: AtomicBool = AtomicBool::new(false);

/// Says whether guests run on KVM on this machine, which e1000 ports with `doorbells = "auto"` that open from now on
/// need to know. The engine itself does not try, as that takes a guest. Until then, they do not.
pub fn note_kvm(is_usable: bool) {
    HAS_KVM.store(is_usable, Ordering::Relaxed);
}

/// The control side.
struct Card {
    port: Port,
    /// Faults of the guest, and refused guests.
    reported: Reported<2>,
}

impl Control for Card {
    fn link(&self) -> Option<bool> {
        Some(self.port.status().is_connected)
    }

    fn fault(&self) -> Option<String> {
        self.port.status().fault.map(text_of)
    }

    fn new_fault(&mut self) -> Option<String> {
        let (status, (refused_peers, refused_peer)) = (self.port.status(), self.port.refused());
        let fault = (status.faults, status.fault.map(text_of));
        self.reported.first_new([fault, (refused_peers, refused_peer.map(|peer| peer.to_string()))])
    }

    fn notes(&self) -> Vec<String> {
        self.port.refused_peer().iter().map(ToString::to_string).collect()
    }

    fn card(&self) -> Option<Counts> {
        Some(self.port.counts())
    }

    fn close(self: Box<Self>) -> Option<String> {
        self.port.close();
        None
    }
}

pub(super) fn open(
    opening: &Opening<'_>,
    path: &Path,
    model: CardModel,
    doorbells: Doorbells,
) -> Result<Opened, OpenProblem> {
    opening.check_one_queue()?;
    let mac = opening.config.card_mac().unwrap_or_default().0;
    let has_msix = model == CardModel::E1000e;
    let model = if has_msix { Model::I82574 } else { Model::I82540 };
    let are_mapped = match doorbells {
        Doorbells::Auto => has_msix || HAS_KVM.load(Ordering::Relaxed),
        Doorbells::Mapped => true,
        Doorbells::Posted => false,
    };
    let (doorbells, how) = if are_mapped {
        (netvm_e1000::Doorbells::Mapped, "mapped")
    } else {
        (netvm_e1000::Doorbells::Posted, "posted")
    };
    let (port, queue) = Port::open(&Options { path: path.to_owned(), model, mac, doorbells })?;
    let device = E1000Device::new(queue, Arc::clone(opening.queue(0).1));
    let unkept =
        |error| format!("the guest loses its card when netvmd ends, as nothing can keep it: {error}");
    let mode = PortMode {
        driver: format!("e1000 over vfio-user, doorbells {how}"),
        fallback: port.unkept().map(unkept),
    };
    Ok(Opened::of_one(opening, device, mode, Card { port, reported: Reported::new() }))
}

fn text_of(fault: Fault) -> String {
    format!("the guest's e1000 card: {fault} (see docs/how-to/e1000-guests.md)")
}
