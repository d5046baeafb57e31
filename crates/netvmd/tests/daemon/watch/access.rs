// SPDX-License-Identifier: Apache-2.0
//! Rights of clients of the loopback address, and peers that misuse it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netvm_api::{Status, path};

use super::{ask, authorization, free_address, until_served, watched};
use crate::common::Daemon;

/// The answer to a request without a token, if there is one.
fn read(address: SocketAddr) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn the_loopback_address_needs_a_token_and_only_reads() {
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    let token = authorization(&daemon);
    let (status, head, body) = ask(address, "GET /v1/stats", &[], "");
    assert!(status == 401 && head.contains("www-authenticate: bearer"), "{head}");
    assert!(body.contains("no token, or a wrong one") && body.contains("/token"), "{body}");
    assert_eq!(ask(address, "GET /metrics", &["authorization: Bearer wrong"], "").0, 401);
    assert_eq!(ask(address, "GET /v1/stats", &[&token], "").0, 200);
    let (status, _, body) = ask(address, "POST /v1/stop", &[&token], "");
    assert!(status == 403 && body.contains("needs the role `admin`"), "{body}");
    let packet = "{\"port\":\"a-in\",\"frame\":\"020000000001020000000002080045\",\"length\":60}";
    let json = "content-type: application/json";
    assert_eq!(ask(address, "POST /v1/policy/trace", &[&token, json], packet).0, 200);
    let foreign = "origin: http://example.org";
    assert_eq!(ask(address, "GET /v1/stats", &[&token, foreign], "").0, 403);
    let own = format!("origin: http://{address}");
    assert_eq!(ask(address, "GET /v1/stats", &[&token, &own], "").0, 200);
    // A page whose name was made to mean this machine sends no `Origin`; nor may it use a forwarded socket.
    for host in ["evil", "evil.example:9180"] {
        let mut stream = UnixStream::connect(daemon.api_socket()).unwrap();
        let request = format!("GET /v1/config HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("names another machine"), "{answer}");
    }
    // The page itself has no secrets, and never turns text into a script.
    let (status, head, body) = ask(address, "GET /", &[], "");
    assert!(status == 200 && head.contains("default-src 'none'; script-src 'self'"), "{head}");
    assert!(body.contains("<script type=\"module\" src=\"/web/app.js\">"), "{body}");
    for file in ["app.js", "capture.js", "graph.js", "trace.js", "style.css"] {
        let (status, _, body) = ask(address, &format!("GET /web/{file}"), &[], "");
        assert!(status == 200 && !body.contains("innerHTML") && !body.contains("eval("), "{file}");
    }
    assert_eq!(ask(address, "GET /web/../token", &[&token], "").0, 404);
    // Another address, and one that is taken.
    let other = free_address();
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &watched(other));
    until_served(other);
    assert!(TcpStream::connect(address).is_err());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &watched(taken.local_addr().unwrap()));
    daemon.until("the problem is shown", |daemon| {
        daemon
            .get::<Status>(path::STATUS)
            .problems
            .iter()
            .any(|problem| problem.contains("cannot serve the web page"))
    });
    let (status, error) = daemon.post_failing(path::PLAN, watched(address).replace("127.0.0.1", "0.0.0.0"));
    assert!(status == 422 && error.diagnostics[0].rendered.contains("a loopback address"), "{error:?}");
}

/// Packets that leave the chain per second.
fn rate(daemon: &Daemon) -> f64 {
    let before = daemon.stats();
    std::thread::sleep(Duration::from_secs(1));
    let after = daemon.stats();
    (after.chains[0].left - before.chains[0].left) as f64 / (after.uptime_s - before.uptime_s)
}

#[test]
fn a_thousand_clients_and_a_slow_one_disturb_nobody() {
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    daemon.until_flowing("a");
    let alone = rate(&daemon);
    let crowd: Vec<TcpStream> = (0..1000).filter_map(|_| TcpStream::connect(address).ok()).collect();
    assert!(crowd.len() > 900, "{}", crowd.len());
    // Connections that ask for nothing keep nobody out: a client with a request takes the place of the oldest.
    assert!((0..20).all(|_| read(address).starts_with("HTTP/1.1 401")));
    let silent: Vec<UnixStream> =
        (0..300).filter_map(|_| UnixStream::connect(daemon.api_socket()).ok()).collect();
    assert_eq!(silent.len(), 300);
    for mut stream in &silent {
        // A request whose body never comes; netvmd may have closed the connection.
        let _ = stream.write_all(b"POST /v1/plan HTTP/1.1\r\nhost: netvm\r\ncontent-length: 10\r\n\r\n");
    }
    let _: Status = daemon.get(path::STATUS);
    let mut slow = UnixStream::connect(daemon.api_socket()).unwrap();
    for _ in 0..200 {
        slow.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: netvm\r\n\r\n").unwrap();
    }
    // Other tests run beside this one: of several seconds, one must be undisturbed.
    daemon.until("packets flow as before", |daemon| rate(daemon) > 0.9 * alone);
    drop((crowd, silent));
    assert!(read(address).starts_with("HTTP/1.1 401"));
}
