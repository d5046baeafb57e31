// SPDX-License-Identifier: Apache-2.0
//! Who is refused: without a certificate, with a wrong one, slow, too many, and with recorded requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netvm_api::{Client, Status, path};

use super::super::common::hosts::within;
use super::*;

#[test]
fn certificates_that_do_not_count_are_refused_and_logged() {
    let Some(site) = Site::new() else { return };
    let url = format!("https://{}/v1/status", site.address);
    let ca = site.tls.join("ca.crt");
    let bare = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "--cacert"]).arg(&ca).args(more).arg(&url);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
    };
    bare(&[]);
    site.until_refused("it has sent no certificate");
    bare(&["--tls-max", "1.2"]);
    site.until_refused("it does not speak TLS 1.3");
    let plain =
        Command::new("curl").args(["-s", "--max-time", "20"]).arg(url.replace("https", "http")).output();
    assert!(!plain.unwrap().status.success());
    site.until_refused("it does not speak TLS");
    // Another authority of the same name, and a client of an admitted name.
    let other = site.daemon.folder.0.join("other");
    authority(&other, &["anna"]);
    let [certificate, key] =
        ["crt", "key"].map(|end| other.join(format!("anna.{end}")).display().to_string());
    bare(&["--cert", &certificate, "--key", &key]);
    site.until_refused("not of an authority that is known here");
    let expired = Authority::open(&site.tls).unwrap().client("old", Lifetime(0)).unwrap();
    // It is valid to the end of this second.
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let last = second();
    assert!(within(Duration::from_secs(30), || second() > last));
    let [certificate, key] =
        [expired.certificate_file, expired.key_file].map(|path| path.display().to_string());
    bare(&["--cert", &certificate, "--key", &key]);
    site.until_refused("its certificate has expired");
    let server = ["crt", "key"].map(|end| site.tls.join(format!("server.{end}")).display().to_string());
    bare(&["--cert", &server[0], "--key", &server[1]]);
    site.until_refused("its certificate is for another purpose");
    // A valid certificate of a client that the configuration does not list.
    drop(Authority::open(&site.tls).unwrap().client("eve", YEAR).unwrap());
    let body = site.body("eve", &["/v1/status"]);
    assert!(body.contains("this client has no role: add a [[api.remote.client]]"), "{body}");
    let entry = site.until_audited("eve is logged", |entry| entry["client"]["certificate"] == "eve");
    assert!(
        entry["status"] == 403 && entry["path"] == "/v1/status" && entry["client"]["fingerprint"].is_string()
    );
    // By the server's own name only.
    let port = site.address.port();
    let wrong = format!("https://wrong.example:{port}/v1/status");
    let resolve = format!("wrong.example:{port}:127.0.0.1");
    assert_eq!(site.status("anna", &["--resolve", &resolve, &wrong]), 0);
}

#[test]
fn who_is_removed_is_disconnected_at_once() {
    let Some(site) = Site::new() else { return };
    let ClientFiles { certificate, key, ca } = site.files("vera");
    let mut follower = Command::new("curl")
        .args(["-sN", "--cacert"])
        .arg(ca)
        .arg("--cert")
        .arg(certificate)
        .arg("--key")
        .arg(key)
        .arg(format!("https://{}/v1/events?follow=true", site.address))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    follower.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    // Somebody else comes, who stays connected.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("https://{}", site.address);
    let olga = Client::remote(&url, &site.files("olga")).unwrap();
    let mut events = runtime.block_on(olga.follow_events(0)).unwrap();
    assert!(runtime.block_on(events.next()).unwrap().is_some());
    let known = || site.daemon.get::<Vec<netvm_api::Event>>(path::EVENTS).last().unwrap().number;
    let before = known();
    site.admit(&CLIENTS[1..]);
    follower.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    follower.wait().unwrap();
    assert_eq!(site.status("vera", &["/v1/status"]), 403);
    site.until_refused("gives its client another role, or none");
    let applied = |event: &netvm_api::Event| event.kind == netvm_api::EventKind::Applied;
    let sees = async {
        while let Some(event) = events.next().await.unwrap() {
            if applied(&event) && event.number > before {
                return true;
            }
        }
        false
    };
    assert!(runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), sees).await }).unwrap());
    // Only these certificates of her name.
    let text = config(&site.daemon.folder, site.address, &CLIENTS);
    let of_vera = format!("name = \"vera\"\nfingerprints = \"{}\"", "ab".repeat(32));
    let _: netvm_api::ApplyReply = site.daemon.post(path::APPLY, &text.replace("name = \"vera\"", &of_vera));
    site.daemon.until("another certificate is meant", |_| site.status("vera", &["/v1/status"]) == 403);
}

