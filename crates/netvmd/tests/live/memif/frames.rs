// SPDX-License-Identifier: Apache-2.0
//! Frames of all lengths, some in several buffers of a memif, through an unmodified testpmd and back.

use netvm_capture::{CaptureReader, CaptureWriter, Timestamp, WriterOptions};

use super::*;

/// They take more buffers than two rings have, so that short frames follow long ones in each descriptor. DPDK as a
/// client leaves the flag of the long ones there: without `End::end_chain`, netvm loses a fifth of these frames.
const FRAMES: u32 = 2000;
/// From one frame to the next: a pause of a quarter of a second fills no ring.
const NANOS: u64 = 500_000;

/// The addresses of the frames, which those of a source do not have.
const ADDRESSES: [u8; 12] = [2; 12];

/// Frames of 60 to 8048 bytes; each fifth needs two to four buffers of 2048 bytes.
fn frames() -> Vec<Vec<u8>> {
    let length = |n: u32| if n % 5 == 4 { 2049 + n * 37 % 6000 } else { 60 + n * 37 % 1455 };
    let byte = |n: u32, at: u32| ADDRESSES.get(at as usize).copied().unwrap_or((n + at) as u8);
    (0..FRAMES).map(|n| (0..length(n)).map(|at| byte(n, at)).collect()).collect()
}

/// A capture of these frames.
fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = CaptureWriter::create(path, WriterOptions::default()).unwrap();
    for (n, frame) in (0..).zip(frames) {
        writer.write(Timestamp(1_000_000_000 + n * NANOS), frame.len() as u32, frame).unwrap();
    }
    writer.finish().unwrap();
}

/// The whole frames of a capture that netvmd may still write, without those of the source.
fn read(path: &Path) -> Vec<Vec<u8>> {
    let Ok(mut reader) = CaptureReader::open(path) else { return Vec::new() };
    let all = std::iter::from_fn(|| reader.next_frame().ok().flatten().map(|frame| frame.data.to_vec()));
    all.filter(|frame| frame.starts_with(&ADDRESSES)).collect()
}

/// The configuration with what sends to `app`, and where what comes back goes.
fn config(memif: &str, source: &str, back: &str) -> String {
    let port =
        |name: &str, keys: &str| format!("\n[[port]]\nname = {name:?}\nmtu = 9000\ngroup = \"g\"\n{keys}\n");
    engine(ADAPTIVE)
        + "\n[[group]]\nname = \"g\"\nbuffers = 8192\nbuffer_size = 9344\n"
        + &port("app", &format!("kind = \"memif\"\n{memif}\nforward = {{ out = \"back\" }}"))
        + &port("load", &format!("{source}\nforward = {{ out = \"app\" }}"))
        + &port("back", back)
}

#[test]
fn dpdk_returns_every_packet_unchanged_and_in_order() {
    let Some(_turn) = turn() else { return };
    let sent = frames();
    for (netvm, program) in [("server", "client"), ("client", "server")] {
        let folder = Arc::new(Folder::new());
        let file = |name: &str| folder.0.join(name);
        let (input, output, socket) = (file("in.pcap"), file("out.pcap"), file("app.sock"));
        write(&input, &sent);
        let memif = format!("role = {netvm:?}\npath = {socket:?}");
        // The link is up before testpmd forwards, and offers buffers.
        let probes = config(&memif, "kind = \"source\"\nrate = 1000", "kind = \"sink\"");
        let daemon = Daemon::start_in(Arc::clone(&folder), &probes);
        let _testpmd = Testpmd::start(&format!("role={program},socket={}", socket.display()), "start\n");
        until_flowing(&daemon);
        let playing = format!("kind = \"pcap\"\ninput = {input:?}\npaced = true");
        let recording = format!("kind = \"pcap\"\noutput = {output:?}");
        let _: ApplyReply = daemon.post(path::APPLY, &config(&memif, &playing, &recording));
        let is_back = || read(&output).len() >= sent.len();
        let ports = || ["load", "app", "back"].map(|name| port(&daemon, name));
        if !within(Duration::from_secs(60), is_back) {
            panic!("netvm as {netvm}: {} of {FRAMES}, {:#?}", read(&output).len(), ports());
        }
        let got = read(&output);
        let differs = sent.iter().zip(&got).position(|(sent, got)| sent != got);
        assert_eq!((differs, got.len()), (None, sent.len()), "netvm as {netvm}: {:#?}", ports());
    }
}
