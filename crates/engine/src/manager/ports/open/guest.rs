//! Opens ports that are a guest's network card.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk::{DmaChannel, VhostMode, VhostOptions, VhostPort, VhostQueue};
use netvm_model::{self as model, CardModel, Doorbells, PortConfig};

use super::{Opened, Queues, Site};
use crate::ids::WorkerId;
use crate::interface::Device;
use crate::interface::e1000::E1000Device;
use crate::interface::vhost_user::VhostDevice;
use crate::manager::ports::{OpenProblem, PortMode};

/// Whether guests run on KVM here: see [`note_kvm`].
static HAS_KVM: AtomicBool = AtomicBool::new(false);

/// Says whether guests run on KVM on this machine, which e1000 ports with `doorbells = "auto"` that open from now on need to
/// know. The engine itself does not try, as that takes a guest. Until then, they do not.
pub fn note_kvm(is_usable: bool) {
    HAS_KVM.store(is_usable, Ordering::Relaxed);
}

pub(super) fn open_vhost(
    eal: dpdk::Eal,
    config: &PortConfig,
    (path, mode): (&Path, model::VhostMode),
    dma: &model::VhostDma,
    site: &Site,
) -> Result<Opened, OpenProblem> {
    let mode = match mode {
        model::VhostMode::Server => VhostMode::Server,
        model::VhostMode::Client => VhostMode::Client,
    };
    let queues = config.queues.max(1);
    let options = VhostOptions { path: path.to_owned(), mode, queues };
    let (dma, fallback) = match dma {
        model::VhostDma::Off => (None, None),
        model::VhostDma::Auto => match DmaChannel::any(eal) {
            Ok(Some(dma)) => (Some(dma), None),
            Ok(None) => (None, Some("no DMA device is free".to_owned())),
            Err(error) => (None, Some(error.to_string())),
        },
        model::VhostDma::Device(name) => (Some(DmaChannel::open(eal, name, None)?), None),
    };
    let driver = dma
        .as_ref()
        .map_or_else(|| "vhost-user".to_owned(), |dma| format!("vhost-user, copies by {}", dma.name()));
    let (port, queues) = VhostPort::open(eal, &options, dma)?;
    let device = |(n, queue): (usize, VhostQueue)| -> (WorkerId, Box<dyn Device>) {
        let (worker, memory) = site.queue(n);
        (worker, Box::new(VhostDevice::new(queue, Arc::clone(memory))))
    };
    let queues = queues.into_iter().enumerate().map(device).collect();
    let mode = PortMode { driver, fallback };
    Ok(Opened { vhost: Some(port), mode, ..Opened::new(queues, String::new()) })
}

pub(super) fn open_e1000(
    config: &PortConfig,
    (path, model, doorbells): (&Path, CardModel, Doorbells),
    site: &Site,
) -> Result<Opened, OpenProblem> {
    if config.queues > 1 {
        return Err(OpenProblem::OneQueue { wanted: config.queues });
    }
    let mac = config.card_mac().unwrap_or_default().0;
    let has_msix = model == CardModel::E1000e;
    let model = if has_msix { netvm_e1000::Model::I82574 } else { netvm_e1000::Model::I82540 };
    let are_mapped = match doorbells {
        Doorbells::Auto => has_msix || HAS_KVM.load(Ordering::Relaxed),
        Doorbells::Mapped => true,
        Doorbells::Posted => false,
    };
    let (doorbells, way) = if are_mapped {
        (netvm_e1000::Doorbells::Mapped, "mapped")
    } else {
        (netvm_e1000::Doorbells::Posted, "posted")
    };
    let options = netvm_e1000::Options { path: path.to_owned(), model, mac, doorbells };
    let (port, queue) = netvm_e1000::Port::open(&options)?;
    let (worker, memory) = site.queue(0);
    let queues: Queues = vec![(worker, Box::new(E1000Device::new(queue, Arc::clone(memory))))];
    let unkept =
        |error| format!("the guest loses its card when netvmd ends, as nothing can keep it: {error}");
    let mode = PortMode {
        driver: format!("e1000 over vfio-user, doorbells {way}"),
        fallback: port.unkept().map(unkept),
    };
    Ok(Opened { card: Some(port), mode, ..Opened::new(queues, String::new()) })
}
