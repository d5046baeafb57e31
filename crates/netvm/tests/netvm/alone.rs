// SPDX-License-Identifier: Apache-2.0
//! The commands that need no netvmd, and the errors when none runs.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{file, folder, netvm, program, run};
use netvm_api::explain::COLUMNS;
use netvm_counters::TABLES;
use serde_json::Value;

const GOOD: &str = r#"
[[port]]
name = "client"
kind = "source"

[[nf]]
role = "firewall"
command = ["netvm-firewall"]

[[chain]]
name = "web"
hops = ["firewall"]
output = "ingress"

[[rule]]
from = "client"
chain = "web"
"#;

#[test]
fn check_counts_the_items_of_a_file() {
    let folder = folder();
    let good = file(&folder, "good.toml", GOOD);
    let expected = format!("{good} is valid: 1 group, 1 port, 1 NF, 1 chain, 1 rule\n");
    assert_eq!(netvm(&["check", "--offline", &good]).good(), expected);
    let warned = file(&folder, "warned.toml", &GOOD.replace("chain = \"web\"", "drop = true"));
    let run = netvm(&["check", "--offline", &warned]);
    assert!(run.err.contains("⚠ no rule sends packets into chain web"), "{}", run.err);
    assert!(!run.err.contains('\x1b'), "colours only on terminals");
    assert!(run.good().ends_with("1 rule; 1 warning\n"));
}

#[test]
fn check_shows_every_error_with_its_remedy() {
    let folder = folder();
    let bad = file(
        &folder,
        "bad.toml",
        &GOOD.replace("hops", "hop").replace("kind = \"source\"", "kind = \"sorce\""),
    );
    let run = netvm(&["check", "--offline", &bad]);
    assert_eq!(run.out, "");
    let error = run.failed(1);
    for piece in [
        &format!("[{bad}:4:8]"),
        "kind = \"sorce\"",
        "did you mean `source`?",
        &format!("[{bad}:12:1]"),
        "unknown key `hop` in [[chain]]",
        "did you mean `hops`?",
        &format!("{bad} has 2 errors\n"),
    ] {
        assert!(error.contains(piece), "{piece}\n{error}");
    }
    let missing = netvm(&["check", "/nowhere/host.toml"]).failed(1);
    assert!(
        missing.starts_with("cannot read the configuration /nowhere/host.toml: No such file"),
        "{missing}"
    );
}

#[test]
fn check_prints_json() {
    let folder = folder();
    let good: Value = serde_json::from_str(
        &netvm(&["check", "--offline", "--json", &file(&folder, "good.toml", GOOD)]).good(),
    )
    .unwrap();
    assert_eq!(good, serde_json::json!({"ok": true, "diagnostics": []}));
    let run = netvm(&["--json", "check", "--offline", &file(&folder, "bad.toml", "[engine]\ncoers = [1]")]);
    let bad: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(bad["ok"], false);
    assert_eq!(bad["diagnostics"][0]["line"], 2);
    assert_eq!(bad["diagnostics"][0]["severity"], "error");
    assert_eq!(bad["diagnostics"][0]["help"], "did you mean `cores`?");
    let error: Value = serde_json::from_str(&run.failed(1)).unwrap();
    assert!(error["message"].as_str().unwrap().ends_with("has an error"));
}

