// SPDX-License-Identifier: Apache-2.0
//! `netvm conn save`, kill -9, `netvm conn load`: downloads go on.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netvm_api::{Client, ConnectionQuery, RestoredConnections};

use super::{Background, list};
use crate::common::hosts::{self, Host, within};
use crate::common::{Daemon, ENGINE, Folder};

/// Far more than the kernels' socket buffers take, so that no server is done while its client still reads slowly.
const BYTES: usize = 64 << 20;
const DOWNLOADS: usize = 3;

/// Two hosts that may talk only in connections, which only the client begins. What is picked up in mid-stream is
/// refused.
fn config(client: &Host, server: &Host) -> String {
    let port = |name: &str, host: &Host, more: &str| {
        format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"af_xdp\"\ninterface = \"{}\"\nforward = {{ normal = true }}\ntrack = true\n{more}",
            host.port()
        )
    };
    format!(
        "{}{}{}\n[[rule]]\nname = \"answers\"\nfrom = \"server\"\nmatch = {{ state = \"established\" }}\nallow = true\n\
         \n[[rule]]\nname = \"no-strays\"\nfrom = \"client\"\nmatch = {{ state = \"invalid\" }}\ndrop = true\n\
         \n[[rule]]\nname = \"arp\"\nmatch = {{ ether_type = \"arp\" }}\nallow = true\n",
        ENGINE.replace("[engine]\n", "[engine]\nconnections = { pick_up = false }\n"),
        port("client", client, ""),
        port("server", server, "acl_in = \"deny\"\n"),
    )
}

fn ask<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn api(daemon: &Daemon) -> Client {
    Client::new(Some(&daemon.api_socket()))
}

fn save(daemon: &Daemon) -> Vec<u8> {
    save_selected(daemon, &ConnectionQuery::default())
}

fn save_selected(daemon: &Daemon, query: &ConnectionQuery) -> Vec<u8> {
    ask(async {
        let (mut parts, mut file) = (api(daemon).saved_connections(query).await.unwrap(), Vec::new());
        while let Some(part) = parts.next().await.unwrap() {
            file.extend_from_slice(&part);
        }
        file
    })
}

fn load(daemon: &Daemon, file: &[u8]) -> RestoredConnections {
    ask(api(daemon).load_connections(file.to_vec())).unwrap()
}

