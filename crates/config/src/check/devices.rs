//! Things of the machine that only one can have: interfaces, PCI devices, captures being written, cores.

use crate::finding::{Findings, Kind, Span};
use crate::model::{Host, Idle, PortKind};
use crate::raw::RawHost;

pub(super) fn check(findings: &Findings, raw: &RawHost, host: &Host) {
    devices(findings, raw, host);
    cores(findings, raw, host);
}

/// What a port alone can have, with the word for it.
fn device(kind: &PortKind) -> Option<(&'static str, String)> {
    match kind {
        PortKind::Pci { address } => Some(("PCI device", address.clone())),
        PortKind::AfXdp { interface, .. }
        | PortKind::AfPacket { interface }
        | PortKind::Tap { interface } => Some(("interface", interface.clone())),
        PortKind::VhostUser { path, .. } => Some(("socket", path.display().to_string())),
        PortKind::Pcap { output, .. } => {
            output.as_ref().map(|path| ("capture to write", path.display().to_string()))
        }
        PortKind::Null { .. } | PortKind::Source(_) | PortKind::Sink => None,
    }
}

fn devices(findings: &Findings, raw: &RawHost, host: &Host) {
    let mut seen: Vec<((&str, String), Span, &str)> = Vec::new();
    for (port, written) in host.ports.iter().zip(&raw.ports) {
        let (Some(device), Some(place)) = (device(&port.kind), &written.device) else { continue };
        if let Some((_, first, owner)) = seen.iter().find(|(known, _, _)| *known == device) {
            let (what, name) = &device;
            findings
                .note(Kind::Duplicate, format!("two ports have the {what} `{name}`"))
                .at(place.span(), "again")
                .at(first.clone(), format!("port {owner} has it"))
                .help("only one port can have it; for more workers raise that port's `queues`")
                .keep();
        } else {
            seen.push((device, place.span(), &port.name));
        }
    }
}

/// Cores outside the given nodes, and NFs that would starve beside a worker that never sleeps.
fn cores(findings: &Findings, raw: &RawHost, host: &Host) {
    let engine = &host.engine;
    for (core, place) in engine.cores.iter().zip(&raw.engine.cores) {
        if !engine.nodes.is_empty() && !engine.nodes.iter().any(|node| node.contains(core)) {
            findings
                .note(Kind::BadValue, format!("core {core} is on none of the `nodes`"))
                .at(place.clone(), "on no node")
                .help("add it to one of the lists in `nodes`, or leave `nodes` out")
                .keep();
        }
    }
    if engine.idle != Idle::Poll {
        return;
    }
    for (nf, written) in host.nfs.iter().zip(&raw.nfs) {
        let crate::model::NfStart::Managed { cores, .. } = &nf.start else { continue };
        for (core, place) in cores.iter().zip(&written.cores) {
            if engine.cores.contains(core) {
                findings
                    .note(
                        Kind::SharedCore,
                        format!("NF {} shares core {core} with a worker that never sleeps", nf.role),
                    )
                    .at(place.clone(), "a worker spins here")
                    .help("give it another core, or set `idle = \"adaptive\"` in [engine]")
                    .keep();
            }
        }
    }
}
