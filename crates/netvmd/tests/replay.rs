// SPDX-License-Identifier: Apache-2.0
//! `netvmd replay`: captures pass chains of real NF processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use netvm_capture::{CaptureReader, CaptureWriter, OpenError, Timestamp, WriterOptions};

type Frames = Vec<(u64, u32, Vec<u8>)>;

/// The frames of a capture that can be read, or the error.
fn frames(path: &Path) -> Result<Frames, OpenError> {
    let mut reader = CaptureReader::open(path)?;
    let mut frames = Vec::new();
    while !reader.is_done() {
        if let Ok(Some(frame)) = reader.next_frame() {
            frames.push((frame.timestamp.0, frame.orig_len, frame.data.to_vec()));
        }
    }
    Ok(frames)
}

/// Whether the NF's program exists; `cargo test --workspace` builds it beside netvmd.
fn has_nf() -> bool {
    let there = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm-simple-forward").exists();
    if !there {
        println!("SKIP: netvm-simple-forward is not built (cargo build -p netvm-nf-simple-forward)");
    }
    there
}

fn replay(input: &Path, output: &Path, chain: &str) -> Output {
    replay_with(&[], input, output, chain)
}

fn replay_with(options: &[&str], input: &Path, output: &Path, chain: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
    command.args(["replay", "--json", "--chain", chain]).args(options).arg(input).arg(output);
    command.output().unwrap()
}

fn count(output: &Output, key: &str) -> Option<u64> {
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    json.get(key)?.as_u64()
}

fn say(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn check(input: &Path, output: &Path) {
    let expected = frames(input).unwrap();
    let outcome = replay(input, output, "simple-forward,simple-forward");
    assert!(outcome.status.success(), "{}: {}", input.display(), say(&outcome));
    assert_eq!(count(&outcome, "packets_in"), Some(expected.len() as u64));
    assert_eq!(count(&outcome, "packets_out"), Some(expected.len() as u64));
    assert!(frames(output).unwrap() == expected, "{}: not byte for byte, in order", input.display());
}

#[test]
fn every_capture_passes_two_nfs_byte_for_byte() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let mut passed = 0;
    for path in netvm_workload::captures::write(&space.path().join("in")).unwrap() {
        let output = space.path().join(path.file_name().unwrap());
        match frames(&path) {
            Ok(_) => {
                check(&path, &output);
                passed += 1;
            }
            Err(error) => {
                let outcome = replay(&path, &output, "simple-forward");
                assert!(
                    !outcome.status.success() && say(&outcome).contains(&error.to_string()),
                    "{}",
                    say(&outcome)
                );
            }
        }
    }
    assert!(passed > 0);
}

#[test]
fn jumbo_frames_pass_and_keep_their_time_stamps() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let input = space.path().join("jumbo.pcap");
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    for n in 0..2000u32 {
        let length = 60 + (n as usize * 37) % 8941;
        let frame: Vec<u8> = (0..length).map(|byte| (byte as u32).wrapping_mul(n + 1) as u8).collect();
        writer
            .write(Timestamp(1_700_000_000_000_000_123 + u64::from(n)), length as u32 + n % 3, &frame)
            .unwrap();
    }
    writer.finish().unwrap();
    check(&input, &space.path().join("out.pcap"));
    check(&input, &space.path().join("out.pcapng"));
}

#[test]
fn no_privileges_are_needed() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root, so every other test shows it");
        return;
    }
    if !has_nf() {
        return;
    }
    // A copy that every user can reach, wherever the checkout is.
    let space = tempfile::tempdir().unwrap();
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    open(space.path());
    let netvmd = Path::new(env!("CARGO_BIN_EXE_netvmd"));
    for program in [netvmd.to_owned(), netvmd.with_file_name("netvm-simple-forward")] {
        let copy = space.path().join(program.file_name().unwrap());
        std::fs::copy(&program, &copy).unwrap();
        open(&copy);
    }
    let (input, output) = (space.path().join("in.pcap"), space.path().join("out.pcap"));
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    writer.write(Timestamp(1), 60, &[7; 60]).unwrap();
    writer.finish().unwrap();
    open(&input);
    let mut command = Command::new(space.path().join("netvmd"));
    command.args(["replay", "--json", "--chain", "simple-forward"]).arg(&input).arg(&output);
    let outcome = command.uid(65534).gid(65534).env_clear().current_dir("/").output().unwrap();
    assert!(outcome.status.success(), "{}", say(&outcome));
    assert_eq!(frames(&output).unwrap(), frames(&input).unwrap());
}

