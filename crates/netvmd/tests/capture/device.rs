// SPDX-License-Identifier: Apache-2.0
//! Captures as an interface at which programs listen.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Lengths of the frames that tcpdump has seen.
fn lengths(output: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(output);
    let length = |line: &str| line.split_once("UDP, length ")?.1.trim().parse().ok();
    text.lines().filter_map(length).collect()
}

/// `tcpdump -i netvm0` reads hop 2 of a chain, and the host that it runs on gets nothing of it.
#[test]
fn tcpdump_listens_at_an_interface_that_a_capture_makes() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cv");
    let listener = Host::bare("cvx");
    // Broadcasts would reach the host's own sockets, were they not discarded.
    listener.ip("link set lo up");
    listener.ip("address add 10.9.0.2/32 dev lo");
    let session = site.start(&request(&["through:2"], "inbound")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (ended, (made, is_made)) = (Arc::clone(&stop), std::sync::mpsc::channel());
    let capture = listener.inside(move || {
        let mut output = Output::open(Target::Interface("netvm0".to_owned())).unwrap();
        let again = Output::open(Target::Interface("netvm0".to_owned())).unwrap_err().to_string();
        assert!(again.contains("interface netvm0: cannot make the TAP device"), "{again}");
        made.send(()).unwrap();
        run(session, &mut output, Limits { packets: None, stop: Some(&ended) })
    });
    is_made.recv().unwrap();
    let mut tcpdump = Command::new("ip");
    tcpdump.args(["netns", "exec", listener.namespace()]);
    tcpdump.args(["tcpdump", "-n", "-q", "--immediate-mode", "-i", "netvm0", "-c", "40", "udp"]);
    let mut tcpdump = tcpdump.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Before it says so, its socket misses packets.
    let mut says = BufReader::new(tcpdump.stderr.take().unwrap()).lines();
    assert!(says.any(|line| line.unwrap().contains("listening on netvm0")), "tcpdump does not listen");

    let mut sent = frames(60);
    sent.retain(|frame| !is_blocked(frame));
    sent.truncate(40);
    sent.iter_mut().for_each(|frame| frame[..6].fill(0xff));
    let expected: Vec<usize> = sent.iter().map(|frame| frame.len() - HEADERS).collect();
    site.send(sent);
    let output = tcpdump.wait_with_output().unwrap();
    let more: Vec<String> = says.map(Result::unwrap).collect();
    assert_eq!(lengths(&output.stdout), expected, "{more:?}");

    let statistics = String::from_utf8(listener.output("cat /proc/net/snmp").stdout).unwrap();
    let received = statistics.lines().filter(|line| line.starts_with("Ip: ")).nth(1).unwrap();
    assert_eq!(received.split(' ').nth(3), Some("0"), "the host has received packets: {statistics}");
    stop.store(true, Ordering::Relaxed);
    // The sender's kernel may have sent something of its own, too.
    assert!(capture.join().unwrap().unwrap().packets >= 40);
    assert_eq!(listener.output_of_ip("link show netvm0"), None, "the interface ends with the capture");
}
