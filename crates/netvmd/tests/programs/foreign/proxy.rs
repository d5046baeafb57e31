// SPDX-License-Identifier: Apache-2.0
//! A transparent proxy as a hop: the part of docs/how-to/any-program.md about it, with HAProxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use netvm_api::NfState;

use crate::common::page::blocks;
use crate::common::peers::peer;
use crate::common::{Daemon, ENGINE};
use crate::page::PAGE;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(10);

/// What a server on port 80 gets, with the address that it comes from; it answers with the same.
fn fetch(site: &Site) -> Option<String> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = site.server.inside(move || {
        let listener = TcpListener::bind((Site::SERVER, 80)).unwrap();
        ready.send(()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut to = stream.try_clone().unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let body = format!("{}\n{}\n", from.ip(), head.join("\n").to_lowercase());
        write!(to, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
            .unwrap();
    });
    is_ready.recv().unwrap();
    let client = site.client.inside(move || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&(Site::SERVER, 80).into(), LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: server\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = client.join().unwrap().ok()?;
    server.join().unwrap();
    Some(answer)
}

#[test]
fn haproxy_is_a_transparent_proxy_of_one_port_and_the_rest_goes_around() {
    let Some(haproxy) = peer("haproxy", "usr/sbin/haproxy") else { return };
    let Some(site) = Site::new("ha") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [script, config] = [("bash", 2), ("cfg", 0)].map(|(language, n)| blocks(PAGE, language)[n].clone());
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("proxy.sh"), script.replace("exec haproxy", &format!("exec {}", haproxy.join(" "))))
        .unwrap();
    std::fs::write(at("haproxy.cfg"), config).unwrap();
    let port = |name: &str, namespace: &str, number: u8, other: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"container\"\nnamespace = \"{namespace}\"\n\
             mac = \"02:00:00:77:00:0{number}\"\naddresses = [\"10.77.0.{number}/24\"]\nforward = {{ out = \"{other}\" }}\n"
        )
    };
    let role = &site.role;
    let text = format!(
        "{ENGINE}\n{}{}\n[[nf]]\nrole = \"{role}\"\ngroup = \"edge\"\nattach = \"veth\"\nprobe = false\noffloads = true\n\
         command = [\"sh\", {:?}, {:?}]\n\
         [[chain]]\nname = \"out\"\nhops = [\"{role}\"]\non_failure = \"bypass\"\noutput = \"server\"\n\
         [[chain]]\nname = \"in\"\nhops = [\"{role}\"]\non_failure = \"bypass\"\noutput = \"client\"\nreverse = \"out\"\n\
         [[rule]]\nfrom = \"client\"\nmatch = {{ protocol = \"tcp\", destination_ports = 80 }}\nchain = \"out\"\n\
         [[rule]]\nfrom = \"server\"\nmatch = {{ protocol = \"tcp\", source_ports = 80 }}\nchain = \"in\"\n",
        port("client", site.client.namespace(), 1, "server"),
        port("server", site.server.namespace(), 2, "client"),
        at("proxy.sh"),
        at("haproxy.cfg"),
    );
    let daemon = Daemon::start(&text);
    site.until(&daemon, NfState::Running);
    assert!(site.pings(), "pings go around it: {}", daemon.log());
    assert_eq!(site.nf(&daemon).counters["left_in"], 0);
    // HAProxy may not listen yet: then it refuses the connection.
    let mut answer = None;
    daemon.until("HAProxy answers", |_| {
        answer = fetch_once(&site);
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert!(answer.contains("x-through: haproxy"), "{answer}\n{}", daemon.log());
    assert!(answer.contains("\n10.77.0.1\n"), "the server sees the client's address: {answer}");
    assert!(site.echoes(50_000), "other ports go around it: {}", daemon.log());
    let counters = site.nf(&daemon).counters;
    assert!(counters.values().all(|count| *count > 3), "{counters:?}");
}

/// What [`fetch`] gets if the proxy accepts connections.
fn fetch_once(site: &Site) -> Option<String> {
    let probe = site.client.inside(|| TcpStream::connect_timeout(&(Site::SERVER, 80).into(), LIMIT).is_ok());
    if probe.join().unwrap() { fetch(site) } else { None }
}