/// A slow download to a file, of `number`.
fn download(client: &Host, folder: &Folder, number: usize) -> Child {
    let mut curl = Command::new("ip");
    curl.args([
        "netns",
        "exec",
        client.namespace(),
        "curl",
        "-sS",
        "--limit-rate",
        "6M",
        "--max-time",
        "120",
    ]);
    curl.arg("-o").arg(folder.0.join(number.to_string())).arg("http://10.9.0.2/file");
    curl.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn downloads_go_on_in_the_next_netvmd_if_their_connections_are_loaded() {
    if !hosts::are_possible() || !hosts::succeeds("curl --version") {
        return;
    }
    let client = Host::new("vc", &["10.9.0.1/24"], &[]);
    let server = Host::new("vs", &["10.9.0.2/24"], &[]);
    let (folder, config) = (Folder::new(), config(&client, &server));
    let content: Vec<u8> = (0..BYTES as u64 / 8).flat_map(|n| (n ^ n << 40).to_le_bytes()).collect();
    std::fs::write(folder.0.join("file"), &content).unwrap();
    let mut first = Daemon::start(&config);
    assert!(client.pings("10.9.0.2"), "{}", first.log());
    let root = folder.0.display().to_string();
    let _server = Background(
        Command::new("ip")
            .args(["netns", "exec", server.namespace(), "busybox", "httpd", "-f", "-p", "80", "-h", &root])
            .spawn()
            .unwrap(),
    );
    let get = "busybox wget -q -O /dev/null http://10.9.0.2/file";
    assert!(within(Duration::from_secs(20), || client.output(get).status.success()), "{}", first.log());

    let mut downloads: Vec<Child> = (0..DOWNLOADS).map(|number| download(&client, &folder, number)).collect();
    let open = |daemon: &Daemon| {
        let open = list(daemon, "state=established&l4_port=80");
        open.iter().filter(|one| one.assured && one.reply_bytes > 100_000).count()
    };
    first.until("the downloads run", |daemon| open(daemon) == DOWNLOADS);
    let file = save(&first);
    first.child.kill().unwrap();
    first.wait();

    let second = Daemon::start(&config);
    second.until("it does not know the connections", |daemon| {
        daemon.stats().connections.is_some_and(|counts| counts.invalid > 0)
    });
    assert_eq!(list(&second, "l4_port=80"), []);
    // In the middle of the first page, whichever worker's it is.
    let page = file.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let cut = load(&second, &file[..page + 128]);
    let problem = cut.problem.unwrap();
    assert!(cut.restored == 0 && problem.contains("was cut after 0 connections"), "{problem}");
    let restored = load(&second, &file);
    assert!(restored.restored >= DOWNLOADS as u64 && restored.problem.is_none(), "{restored:?}");
    let open = list(&second, "state=established&l4_port=80");
    assert!(open.len() >= DOWNLOADS && open.iter().all(|one| one.port == "client"), "{open:?}");
    let again = load(&second, &file);
    assert!(again.restored == 0 && again.taken >= DOWNLOADS as u64, "{again:?}");
    // Those of one address, such as a guest's.
    let of = |address: &str| {
        let query = ConnectionQuery { address: Some(address.to_owned()), ..ConnectionQuery::default() };
        load(&second, &save_selected(&second, &query))
    };
    assert_eq!(of("10.9.0.3"), RestoredConnections::default());
    assert!(of("10.9.0.2").taken >= DOWNLOADS as u64);
    let query = ConnectionQuery { limit: Some(1), ..ConnectionQuery::default() };
    assert!(ask(api(&second).saved_connections(&query)).is_err());

    for (number, download) in downloads.iter_mut().enumerate() {
        assert!(download.wait().unwrap().success(), "download {number}: {}", second.log());
        let got = std::fs::read(folder.0.join(number.to_string())).unwrap();
        assert!(got == content, "download {number} is another file");
    }
}

#[test]
fn files_that_do_not_fit_are_refused_or_loaded_as_far_as_they_do() {
    let port = |name: &str| format!("\n[[port]]\nname = \"{name}\"\nkind = \"sink\"\ntrack = true\n");
    let source = "\n[[port]]\nname = \"in\"\nkind = \"source\"\nsize = 60\ncount = 40\nflows = 40\ntrack = true\n\
                  forward = { out = \"out\" }\n";
    let first = Daemon::start(&format!("{ENGINE}{}{source}", port("out")));
    first.until("connections begin", |daemon| list(daemon, "").len() == 40);
    let file = save(&first);

    // Another netvmd has another port of that name, or none.
    let second = Daemon::start(&format!("{ENGINE}{}{}", port("other"), port("in")));
    for (wrong, message) in [
        (&b""[..], "has no saved connections"),
        (b"{\"ports\": {}, \"rules\": {}}\n", "has no saved connections"),
        (b"# a configuration\n", "has no saved connections"),
    ] {
        let error = ask(api(&second).load_connections(wrong.to_vec())).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let at = file.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut later = file.clone();
    later[at + 8] += 1;
    let error = ask(api(&second).load_connections(later)).unwrap_err().to_string();
    assert!(error.contains("has version 2"), "{error}");
    let mut damaged = file.clone();
    let middle = at + 1000;
    damaged[middle] ^= 1;
    let outcome = load(&second, &damaged);
    assert!(
        outcome.restored == 0 && outcome.problem.unwrap().contains("is damaged"),
        "nothing of a damaged page"
    );
    assert_eq!(load(&second, &file).restored, 40);
    assert!(list(&second, "port=in").len() == 40, "ports have other numbers, and are known by name");

    let third = Daemon::start(&format!("{ENGINE}{}", port("other")));
    let outcome = load(&third, &file);
    assert_eq!(
        (outcome.restored, outcome.of_unknown_ports, outcome.unknown_ports),
        (0, 40, vec!["in".to_owned()])
    );
    let small = ENGINE.replace("[engine]\n", "[engine]\nconnections = { per_source = 1, limit = 64 }\n");
    let fourth = Daemon::start(&format!("{small}{}", port("in")));
    let outcome = load(&fourth, &file);
    assert_eq!(
        (outcome.restored + outcome.over_quota + outcome.no_room, outcome.taken),
        (40, 0),
        "{outcome:?}"
    );
    let untracked = Daemon::start(&format!("{ENGINE}{}", port("in").replace("track = true\n", "")));
    let error = ask(api(&untracked).load_connections(file)).unwrap_err().to_string();
    assert!(error.contains("no port tracks connections"), "{error}");
}
