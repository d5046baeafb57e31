// SPDX-License-Identifier: Apache-2.0
//! The commands that netvmd answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::answers::{stats, status};
use crate::common::{Server, file, folder, program, run};
use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use netvm_api::{ApiError, ApplyHow, ApplyReply, ConfigReply, Done, PlanReply, Stats, path};
use serde_json::Value;

/// The folder in which a child of the test serves.
const SERVE_IN: &str = "NETVM_TEST_SERVE_IN";
const OLD: &str = "[[port]]\nname = \"out\"\nkind = \"sink\"\n";
const NEW: &str = "[[port]]\nname = \"out\"\nkind = \"null\"\n";

fn server() -> Server {
    let now = stats(1000);
    let clock = Arc::new(AtomicU64::new(1000));
    let ticking = move || {
        let seconds = clock.fetch_add(1, Ordering::Relaxed);
        async move { Json(stats(seconds)) }
    };
    let config = ConfigReply {
        toml: "[engine]\ncores = [3]\n".into(),
        config: serde_json::json!({"engine": {"cores": [3]}}),
    };
    let (ports, nfs, chains, groups) = (now.ports, now.nfs, now.chains, now.groups);
    Server::start(
        Router::new()
            .route(path::STATUS, get(|| async { Json(status()) }))
            .route(path::PORTS, get(|| async { Json(ports) }))
            .route(path::NFS, get(|| async { Json(nfs) }))
            .route(path::CHAINS, get(|| async { Json(chains) }))
            .route(path::GROUPS, get(|| async { Json(groups) }))
            .route(path::STATS, get(ticking))
            .route(path::CONFIG, get(|| async { Json(config) }))
            .route(path::RESTART, post(|| async { Json(Done { message: "firewall restarted".into() }) })),
    )
}

/// A server that runs `OLD` and accepts every plan and apply, and the number of applies.
fn changeable() -> (Server, Arc<AtomicU64>) {
    let applied = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&applied);
    let host = |text: &str| netvm_config::parse("host.toml", text).unwrap().host;
    let plan = move |text: &str| netvm_config::plan(&host(OLD), &host(text));
    let router = Router::new()
        .route(
            path::PLAN,
            post(move |body: String| async move {
                Json(PlanReply { plan: plan(&body), warnings: Vec::new(), live: Vec::new() })
            }),
        )
        .route(
            path::APPLY,
            post(move |Query(how): Query<ApplyHow>, body: String| async move {
                count.fetch_add(1, Ordering::Relaxed);
                Json(ApplyReply {
                    plan: plan(&body),
                    warnings: Vec::new(),
                    took_ms: 12.3,
                    saved: None,
                    confirm_within_s: how.confirm,
                })
            }),
        );
    (Server::start(router), applied)
}

/// Lines with the blanks between words collapsed.
fn squeeze(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(squeeze(text).iter().any(|known| known == line), "{line}\nin\n{text}");
}

/// A row of counters, which others may follow.
#[track_caller]
fn has_row(text: &str, row: &str) {
    let is_it =
        |line: &String| line.strip_prefix(row).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    assert!(squeeze(text).iter().any(is_it), "{row}\nin\n{text}");
}

#[test]
fn status_waits_for_a_netvmd_that_starts() {
    let folder = folder();
    let socket = folder.path().join("api.sock");
    let waiting =
        std::thread::spawn(move || run(program().arg("--socket").arg(socket).args(["status", "--wait"])));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    let router = Router::new()
        .route(path::STATUS, get(|| async { Json(status()) }))
        .route(path::CHAINS, get(|| async { Json(stats(1).chains) }))
        .route(path::NFS, get(|| async { Json(stats(1).nfs) }));
    let _server = Server::start_in(folder.path().to_owned(), router);
    has(&waiting.join().unwrap().good(), "netvmd 9.8.7 on DPDK 22.11.7, process 77, up 1 h 2 min");
}

