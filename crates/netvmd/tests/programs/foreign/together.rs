// SPDX-License-Identifier: Apache-2.0
//! One chain of programs of every kind, none of which but the last knows of netvm: Suricata, testpmd by virtio-user and
//! by memif, HAProxy as a transparent proxy, and an NF of netlib. HTTP passes all of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use netvm_api::{NfInfo, NfState};

use crate::common::hosts::{succeeds, within};
use crate::common::peers::peer;
use crate::common::{Daemon, ENGINE, program};
use crate::foreign::{SURICATA, testpmd_keys};
use crate::site::Site;

const MACS: [&str; 2] = ["02:00:00:00:77:01", "02:00:00:00:77:02"];

/// HAProxy takes connections to port 80 of any address, and opens its own with the client's address.
const PROXY: &str = "global
  maxconn 100
defaults
  mode http
  timeout connect 5s
  timeout client 10s
  timeout server 10s
frontend web
  bind 127.0.0.1:8080 transparent
  http-response add-header Passed proxy
  default_backend servers
backend servers
  source 0.0.0.0 usesrc clientip
  server any *:80
";

/// The proxy's namespace stands for the server on the left, and for the client on the right: by their MAC addresses.
fn proxy(folder: &Path) -> Option<String> {
    let command = peer("haproxy", "usr/sbin/haproxy")?;
    let config = folder.join("haproxy.cfg");
    std::fs::write(&config, PROXY).unwrap();
    let [client, server] = MACS;
    let script = format!(
        "set -e
ip link set left address {server}; ip link set right address {client}; ip link set lo up
ip route replace 10.77.0.1 dev left; ip route replace 10.77.0.2 dev right
ip neigh replace 10.77.0.1 lladdr {client} dev left nud permanent
ip neigh replace 10.77.0.2 lladdr {server} dev right nud permanent
ip rule delete fwmark 1 2>/dev/null || true
ip rule add fwmark 1 lookup 100; ip route replace local 0.0.0.0/0 dev lo table 100
nft -f - <<RULES
flush ruleset
table ip t {{
 chain p {{
  type filter hook prerouting priority -150
  iifname left tcp dport 80 tproxy to 127.0.0.1:8080 meta mark set 1 accept
  iifname right tcp sport 80 socket transparent 1 meta mark set 1 accept
 }}
}}
RULES
exec {} -f {} -db",
        command.join(" "),
        config.display()
    );
    Some(format!("{}offloads = true\nprobe = false\n", Site::script("veth", &script)))
}

fn suricata(folder: &Path) -> Option<String> {
    let mut command = peer("suricata", "usr/bin/suricata")?;
    let path = folder.display().to_string();
    std::fs::write(folder.join("none"), "").unwrap();
    let rule = "drop tcp any any -> any any (msg:\"test\"; content:\"EICAR-LIKE-TEST\"; sid:1; rev:1;)\n";
    std::fs::write(folder.join("test.rules"), rule).unwrap();
    std::fs::write(folder.join("s.yaml"), SURICATA.replace("FOLDER", &path)).unwrap();
    let config = format!("{path}/s.yaml");
    command.extend(["-c", &config, "--af-packet", "--runmode", "workers", "-l", &path].map(str::to_owned));
    Some(format!("attach = \"veth\"\ncommand = {command:?}\nwritable = [{path:?}]\nmemory = 2048\n"))
}

/// The configuration, with these hops: roles, and keys of their `[[nf]]`.
fn config(site: &Site, hops: &[(String, String)]) -> String {
    let mut text = ENGINE.replace("buffers = 2048", "buffers = 16384");
    let hosts = [("client", &site.client, "server", "out"), ("server", &site.server, "client", "in")];
    for (n, (name, host, other, chain)) in hosts.into_iter().enumerate() {
        text += &format!(
            "\n[[port]]\nname = {name:?}\nkind = \"container\"\nnamespace = {:?}\nmac = {:?}\n\
             addresses = [\"10.77.0.{}/24\"]\nforward = {{ out = {other:?} }}\n\
             [[rule]]\nfrom = {name:?}\nmatch = {{ protocol = \"tcp\" }}\nchain = {chain:?}\n",
            host.namespace(),
            MACS[n],
            n + 1,
        );
    }
    for (role, keys) in hops {
        text += &format!("\n[[nf]]\nrole = {role:?}\ngroup = \"edge\"\n{keys}\n");
    }
    let mut roles: Vec<&str> = hops.iter().map(|(role, _)| role.as_str()).collect();
    text += &format!(
        "\n[[chain]]\nname = \"out\"\nhops = {roles:?}\noutput = \"server\"\non_failure = \"drop\"\n"
    );
    roles.reverse();
    text + &format!(
        "\n[[chain]]\nname = \"in\"\nhops = {roles:?}\noutput = \"client\"\non_failure = \"drop\"\nreverse = \"out\"\n"
    )
}

