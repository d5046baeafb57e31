// SPDX-License-Identifier: Apache-2.0
//! Thousands of route changes a second while packets pass: those of a route that does not change all arrive.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::common::download::PORT;
use super::common::hosts::{are_possible, asking};
use super::site::{Site, start};

/// Route changes a second, and how many there are.
const RATE: u32 = 10_000;
const CHANGES: u32 = 30_000;
/// Routes that come and go.
const ROUTES: u32 = 1000;
/// Changes at once.
const CHANGES_AT_ONCE: u32 = 200;
/// Datagrams on their way: as fast as answers come, and never more than the queues of all interfaces hold.
const WINDOW: u64 = 64;
/// Longer than any pause of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends datagrams, each of which is answered, until `is_over`. Returns how many there were, and those without an
/// answer.
fn exchange(target: IpAddr, is_over: &AtomicBool) -> (u64, BTreeSet<u64>) {
    let socket = asking(target, PORT, TIMEOUT);
    let (mut next, mut waiting) = (0u64, BTreeSet::new());
    loop {
        while waiting.len() < WINDOW as usize && !is_over.load(Ordering::Relaxed) {
            socket.send(&next.to_be_bytes()).unwrap();
            waiting.insert(next);
            next += 1;
        }
        let mut answer = [0; 8];
        if waiting.is_empty() || socket.recv(&mut answer).is_err() {
            return (next, waiting);
        }
        let number = u64::from_be_bytes(answer);
        assert!(waiting.remove(&number), "{number} was answered twice");
        // An answer that is overtaken by so many does not come any more.
        if waiting.first().is_some_and(|first| first + 100 * WINDOW < next) {
            return (next, waiting);
        }
    }
}

/// The changes from the `first`th on: all routes are added, then removed, and so on.
fn changes(first: u32) -> String {
    let mut text = String::new();
    for n in first..first + CHANGES_AT_ONCE {
        let (word, n) = (["add", "del"][(n / ROUTES % 2) as usize], n % ROUTES);
        // Beside the address of the flow, and elsewhere.
        let net = match n % 2 {
            0 => format!("172.16.0.{}/32", 2 + n / 2 % 250),
            _ => format!("172.17.{}.{}/32", n / 250, n % 250),
        };
        writeln!(text, "route {word} {net} metric {} via 10.2.0.2", 1 + n / 500).unwrap();
    }
    text
}

#[test]
fn routes_change_by_the_thousand_and_no_packet_of_another_is_lost() {
    if !are_possible() {
        return;
    }
    let site = Site::new("cu");
    let mut daemon = start(&[&site]);
    site.server.ip("address add 172.16.0.1/32 dev lo");
    site.server.echo([172, 16, 0, 1].into(), PORT);
    site.ip("route add 172.16.0.0/24 via 10.2.0.2");
    assert!(site.client.pings("172.16.0.1"), "{}", daemon.log());
    // Until then, packets to them are punted, within the quota.
    daemon.until("the engine knows both neighbours", |daemon| {
        site.client.pings("172.16.0.1") && site.routes(daemon).router.forwarded > 0
    });
    let routes = || site.routes(&daemon).router.routes_v4;
    let before = routes();
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let flow = site.client.inside(move || exchange([172, 16, 0, 1].into(), &is_over));
    let mut ip = Command::new("ip");
    let mut ip = ip.args(["-n", &site.namespace(), "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = ip.stdin.take().unwrap();
    let begin = Instant::now();
    for first in (0..CHANGES).step_by(CHANGES_AT_ONCE as usize) {
        input.write_all(changes(first).as_bytes()).unwrap();
        let due = Duration::from_secs(1) * (first + CHANGES_AT_ONCE) / RATE;
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    drop(input);
    assert!(ip.wait().unwrap().success());
    let took = begin.elapsed();
    daemon.until("netvmd has followed", |_| routes() == before);
    let behind = begin.elapsed() - took;
    stop.store(true, Ordering::Relaxed);
    let (sent, lost) = flow.join().unwrap();
    println!(
        "{CHANGES} route changes in {took:?}, known {behind:?} later; {sent} datagrams meanwhile, {} lost",
        lost.len()
    );
    assert!(lost.is_empty(), "{lost:?} of {sent}\n{:?}\n{}", daemon.stats().drops, daemon.log());
    assert!(sent > 10 * WINDOW, "{sent}");
    daemon.purge();
}
