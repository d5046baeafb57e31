// SPDX-License-Identifier: Apache-2.0
//! Traces of packets of traffic: they name what the packets met, and end with their client.

pub mod made;

use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use netvm_api::{ClientError, LiveTraceRequest, StepKind, TraceStream, TracedPacket, TracedStep};

use super::*;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl Site {
    /// Follows packets that a filter accepts from now on, in the background.
    fn trace(&self, filter: &str, request: LiveTraceRequest) -> JoinHandle<Vec<TracedPacket>> {
        let request = LiveTraceRequest { filter: compile(filter).unwrap(), ..request };
        let (client, (started, is_started)) = (self.client(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            block_on(async {
                let mut stream = client.live_trace(&request).await.unwrap();
                started.send(()).unwrap();
                let mut all = Vec::new();
                while let Some(packet) = stream.next().await.unwrap() {
                    all.push(packet);
                }
                all
            })
        });
        is_started.recv().unwrap();
        thread
    }
}

/// The texts of the steps of a packet, and whether they are in order.
fn texts(packet: &TracedPacket) -> Vec<&str> {
    assert!(packet.steps.is_sorted_by_key(|step| step.after_ns), "{packet:#?}");
    packet.steps.iter().map(|step| step.text.as_str()).collect()
}

/// Limits that a test does not reach.
fn packets(packets: u64) -> LiveTraceRequest {
    LiveTraceRequest { packets, seconds: 600, ..LiveTraceRequest::default() }
}

fn step_of(packet: &TracedPacket, kind: StepKind) -> &TracedStep {
    packet.steps.iter().find(|step| step.step == kind).unwrap_or_else(|| panic!("{packet:#?}"))
}

#[test]
fn packets_are_followed_through_rules_nfs_and_drops() {
    if !are_possible() {
        return;
    }
    let site = Site::new("ct");
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let from_left = |count| LiveTraceRequest { from: Some("left".to_owned()), ..packets(count) };
    let blocked = site.trace("udp dst port 9", from_left(2));
    let [passed, refused] =
        [1, 3].map(|byte| site.trace(&format!("udp dst port 4000 and udp[8] = {byte}"), packets(1)));
    site.daemon.until("all packets were traced", |_| {
        site.send(frames(20));
        [&blocked, &passed, &refused].iter().all(|thread| thread.is_finished())
    });
    let blocked = blocked.join().unwrap();
    assert_eq!(blocked.iter().map(|packet| packet.number).collect::<Vec<_>>(), [1, 2]);
    for packet in &blocked {
        assert_eq!(texts(packet)[0], "received on port left");
        let rule = step_of(packet, StepKind::RuleDecides);
        assert!(
            rule.text.contains("decides: blocked:") && rule.rule.as_deref() == Some("blocked"),
            "{rule:?}"
        );
        let dropped = packet.steps.last().unwrap();
        assert_eq!((dropped.text.as_str(), dropped.reason.as_deref()), ("dropped: rule", Some("rule")));
        assert_eq!(packet.port.as_deref(), Some("left"));
        assert!((packet.time - began).abs() < 60.0, "{} {began}", packet.time);
    }
    let passed = passed.join().unwrap().remove(0);
    let texts_of_passed = texts(&passed);
    for expected in [
        "enters chain through: first → second",
        "to NF first, hop 1",
        "returned by NF second, hop 2: verdict next",
        "leaves the chain",
    ] {
        assert!(texts_of_passed.contains(&expected), "{expected}: {texts_of_passed:#?}");
    }
    let by_nf = step_of(&passed, StepKind::FromNf);
    assert_eq!(
        (by_nf.nf.as_deref(), by_nf.hop, by_nf.verdict.as_deref()),
        (Some("second"), Some(2), Some("next"))
    );
    let sent = passed.steps.last().unwrap();
    assert_eq!((sent.text.as_str(), sent.port.as_deref()), ("sent on port right", Some("right")));
    assert_eq!(passed.length as usize, frames(2)[1].len());
    assert!(sent.after_ns > 0);
    let refused = refused.join().unwrap().remove(0);
    let end = ["returned by NF second, hop 2: verdict drop", "dropped: verdict"];
    assert!(texts(&refused).ends_with(&end), "{refused:#?}");

    // Each hop, while it is wanted.
    let hops = site.trace("udp dst port 4000", LiveTraceRequest { each_hop: true, ..packets(1) });
    site.daemon.until("a packet was traced", |_| {
        site.send(frames(20));
        hops.is_finished()
    });
    let packet = hops.join().unwrap().remove(0);
    let nfs = packet.steps.iter().filter(|step| step.step == StepKind::FromNf);
    assert_eq!(nfs.map(|step| step.nf.as_deref().unwrap()).collect::<Vec<_>>(), ["first", "second"]);
}

#[test]
fn traces_are_refused_or_end_with_their_client_or_their_time() {
    let daemon = Daemon::start(&(engine(ADAPTIVE) + "\n[[port]]\nname = \"out\"\nkind = \"sink\"\n"));
    let client = Client::new(Some(&daemon.api_socket()));
    let start = |request: &LiveTraceRequest| -> Result<TraceStream, (u16, String)> {
        match block_on(client.live_trace(request)) {
            Ok(stream) => Ok(stream),
            Err(ClientError::Refused { status, error }) => Err((status, error.message)),
            Err(error) => panic!("{error}"),
        }
    };
    let endless = LiveTraceRequest { filter: vec![(0x05, 0, 0, 9)], ..LiveTraceRequest::default() };
    let (status, message) = start(&endless).err().unwrap();
    assert!(status == 422 && message.contains("the filter is refused"), "{message}");
    for wrong in [packets(0), LiveTraceRequest { seconds: 0, ..packets(1) }] {
        assert_eq!(start(&wrong).err().unwrap().0, 422);
    }
    let nowhere = LiveTraceRequest { from: Some("x".to_owned()), ..packets(1) };
    let (status, message) = start(&nowhere).err().unwrap();
    assert!(status == 404 && message.contains("no port `x`"), "{message}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let long = LiveTraceRequest { from: Some("out".to_owned()), ..packets(1) };
    let all: Vec<TraceStream> =
        (0..16).map(|_| runtime.block_on(client.live_trace(&long)).unwrap()).collect();
    let (status, message) = start(&long).err().unwrap();
    assert!(status == 409 && message.contains("16 captures run already"), "{status} {message}");
    drop(all);
    drop(runtime);
    daemon.until("the traces have ended", |_| start(&long).is_ok());

    // Without a packet, it ends with its time.
    let short = LiveTraceRequest { seconds: 1, ..packets(1) };
    let began = std::time::Instant::now();
    let nothing = block_on(async { client.live_trace(&short).await.unwrap().next().await.unwrap() });
    assert!(nothing.is_none() && began.elapsed() >= Duration::from_secs(1));
}
