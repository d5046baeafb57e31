// SPDX-License-Identifier: Apache-2.0
//! Captures as files to download, by the API and by the page.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use netvm_api::path;

use super::browser::Browser;
use super::{ask, authorization, free_address, is_there, token, until_served, watched};
use crate::common::Daemon;

/// The program `netvm`, which netvmd captures with, if it is built: `cargo test --workspace` builds it.
fn has_netvm() -> bool {
    let is_built = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").exists();
    if !is_built {
        println!("SKIP: no netvm beside netvmd");
    }
    is_built
}

const CAPTURE: &str = "/v1/capture/file";

#[test]
fn a_capture_is_a_file_to_download_if_that_is_allowed() {
    if !has_netvm() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    let refused = |body: &str, status: u16, words: &str| {
        let (found, text) = daemon.request("POST", CAPTURE, body);
        assert!(found == status && text.contains(words), "{body}: {found} {text}");
    };
    refused("{\"filter\": \"tcp prt 80\"}", 422, "does not compile");
    refused("{\"at\": [\"a-im\"]}", 422, "the nearest are");
    refused("{\"packets\": 0}", 422, "`packets` is 0: give 1 to 1000000");
    refused("{\"seconds\": 601}", 422, "give 1 to 600");
    refused("{\"att\": []}", 422, "att");
    let few = "{\"at\": [\"a-in\"], \"packets\": 20, \"seconds\": 60, \"filter\": \"udp\"}";
    assert_eq!(captured(&daemon, few), 20);
    // A time limit, where no packet comes.
    let none = "{\"at\": [\"a-in\"], \"seconds\": 1, \"filter\": \"arp\"}";
    assert_eq!(captured(&daemon, none), 0);
    // A client that goes away ends the capture.
    let mut stream = UnixStream::connect(daemon.api_socket()).unwrap();
    let body = "{\"seconds\": 600, \"filter\": \"arp\"}";
    let head = format!(
        "POST {CAPTURE} HTTP/1.1\r\nhost: netvm\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    drop(stream);
    daemon.until("the capture ends", |daemon| daemon.log().matches("capture 3 ends").count() == 1);

    let token = authorization(&daemon);
    let json = "content-type: application/json";
    let (status, _, body) = ask(address, "POST /v1/capture/file", &[&token, json], few);
    assert!(status == 403 && body.contains("web_capture = true"), "{body}");
    let allowed = watched(address).replace("web = ", "web_capture = true\nweb = ");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &allowed);
    daemon.until("the page may capture", |_| {
        TcpStream::connect(address).is_ok()
            && ask(address, "POST /v1/capture/file", &[&token, json], few).0 == 200
    });
    assert_eq!(ask(address, "POST /v1/capture/file", &[json], few).0, 401);
    assert_eq!(ask(address, "POST /v1/stop", &[&token], "").0, 403);
}

/// Packets in the file that a capture gives.
fn captured(daemon: &Daemon, request: &str) -> usize {
    let output = Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(daemon.api_socket())
        .args(["-H", "content-type: application/json", "-d", request])
        .arg(format!("http://netvm{CAPTURE}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    packets(&output.stdout)
}

/// Packets in a pcapng file.
fn packets(file: &[u8]) -> usize {
    let mut reader = pcap_file::pcapng::PcapNgReader::new(file).unwrap();
    let mut count = 0;
    while let Some(block) = reader.next_block() {
        count += usize::from(block.unwrap().0.into_enhanced_packet().is_some());
    }
    count
}

#[test]
fn the_page_captures_into_a_file_and_shows_what_is_wrong() {
    if !is_there("chromium") || !has_netvm() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address).replace("web = ", "web_capture = true\nweb = "));
    until_served(address);
    daemon.until_flowing("a");
    let downloads = tempfile::tempdir().unwrap();
    let url = format!("http://{address}/?tab=capture#token={}", token(&daemon));
    let mut browser = Browser::open(&url, downloads.path());
    let place = "document.querySelector('#capture option[value=\"port:a-in\"]')";
    browser.until(&format!("{place} !== null"), "document.body.textContent");
    let status = "document.querySelector('#capture [role=status]').textContent";
    let fill = |filter: &str| {
        format!(
            "const form = document.querySelector('#capture form'); form.at.value = 'port:a-in'; form.filter.value = '{filter}'; \
             form.packets.value = 25; form.seconds.value = 60; form.querySelector('button').click()"
        )
    };
    browser.value(&format!("{{ {} }}", fill("udp prt 9")));
    browser.until(&format!("{status}.includes('does not compile')"), status);
    browser.until(&format!("{status}.includes('^ here')"), status);
    browser.value(&format!("{{ {} }}", fill("udp")));
    browser.until(&format!("{status}.includes('25 packets in netvm-')"), status);
    daemon.until("the file is saved", |_| {
        let files: Vec<_> = std::fs::read_dir(downloads.path()).unwrap().flatten().collect();
        let whole = files.iter().find(|file| file.path().extension().is_some_and(|end| end == "pcapng"));
        whole.is_some_and(|file| packets(&std::fs::read(file.path()).unwrap()) == 25)
    });
}
