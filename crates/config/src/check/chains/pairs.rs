// SPDX-License-Identifier: Apache-2.0
//! Programs whose packets pass a pair of ports: each has one position in one chain, and in its reverse.

use netvm_model::{Chain, Host, NfConfig, Output, PairHop, PairSide};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

/// Ethernet's header.
const HEADER: u32 = 14;
/// Bytes that AF_XDP leaves free in front of a packet.
const XDP_HEADROOM: u32 = 256;

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (nf, place) in host.nfs.iter().zip(file.items("nf")) {
        if nf.pair().is_some() {
            positions(findings, file, host, nf);
            fits(findings, &place, host, nf);
            routes(findings, &place, nf);
        }
    }
    for (chain, place) in host.chains.iter().zip(file.items("chain")) {
        reverse(findings, &place, host, chain);
        exit(findings, &place, host, chain);
    }
}

/// The chain and the position of a packet that comes back are those of its port.
fn positions(findings: &Findings, file: &FileTable<'_>, host: &Host, nf: &NfConfig) {
    let chains = file.items("chain");
    for side in PairSide::BOTH {
        let hops: Vec<_> = host.pair_hops(nf).filter(|hop| hop.enters == side).collect();
        let [first, again, ..] = hops[..] else { continue };
        // Without renumbering, a chain's number is its position in the file.
        let place = |hop: PairHop| {
            chains.get(hop.chain.index()).map(|chain| chain.element("hops", hop.hop)).unwrap_or_default()
        };
        findings
            .note(Kind::Duplicate, format!("program {} is at two hops", nf.role))
            .at(place(again), "again")
            .at(place(first), "first here")
            .help(
                "netvm knows a packet that comes back only by its port: add another [[nf]] for this hop, or, if this \
                 chain is for the other direction of the same traffic, `reverse = \"…\"` with the name of the other \
                 chain",
            )
            .keep();
    }
}

fn reverse(findings: &Findings, place: &FileTable<'_>, host: &Host, chain: &Chain) {
    let Some(of) = chain.reverse.and_then(|of| host.chain(of)) else { return };
    let bad = |what: String, help: &str| {
        findings.note(Kind::BadValue, what).at(place.of("reverse"), "invalid value").help(help).keep();
    };
    if of.id == chain.id || of.reverse.is_some() {
        let what = format!("chain {} cannot be the reverse of {}", chain.name, of.name);
        return bad(what, "name the chain of the other direction, and give only one of the two `reverse`");
    }
    let programs = |chain: &Chain| -> Vec<_> {
        chain
            .hops
            .iter()
            .copied()
            .filter(|role| host.nf(*role).is_some_and(|nf| nf.pair().is_some()))
            .collect()
    };
    let (own, mut others) = (programs(chain), programs(of));
    others.reverse();
    if own.is_empty() || own != others {
        let what =
            format!("chain {} does not pass the programs of {} in the opposite order", chain.name, of.name);
        bad(what, "list the same NFs with `attach` in the opposite order, or remove `reverse`");
    }
}

/// A program takes the port that received a packet from it, so the end of the chain must not depend on several.
fn exit(findings: &Findings, place: &FileTable<'_>, host: &Host, chain: &Chain) {
    let has_program = chain.hops.iter().any(|role| host.nf(*role).is_some_and(|nf| nf.pair().is_some()));
    let depends = matches!(chain.output, Output::Ingress | Output::Normal | Output::Router(_));
    let mut from: Vec<&str> = host.ports_into(chain.id).map(|port| port.name.as_str()).collect();
    from.dedup();
    if !has_program || !depends || from.len() < 2 {
        return;
    }
    findings
        .note(
            Kind::Conflict,
            format!("chain {} begins at several ports ({}), and passes a program", chain.name, from.join(", ")),
        )
        .at(place.of("output"), "depends on the port that received a packet")
        .help("a program does not say by which port its packets came: name a port as `output`, or make a chain for each port")
        .keep();
}

/// Probes are no IP packets.
fn routes(findings: &Findings, place: &FileTable<'_>, nf: &NfConfig) {
    if nf.pair().is_some_and(|pair| pair.rewrite_macs && pair.probe) {
        findings
            .note(Kind::Conflict, format!("program {} gets only IP packets, and so no probes", nf.role))
            .at(place.of("rewrite_macs"), "for a program that routes")
            .help("set `probe = false`: then a program hangs if packets go in for `hang_timeout` and none comes out")
            .keep();
    }
}

fn fits(findings: &Findings, place: &FileTable<'_>, host: &Host, nf: &NfConfig) {
    let (Some(group), Some(pair)) = (host.group(nf.group), nf.pair()) else { return };
    let needed = u32::from(group.headroom).max(XDP_HEADROOM) + HEADER + u32::from(pair.mtu);
    if needed <= group.buffer_size {
        return;
    }
    findings
        .note(
            Kind::BufferSize,
            format!("an MTU of {} does not fit the buffers of group {}", pair.mtu, group.name),
        )
        .at(place.of("mtu"), format!("needs {needed} bytes, a buffer has {}", group.buffer_size))
        .help(format!(
            "set `buffer_size = {}` of group {}, or a lower `mtu`",
            needed.next_multiple_of(64),
            group.name
        ))
        .keep();
}