#[test]
fn tables_show_every_object() {
    let server = server();
    let text = server.netvm(&["status"]).good();
    has(&text, "netvmd 9.8.7 on DPDK 22.11.7, process 77, up 1 h 2 min");
    has(&text, "configuration /etc/netvm/host.toml: 2 ports, 1 NF instance, 1 chain");
    has_row(&text, "0 3 0 poll 2 99.9 % 0 1,234 2 KiB 55 µs");
    has(&text, "nf firewall has no process");
    has(&text, "dropped: 967,548 packets (netvm stats --drops)");
    has(&text, "netvmd goes back in 42 s unless you confirm: netvm config confirm");
    assert!(
        text.contains("differs from /etc/netvm/host.toml: 2 differences (last applied: /root/try.toml"),
        "{text}"
    );
    let text = server.netvm(&["port"]).good();
    has_row(&text, "0 client af_xdp native up 1 0 12 % 1500 - 1,000,000 125,000,000 0 0 0 0");
    has_row(&text, "4 server af_xdp native down 1 0 12 % 1500 - 1,000,000 125,000,000 0 0 0 0");
    assert!(!server.netvm(&["port", "server"]).good().contains("client"));
    let text = server.netvm(&["nf"]).good();
    has(&text, "firewall 0 78 running edge 2 1 min 1 s 1,000,000 0 40 2 killed by signal 9");
    assert!(!text.contains("allowed"));
    let text = server.netvm(&["nf", "firewall"]).good();
    has_row(&text, "1 500,000 500,000 0 0 0 0 12,345 678");
    assert!(squeeze(&text).iter().any(|line| line.ends_with(" 50 20 1 0")), "{text}");
    has(&text, "allowed 4,000,000");
    has(&text, "ring-index 1");
    has_row(
        &server.netvm(&["chain", "web"]).good(),
        "0 web firewall → monitor - down 1,000,000 1,000,000 7 1",
    );
    has_row(
        &server.netvm(&["group"]).good(),
        "0 edge 1 1 2 MiB pages 36 MiB 16,384 2048 16,000 4 380 99 3.2 ms",
    );
    assert_eq!(server.netvm(&["config", "show"]).good(), "[engine]\ncores = [3]\n");
    assert_eq!(server.netvm(&["restart", "firewall"]).good(), "firewall restarted\n");
}

#[test]
fn json_output_is_the_apis() {
    let server = server();
    let json = |arguments: &[&str]| serde_json::from_str::<Value>(&server.netvm(arguments).good()).unwrap();
    assert_eq!(json(&["--json", "status"]), serde_json::to_value(status()).unwrap());
    assert_eq!(json(&["port", "--json", "server"]), serde_json::to_value(&stats(1000).ports[1..]).unwrap());
    assert_eq!(json(&["nf", "--json"]), serde_json::to_value(stats(1000).nfs).unwrap());
    assert_eq!(json(&["chain", "--json"]), serde_json::to_value(stats(1000).chains).unwrap());
    assert_eq!(json(&["group", "--json"]), serde_json::to_value(stats(1000).groups).unwrap());
    assert_eq!(json(&["stats", "--json"]), serde_json::to_value(stats(1000)).unwrap());
    assert_eq!(json(&["config", "show", "--json"])["engine"]["cores"][0], 3);
}

