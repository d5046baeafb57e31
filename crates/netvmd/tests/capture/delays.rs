// SPDX-License-Identifier: Apache-2.0
//! Large captures delay neither the API nor a fail-over.

use std::cell::Cell;
use std::thread::JoinHandle;
use std::time::Instant;

use netvm_api::{Event, EventKind, NfInfo, NfState, Status, path};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Longest answer and fail-over on a busy machine; on an idle one, they take milliseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// Bytes of each worker for each capture.
const BUFFER: u64 = 256 << 20;

#[test]
fn four_large_captures_delay_neither_the_api_nor_a_fail_over() {
    let forwarding_chain = common::forwarding_chain("a", &format!("standby = 1\n{}", program("forward")));
    let forwarding_chain =
        forwarding_chain.replace("size = 60", "size = 1500").replace("rate = 5000", "rate = 20000");
    let daemon = Daemon::start(&format!("{}{forwarding_chain}", common::ENGINE));
    let is_standby = |nf: &NfInfo| nf.state == NfState::Standby;
    daemon.until("a standby waits", |daemon| daemon.get::<Vec<NfInfo>>(path::NFS).iter().any(is_standby));
    daemon.until_flowing("a");
    let longest = Cell::new(Duration::ZERO);
    let ask = || {
        let start = Instant::now();
        let _: Status = daemon.get(path::STATUS);
        longest.set(longest.get().max(start.elapsed()));
    };
    let ask_for = |time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            ask();
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let large = CaptureRequest { filter: divisions(u32::MAX), buffer: BUFFER, ..CaptureRequest::default() };
    let client = Client::new(Some(&daemon.api_socket()));
    let start = || {
        let (client, large) = (client.clone(), large.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Session::start(&client, &large)).unwrap()
        })
    };
    let starts: Vec<JoinHandle<Session>> = (0..4).map(|_| start()).collect();
    while !starts.iter().all(JoinHandle::is_finished) {
        ask();
    }
    let sessions: Vec<Session> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    // Nobody reads, so their rings fill.
    ask_for(Duration::from_secs(2));
    // Which of the two became the standby is a matter of which attached first.
    let nfs = daemon.get::<Vec<NfInfo>>(path::NFS);
    let pid = nfs.iter().find(|nf| nf.state == NfState::Running).unwrap().pid.unwrap();
    let killed = Instant::now();
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let took_over = |event: &Event| event.kind == EventKind::StandbyTookOver;
    daemon.until("the standby takes over", |daemon| {
        daemon.get::<Vec<Event>>(path::EVENTS).iter().any(took_over)
    });
    let fail_over = killed.elapsed();
    daemon.until_flowing("a");
    drop(sessions);
    ask_for(Duration::from_secs(1));
    println!("longest answer {:?}, fail-over {fail_over:?}", longest.get());
    assert!(longest.get() < LIMIT && fail_over < LIMIT, "{:?}, {fail_over:?}", longest.get());
}