#[test]
fn a_capture_that_was_cut_off_is_replayed_up_to_there() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let (input, output) = (space.path().join("in.pcap"), space.path().join("out.pcap"));
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    for n in 0..5 {
        writer.write(Timestamp(n), 60, &[7; 60]).unwrap();
    }
    writer.finish().unwrap();
    let whole = std::fs::read(&input).unwrap();
    std::fs::write(&input, &whole[..whole.len() - 10]).unwrap();
    let outcome = replay(&input, &output, "simple-forward");
    assert!(outcome.status.success(), "{}", say(&outcome));
    assert!(say(&outcome).contains("truncated: 10 bytes are missing"), "{}", say(&outcome));
    assert_eq!(frames(&output).unwrap().len(), 4);
}

#[test]
fn frames_that_cannot_be_replayed_are_skipped_and_named() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let (input, output) = (space.path().join("in.pcap"), space.path().join("out.pcap"));
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    // A frame of `lo`, whose MTU is 65,536, is longer than any buffer; then one of which the capture has 96 of 400
    // bytes.
    for (length, original) in [(60, 60), (65_549, 65_549), (96, 400), (60, 60), (65_600, 65_600)] {
        writer.write(Timestamp(1), original, &vec![7; length]).unwrap();
    }
    writer.finish().unwrap();
    let outcome = replay(&input, &output, "simple-forward");
    assert!(outcome.status.success(), "{}", say(&outcome));
    let numbers = ["packets_in", "packets_out", "skipped"].map(|key| count(&outcome, key));
    assert_eq!(numbers, [Some(3), Some(3), Some(2)], "{}", say(&outcome));
    let lengths: Vec<usize> = frames(&output).unwrap().iter().map(|(_, _, data)| data.len()).collect();
    assert_eq!(lengths, [60, 96, 60]);
    let said = say(&outcome);
    let too_long = "skipped 2 frames of more than 65216 bytes, the most that a buffer holds (the first is frame 2, at \
                    byte 100";
    assert!(said.contains(too_long), "{said}");
    assert!(
        said.contains("1 frame cut at capture (the first is frame 3, at byte 65665: 96 of 400 bytes)"),
        "{said}"
    );
}

#[test]
fn cut_frames_are_padded_or_skipped_on_request() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let (input, output) = (space.path().join("in.pcap"), space.path().join("out.pcap"));
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    // The last one is longer on the wire than a buffer; the file ends within the record of another.
    for (length, original) in [(60, 60), (96, 400), (60, 60), (96, 65_549), (60, 60)] {
        writer.write(Timestamp(1_000), original, &vec![7; length]).unwrap();
    }
    writer.finish().unwrap();
    let whole = std::fs::read(&input).unwrap();
    std::fs::write(&input, &whole[..whole.len() - 10]).unwrap();
    let whole = || (1_000, 60, vec![7; 60]);
    let padded = (1_000, 400, [vec![7; 96], vec![0; 304]].concat());
    for (what, skipped, expected, word) in [
        (
            "pad",
            2,
            vec![whole(), padded, whole()],
            "1 frame cut at capture (the first is frame 2, at byte 100: 96 of 400",
        ),
        (
            "skip",
            3,
            vec![whole(), whole()],
            "skipped 2 frames cut at capture (the first is frame 2, at byte 100",
        ),
    ] {
        let outcome = replay_with(&["--cut-frames", what], &input, &output, "simple-forward");
        assert!(outcome.status.success(), "{}", say(&outcome));
        assert_eq!(count(&outcome, "skipped"), Some(skipped), "{}", say(&outcome));
        assert_eq!(frames(&output).unwrap(), expected, "{what}");
        let said = say(&outcome);
        assert!(said.contains(word) && said.contains("truncated: 10 bytes are missing"), "{said}");
    }
}

