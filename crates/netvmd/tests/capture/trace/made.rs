// SPDX-License-Identifier: Apache-2.0
//! Packets that an NF makes: they are in captures, traces and latencies, with the NF as their origin.

use netvm_api::{LatencyInfo, LiveTraceRequest, StepKind, path};

use super::*;

/// Where copies go that an NF has made.
pub const COPIES: u16 = 7777;
/// The bytes of the destination port.
const PORT: std::ops::Range<usize> = 36..38;
const MADE: &str = "udp dst port 7777";
/// A packet that an NF has made is not followed to another worker for its latency.
const ONE_WORKER: &str = "worker = 0\n";

/// Passes packets on, and makes a copy of each for another port.
pub struct Copies;

impl NetworkFunction for Copies {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each_with(|packet, outbox| {
            if let Some(mut made) = outbox.clone_of(&packet).filter(|made| made.data().len() > HEADERS) {
                made.data_mut()[PORT].copy_from_slice(&COPIES.to_be_bytes());
                outbox.send(made, Verdict::Next);
            }
            Verdict::Next
        });
    }
}

/// Sends frames until something has ended.
fn send_until(site: &Site, what: &str, mut has_ended: impl FnMut() -> bool) {
    site.daemon.until(what, |_| {
        site.send(frames(50));
        has_ended()
    });
}

#[test]
fn what_an_nf_makes_is_captured_as_its_own_at_each_place() {
    if !are_possible() {
        return;
    }
    let site = Site::with("cn", "copies", "");
    let folder = site.daemon.folder.0.clone();
    let dropped = CaptureRequest { dropped: true, ..request(&[], MADE) };
    let all = [
        ("first", request(&["through:1"], MADE), "verdict next, made by first"),
        ("second", request(&["through:2"], &format!("inbound and {MADE}")), "made by first"),
        ("right", request(&["right"], MADE), "made by first"),
        ("dropped", dropped, "dropped: verdict, made by first"),
        ("others", request(&["through:1"], "outbound and udp dst port 4000"), "verdict next, from port left"),
    ];
    let file = |name: &str| folder.join(name.to_owned() + ".pcapng");
    let readers: Vec<_> =
        all.iter().map(|(name, request, _)| gather(site.start(request).unwrap(), 20, &file(name))).collect();
    send_until(&site, "all captures have their packets", || {
        readers.iter().all(std::thread::JoinHandle::is_finished)
    });
    drop(readers);
    for (name, _, comment) in all {
        let packets = read(&file(name));
        assert_eq!(packets.len(), 20, "{name}");
        assert!(packets.iter().all(|packet| packet.comment.contains(comment)), "{name}: {packets:?}");
    }
}

#[test]
fn what_an_nf_makes_is_traced_from_that_nf_on() {
    if !are_possible() {
        return;
    }
    let site = Site::with_ports("cm", "copies", "", ONE_WORKER);
    let trace =
        |filter: &str| site.trace(filter, LiveTraceRequest { packets: 3, ..LiveTraceRequest::default() });
    // A payload that the second NF lets pass.
    let made = trace(&format!("{MADE} and udp[8] = 1"));
    send_until(&site, "packets were traced", || made.is_finished());
    for packet in made.join().unwrap() {
        assert_eq!((packet.port.as_deref(), packet.nf.as_deref()), (None, Some("first")));
        let steps: Vec<_> = packet.steps.iter().map(|step| (step.step, step.text.as_str())).collect();
        let expected = [
            (StepKind::Made, "made by NF first, hop 1"),
            (StepKind::FromNf, "returned by NF first, hop 1: verdict next"),
            (StepKind::ToNf, "to NF second, hop 2"),
            (StepKind::FromNf, "returned by NF second, hop 2: verdict next"),
            (StepKind::LeftChain, "leaves the chain"),
            (StepKind::Sent, "sent on port right"),
        ];
        assert_eq!(steps, expected);
    }
    // No port has received it.
    let from_left = LiveTraceRequest { from: Some("left".to_owned()), ..LiveTraceRequest::default() };
    let none = site.trace(MADE, LiveTraceRequest { seconds: 2, ..from_left });
    send_until(&site, "the trace is over", || none.is_finished());
    assert!(none.join().unwrap().is_empty());
}

#[test]
fn the_latency_of_what_an_nf_makes_begins_at_that_nf() {
    if !are_possible() {
        return;
    }
    let site = Site::with_ports("cq", "copies", "", ONE_WORKER);
    let mut rows: Vec<LatencyInfo> = Vec::new();
    let is_there = |rows: &[LatencyInfo], of: &str, name: &str| {
        rows.iter().any(|row| (row.of.as_str(), row.name.as_str()) == (of, name) && row.samples > 0)
    };
    send_until(&site, "latencies of both kinds", || {
        rows = site.daemon.get(path::LATENCY);
        is_there(&rows, "nf", "first > right") && is_there(&rows, "port", "left > right")
    });
    assert!(rows.iter().all(|row| row.max_us < 60e6), "{rows:?}");
}