#[test]
fn completion_knows_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = netvm(&["completion", shell]).good();
        assert!(script.contains("NETVM_COMPLETE") && script.contains("netvm"), "{shell}: {script}");
        let mut command = program();
        command.args(["--", "netvm", ""]).env("NETVM_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1");
        let known = run(command.env("_CLAP_IFS", "\n")).good();
        for command in [
            "status", "port", "nf", "chain", "group", "stats", "plan", "apply", "config", "check", "doctor",
            "replay",
        ] {
            assert!(known.contains(command), "{shell}: {command} in {known}");
        }
    }
    let wrong = netvm(&["completion", "cmd"]).failed(2);
    assert!(wrong.contains("possible values") && wrong.contains("bash"), "{wrong}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child =
        program().args(["completion", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(child.wait().unwrap().success(), "{error}");
    assert_eq!(error, "");
}

#[test]
fn doctor_reports_every_check() {
    let report: Value = serde_json::from_str(&netvm(&["doctor", "--json"]).good()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    let expected = [
        "cores",
        "NUMA",
        "isolation",
        "frequency",
        "huge pages",
        "transparent huge pages",
        "sealed memory",
        "locked memory",
        "netvmd",
        "capabilities",
        "AF_XDP",
        "BPF links",
        "NICs",
        "IOMMU",
        "KVM",
    ];
    for name in expected {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for check in checks {
        assert!(["ok", "note", "warn"].contains(&check["level"].as_str().unwrap()), "{check}");
        assert!(
            !check["found"].as_str().unwrap().is_empty() && !check["meaning"].as_str().unwrap().is_empty()
        );
        assert!(check["command"].is_null() || check["level"] != "ok", "{check}");
    }
    let text = netvm(&["doctor"]).good();
    assert!(text.ends_with("netvm runs despite these.\n"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("ok    sealed memory") || line.starts_with("note  sealed memory"))
    );
}

#[test]
fn a_dead_socket_is_reported_with_a_remedy() {
    let folder = folder();
    let socket = folder.path().join("api.sock");
    let path = socket.to_str().unwrap();
    let commands: [&[&str]; 4] =
        [&["status"], &["stats", "--watch"], &["restart", "firewall"], &["config", "show"]];
    for arguments in commands {
        let error = run(program().args(["--socket", path]).args(arguments)).failed(1);
        assert!(error.starts_with(&format!("netvm: no netvmd answers on {path}: ")), "{error}");
        assert!(error.contains("Start it with `netvmd --config FILE`"), "{error}");
    }
    let start = std::time::Instant::now();
    let error = run(program().args(["--socket", path, "status", "--wait", "1"])).failed(1);
    assert!(error.contains("no netvmd answers"), "{error}");
    assert!(start.elapsed() >= std::time::Duration::from_secs(1), "{:?}", start.elapsed());
    // The socket of a killed netvmd, given by the environment.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = run(program().env("NETVM_API", path).args(["--json", "port"])).failed(1);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert!(error["message"].as_str().unwrap().contains("Connection refused"), "{error}");
}

#[test]
fn a_wrong_command_line_is_status_2() {
    let cases: [(&[&str], &str); 5] = [
        (&["stat"], "'stats'"),
        (&["apply"], "<FILE>"),
        (&["stats", "--watch=0"], "from 0.1 to 3600 seconds"),
        (&["replay", "in.pcap", "out.pcap"], "--chain"),
        (&["chain", "a", "b"], "unexpected argument"),
    ];
    for (arguments, piece) in cases {
        let error = netvm(arguments).failed(2);
        assert!(error.contains(piece), "{error}");
    }
    assert!(netvm(&["--help"]).good().contains("Exit status: 0 success, 1 failure, 2 invalid command line."));
    assert!(netvm(&["replay", "--help"]).good().contains("each in its own process"));
}

#[test]
fn explain_says_what_names_mean() {
    let text = netvm(&["explain", "CHAIN-FULL"]).good();
    assert!(text.starts_with("chain-full (drop reason)\n  A ring of the chain is full"), "{text}");
    assert!(text.contains("\n  What to do: `netvm top`"), "{text}");
    assert!(netvm(&["explain", "dropped at entry"]).good().contains("(column of netvm chain, netvm stats)"));
    let error = netvm(&["explain", "chain-ful"]).failed(1);
    assert!(error.starts_with("netvm: nothing is called `chain-ful`; did you mean chain-full"), "{error}");
    let all: Value = serde_json::from_str(&netvm(&["explain", "--json"]).good()).unwrap();
    assert!(
        all.as_array().unwrap().iter().any(|one| one["name"] == "spoofed" && one["kind"] == "drop reason")
    );
    assert!(netvm(&["explain"]).good().contains("LONGEST RECLAIM"));
}

#[test]
fn the_page_of_counters_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/counters.md");
    let is_current = std::fs::read_to_string(page).unwrap() == netvm(&["explain", "--markdown"]).good();
    assert!(is_current, "netvm explain --markdown > docs/reference/counters.md");
}

#[test]
fn the_page_of_the_api_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
    let is_current = std::fs::read_to_string(page).unwrap() == netvm(&["openapi", "--markdown"]).good();
    assert!(is_current, "netvm openapi --markdown > docs/reference/api.md");
    let document: Value = serde_json::from_str(&netvm(&["openapi"]).good()).unwrap();
    assert!(document["paths"]["/v1/stats"]["get"]["summary"].is_string());
}

/// The commands whose tables a file of `src/commands` draws.
fn tables_of(file: &str) -> &'static [&'static str] {
    match file {
        "change.rs" => &["netvm config history"],
        "connections/draw.rs" => &["netvm conn list", "netvm conn targets"],
        "explain.rs" => &["netvm explain"],
        "fleet/show.rs" => &["netvm fleet status"],
        "inspect/chain.rs" => &["netvm chain", "netvm group"],
        "inspect/live_port.rs" => &["netvm port live"],
        "inspect/nf.rs" => &["netvm nf"],
        "inspect/port.rs" => &["netvm port"],
        "inspect/status.rs" => &["netvm status"],
        "policy/multicast.rs" => &["netvm mdb"],
        "policy/mod.rs" => &["netvm policy show", "netvm flow list", "netvm flow top", "netvm mac"],
        "router/mod.rs" => &["netvm router", "netvm router show", "netvm router neigh"],
        "stats.rs" => &["netvm stats"],
        "top/rows.rs" => &["netvm top"],
        "vm/mod.rs" => &["netvm vm list"],
        _ => &[],
    }
}

/// The sources in a folder and its subfolders.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The heads of columns in a source file: texts in capitals between `table(&[` or `vec![` and `]`.
fn heads(source: &str) -> Vec<String> {
    let is_head = |text: &str| {
        let text = text.trim_start_matches('>');
        text == "#"
            || text.len() > 1
                && text.starts_with(|first: char| first.is_ascii_uppercase())
                && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || " /.:".contains(c))
    };
    let texts = source.split('"').skip(1).step_by(2);
    texts.filter(|text| is_head(text)).map(|text| text.trim_start_matches('>').to_owned()).collect()
}

