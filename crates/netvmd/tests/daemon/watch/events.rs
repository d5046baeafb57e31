// SPDX-License-Identifier: Apache-2.0
//! Events: their history, and followers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netvm_api::{Event, EventKind, path};

use crate::common::{Daemon, ENGINE, Folder};
use crate::{config, kill};

#[test]
fn events_tell_what_happened_and_can_be_followed() {
    let daemon = Daemon::start(&config(&["a"]));
    let nf = daemon.until_running("a-nf");
    let mut follower = UnixStream::connect(daemon.api_socket()).unwrap();
    follower.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("GET {}?follow=true HTTP/1.1\r\nhost: netvm\r\n\r\n", path::EVENTS);
    follower.write_all(request.as_bytes()).unwrap();
    daemon.until_flowing("a");
    kill(nf.pid.unwrap());
    let mut text = String::new();
    while !(text.contains("\"reclaimed\"") && text.contains("\"nf_down\"")) {
        let mut bytes = [0; 4096];
        let count = follower.read(&mut bytes).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(text.contains("application/jsonl") && text.contains("\"started\""), "{text}");
    daemon.until("it runs again", |daemon| daemon.nf("a-nf").pid != nf.pid);
    daemon.until_running("a-nf");
    let (status, body) = daemon.request("POST", path::APPLY, "wrong");
    assert_eq!(status, 422, "{body}");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &config(&["a", "b"]));
    let events: Vec<Event> = daemon.get(path::EVENTS);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    for kind in
        [EventKind::Started, EventKind::NfUp, EventKind::NfDown, EventKind::Reclaimed, EventKind::Applied]
    {
        assert!(kinds.contains(&kind), "{kind:?} in {events:#?}");
    }
    let down = events.iter().find(|event| event.kind == EventKind::NfDown).unwrap();
    assert!(down.subject == "a-nf" && down.message.contains("killed by signal 9"), "{down:?}");
    assert!(events.is_sorted_by_key(|event| event.number));
    let last = events.last().unwrap().number;
    assert!(daemon.get::<Vec<Event>>(&format!("{}?after={last}", path::EVENTS)).is_empty());
}

#[test]
fn a_frame_that_is_too_long_for_a_buffer_is_said() {
    let folder = Folder::new();
    let file = folder.0.join("long.pcap");
    // Classic pcap, little-endian: a frame of 60 bytes, and one that fits no buffer.
    let mut bytes = [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8]].concat();
    [65_535_u32, 1].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    for length in [60_u32, 9000] {
        [0, 0, length, length].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(vec![2; length as usize]);
    }
    std::fs::write(&file, bytes).unwrap();
    let port = format!(
        "[[port]]\nname = \"old\"\nkind = \"pcap\"\ninput = {file:?}\nforward = {{ out = \"to\" }}\n"
    );
    let daemon = Daemon::start(&format!("{ENGINE}{port}[[port]]\nname = \"to\"\nkind = \"sink\"\n"));
    let fault = |daemon: &Daemon| {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        events.into_iter().find(|event| event.kind == EventKind::PortFault)
    };
    daemon.until("the fault is an event", |daemon| fault(daemon).is_some());
    let said = fault(&daemon).unwrap();
    assert!(said.subject == "old" && said.message.contains("a frame of 9000 bytes is skipped"), "{said:?}");
    let port = daemon.stats().ports.into_iter().find(|port| port.name == "old").unwrap();
    assert!(port.driver_mode.contains("a frame of 9000 bytes is skipped"), "{port:?}");
    assert_eq!(port.rx_packets, 1);
}
