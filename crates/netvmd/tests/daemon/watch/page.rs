//! The views of the web page, in a browser.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use netvm_api::path;
use serde_json::{Value, json};

use super::{HOSTILE, free_address, is_there, token, until_served, watched};
use crate::common::Daemon;
use crate::config;

/// Lets six seconds of the page's time pass at once.
const SOON: &str = "--virtual-time-budget=6000";

/// The page in a browser, after it has read the counters a few times.
fn browse(address: SocketAddr, token: &str, tab: &str, options: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("http://{address}/?tab={tab}#token={token}"))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_page_shows_every_view_and_hostile_names_stay_text() {
    if !is_there("chromium") {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    daemon.until_flowing("a");
    let token = token(&daemon);
    // On a busy machine the page may have read the counters only once, which gives no rates.
    let has_rates = |page: &String| page.contains("class=\"live\"");
    let graph = (0..5).map(|_| browse(address, &token, "graph", &[SOON])).find(has_rates).unwrap_or_default();
    for part in
        ["aria-label=\"chain a\"", "aria-label=\"NF a-nf\"", "aria-label=\"port a-in\"", "class=\"live\""]
    {
        assert!(graph.contains(part), "{part} in\n{graph}");
    }
    let tables = browse(address, &token, "tables", &[SOON]);
    let escaped = HOSTILE.replace('<', "&lt;").replace('>', "&gt;");
    assert!(tables.contains(&escaped), "{tables}");
    assert!(!tables.contains("<img") && tables.contains("<title>netvm</title>"), "{tables}");
    assert!(browse(address, &token, "events", &[SOON]).contains("nf up"));
    assert!(browse(address, &token, "trace", &[SOON]).contains("destination port"));
    let refused = browse(address, "wrong", "graph", &[SOON]);
    assert!(refused.contains("needs a token") && !refused.contains("<form id=\"login\" hidden"), "{refused}");
}

/// Answers of a netvmd, grown to 500 ports, 100 chains and as many rules.
fn grown(daemon: &Daemon) -> Router {
    let read = |path: &str| daemon.get::<Value>(path);
    let (mut stats, mut config, mut policy) = (read(path::STATS), read(path::CONFIG), read(path::POLICY));
    let grow = |list: &mut Value, count: usize, name: fn(usize) -> String| {
        let list = list.as_array_mut().unwrap();
        let model = list[0].clone();
        *list = (0..count).map(|_| model.clone()).collect();
        for (n, item) in list.iter_mut().enumerate() {
            item["name"] = name(n).into();
            item["id"] = n.into();
        }
    };
    for (list, name) in [(&mut stats["ports"], "ports"), (&mut config["config"]["port"], "config")] {
        assert!(!list[0].is_null(), "{name}");
        grow(list, 500, |n| format!("port{n}"));
    }
    grow(&mut stats["chains"], 100, |n| format!("chain{n}"));
    grow(&mut config["config"]["chain"], 100, |n| format!("chain{n}"));
    grow(&mut policy["rules"], 100, |n| format!("rule{n}"));
    grow(&mut config["config"]["rule"], 100, |n| format!("rule{n}"));
    for n in 0..100 {
        config["config"]["rule"][n] =
            json!({"name": format!("rule{n}"), "from": format!("port{n}"), "chain": format!("chain{n}")});
        config["config"]["chain"][n]["output"] = format!("port{}", n + 250).into();
    }
    let turn = Arc::new(AtomicU64::new(0));
    let counted = move || {
        let mut stats = stats.clone();
        let now = turn.fetch_add(1, Ordering::Relaxed) + 1;
        stats["uptime_s"] = now.into();
        for (n, port) in stats["ports"].as_array_mut().unwrap().iter_mut().enumerate() {
            port["rx_packets"] = (now * (n as u64 + 1) * 1000).into();
        }
        async move { Json(stats) }
    };
    // An image that arrives late: the browser ends when the page has loaded.
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/web/index.html")).unwrap();
    let page = page.replace("</body>", "<img src=\"/late\" alt=\"\"></body>");
    let fixed = |value: Value| get(move || async move { Json(value) });
    let file = |name: &str, kind: &'static str| {
        let text = std::fs::read_to_string(format!("{}/web/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        get(move || async move { ([("content-type", kind)], text) })
    };
    Router::new()
        .route(path::STATS, get(counted))
        .route(path::CONFIG, fixed(config))
        .route(path::POLICY, fixed(policy))
        .route(path::STATUS, fixed(read(path::STATUS)))
        .route(path::ROUTERS, fixed(json!([])))
        .route(path::EVENTS, fixed(json!([])))
        .route("/", get(move || async move { ([("content-type", "text/html")], page) }))
        .route(
            "/late",
            get(|| async {
                tokio::time::sleep(Duration::from_secs(6)).await;
            }),
        )
        .route("/web/app.js", file("app.js", "text/javascript"))
        .route("/web/capture.js", file("capture.js", "text/javascript"))
        .route("/web/graph.js", file("graph.js", "text/javascript"))
        .route("/web/trace.js", file("trace.js", "text/javascript"))
        .route("/web/style.css", file("style.css", "text/css"))
}

#[test]
fn the_page_draws_500_ports_and_100_chains_without_a_stutter() {
    if !is_there("chromium") {
        return;
    }
    let daemon = Daemon::start(&config(&["a"]));
    daemon.until_flowing("a");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let router = grown(&daemon);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    let page = browse(address, "", "graph", &[]);
    assert!(
        page.contains("aria-label=\"port port499\"") && page.contains("aria-label=\"chain chain99\""),
        "{page}"
    );
    let figure = |name: &str| -> f64 {
        let rest = page.split(&format!("{name}=\"")).nth(1).unwrap_or_default();
        rest.split('"').next().unwrap_or_default().parse().unwrap_or(f64::MAX)
    };
    let (first, fastest) = (figure("data-first"), figure("data-draw"));
    println!("first drawing {first:.0} ms, fastest {fastest:.1} ms");
    // An idle machine draws within a frame of 16 ms; here other tests run at the same time.
    assert!(fastest < 100.0 && first < 3000.0, "{first} {fastest}");
}
