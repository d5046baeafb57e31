// SPDX-License-Identifier: Apache-2.0
//! The last packets of NFs that ended, and captures whose output ends.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_api::{HeldPackets, path};
use netvm_capture_client::{CaptureError, Limits, Output, Target, run};

use super::*;

#[test]
fn the_packet_at_which_an_nf_died_is_kept() {
    if !are_possible() {
        return;
    }
    let site = Site::with("cd", "ends-at", "");
    let burst = path::HELD_PACKETS.replace("{role}", "first");
    let (status, message) = site.daemon.request("GET", &burst, "");
    assert!(status == 404 && message.contains("no NF of role `first`"), "{message}");
    let mut sent = frames(40);
    for frame in &mut sent {
        frame[HEADERS] = 1;
    }
    sent[23][HEADERS] = FATAL;
    site.send(sent.clone());
    site.daemon.until("the NF has ended", |daemon| daemon.request("GET", &burst, "").0 == 200);
    let last: HeldPackets = site.daemon.get(&burst);
    let bytes = |frame: &[u8]| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(last.role == "first" && last.packets.len() <= 64, "{last:?}");
    let fatal = last.packets.iter().find(|packet| packet.data == bytes(&sent[23])).expect("the packet");
    assert!(fatal.port.as_deref() == Some("left") && fatal.length as usize == sent[23].len());
    // The other packets of the burst were sent, too.
    let known: Vec<String> = sent.iter().map(|frame| bytes(frame)).collect();
    let marked = last.packets.iter().filter(|packet| packet.data.starts_with("020000000002"));
    let places: Vec<_> = marked.map(|packet| known.iter().position(|data| *data == packet.data)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} of {last:?}");
    // It starts again, and its traffic flows again.
    site.daemon.until_running("first");
    site.daemon.until("traffic flows", |daemon| {
        let before = daemon.left("through");
        site.send(frames(10).into_iter().filter(|frame| frame[HEADERS] != FATAL).collect());
        daemon.left("through") > before
    });
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cf");
    let sent = frames(200);
    let passing = sent.iter().filter(|frame| !is_blocked(frame) && !is_refused(frame)).count() as u64;
    let session = site.start(&request(&["left"], MARKED)).unwrap();
    let mut output = Output::open(Target::File("/dev/full".into(), None)).unwrap();
    let error = run(session, &mut output, Limits::default()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, CaptureError::Write { source, .. } if source.kind() == ErrorKind::StorageFull));
    assert!(text.contains("/dev/full") && text.contains("the traffic is not affected"), "{text}");
    site.daemon.until("the capture ends", |daemon| daemon.log().contains("capture 1 ends"));
    let before = site.daemon.left("through");
    site.send(sent);
    site.daemon.until("the traffic passes", |daemon| daemon.left("through") - before >= passing);
}

#[test]
fn a_pcap_port_has_all_packets_in_its_file_while_netvmd_runs() {
    let folder = std::sync::Arc::new(common::Folder::new());
    let outputs = ["pcap", "pcapng"].map(|kind| folder.0.join(format!("out.{kind}")));
    let mut text = "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n".to_owned();
    for (n, output) in outputs.iter().enumerate() {
        text += &format!(
            "[[port]]\nname = \"in{n}\"\nkind = \"source\"\ncount = 7\nforward = {{ out = \"out{n}\" }}\n\
             [[port]]\nname = \"out{n}\"\nkind = \"pcap\"\noutput = {output:?}\n"
        );
    }
    let daemon = Daemon::start_in(std::sync::Arc::clone(&folder), &text);
    for output in &outputs {
        daemon.until("the file has all packets", |_| {
            let Ok(mut file) = netvm_capture::CaptureReader::open(output) else { return false };
            std::iter::from_fn(|| file.next_frame().ok().flatten().map(drop)).count() == 7
        });
    }
}

#[test]
fn a_router_shows_packets_before_and_after() {
    if !are_possible() {
        return;
    }
    let site = router_site::Site::new("cr");
    let daemon = router_site::start(&[&site]);
    assert!(site.client.pings("10.2.0.2") && site.client.pings("10.1.0.1"), "{}", daemon.log());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Some(&daemon.api_socket()));
    let request = request(&[&site.router], "icmp[0] == 8");
    let session = runtime.block_on(Session::start(&client, &request)).unwrap();
    let file = daemon.folder.0.join("router.pcapng");
    let (stop, path) = (std::sync::Arc::new(AtomicBool::new(false)), file.clone());
    let flag = std::sync::Arc::clone(&stop);
    let reader = std::thread::spawn(move || {
        let mut output = Output::open(Target::File(path, None)).unwrap();
        run(session, &mut output, Limits { packets: None, stop: Some(&flag) }).unwrap()
    });
    assert!(site.client.pings("10.2.0.2") && site.client.pings("10.1.0.1"), "{}", daemon.log());
    stop.store(true, Ordering::Relaxed);
    let summary = reader.join().unwrap();
    let packets = read(&file);
    // Through the router: in with one TTL, out with one less; to the router itself: punted.
    let ttl_of = |packet: &Captured| packet.data[22];
    let to = |packet: &&Captured, host: [u8; 4]| packet.data[30..34] == host;
    let through: Vec<_> = packets.iter().filter(|packet| to(packet, [10, 2, 0, 2])).collect();
    let ids: std::collections::BTreeSet<_> =
        through.iter().map(|packet| packet.data[38..].to_vec()).collect();
    assert!(!ids.is_empty(), "{summary:?} {packets:?}");
    for id in ids {
        let of: Vec<_> = through.iter().filter(|packet| packet.data[38..] == id).collect();
        assert!(of.len() == 2 && ttl_of(of[0]) == ttl_of(of[1]) + 1, "{of:?}");
    }
    let own = packets.iter().filter(|packet| to(packet, [10, 1, 0, 1]));
    assert!(own.clone().any(|packet| packet.comment.contains("punted")), "{packets:?}");
}