/// Not a test: if the environment names a folder, serves there until it is asked to stop, and ends a while later.
#[test]
fn be_the_server() {
    let Some(folder) = std::env::var_os(SERVE_IN) else { return };
    let end = || {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            std::process::exit(0);
        });
        async { Json(Done { message: "netvmd stops".into() }) }
    };
    let _server = Server::start_in(folder.into(), Router::new().route(path::STOP, post(end)));
    // As long as the test runs.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn stop_waits_until_netvmd_has_ended() {
    let folder = folder();
    let socket = folder.path().join("api.sock");
    for json in [false, true] {
        let _ = std::fs::remove_file(&socket);
        let mut server = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "served::be_the_server"])
            .env(SERVE_IN, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        netvm_testing::until("it serves", || socket.exists());
        let mut command = program();
        command.arg("--socket").arg(&socket).arg("stop");
        let said = run(command.args(json.then_some("--json"))).good();
        assert!(said.contains("netvmd has ended"), "{said}");
        assert!(server.try_wait().unwrap().is_some(), "it was still there");
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_names() {
    let server = server();
    let error = server.netvm(&["port", "x"]).failed(1);
    assert_eq!(error, "netvm: no port `x`; known: client, server\n");
    assert!(server.netvm(&["chain", "x"]).failed(1).contains("known: web"));
}

#[test]
fn options_select_the_statistics() {
    let server = server();
    let text = server.netvm(&["stats"]).good();
    has(&text, "client 1,000,000 0 0 0");
    has(&text, "web 1,000,000 1,000,000 7 1");
    has(&text, "dropped: 1,000,000");
    let text = server.netvm(&["stats", "--stages", "--drops"]).good();
    assert!(text.contains("STAGE") && !text.contains("PORT"), "{text}");
    assert!(
        squeeze(&text).iter().any(|line| line.starts_with("steering 1,00") && line.ends_with(" 26.0 10.0")),
        "{text}"
    );
    assert!(squeeze(&text).iter().any(|line| line.starts_with("chain web chain-full 1,00")), "{text}");
}

#[test]
fn watching_shows_rates() {
    let server = server();
    let watch = |arguments: &[&str], lines: usize| {
        let mut child = program()
            .arg("--socket")
            .arg(server.socket())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let read: Vec<String> =
            BufReader::new(child.stdout.take().unwrap()).lines().take(lines).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        read
    };
    // The server's clock advances by a second, and a thousand packets, at each sample.
    let text = watch(&["stats", "--watch=0.1"], 9).join("\n");
    let port = squeeze(&text).into_iter().find(|line| line.starts_with("client ")).unwrap();
    assert!(port.contains(" 1.00 k 1.00 M 0 0 0 0 0"), "{port}");
    let drops = watch(&["stats", "--watch=0.1", "--drops"], 2);
    assert!(squeeze(&drops[1])[0].ends_with(" 1.00 k"), "{drops:?}");
    let readings = watch(&["stats", "--watch=0.1", "--json"], 2);
    let seconds: Vec<f64> =
        readings.iter().map(|line| serde_json::from_str::<Stats>(line).unwrap().uptime_s).collect();
    assert_eq!(seconds[1] - seconds[0], 1.0);
}

#[test]
fn plans_are_shown_and_applied() {
    let (server, applied) = changeable();
    let folder = folder();
    let (old, new) = (file(&folder, "old.toml", OLD), file(&folder, "new.toml", NEW));
    let change = "~ port out: kind sink → null; size unset → 60\n    port out is reopened (kind sink → null; size unset → 60)\n";
    assert_eq!(server.netvm(&["plan", &new]).good(), change);
    assert_eq!(server.netvm(&["plan", &old]).good(), "nothing changes\n");
    assert_eq!(server.netvm(&["apply", &old]).good(), "nothing changes\n");
    assert_eq!(applied.load(Ordering::Relaxed), 0);
    assert_eq!(server.netvm(&["apply", "--yes", &new]).good(), format!("{change}applied in 12 ms\n"));
    // Without a terminal, apply does not ask.
    assert!(server.netvm(&["apply", &new]).good().ends_with("applied in 12 ms\n"));
    assert_eq!(applied.load(Ordering::Relaxed), 2);
    let plan: PlanReply = serde_json::from_str(&server.netvm(&["plan", "--json", &new]).good()).unwrap();
    assert_eq!(plan.plan.changes[0].name, "out");
    let reply: ApplyReply = serde_json::from_str(&server.netvm(&["apply", "--json", &new]).good()).unwrap();
    assert_eq!((reply.plan, applied.load(Ordering::Relaxed)), (plan.plan, 3));
}

#[test]
fn a_change_that_needs_a_restart_is_refused() {
    let (server, applied) = changeable();
    let folder = folder();
    let restart = file(&folder, "restart.toml", &format!("[engine]\nidle = \"poll\"\n{OLD}"));
    let run = server.netvm(&["apply", "--yes", &restart]);
    assert!(run.out.contains("netvmd must be restarted (engine: idle adaptive → poll)"), "{}", run.out);
    assert!(run.failed(1).contains("settings that need a restart"));
    let wrong = file(&folder, "wrong.toml", &NEW.replace("kind", "knid"));
    for command in ["plan", "apply"] {
        let error = server.netvm(&[command, &wrong]).failed(1);
        assert!(error.contains(&format!("{wrong}:3:1")) && error.contains("did you mean `kind`?"), "{error}");
    }
    assert_eq!(applied.load(Ordering::Relaxed), 0);
    // netvmd may refuse a file that passes the checks without it.
    let refusal =
        || async { (StatusCode::UNPROCESSABLE_ENTITY, Json(ApiError::new("nf firewall: no program `fw`"))) };
    let server =
        Server::start(Router::new().route(path::PLAN, post(refusal)).route(path::APPLY, post(refusal)));
    let new = file(&folder, "new.toml", NEW);
    assert_eq!(server.netvm(&["apply", &new]).failed(1), "netvm: nf firewall: no program `fw`\n");
    let error: ApiError = serde_json::from_str(&server.netvm(&["apply", "--json", &new]).failed(1)).unwrap();
    assert_eq!(error.message, "nf firewall: no program `fw`");
}

#[test]
fn apply_asks_on_a_terminal() {
    let (server, applied) = changeable();
    let folder = folder();
    let new = file(&folder, "new.toml", NEW);
    // util-linux's `script` runs a command on a new terminal.
    let ask = |answer: &str| {
        let netvm = env!("CARGO_BIN_EXE_netvm");
        let command = format!("{netvm} --socket {} apply {new}", server.socket().display());
        let shell = format!("printf '{answer}\\n' | script --quiet --return --command \"$0\" /dev/null");
        run(std::process::Command::new("sh").args(["-c", &shell, &command]))
    };
    let no = ask("n");
    if no.code == Some(127) {
        eprintln!("SKIP: `script` (util-linux) is not installed: {}", no.err);
        return;
    }
    assert!(no.out.contains("apply? [y/N]") && no.out.contains("netvm: not applied"), "{}", no.out);
    assert_eq!((no.code, applied.load(Ordering::Relaxed)), (Some(1), 0));
    let yes = ask("y");
    assert!(yes.out.contains("applied in 12 ms"), "{}", yes.out);
    assert_eq!((yes.code, applied.load(Ordering::Relaxed)), (Some(0), 1));
}

#[test]
fn top_marks_the_slowest_nf() {
    let server = server();
    let top = |columns: &str, arguments: &[&str]| {
        let mut command = program();
        command.env("COLUMNS", columns).arg("--socket").arg(server.socket()).args(["top", "--interval=0.1"]);
        run(command.args(arguments))
    };
    let text = top("120", &["--once"]).good();
    // The server's clock advances by a second, and a thousand packets, at each reading.
    has(&text, "netvm top rx 2.00 k/s tx 0/s dropped 1.00 k/s up 16 min 41 s");
    assert!(text.contains("▶firewall 62 %◀ → monitor 0 % → -"), "{text}");
    assert!(text.contains("▶ firewall #0"), "{text}");
    assert!(squeeze(&text).iter().any(|line| line.starts_with("chain web chain-full 1.00 k")), "{text}");
    assert!(text.contains("CYCLES/PACKET") && text.contains("16,000 of 16,384 buffers free"), "{text}");
    // The most important parts fit into 40 columns, too.
    let narrow = top("40", &["--once"]).good();
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    assert!(narrow.contains("▶firewall") && narrow.contains("DROPPED/S"), "{narrow}");
    assert!(!narrow.contains("CYCLES/PACKET"), "{narrow}");
    let json: Value = serde_json::from_str(&top("80", &["--once", "--json"]).good()).unwrap();
    assert_eq!(json["chains"][0]["hops"][0]["is_bottleneck"], true);
    assert_eq!(json["nfs"][0]["cycles_per_packet"], 4_000_000.0);
    assert!(top("80", &[]).failed(1).contains("not a terminal: use `netvm top --once`"));
}

/// Runs it on a terminal that `script` provides.
#[test]
fn top_draws_on_a_terminal_and_leaves_it_as_it_was() {
    let server = server();
    let shell = format!(
        "stty rows 24 cols 90; exec {} --socket {} top --interval 0.1",
        env!("CARGO_BIN_EXE_netvm"),
        server.socket().display()
    );
    let mut child = std::process::Command::new("script")
        .args(["-qec", &shell, "/dev/null"])
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&drawn);
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = out.read(&mut bytes) {
            to.lock().unwrap().extend_from_slice(&bytes[..length]);
        }
    });
    let text = || String::from_utf8_lossy(&drawn.lock().unwrap()).into_owned();
    netvm_testing::until("it is drawn", || text().contains("firewall"));
    for key in ["\t", "?", "?", "p"] {
        let before = text().len();
        keys.write_all(key.as_bytes()).unwrap();
        netvm_testing::until("it is drawn again", || text().len() > before);
    }
    netvm_testing::until("it is paused", || text().contains("paused"));
    keys.write_all(b"q").unwrap();
    assert!(child.wait().unwrap().success());
    reader.join().unwrap();
    let text = text();
    assert!(text.contains("netvm top") && text.contains("firewall"), "{text:?}");
    // The alternate screen is entered and left.
    assert!(text.contains("\x1b[?1049h") && text.contains("\x1b[?1049l"), "{text:?}");
    assert!(text.contains("paused"), "{text:?}");
}
