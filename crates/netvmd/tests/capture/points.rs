// SPDX-License-Identifier: Apache-2.0
//! The packets of each capture point, slow readers, and requests that are refused.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use netvm_api::ClientError;

use super::*;
use common::hosts::succeeds;

#[test]
fn every_place_shows_what_was_sent() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cp");
    let sent = frames(FRAMES);
    let entered: Vec<_> = sent.iter().filter(|frame| !is_blocked(frame)).cloned().collect();
    let left: Vec<_> = entered.iter().filter(|frame| !is_refused(frame)).cloned().collect();
    let twice = |frames: &[Vec<u8>]| frames.iter().flat_map(|frame| [frame.clone(), frame.clone()]).collect();
    let both = [entered.clone(), left.clone()].concat();
    let expected: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("left", sent.clone()),
        ("through:1", twice(&entered)),
        ("through:second", twice(&entered)),
        ("nf:first", twice(&entered)),
        ("right", left.clone()),
    ];
    let folder = site.daemon.folder.0.clone();
    let file = |point: &str| folder.join(format!("{}.pcapng", point.replace(':', "-")));
    let mut readers: Vec<_> = expected
        .iter()
        .map(|(point, frames)| {
            gather(site.start(&request(&[point], MARKED)).unwrap(), frames.len(), &file(point))
        })
        .collect();
    let dropped = CaptureRequest { dropped: true, ..request(&[], MARKED) };
    let lost = sent.len() - left.len();
    readers.push(gather(site.start(&dropped).unwrap(), lost, &file("dropped")));
    let by_rule = CaptureRequest { reasons: vec!["rule".to_owned()], ..dropped };
    readers.push(gather(site.start(&by_rule).unwrap(), sent.len() - entered.len(), &file("by-rule")));
    // The direction at the capture point.
    let (inbound, outbound) = (format!("inbound and {MARKED}"), format!("outbound and {MARKED}"));
    readers.push(gather(
        site.start(&request(&["through:1"], &inbound)).unwrap(),
        entered.len(),
        &file("inbound"),
    ));
    let session = site.start(&request(&["left", "right"], &outbound)).unwrap();
    readers.push(gather(session, left.len(), &file("outbound")));
    site.send(sent.clone());
    for reader in readers {
        assert_eq!(reader.join().unwrap().lost, 0);
    }
    for (point, frames) in [("inbound", &entered), ("outbound", &left)] {
        let captured: Vec<_> = read(&file(point)).into_iter().map(|packet| packet.data).collect();
        assert!(captured == *frames, "{point}: {} packets", captured.len());
    }

    for (point, frames) in &expected {
        let captured = read(&file(point));
        // A capture point shows received and sent packets burst by burst.
        let sorted = |mut frames: Vec<Vec<u8>>| {
            frames.sort();
            frames
        };
        let data = captured.iter().map(|packet| packet.data.clone()).collect();
        assert!(sorted(data) == sorted(frames.clone()), "{point}: other bytes than those that were sent");
        if !point.contains(':') {
            assert!(captured.iter().map(|packet| &packet.data).eq(frames), "{point}: another order");
        }
    }
    let hop = read(&file("through:second"));
    assert!(hop.iter().all(|packet| packet.interface == "through:2"), "{:?}", hop[0]);
    let verdicts = |word: &str| hop.iter().filter(|packet| packet.comment.contains(word)).count();
    assert_eq!(
        (verdicts("verdict next"), verdicts("verdict drop")),
        (left.len(), entered.len() - left.len())
    );

    let mut by_comment: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for packet in read(&file("dropped")) {
        let reason = packet.comment.split("dropped: ").nth(1).expect("a reason").to_owned();
        let reason = reason.split([',', '"']).next().unwrap().to_owned();
        by_comment.entry(format!("{} {reason}", packet.interface)).or_default().push(packet.data);
    }
    let blocked: Vec<_> = sent.iter().filter(|frame| is_blocked(frame)).cloned().collect();
    let refused: Vec<_> = entered.iter().filter(|frame| is_refused(frame)).cloned().collect();
    assert!(
        by_comment["left rule"] == blocked && by_comment["second verdict"] == refused,
        "{:?}",
        by_comment.keys()
    );
    assert_eq!(read(&file("by-rule")).len(), blocked.len());
    assert_eq!(both.len(), entered.len() + left.len());
    tools_agree(&file("left"), &file("dropped"), sent.len());
    site.daemon.until("captures end", |daemon| daemon.log().matches("ends").count() >= 7);
}

