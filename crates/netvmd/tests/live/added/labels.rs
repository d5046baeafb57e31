// SPDX-License-Identifier: Apache-2.0
//! A label of a rule that no port has is named, with the remedy, until a port with it comes.

use std::path::Path;

use netvm_api::{ApplyReply, Done, PlanReply, PolicyInfo, Severity, Status, path};

use super::{FILE, add, remove};
use crate::common::{Daemon, ENGINE};

const RULES: &str = "\n[[rule]]\nname = \"front\"\nfrom = { label = \"app=wbe\" }\ndrop = true\n";

fn problems(daemon: &Daemon) -> (Vec<String>, Vec<String>) {
    let rules = daemon.get::<PolicyInfo>(path::POLICY).rules.into_iter();
    (daemon.get::<Status>(path::STATUS).problems, rules.flat_map(|rule| rule.problems).collect())
}

#[test]
fn a_label_that_no_port_has_is_named_until_a_port_with_it_comes() {
    let file = format!("{}{FILE}", *ENGINE);
    let daemon = Daemon::start(&file);
    add(&daemon, "1", "name = \"one\"\nkind = \"sink\"\nlabels = { app = \"web\", tier = \"front\" }");
    let text = file.clone() + RULES;
    let line = text.lines().position(|line| line.contains("wbe")).unwrap() as u32 + 1;
    let why = "no port has the label `app=wbe` now: did you mean `app=web`? ports have app=web, tier=front.";
    let plan: PlanReply = daemon.post(path::PLAN, &text);
    let applied: ApplyReply = daemon.post(path::APPLY, &text);
    for warnings in [plan.warnings, applied.warnings] {
        let [one] = &warnings[..] else { panic!("{warnings:?}") };
        assert_eq!((one.severity, one.line), (Severity::Warning, line), "{one:?}");
        assert!(one.message.starts_with(why), "{one:?}");
    }
    let (status, policy) = problems(&daemon);
    assert!(
        matches!(&status[..], [one] if one.starts_with(&format!("rule front, `from`: {why}"))),
        "{status:?}"
    );
    assert!(matches!(&policy[..], [one] if one.starts_with(&format!("`from`: {why}"))), "{policy:?}");
    // It is a warning, and the command succeeds.
    let netvm = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm");
    if netvm.is_file() {
        std::fs::write(daemon.folder.config(), &text).unwrap();
        for (words, told) in [
            (["plan", daemon.folder.config().to_str().unwrap()], "config::absent"),
            (["policy", "show"], why),
        ] {
            let mut command = std::process::Command::new(&netvm);
            let output = command.arg("--socket").arg(daemon.api_socket()).args(words).output().unwrap();
            let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(output.status.success() && printed.contains(told), "{printed}");
        }
    }
    let rule =
        serde_json::json!({ "toml": "to = { label = \"!kind,app=web\" }\ndrop = true", "position": "last" });
    let added: Done = daemon.post(path::RULES, &rule.to_string());
    assert!(!added.message.contains("no port"), "{}", added.message);
    let rule = serde_json::json!({ "toml": "to = { label = \"teir\" }\ndrop = true", "position": "last" });
    let added: Done = daemon.post(path::RULES, &rule.to_string());
    assert!(added.message.contains("warning: `to`: no port has the label `teir` now"), "{}", added.message);
    assert_eq!(problems(&daemon).0.len(), 2);

    add(&daemon, "2", "name = \"two\"\nkind = \"sink\"\nlabels = { app = \"wbe\", teir = \"\" }");
    assert_eq!(problems(&daemon), (vec![], vec![]));
    assert_eq!(remove(&daemon, "2").0, 200);
    assert_eq!(problems(&daemon).0.len(), 2);
}
