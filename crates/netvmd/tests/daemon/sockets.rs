// SPDX-License-Identifier: Apache-2.0
//! Sockets of guests' cards: who may connect, and who has.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyReply, Event, EventKind, Status, path};
use rustix::process::Signal;

use crate::common::{Daemon, ENGINE, Folder, PROGRAM, is_root};

/// What a QEMU of an unprivileged user runs as.
const USER: u32 = 61_234;
const GROUP: u32 = 61_235;
/// The variable with the socket for [`connect`].
const SOCKET: &str = "NFTEST_SOCKET";

fn port(name: &str, kind: &str, folder: &Folder, more: &str) -> String {
    // netvmd makes the directory, as it does after a boot, when /run is empty.
    let path = folder.0.join(format!("made/below/{name}.sock"));
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\npath = {path:?}\n{more}\nforward = {{ normal = true }}\n"
    )
}

/// The process of a guest: connects to a socket.
pub fn connect() {
    UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap();
}

/// Whether a user may connect.
fn may_connect(socket: &Path, uid: u32, gid: u32) -> bool {
    let mut guest = Command::new(std::env::current_exe().unwrap());
    guest.args(["--exact", "be_the_program", "--nocapture", "--test-threads=1"]);
    guest.env(PROGRAM, "connect").env(SOCKET, socket).uid(uid).gid(gid);
    guest.output().unwrap().status.success()
}

/// Owner, group and mode.
fn rights(socket: &Path) -> (u32, u32, u32) {
    let found = std::fs::metadata(socket).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o777)
}

#[test]
fn sockets_belong_to_an_unprivileged_qemu_at_each_start_and_at_once_after_a_change() {
    if !is_root() {
        println!("SKIP: only root can give sockets to other users");
        return;
    }
    let folder = Arc::new(Folder::new());
    let sockets = ["web", "old"].map(|name| folder.0.join(format!("made/below/{name}.sock")));
    let owner = format!("socket_owner = \"{USER}:{GROUP}\"\nsocket_mode = \"0660\"");
    let text = [
        ENGINE.as_str(),
        &port("web", "vhost-user", &folder, &owner),
        &port("old", "e1000", &folder, &owner),
    ]
    .concat();
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &text);
    for restart in 0..2 {
        for socket in &sockets {
            assert_eq!(rights(socket), (USER, GROUP, 0o660), "start {restart}");
            assert!(may_connect(socket, USER, 65_534) && may_connect(socket, 65_534, GROUP));
            assert!(!may_connect(socket, 65_534, 65_534));
        }
        daemon.signal(Signal::TERM);
        daemon.wait();
        daemon = Daemon::start_in(Arc::clone(&folder), &text);
    }
    // A change reopens no port: a client stays connected.
    let client = UnixStream::connect(&sockets[0]).unwrap();
    let changed = text.replace(&owner, &format!("socket_owner = \":{GROUP}\"\nsocket_mode = \"0620\""));
    let reply: ApplyReply = daemon.post(path::APPLY, &changed);
    assert!(reply.plan.changes.iter().all(|change| change.effects.is_empty()), "{:?}", reply.plan);
    assert!(sockets.iter().all(|socket| rights(socket) == (0, GROUP, 0o620)));
    client.set_nonblocking(true).unwrap();
    assert_eq!((&client).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // Without the keys they are netvmd's again.
    let _: ApplyReply = daemon.post(path::APPLY, &text.replace(&owner, ""));
    assert!(
        sockets.iter().all(|socket| rights(socket) == (0, 0, 0o755) && !may_connect(socket, USER, GROUP))
    );
    let (status, error) = daemon.post_failing(path::APPLY, text.replace(&USER.to_string(), "no-such-user"));
    assert!(status == 422 && format!("{error:?}").contains("no user `no-such-user`"), "{error:?}");
}

/// What a guest's front-end says first.
struct Hello {
    bytes: &'static [u8],
    /// The length of its answer.
    answer: usize,
}

/// A vhost-user front-end: GET_FEATURES.
const VHOST: Hello = Hello { bytes: &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], answer: 20 };
/// A vfio-user client: VERSION.
const VFIO: Hello = Hello {
    bytes: &[1, 0, 1, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'{', b'}', 0],
    answer: 16,
};

/// A guest that speaks to the socket; `None` if it is refused.
fn guest(socket: &Path, hello: &Hello) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may be closed already.
    let _ = stream.write_all(hello.bytes);
    stream.read_exact(&mut vec![0; hello.answer]).ok().map(|()| stream)
}

#[test]
fn a_second_guest_is_refused_and_named_until_the_first_one_has_gone() {
    let folder = Arc::new(Folder::new());
    let text = [ENGINE.as_str(), &port("web", "vhost-user", &folder, ""), &port("old", "e1000", &folder, "")]
        .concat();
    let daemon = Daemon::start_in(Arc::clone(&folder), &text);
    let own = std::process::id();
    for (name, hello) in [("web", VHOST), ("old", VFIO)] {
        let socket = folder.0.join(format!("made/below/{name}.sock"));
        let mut first = guest(&socket, &hello).unwrap();
        assert!(guest(&socket, &hello).is_none());
        let says = |text: &str| text.contains(&format!("port {name}: refused process {own} ("));
        daemon.until("the refusal is a problem", |daemon| {
            daemon.get::<Status>(path::STATUS).problems.iter().any(|problem| says(problem))
        });
        let is_event = |event: &Event| {
            event.kind == EventKind::PortFault && event.subject == name && says(&event.message)
        };
        daemon.until("the refusal is an event", |daemon| {
            daemon.get::<Vec<Event>>(path::EVENTS).iter().any(is_event)
        });
        // The first goes on, and the next one is served as soon as it has gone.
        for _ in 0..10 {
            first.write_all(hello.bytes).unwrap();
            drop(first);
            first = guest(&socket, &hello).unwrap();
        }
    }
}

#[test]
fn a_guest_that_misbehaves_all_the_time_fills_neither_log_nor_events() {
    let folder = Arc::new(Folder::new());
    let text = [ENGINE.as_str(), &port("old", "e1000", &folder, "")].concat();
    let daemon = Daemon::start_in(Arc::clone(&folder), &text);
    let socket = folder.0.join("made/below/old.sock");
    for _ in 0..60 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(&[0xff; 16]);
        // Until it is disconnected; then the engine looks for faults.
        let _ = stream.read(&mut [0]);
        // Faster than events may come, for two seconds.
        std::thread::sleep(Duration::from_millis(30));
    }
    let faults = |daemon: &Daemon| -> Vec<String> {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        events.into_iter().filter(|event| event.subject == "old").map(|event| event.message).collect()
    };
    let at_once = faults(&daemon).len();
    assert!((5..=25).contains(&at_once), "{at_once} events");
    daemon.until("the rest is counted", |daemon| {
        faults(daemon).iter().any(|message| message.contains("more suppressed)"))
    });
    let lines = daemon.log().matches("violate the vfio-user protocol").count();
    assert!((5..=30).contains(&lines), "{lines} lines");
}