#[test]
fn odd_options_and_damaged_packets_do_not_end_a_replay() {
    if !has_nf() {
        return;
    }
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes(), &length[..], body, &length].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let packet = |interface: u32| [words(&[interface, 0, 1000, 60, 60]), vec![7; 60]].concat();
    let file = [
        block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])),
        // Ethernet, with if_macaddr of one byte.
        block(1, &[words(&[1, 0]), vec![6, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()),
        block(6, &packet(0)),
        block(6, &packet(9)),
        block(6, &packet(0)),
    ]
    .concat();
    let space = tempfile::tempdir().unwrap();
    let (input, output) = (space.path().join("in.pcapng"), space.path().join("out.pcap"));
    std::fs::write(&input, file).unwrap();
    let outcome = replay(&input, &output, "simple-forward");
    assert!(outcome.status.success(), "{}", say(&outcome));
    let numbers = ["packets_in", "packets_out", "skipped"].map(|key| count(&outcome, key));
    assert_eq!(numbers, [Some(2), Some(2), Some(1)], "{}", say(&outcome));
    assert!(say(&outcome).contains("skipped 1 frame that cannot be read; the first: "), "{}", say(&outcome));
    assert!(say(&outcome).contains("interface 9, which has no description"), "{}", say(&outcome));
}

#[test]
fn standard_input_and_output_are_captures_too() {
    if !has_nf() {
        return;
    }
    let space = tempfile::tempdir().unwrap();
    let (input, output) = (space.path().join("in.pcap"), space.path().join("out.pcap"));
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    writer.write(Timestamp(1), 60, &[7; 60]).unwrap();
    writer.finish().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
    command.args(["replay", "--chain", "simple-forward", "-", "-"]);
    let outcome = command.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    assert!(outcome.status.success(), "{}", say(&outcome));
    std::fs::write(&output, &outcome.stdout).unwrap();
    assert_eq!(frames(&output).unwrap(), frames(&input).unwrap());
    let report = String::from_utf8(outcome.stderr).unwrap();
    assert!(
        report.contains("1 packets in, 1 out") && report.contains("simple-forward-1: 1 received"),
        "{report}"
    );
}

#[test]
fn errors_name_the_mistake() {
    let space = tempfile::tempdir().unwrap();
    let output = space.path().join("out.pcap");
    let text = space.path().join("text.pcap");
    std::fs::write(&text, "this is no capture at all, but it is long enough for a header").unwrap();
    let said = say(&replay(&text, &output, "simple-forward"));
    assert!(said.contains("not a pcap or pcapng file"), "{said}");
    let said = say(&replay(&space.path().join("none.pcap"), &output, "simple-forward"));
    assert!(said.contains("none.pcap"), "{said}");
    let input = space.path().join("in.pcap");
    let mut writer = CaptureWriter::create(&input, WriterOptions::default()).unwrap();
    writer.write(Timestamp(1), 60, &[7; 60]).unwrap();
    writer.finish().unwrap();
    let said = say(&replay(&input, &output, "no-such-nf"));
    assert!(said.contains("no program `netvm-no-such-nf`"), "{said}");
    std::fs::copy(&input, &output).unwrap();
    let said = say(&replay(&output, &output, "simple-forward"));
    assert!(said.contains("both input and output"), "{said}");
    // An NF that ends at once makes the replay fail.
    std::fs::write(&output, "a good file").unwrap();
    let outcome = replay(&input, &output, "/bin/false");
    assert_eq!(
        std::fs::read_to_string(&output).unwrap(),
        "a good file",
        "a replay that fails leaves it alone"
    );
    assert_eq!(std::fs::read_dir(space.path()).unwrap().count(), 3, "nothing else is left");
    assert!(!outcome.status.success() && say(&outcome).contains("NF false-1 ended"), "{}", say(&outcome));
}