#[test]
fn every_column_is_explained() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands"));
    let mut found = std::collections::BTreeSet::new();
    for path in sources(folder) {
        let (file, source) = (path.strip_prefix(folder).unwrap(), std::fs::read_to_string(&path).unwrap());
        let source = source.split("#[cfg(test)]").next().unwrap();
        // Nouns of counts are not columns.
        let source: String = source.lines().filter(|line| !line.contains("plural(")).collect();
        let commands = tables_of(file.to_str().unwrap());
        if !source.contains("output.table(") && commands.is_empty() {
            continue;
        }
        for head in heads(&source) {
            let known = COLUMNS
                .iter()
                .find(|column| column.name == head && column.of.iter().any(|of| commands.contains(of)));
            assert!(
                known.is_some(),
                "{}: column {head} has no text in crates/api/src/explain/columns.rs",
                file.display()
            );
            found.insert(head);
        }
    }
    let counters = TABLES.into_iter().flat_map(|table| table.counters);
    found.extend(counters.filter_map(|counter| Some(counter.column?.title.to_owned())));
    let unused: Vec<&str> =
        COLUMNS.iter().map(|column| column.name).filter(|name| !found.contains(*name)).collect();
    assert!(unused.is_empty(), "explained, but no table has them: {unused:?}");
}

