// SPDX-License-Identifier: Apache-2.0
//! Builds the C samples as a user would, with an installed libnetlib and the Makefile, shared and static, and runs
//! them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use netlib::sim::Process;
use netlib::{PortId, Verdict};
// Makes cargo build the libraries before this test.
use netlib_c as _;
use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Installs the libraries that cargo has built and builds the samples; `None` without a C compiler.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<TempDir>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        for tool in ["cc", "make", "pkg-config"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("SKIP: {tool} is not installed");
                return None;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
        let script = Path::new(HERE).join("../../tools/package/install-netlib.sh");
        run(Command::new(script).arg(dir.path()).arg("--from").arg(profile));
        for (out, mode) in [("shared", None), ("static", Some("STATIC=1"))] {
            let out = dir.path().join(out);
            std::fs::create_dir(&out).unwrap();
            let mut make = Command::new("make");
            make.args(["-C", HERE]).args(mode).arg(format!("OUT={}", out.display()));
            run(make.arg(format!("PKG_CONFIG_PATH={}", dir.path().join("lib/pkgconfig").display())));
        }
        Some(dir)
    });
    built.as_ref().map(TempDir::path)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Commands for the program, linked to the shared and the static library.
fn programs(name: &str, args: &[&str]) -> Vec<Command> {
    let Some(dir) = built() else { return Vec::new() };
    let command = |path: PathBuf| {
        let mut command = Command::new(path);
        command.args(args);
        command
    };
    vec![command(dir.join("shared").join(name)), command(dir.join("static").join(name))]
}

/// An IPv4 packet with this TTL and a correct checksum (RFC 791).
fn ipv4(ttl: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12] = 8;
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0x12, 0x34, 0, 0, ttl, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The sum of RFC 1071: all ones if the header's checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

fn with_vlan(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0, 0, 5]);
    frame
}

#[test]
fn the_callback_sample_decrements_and_steers() {
    for mut command in programs("netvm-ttl-forward", &["lan", "wan"]) {
        command.env(netlib::THREADS_VARIABLE, "2");
        let mut nf = Process::spawn(command, &["lan", "wan"], &[]).unwrap();
        assert_eq!((nf.hello().name.as_str(), nf.hello().threads), ("netvm-ttl-forward", 2));
        for ttl in 2..=255 {
            let outcome = nf.inject(PortId(0), &ipv4(ttl)).unwrap();
            assert_eq!(
                (outcome.verdict, outcome.bytes),
                (Verdict::Port(PortId(1)), ipv4(ttl - 1)),
                "ttl {ttl}"
            );
        }
        let tagged = nf.inject(PortId(1), &with_vlan(ipv4(64))).unwrap();
        assert_eq!((tagged.verdict, tagged.bytes), (Verdict::Port(PortId(0)), with_vlan(ipv4(63))));
        assert_eq!(nf.inject(PortId(0), &ipv4(1)).unwrap().verdict, Verdict::Drop);
        for other in [&[][..], &[0; 13], &ipv4(64)[..33], &[0xff; 60]] {
            let outcome = nf.inject(PortId(0), other).unwrap();
            assert_eq!((outcome.verdict, outcome.bytes.as_slice()), (Verdict::Port(PortId(1)), other));
        }
        assert!(nf.stop().unwrap().success());
        let counter = |name| nf.counter(name).unwrap();
        assert_eq!([counter("forwarded"), counter("expired"), counter("other")], [255, 1, 4]);
    }
}

#[test]
fn the_callback_sample_forwards_without_ports_and_ends_on_a_signal() {
    for command in programs("netvm-ttl-forward", &[]) {
        let mut nf = Process::spawn(command, &[], &[]).unwrap();
        let frames: Vec<_> = (0..200).map(|n| ipv4(2 + n)).collect();
        let list: Vec<_> = frames.iter().map(|frame| (PortId(9), frame.as_slice())).collect();
        let outcomes = nf.inject_all(&list).unwrap();
        let right = |n: usize| outcomes[n].verdict == Verdict::Next && outcomes[n].bytes == ipv4(1 + n as u8);
        assert!(outcomes.len() == 200 && (0..200).all(right));
        run(Command::new("sh").args(["-c", &format!("kill -TERM {}", nf.id())]));
        assert!(nf.stop().unwrap().success());
    }
}

#[test]
fn the_burst_sample_grows_and_shrinks_packets() {
    let frame = ipv4(64);
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0x01, 0x2c]);
    for (mode, given, made) in [("push", &frame, &tagged), ("pop", &tagged, &frame)] {
        for mut command in programs("netvm-outer-tag", &[mode, "300"]) {
            command.env(netlib::THREADS_VARIABLE, "3");
            let mut nf = Process::spawn(command, &[], &[]).unwrap();
            let outcomes = nf.inject_all(&[(PortId(0), given.as_slice()); 70]).unwrap();
            assert!(outcomes.iter().all(|o| o.verdict == Verdict::Next && o.bytes == *made), "{mode}");
            let short = nf.inject(PortId(0), &[1, 2, 3]).unwrap();
            assert_eq!((short.verdict, short.bytes), (Verdict::Drop, vec![1, 2, 3]));
            assert!(nf.stop().unwrap().success());
            assert_eq!((nf.counter("changed"), nf.counter("dropped")), (Some(70), Some(1)));
        }
    }
}

#[test]
fn a_sample_without_an_engine_prints_an_error() {
    for mut command in programs("netvm-ttl-forward", &[]) {
        let output = command.env("NETVM_ATTACH", "/nonexistent/attach.sock").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text.starts_with("netvm-ttl-forward: attach: cannot connect to /nonexistent/attach.sock"),
            "{text}"
        );
    }
}

#[test]
fn the_header_compiles_as_cpp() {
    let Some(dir) = built() else { return };
    let source = dir.join("header.cpp");
    std::fs::write(
        &source,
        "#include <netlib.h>\nint main() { return netlib_options_init(nullptr) == NETLIB_OK; }\n",
    )
    .unwrap();
    let include = format!("-I{}", dir.join("include").display());
    let Ok(version) = Command::new("c++").arg("--version").output() else {
        println!("SKIP: c++ is not installed");
        return;
    };
    assert!(version.status.success());
    run(Command::new("c++").args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", &include]).arg(source));
}
