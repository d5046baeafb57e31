// SPDX-License-Identifier: Apache-2.0
//! Captures by Wireshark's extcap interface.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use netvm_tls::{Authority, Lifetime};
use tempfile::TempDir;

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

/// tshark, with netvm-extcap for this netvmd.
struct Tshark<'a> {
    site: &'a Site,
    folder: TempDir,
    /// Which netvmd, for netvm-extcap.
    environment: Vec<(&'static str, String)>,
}

impl Tshark<'_> {
    /// tshark in its own mount namespace, where our folder replaces that of the system.
    fn command(&self, words: &[&str]) -> Command {
        let folders = Command::new("tshark").args(["-G", "folders"]).output().unwrap();
        let folders = String::from_utf8(folders.stdout).unwrap();
        let is_global =
            |line: &&str| line.starts_with("Extcap path:") || line.starts_with("Global Extcap path:");
        let place = folders.lines().find(is_global).unwrap().split_once(':').unwrap().1.trim();
        std::fs::create_dir_all(place).unwrap();
        let script = format!("mount --bind {} {place} && exec tshark \"$@\"", self.folder.path().display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "tshark"]).args(words);
        command.env_remove("NETVM_API").env_remove("NETVM_HOST").envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn check(&self) {
        let list = self.command(&["-D"]).output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        for name in
            ["netvm-port-left (netvm port left)", "netvm-chain-through-2", "netvm-dropped", "netvm-nf-first"]
        {
            assert!(list.contains(name), "{name}: {list}");
        }
        let words = ["-i", "netvm-port-left", "-f", MARKED, "-c", "40", "-T", "fields", "-e", "frame.len"];
        let child = self.command(&words).spawn().unwrap();
        self.site.daemon.until("tshark captures", |daemon| daemon.log().contains("starts at port left"));
        self.site.send(frames(40));
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lengths: Vec<usize> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
        let expected: Vec<usize> = frames(40).iter().map(Vec::len).collect();
        assert_eq!(lengths, expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn tshark_captures_by_extcap() {
    let Some(program) = extcap().filter(|_| are_possible()) else { return };
    let site = Site::new("cx");
    let folder = TempDir::new().unwrap();
    std::fs::copy(program, folder.path().join("netvm-extcap")).unwrap();
    let environment = vec![("NETVM_API", site.daemon.api_socket().display().to_string())];
    Tshark { site: &site, folder, environment }.check();
}

#[test]
fn tshark_captures_on_another_machine() {
    let Some(program) = extcap().filter(|_| are_possible()) else { return };
    if !program.with_file_name("netvm").exists() {
        println!("SKIP: no netvm beside netvmd");
        return;
    }
    // The files as they are by default.
    let home = TempDir::new().unwrap();
    let files = home.path().join("netvm");
    Authority::create(&files, "test", Lifetime(1)).unwrap();
    let authority = Authority::open(&files).unwrap();
    authority.server(&["127.0.0.1".to_owned()], Lifetime(1)).unwrap();
    authority.client("client", Lifetime(1)).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let at = |name: &str| files.join(name);
    let api = format!(
        "[api.remote]\nlisten = \"{address}\"\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n\
         client = [{{ name = \"client\", role = \"capture\" }}]\n",
        at("server.crt"),
        at("server.key"),
        at("ca.crt")
    );
    let site = Site::with("ce", "forward", &api);
    site.daemon.until("it is served", |daemon| daemon.log().contains("the API is on https://"));
    let folder = TempDir::new().unwrap();
    std::fs::copy(program, folder.path().join("netvm-extcap")).unwrap();
    let environment = vec![
        ("NETVM_HOST", format!("https://{address}")),
        ("XDG_CONFIG_HOME", home.path().display().to_string()),
    ];
    Tshark { site: &site, folder, environment }.check();
}