#[test]
fn addresses_are_looked_up_with_every_level_of_instructions() {
    let folder = folder();
    let prefixes = file(
        &folder,
        "prefixes",
        "# both families\n10.0.0.0/8\n10.1.0.0/16\n10.1.2.3/32\n\n2001:db8::/32\n2001:db8:0:7::/64\n2001:db8:0:8::/64\n",
    );
    let addresses =
        "10.1.2.3\n10.1.2.4\n2001:db8:0:7::9\n  10.2.0.0\r\n11.0.0.0\n2001:db9::\n2001:db8::1\n::\n";
    let expected = "10.1.2.3/32\n10.1.0.0/16\n2001:db8:0:7::/64\n10.0.0.0/8\n-\n-\n2001:db8::/32\n-\n";
    // More than a block, and bursts of both kinds: of one prefix, and mixed.
    let many = file(&folder, "many", &(addresses.repeat(1000) + &"2001:db8:0:8::1\n".repeat(500)));
    let expected = expected.repeat(1000) + &"2001:db8:0:8::/64\n".repeat(500);
    for level in netvm_cpu::Level::available() {
        let mut command = program();
        command.env("NETVM_CPU", level.name());
        command.args(["router", "lookup", "--prefixes", &prefixes, "--addresses", &many]);
        assert!(run(&mut command).good() == expected, "{level}");
    }
    let few = file(&folder, "few", "10.9.9.9\n11.0.0.0\n");
    let json = netvm(&["--json", "router", "lookup", "--prefixes", &prefixes, "--addresses", &few]);
    assert_eq!(json.good(), "[\"10.0.0.0/8\",null]\n");
    let none = file(&folder, "none", "::/0\n0.0.0.0/0\n");
    assert_eq!(
        netvm(&["router", "lookup", "--prefixes", &none, "--addresses", &few]).good(),
        "0.0.0.0/0\n0.0.0.0/0\n"
    );
}

#[test]
fn wrong_lines_of_a_look_up_are_named() {
    let folder = folder();
    let good = file(&folder, "good", "10.0.0.0/8\n");
    let address = file(&folder, "address", "10.0.0.1\n10.0.0\n");
    let lookup = |prefixes: &str, addresses: &str| {
        netvm(&["router", "lookup", "--prefixes", prefixes, "--addresses", addresses])
    };
    let run = lookup(&good, &address);
    assert_eq!(run.out, "10.0.0.0/8\n");
    let error = run.failed(1);
    assert!(
        error.contains(&format!("{address}, line 2: `10.0.0` is not an IPv4 or IPv6 address")),
        "{error}"
    );
    let prefix = file(&folder, "prefix", "10.0.0.0/8\n# none\n10.0.0.1/8\n");
    let error = lookup(&prefix, &good).failed(1);
    assert!(error.contains(&format!("{prefix}, line 3: `10.0.0.1/8`")), "{error}");
    let error = lookup("nowhere", &good).failed(1);
    assert!(error.contains("cannot read nowhere"), "{error}");
    let packed = folder.path().join("packed.gz");
    std::fs::write(&packed, [0x1f, 0x8b, 8, 0]).unwrap();
    let error = lookup(packed.to_str().unwrap(), &good).failed(1);
    assert!(error.contains("is compressed") && error.contains("zcat"), "{error}");
    let error = lookup("-", "-").failed(1);
    assert!(error.contains("cannot both come by standard input"), "{error}");
}

#[test]
fn an_unknown_level_of_instructions_is_an_error() {
    let error = run(program().env("NETVM_CPU", "avx3").args(["doctor"])).failed(1);
    assert!(error.contains("NETVM_CPU=\"avx3\" is unknown: set it to baseline, avx2 or avx512"), "{error}");
}