/// tcpdump and tshark read the files.
fn tools_agree(all: &Path, dropped: &Path, frames: usize) {
    if succeeds("tcpdump --version") {
        // tcpdump changes its user, which may not read the test's folder.
        let output =
            Command::new("tcpdump").args(["-nr", "-"]).stdin(std::fs::File::open(all).unwrap()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("10.9.0.1.5000 > 10.9.0.2.")).count(), frames);
    } else {
        println!("SKIP: no tcpdump");
    }
    if succeeds("tshark --version") {
        let fields = "-T fields -e frame.interface_name -e frame.packet_flags_direction -e frame.comment";
        let output = Command::new("tshark").arg("-r").arg(dropped).args(fields.split(' ')).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.lines().any(|line| line.starts_with("left\t") && line.contains("dropped: rule")),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.starts_with("second\t") && line.contains("dropped: verdict")),
            "{text}"
        );
    } else {
        println!("SKIP: no tshark");
    }
}

#[test]
fn a_slow_reader_loses_its_own_packets_and_they_are_counted() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cs");
    let session = site.start(&CaptureRequest { buffer: 1 << 17, ..request(&["left"], MARKED) }).unwrap();
    let sent = frames(2000);
    let passing = sent.iter().filter(|frame| !is_blocked(frame) && !is_refused(frame)).count() as u64;
    let before = site.daemon.left("through");
    site.send(sent);
    site.daemon.until("the traffic passes", |daemon| daemon.left("through") - before >= passing);
    let file = site.daemon.folder.0.join("slow.pcapng");
    // It takes what the rings hold, once.
    let mut output = Output::open(Target::File(file.clone(), None)).unwrap();
    let stop = AtomicBool::new(true);
    let summary = run(session, &mut output, Limits { packets: None, stop: Some(&stop) }).unwrap();
    assert_eq!(summary.packets + summary.lost, 2000, "{summary:?}");
    assert!(summary.lost > 1000 && summary.packets > 50, "{summary:?}");
    let bytes = std::fs::read(&file).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut counted = String::new();
    while let Some(block) = reader.next_block() {
        if let Block::InterfaceStatistics(statistics) = block.unwrap().0 {
            counted = format!("{:?}", statistics.options);
        }
    }
    assert!(counted.contains(&format!("IfDrop({})", summary.lost)), "{counted}");
    drop(site.right);
}

#[test]
fn what_cannot_be_captured_is_refused_with_a_remedy() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cu");
    let refused = |request: CaptureRequest, status: u16, words: &str| match site.start(&request) {
        Err(SessionError::Client(ClientError::Refused { status: found, error })) => {
            assert_eq!(found, status, "{}", error.message);
            assert!(error.message.contains(words), "{}", error.message);
        }
        other => panic!("{other:?}"),
    };
    refused(request(&["lft"], ""), 404, "no port, chain, NF or router `lft`; the nearest are left");
    refused(
        request(&["through:7"], ""),
        404,
        "chain through has no hop `7`: its hops are 1 (first), 2 (second)",
    );
    let reasons = |reason: &str| CaptureRequest { reasons: vec![reason.to_owned()], ..request(&[], "") };
    refused(reasons("tx-ful"), 404, "tx-full");
    let jump = CaptureRequest { filter: vec![(5, 0, 0, 9), (6, 0, 0, 0)], ..request(&[], "") };
    refused(jump, 422, "instruction 0 of the filter jumps out of it");
    let open: Vec<Session> = (0..16).map(|_| site.start(&request(&[], "")).unwrap()).collect();
    refused(request(&[], ""), 409, "16 captures run already");
    drop(open);
    site.daemon.until("a capture starts again", |_| site.start(&request(&[], "")).is_ok());
    // Without the upgrade, such as from curl.
    let (status, body) = site.daemon.request("POST", netvm_api::path::CAPTURE, "{}");
    assert_eq!((status, body.contains("Upgrade: netvm-capture")), (426, true), "{body}");
}
