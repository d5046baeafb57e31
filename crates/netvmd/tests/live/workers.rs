//! Ports on two workers: which worker serves which port, after a start and after a change.

use std::sync::Arc;

use crate::common::{Daemon, Folder};
use netvm_api::{ApplyReply, PortInfo, Status, path};

/// Four sources and a sink; each source has an additional line.
fn config(lines: [&str; 4]) -> String {
    let engine = "[engine]\ncores = [0, 1]\nidle = \"adaptive\"\nhuge_pages = false\n";
    let source = |(n, line): (usize, &str)| {
        format!(
            "\n[[port]]\nname = \"p{n}\"\nkind = \"source\"\nrate = 5000\nforward = {{ out = \"out\" }}\n{line}\n"
        )
    };
    let sources: String = lines.into_iter().enumerate().map(source).collect();
    format!("{engine}{sources}\n[[port]]\nname = \"out\"\nkind = \"sink\"\n")
}

/// The workers of each port, and queues of each worker.
fn placed(daemon: &Daemon) -> (Vec<Vec<u8>>, Vec<u32>) {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    let of = |port: &PortInfo| port.workers.iter().map(|part| part.worker).collect();
    let status: Status = daemon.get(path::STATUS);
    (ports.iter().map(of).collect(), status.workers.iter().map(|worker| worker.queues).collect())
}

#[test]
fn ports_are_spread_the_same_way_at_each_start_and_move_when_the_file_says_so() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return;
    }
    let folder = Arc::new(Folder::new());
    let spread = vec![vec![0], vec![1], vec![0], vec![1], vec![0, 1]];
    for _ in 0..2 {
        let daemon = Daemon::start_in(Arc::clone(&folder), &config([""; 4]));
        assert_eq!(placed(&daemon), (spread.clone(), vec![2, 2]));
        daemon.until("packets on each port", |daemon| {
            daemon.stats().ports[..4].iter().all(|port| port.rx_packets > 100)
        });
    }
    let daemon = Daemon::start_in(folder, &config([""; 4]));
    let moved = config(["worker = 1", "worker = \"auto\"", "", ""]);
    let _: ApplyReply = daemon.post(path::APPLY, &moved);
    let mut expected = spread;
    expected[0] = vec![1];
    assert_eq!(placed(&daemon), (expected.clone(), vec![1, 3]));
    daemon.until("packets on both workers", |daemon| {
        daemon.stats().ports[..4].iter().all(|port| port.rx_packets > 100)
    });

    let (status, error) = daemon.post_failing(path::APPLY, config(["worker = 2", "", "", ""]));
    assert_eq!(status, 422, "{error:?}");
    let text = format!("{error:?}");
    assert!(text.contains("port p0 names worker 2, which does not exist"), "{text}");
    assert_eq!(placed(&daemon), (expected, vec![1, 3]), "nothing has changed");
}