#[test]
fn slow_and_silent_clients_keep_nobody_out() {
    let Some(site) = Site::new() else { return };
    // Nothing at all, by more than there is room for.
    let silent: Vec<TcpStream> = (0..180).map(|_| TcpStream::connect(site.address).unwrap()).collect();
    assert_eq!(site.status("anna", &["/v1/status"]), 200);
    drop(silent);
    // Half of a TLS record.
    let mut slow = TcpStream::connect(site.address).unwrap();
    slow.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let end = slow.read(&mut [0; 64]);
    let is_reset = end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
    assert!(matches!(end, Ok(0)) || is_reset, "netvmd closes it: {end:?}");
    // The log has few lines of so many refusals, but the audit log has this one.
    let says = |entry: &Value| entry["result"] == "refused: no TLS handshake within 5 s";
    site.until_audited("it is logged", says);
    // More than an address may have, all of them busy.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::remote(&format!("https://{}", site.address), &site.files("vera")).unwrap();
    let follow = || runtime.block_on(client.follow_events(0));
    let held: Vec<_> = (0..64).map(|_| follow().unwrap()).collect();
    assert!(follow().is_err());
    site.daemon.until("it is logged", |daemon| daemon.log().contains("closes a connection of"));
    let anna: Status =
        serde_json::from_str(&site.body("anna", &["--interface", "127.0.0.2", "/v1/status"])).unwrap();
    assert!(anna.pid > 0, "another address is served");
    // It closes the connections.
    drop((held, runtime));
    site.daemon.until("there is room again", |_| site.status("vera", &["/v1/status"]) == 200);
}

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[test]
fn who_asks_too_often_is_told_to_wait() {
    if !succeeds("openssl version") {
        println!("SKIP: no openssl");
        return;
    }
    let Some(site) = Site::new() else { return };
    // In one go, as each is answered in less time than a client takes to send another.
    let requests = site.daemon.folder.0.join("requests");
    std::fs::write(&requests, REQUEST.repeat(1000) + LAST).unwrap();
    let ClientFiles { certificate, key, ca } = site.files("vera");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &site.address.to_string()]).arg("-CAfile").arg(ca);
    command.arg("-cert").arg(certificate).arg("-key").arg(key).stdin(std::fs::File::open(requests).unwrap());
    let output = command.output().unwrap();
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |code: &str| answers.matches(&format!("HTTP/1.1 {code}")).count();
    let counts = [count("200"), count("429")];
    assert!(counts[0] >= 200 && counts[1] > 0 && counts[0] + counts[1] == 1001, "{counts:?}");
    assert!(answers.contains("retry-after: 1"));
    assert_eq!(site.status("anna", &["/v1/status"]), 200, "another client is served");
    let entry = site.until_audited("it is logged", |entry| entry["status"] == 429);
    assert_eq!(entry["client"]["certificate"], "vera");
    site.daemon.until("she is served again", |_| site.status("vera", &["/v1/status"]) == 200);
}

/// Passes a connection on to the server; gives what the client sent.
fn recorded(listener: &TcpListener, to: SocketAddr) -> Vec<u8> {
    let (mut client, _) = listener.accept().unwrap();
    let mut server = TcpStream::connect(to).unwrap();
    let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let back = thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(Shutdown::Both);
    });
    let (mut sent, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = client.read(&mut chunk) {
        sent.extend_from_slice(&chunk[..count]);
        if server.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    back.join().unwrap();
    sent
}

#[test]
fn a_recorded_request_is_worth_nothing() {
    let Some(site) = Site::new() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, to) = (listener.local_addr().unwrap(), site.address);
    let recorder = thread::spawn(move || recorded(&listener, to));
    let url = format!("https://{proxy}/v1/policy/rules/none");
    assert_eq!(site.status("olga", &["-X", "DELETE", &url]), 200);
    let sent = recorder.join().unwrap();
    assert!(sent.len() > 500, "{}", sent.len());
    let rules = || site.daemon.get::<netvm_api::PolicyInfo>(path::POLICY).rules.len();
    assert_eq!(rules(), 0);
    site.admit(&CLIENTS);
    assert_eq!(rules(), 1);
    let mut replayed = TcpStream::connect(site.address).unwrap();
    replayed.write_all(&sent).unwrap();
    replayed.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let _ = replayed.read_to_end(&mut Vec::new());
    site.daemon.until("it is refused", |_| {
        site.audit()
            .iter()
            .any(|entry| entry["result"].as_str().is_some_and(|text| text.starts_with("refused")))
    });
    assert_eq!(rules(), 1, "the rule is still there");
}
