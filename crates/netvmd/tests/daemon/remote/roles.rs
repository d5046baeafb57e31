// SPDX-License-Identifier: Apache-2.0
//! Roles: of clients of sockets of groups, and of clients from other machines.

use std::os::unix::process::CommandExt;

use netvm_api::{Role, group_socket, openapi};

use super::*;
use crate::common::is_root;

/// Groups that no user of this machine needs to have, and a user.
const GROUPS: [(Role, u32); 3] = [(Role::View, 54_331), (Role::Capture, 54_332), (Role::Operate, 54_333)];
const USER: u32 = 65_534;

/// A path with names that do not exist.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "none" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_operation_needs_its_role() {
    let Some(site) = Site::new() else { return };
    let all = openapi::roles();
    assert!(all.len() > 40, "{all:?}");
    for (name, role) in CLIENTS {
        let role: Role = serde_json::from_value(role.into()).unwrap();
        let refused: Vec<_> = all.iter().filter(|(.., needed)| *needed > role).collect();
        // One connection for all of them.
        let mut words = Vec::new();
        for (n, (method, path, _)) in refused.iter().enumerate() {
            if n > 0 {
                words.push("--next".to_owned());
            }
            let url = format!("https://{}{}", site.address, filled(path));
            let options = ["-sS", "-o", "/dev/null", "-w", "%{http_code}\n", "-X", method, &url];
            words.extend(options.map(str::to_owned));
            let ClientFiles { certificate, key, ca } = site.files(name);
            let files = [("--cacert", ca), ("--cert", certificate), ("--key", key)];
            words.extend(
                files.into_iter().flat_map(|(option, file)| [option.to_owned(), file.display().to_string()]),
            );
        }
        if refused.is_empty() {
            continue;
        }
        let output = Command::new("curl").args(&words).output().unwrap();
        let codes = String::from_utf8(output.stdout).unwrap();
        let codes: Vec<&str> = codes.lines().collect();
        assert!(codes.len() == refused.len() && codes.iter().all(|code| *code == "403"), "{name}: {codes:?}");
    }
    // Each may do what its role permits.
    assert_eq!(site.status("vera", &["/v1/stats"]), 200);
    // The web page, but not for the page of another site.
    assert!(site.body("vera", &["/"]).contains("<script type=\"module\" src=\"/web/app.js\">"));
    assert_eq!(site.status("vera", &["/web/app.js"]), 200);
    let own = format!("origin: https://{}", site.address);
    assert_eq!(site.status("vera", &["-H", &own, "/v1/stats"]), 200);
    assert_eq!(site.status("vera", &["-H", "origin: https://evil.example", "/v1/stats"]), 403);
    assert_eq!(site.status("vera", &["-H", "sec-fetch-site: cross-site", "/v1/stats"]), 403);
    assert_eq!(
        site.status("carl", &["-d", "{}", "-H", "content-type: application/json", "/v1/capture"]),
        426
    );
    assert_eq!(site.status("olga", &["-X", "DELETE", "/v1/policy/rules/none"]), 200);
    let apply = site.status(
        "anna",
        &["--data-binary", &format!("@{}", site.daemon.folder.config().display()), "/v1/apply"],
    );
    assert_eq!(apply, 200);
    // Who changes nothing sends little. netvmd ends the connection of one that sends more.
    let file = |name: &str, text: String| {
        let path = site.daemon.folder.0.join(name);
        std::fs::write(&path, text).unwrap();
        format!("@{}", path.display())
    };
    let blanks = " ".repeat(300 << 10);
    let packet = "{\"port\":\"in\",\"frame\":\"020000000001020000000002080045\",\"length\":60}";
    let trace = |data: &str| {
        let json = "content-type: application/json";
        site.status("vera", &["--data-binary", data, "-H", json, "/v1/policy/trace"])
    };
    assert_eq!(trace(packet), 200);
    assert_ne!(trace(&file("large.json", format!("{packet}{blanks}"))), 200);
    let text = std::fs::read_to_string(site.daemon.folder.config()).unwrap();
    let config = file("large.toml", format!("{text}\n#{blanks}\n"));
    assert_eq!(site.status("olga", &["--data-binary", &config, "/v1/plan"]), 200);
    let body = site.body("vera", &["-X", "POST", "/v1/stop"]);
    assert!(body.contains("needs the role `admin`, and this client has `view`"), "{body}");
}

#[test]
fn the_members_of_a_group_have_its_role() {
    if !is_root() || !succeeds("curl --version") {
        return;
    }
    let groups = GROUPS.map(|(role, gid)| format!("{}_group = \"{gid}\"\n", role.word())).concat();
    let daemon = Daemon::start(&format!("{ENGINE}[api]\n{groups}"));
    let socket = |role| daemon.folder.run_dir().join(group_socket(role));
    daemon.until("the sockets are there", |_| GROUPS.iter().all(|(role, _)| socket(*role).exists()));
    let ask = |role, gid: u32, line: [&str; 2]| -> u16 {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket"]).arg(socket(role));
        command.args(["-X", line[0]]).arg(format!("http://netvm{}", line[1]));
        let output = command.uid(USER).gid(gid).output().unwrap();
        String::from_utf8(output.stdout).unwrap().parse().unwrap()
    };
    let statuses = |line: [&str; 2]| GROUPS.map(|(role, gid)| ask(role, gid, line));
    assert_eq!(statuses(["GET", "/v1/ports"]), [200; 3]);
    assert_eq!(statuses(["POST", "/v1/capture"]), [403, 426, 426]);
    assert_eq!(statuses(["POST", "/v1/nfs/none/restart"]), [403, 403, 404]);
    assert_eq!(statuses(["POST", "/v1/stop"]), [403; 3]);
    // Not by the socket of another group.
    assert_eq!(ask(Role::Operate, GROUPS[0].1, ["GET", "/v1/ports"]), 0);
    // `netvm` finds the socket that its user may use: the client does.
    let (status, _) = request(&socket(Role::View), &[], "GET /v1/status", b"");
    assert_eq!(status, 200, "root may use every socket");
}
