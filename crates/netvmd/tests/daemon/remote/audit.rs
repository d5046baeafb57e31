// SPDX-License-Identifier: Apache-2.0
//! The audit log.

use netvm_api::{ApplyReply, Event, EventKind, Status, path};

use super::*;

#[test]
fn changes_and_refusals_are_logged_with_plan_and_result() {
    let Some(site) = Site::new() else { return };
    // From this machine, with the plan.
    let text = config(&site.daemon.folder, site.address, &CLIENTS).replace("rate = 10\n", "rate = 20\n");
    let _: ApplyReply = site.daemon.post(path::APPLY, &text);
    let applied = |entry: &Value| entry["path"] == path::APPLY && !entry["plan"].is_null();
    let entry = site.until_audited("the change is logged", applied);
    let plan = entry["plan"].to_string();
    assert!(plan.contains("rate 10 → 20"), "{entry}");
    assert!(entry["status"] == 200 && entry["role"] == "admin" && entry["method"] == "POST", "{entry}");
    assert_eq!(entry["client"]["uid"], rustix::process::geteuid().as_raw());
    assert_eq!(entry["client"]["pid"], std::process::id());
    assert_eq!(entry["from"], site.daemon.api_socket().display().to_string());
    let time: jiff::Timestamp = entry["time"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(time).as_secs() < 60, "{entry}");
    // What failed, with the reason.
    let (status, error) = site.daemon.post_failing(path::APPLY, "nonsense");
    let failed = site.until_audited("the failure is logged", |entry| entry["status"] == status);
    assert_eq!(failed["result"], error.message);
    // From another machine, and refused.
    assert_eq!(site.status("olga", &["-X", "DELETE", "/v1/policy/rules/none"]), 200);
    let deleted = site.until_audited("the deletion is logged", |entry| entry["method"] == "DELETE");
    assert!(deleted["client"]["certificate"] == "olga" && deleted["role"] == "operate", "{deleted}");
    assert!(deleted["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{deleted}");
    assert_eq!(site.status("vera", &["-X", "POST", "/v1/stop"]), 403);
    let refused = site.until_audited("the refusal is logged", |entry| entry["path"] == path::STOP);
    assert!(refused["status"] == 403 && refused["role"] == "view", "{refused}");
    // Reading is not logged.
    assert!(site.audit().iter().all(|entry| entry["path"] != path::STATUS), "{:?}", site.audit());
}

#[test]
fn the_log_is_followed_when_it_is_moved_and_a_change_that_removes_it_is_in_it() {
    let Some(site) = Site::new() else { return };
    let restart = || site.daemon.request("POST", "/v1/nfs/none/restart", "");
    let is_there = |entry: &Value| entry["path"] == "/v1/nfs/none/restart";
    restart();
    site.until_audited("it is logged", is_there);
    let moved = site.daemon.folder.0.join("audit.jsonl.1");
    std::fs::rename(site.audit_file(), &moved).unwrap();
    restart();
    site.until_audited("a new file", is_there);
    assert_eq!(lines(&moved).iter().filter(|entry| is_there(entry)).count(), 1);
    let _: ApplyReply = site.daemon.post(path::APPLY, ENGINE.as_str());
    let entry = site.until_audited("its end is logged", |entry| entry["path"] == path::APPLY);
    assert!(entry["plan"].to_string().contains("audit"), "{entry}");
    let count = site.audit().len();
    restart();
    let _: Status = site.daemon.get(path::STATUS);
    assert_eq!(site.audit().len(), count);
}

#[test]
fn a_full_disk_stops_nothing_and_is_a_problem() {
    let Some(site) = Site::new() else { return };
    let file = format!("{:?}", site.audit_file());
    let text = config(&site.daemon.folder, site.address, &CLIENTS);
    let _: ApplyReply = site.daemon.post(path::APPLY, &text.replace(&file, "\"/dev/full\""));
    site.daemon.until("it is a problem", |daemon| {
        site.daemon.request("POST", "/v1/nfs/none/restart", "");
        let problems = daemon.get::<Status>(path::STATUS).problems.join("\n");
        problems.contains("cannot write /dev/full: No space left on device")
    });
    let events: Vec<Event> = site.daemon.get(path::EVENTS);
    assert!(events.iter().any(|event| event.kind == EventKind::AuditLost));
    let _: ApplyReply = site.daemon.post(path::APPLY, &text);
    site.daemon.until("it is over", |daemon| daemon.get::<Status>(path::STATUS).problems.is_empty());
}