/// What the server says to a request for a file, as far as it comes.
fn get(site: &Site, file: &'static str) -> String {
    let asking = move || -> std::io::Result<String> {
        let address = (Site::SERVER, 80).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /{file} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")?;
        let mut said = Vec::new();
        // What has come by the time limit.
        let _ = stream.read_to_end(&mut said);
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    site.client.inside(asking).join().unwrap().unwrap_or_else(|error| error.to_string())
}

#[test]
fn http_passes_suricata_testpmd_twice_haproxy_and_an_nf_in_one_chain() {
    let Some(site) = Site::new("al") else { return };
    if !succeeds("which dpdk-testpmd") {
        println!("SKIP: no dpdk-testpmd here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let role = |kind: &str| format!("{}{kind}", site.role);
    let sockets = folder.path().join("sockets");
    let mut hops = Vec::new();
    // Without it, the others are tried all the same.
    let blocks = suricata(folder.path()).map(|keys| hops.push((role("ids"), keys))).is_some();
    for attach in ["vhost-user", "memif"] {
        hops.push((role(&attach[..1]), testpmd_keys(&role(&attach[..1]), attach, &sockets)));
    }
    let is_proxied = proxy(folder.path()).map(|keys| hops.push((role("p"), keys))).is_some();
    hops.push((role("nf"), program("forward")));

    let www = folder.path().join("www");
    std::fs::create_dir(&www).unwrap();
    std::fs::write(www.join("good"), "nothing of interest\n").unwrap();
    std::fs::write(www.join("bad"), "EICAR-LIKE-TEST\n").unwrap();
    let mut daemon = Daemon::start(&config(&site, &hops));
    let mut server = std::process::Command::new("ip")
        .args(["netns", "exec", site.server.namespace(), "busybox", "httpd", "-f", "-p", "80", "-h"])
        .arg(&www)
        .spawn()
        .unwrap();
    for (role, _) in &hops {
        let is_up = within(Duration::from_secs(60), || {
            let all: Vec<NfInfo> = daemon.get(netvm_api::path::NFS);
            all.iter().any(|nf| nf.role == *role && nf.state == NfState::Running)
        });
        assert!(is_up, "{role}: {}", daemon.log());
    }
    let good = |said: &str| said.ends_with("\r\n\r\nnothing of interest\n");
    let mut said = String::new();
    let passes = within(Duration::from_secs(30), || {
        said = get(&site, "good");
        good(&said)
    });
    let counters = |role: &str| daemon.nf(role).counters;
    let all = || hops.iter().map(|(role, _)| (role.clone(), counters(role))).collect::<Vec<_>>();
    assert!(passes, "{said}: {:#?} {:#?} {}", all(), daemon.stats().chains, daemon.log());
    assert_eq!(said.to_lowercase().contains("passed: proxy"), is_proxied, "{said}");
    if blocks {
        let said = get(&site, "bad");
        assert!(!said.contains("EICAR-LIKE-TEST"), "{said}");
        assert!(good(&get(&site, "good")), "{}", daemon.log());
    }
    server.kill().unwrap();
    server.wait().unwrap();

    // What leaves a program enters the next one, each way.
    let programs: Vec<&str> = hops.iter().map(|(role, _)| role.as_str()).collect();
    let programs = &programs[..programs.len() - 1];
    let count = |role: &str, key: &str| daemon.nf(role).counters[key];
    let [virtio, memif] = [role("v"), role("m")];
    daemon.until("all packets are through", |_| {
        let is_through = |pair: &[&str]| {
            count(pair[0], "right_out") == count(pair[1], "left_in")
                && count(pair[1], "left_out") == count(pair[0], "right_in")
        };
        // A transparent program adds nothing, and loses nothing.
        let is_transparent = |role: &str| {
            count(role, "left_in") == count(role, "right_out")
                && count(role, "right_in") == count(role, "left_out")
        };
        programs.windows(2).all(is_through)
            && is_transparent(&virtio)
            && is_transparent(&memif)
            && count(programs[0], "left_out") == daemon.left("in")
            && count(programs.last().unwrap(), "right_out") == daemon.left("out")
    });
    assert!(count(programs[0], "left_in") > 0);
    daemon.purge();
}
