//! Captures by Wireshark's extcap interface.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;
use common::hosts::succeeds;

/// netvm-extcap, if it is built: `cargo test --workspace` builds it.
fn extcap() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm-extcap");
    if !program.exists() || !succeeds("tshark --version") {
        println!("SKIP: no netvm-extcap beside netvmd, or no tshark");
        return None;
    }
    Some(program)
}

#[test]
fn tshark_captures_by_extcap() {
    let Some(program) = extcap().filter(|_| are_possible()) else { return };
    let site = Site::new("cx");
    let folder = site.daemon.folder.0.join("extcap");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(program, folder.join("netvm-extcap")).unwrap();
    // In its own mount namespace, where our folder replaces that of the system.
    let folders = Command::new("tshark").args(["-G", "folders"]).output().unwrap();
    let folders = String::from_utf8(folders.stdout).unwrap();
    let is_global = |line: &&str| line.starts_with("Extcap path:") || line.starts_with("Global Extcap path:");
    let place = folders.lines().find(is_global).unwrap().split_once(':').unwrap().1.trim();
    std::fs::create_dir_all(place).unwrap();
    let script = format!("mount --bind {} {place} && exec tshark \"$@\"", folder.display());
    let tshark = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "tshark"]).args(words);
        command.env("NETVM_API", site.daemon.api_socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let list = tshark(&["-D"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    for name in
        ["netvm-port-left (netvm port left)", "netvm-chain-through-2", "netvm-dropped", "netvm-nf-first"]
    {
        assert!(list.contains(name), "{name}: {list}");
    }
    let child =
        tshark(&["-i", "netvm-port-left", "-f", MARKED, "-c", "40", "-T", "fields", "-e", "frame.len"]);
    let child = { child }.spawn().unwrap();
    site.daemon.until("tshark captures", |daemon| daemon.log().contains("starts at port left"));
    site.send(frames(40));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lengths: Vec<usize> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
    let expected: Vec<usize> = frames(40).iter().map(Vec::len).collect();
    assert_eq!(lengths, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
