// SPDX-License-Identifier: Apache-2.0
//! Workers and NUMA nodes that ports name, and keys of queues at ports without queues.

use netvm_model::{Host, PortConfig};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        worker(findings, host, port, &place);
        node(findings, host, port, &place);
        queues(findings, port, &place);
    }
}

/// A worker that does not exist.
fn worker(findings: &Findings, host: &Host, port: &PortConfig, place: &FileTable<'_>) {
    // Without `cores`, there is one worker.
    let workers = host.engine.cores.len().max(1);
    let Some(number) = port.worker.filter(|number| usize::from(*number) >= workers) else { return };
    let have =
        if workers == 1 { "one worker, 0".to_owned() } else { format!("workers 0 to {}", workers - 1) };
    findings
        .note(Kind::BadValue, format!("port {} names worker {number}, which does not exist", port.name))
        .at(place.of("worker"), format!("[engine] has {have}"))
        .help("each core in `cores` of [engine] has a worker, counted from 0: add a core, or write `worker = \"auto\"`")
        .keep();
}

/// A node without a worker, or besides a worker.
fn node(findings: &Findings, host: &Host, port: &PortConfig, place: &FileTable<'_>) {
    let Some(node) = port.node else { return };
    if port.worker.is_some() {
        findings
            .note(Kind::Conflict, format!("port {} names a worker and a NUMA node", port.name))
            .at(place.of("node"), "the worker already is on a node")
            .help("remove `worker` or `node`")
            .keep();
        return;
    }
    let engine = &host.engine;
    let cores = engine.nodes.get(node as usize);
    let has_worker = cores.is_some_and(|cores| engine.cores.iter().any(|core| cores.contains(core)));
    // Without `cores`, the worker has the first core that netvmd may use.
    if !engine.nodes.is_empty() && !engine.cores.is_empty() && !has_worker {
        findings
            .note(Kind::BadValue, format!("port {} names node {node}, which has no worker", port.name))
            .at(place.of("node"), "by `nodes` and `cores` of [engine]")
            .help("add a core of that node to `cores`, name another node, or leave `node` out")
            .keep();
    }
}

/// Keys about queues at a port whose packets pass it in one go.
fn queues(findings: &Findings, port: &PortConfig, place: &FileTable<'_>) {
    if port.kind.info().sends_to.is_none() {
        return;
    }
    // A shaper has one queue, in a group's memory, and a worker.
    let of_shaper = ["worker", "node", "group"].into_iter().filter(|_| !port.has_queues());
    for key in ["gro", "weight", "reserve"].into_iter().chain(of_shaper) {
        let Some(at) = place.key(key) else { continue };
        findings
            .note(Kind::Unused, format!("port {} has no queue: `{key}` has no effect", port.name))
            .at(at, "for ports with a device")
            .help(format!("leave it out here, and give `{key}` to the ports by which the packets come in"))
            .keep();
    }
}
