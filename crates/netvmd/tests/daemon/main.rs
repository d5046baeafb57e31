//! netvmd as a process, with NFs that run this test binary.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Daemon, ENGINE, Folder, Forward, PROGRAM, is_root, lane, processes_below, program, status_field,
};
use netlib::Options;
use netvm_api::{ApplyReply, ChainInfo, Done, GroupInfo, NfInfo, NfState, PlanReply, Status, path};
use rustix::process::Signal;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    match program.as_str() {
        "forward" => netlib::run(&Options::new("forward"), |_| Forward).unwrap(),
        "silent" => std::thread::sleep(Duration::from_secs(600)),
        "crash" => {
            eprintln!("an error for people");
            std::process::exit(3);
        }
        "impostor" => {
            let options = Options { role: "somebody-else".to_owned(), ..Options::new("impostor") };
            eprintln!("answer: {}", netlib::attach(&options).unwrap_err());
        }
        "turncoat" => {
            drop(netlib::attach(&Options::new("turncoat")).unwrap());
            std::thread::sleep(Duration::from_secs(600));
        }
        "probe" => {
            eprintln!("socket: {:?}", std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err().raw_os_error());
            eprintln!(
                "process: {:?}",
                std::process::Command::new("/bin/true").status().unwrap_err().raw_os_error()
            );
            eprintln!("variables: {:?}", std::env::vars().map(|(name, _)| name).collect::<Vec<_>>());
            let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
            let targets = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            eprintln!("descriptors: {:?}", targets.collect::<Vec<_>>());
            eprintln!("folder: {:?}", std::env::current_dir().unwrap());
            netlib::run(&Options::new("probe"), |_| Forward).unwrap();
        }
        "glutton" => {
            let mut tasks = Vec::new();
            while let Ok(task) = std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(|| std::thread::sleep(Duration::from_secs(600)))
            {
                tasks.push(task);
            }
            eprintln!("tasks: {}", tasks.len());
            for file in std::env::var("FILES").unwrap().split(':') {
                eprintln!("{file}: {}", std::fs::write(file, "x").is_ok());
            }
            eprintln!("now memory");
            let memory = vec![1u8; 512 << 20];
            eprintln!("memory: {}", std::hint::black_box(&memory).len());
        }
        other => panic!("no program {other}"),
    }
}

fn config(names: &[&str]) -> String {
    let lanes: String = names.iter().map(|name| lane(name, &program("forward"))).collect();
    format!("{ENGINE}{lanes}")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn packets_flow_and_the_daemon_shuts_down_in_order() {
    let mut daemon = Daemon::start(&config(&["a"]));
    let nf = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let status: Status = daemon.get(path::STATUS);
    assert_eq!((status.ports, status.nfs, status.chains, status.pid), (2, 1, 1, daemon.child.id()));
    assert!(status.dpdk.starts_with("DPDK") && status.problems.is_empty(), "{status:?}");
    let stats = daemon.stats();
    assert!(stats.nfs[0].threads[0].packets.received > 0 && stats.ports[1].tx_packets > 0, "{stats:?}");
    assert_eq!(daemon.get::<Vec<ChainInfo>>(path::CHAINS)[0].hops, ["a-nf"]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!std::path::Path::new(&format!("/proc/{}", nf.pid.unwrap())).exists());
    assert!(!daemon.api_socket().exists() && !daemon.attach_socket().exists());
    assert!(!daemon.log().contains("did not end in time"), "{}", daemon.log());
}

#[test]
fn a_killed_nf_restarts_and_its_buffers_are_reclaimed() {
    let daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    kill(first.pid.unwrap());
    daemon.until("another process runs", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid
    });
    let second = daemon.nf("a-nf");
    assert_eq!((second.restarts, second.last_exit.as_deref()), (1, Some("killed by signal 9")));
    daemon.until_flowing("a");
    daemon.until("its buffers are back", |daemon| daemon.log().contains("buffers reclaimed"));
    let group: GroupInfo = daemon.get::<Vec<GroupInfo>>(path::GROUPS).remove(0);
    assert!(group.longest_reclaim_ms < 100.0 && group.instances == 1, "{group:?}");
}

#[test]
fn a_stopped_nf_is_found_killed_and_restarted() {
    let daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let pid = rustix::process::Pid::from_raw(first.pid.unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    daemon.until("another process runs", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid
    });
    let last_exit = daemon.nf("a-nf").last_exit.unwrap_or_default();
    assert!(last_exit.starts_with("hung, and was killed"), "{last_exit}");
    assert!(daemon.log().contains("nf a-nf: instance 1 hangs: no progress for 1"), "{}", daemon.log());
    daemon.until_flowing("a");
}

#[test]
fn repeated_kills_lose_no_buffer() {
    let daemon = Daemon::start(&config(&["a"]));
    for _ in 0..4 {
        let pid = daemon.until_running("a-nf").pid.unwrap();
        daemon.until_flowing("a");
        kill(pid);
        daemon.until("netvmd has noticed", |daemon| daemon.nf("a-nf").pid != Some(pid));
    }
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let quiet = config(&["a"]).replace("chain = \"a\"", "drop = true");
    let _: ApplyReply = daemon.post(path::APPLY, &quiet);
    daemon.until("every buffer is free", |daemon| {
        let region = daemon.stats().groups.remove(0).regions.remove(0);
        (region.free, region.in_nfs, region.in_engine) == (region.buffers, 0, 0)
    });
}

#[test]
fn an_nf_that_takes_too_much_is_limited_alone() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let [open, closed] = ["open", "closed"].map(|name| folder.0.join(name));
    for folder in [&open, &closed] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let (open, closed) = (open.display(), closed.display());
    let glutton = program("glutton")
        .replace("environment = {", &format!("environment = {{ FILES = \"{open}/x:{closed}/x:/dev/null\","))
        + &format!("memory = 128\ntasks = 20\ncpu_weight = 50\nwritable = [\"{open}\"]\n");
    let config = format!("{ENGINE}{}{}", lane("a", &program("forward")), lane("g", &glutton));
    let mut daemon = Daemon::start(&config);
    daemon.await_log("| now memory");
    daemon.until("it has ended", |daemon| daemon.nf("g-nf").last_exit.is_some());
    let (log, how) = (daemon.log(), daemon.nf("g-nf").last_exit.unwrap());
    let tasks = log.lines().find_map(|line| line.split_once("| tasks: ")?.1.parse::<usize>().ok()).unwrap();
    if let Some(line) = log.lines().find(|line| line.contains("no cgroup controller for")) {
        println!("SKIP in part: {line}");
    } else {
        // Its main thread is one, and the test's another.
        assert!((17..20).contains(&tasks), "{tasks}");
        assert!(how.contains("needed more than its 128 MiB"), "{how}");
    }
    assert!(!log.contains("| memory: "), "{log}");
    if !log.contains("no Landlock") {
        let wrote = |file: &str| log.contains(&format!("{file}: true"));
        assert!(wrote(&format!("{open}/x")) && !wrote(&format!("{closed}/x")) && wrote("/dev/null"), "{log}");
    }
    daemon.until_flowing("a");
    assert_eq!(daemon.nf("a-nf").last_exit, None);
}

#[test]
fn an_nf_runs_in_a_sandbox() {
    if !is_root() {
        return;
    }
    let text = format!("{ENGINE}{}", lane("a", &program("probe")));
    let mut daemon = Daemon::start(&text);
    daemon.await_log("| folder: ");
    let pid = daemon.until_running("a-nf").pid.unwrap();
    assert_eq!(status_field(pid, "Uid"), "65534\t65534\t65534\t65534");
    assert_eq!(status_field(pid, "Groups"), "");
    assert_eq!(status_field(pid, "NoNewPrivs"), "1");
    assert_eq!(
        (status_field(pid, "Seccomp"), status_field(pid, "Seccomp_filters")),
        ("2".into(), "3".into())
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status_field(pid, set), 16), Ok(0), "{set}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let log = daemon.log();
    let said = |what: &str| log.lines().find_map(|line| Some(line.split_once(what)?.1.to_owned())).unwrap();
    assert_eq!((said("| socket: "), said("| process: ")), ("Some(1)".to_owned(), "Some(1)".to_owned()));
    assert_eq!(said("| folder: "), "\"/\"");
    let variables = said("| variables: ");
    assert!(variables.contains("NETVM_ROLE") && !variables.contains("CARGO"), "{variables}");
    // Standard input, output and error, the attach socket, and the folder being read.
    assert_eq!(said("| descriptors: ").matches('"').count(), 10, "{}", said("| descriptors: "));
}

#[test]
fn a_daemon_starts_after_another_was_killed() {
    let folder = Arc::new(Folder::new());
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &config(&["a", "b"]));
    daemon.until_running("a-nf");
    daemon.until_running("b-nf");
    let nfs = processes_below(daemon.child.id());
    assert_eq!(nfs.len(), 2);
    daemon.child.kill().unwrap();
    assert_eq!(daemon.wait().signal(), Some(9));
    let deadline = Instant::now() + Duration::from_secs(2);
    let lives = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    while nfs.iter().any(lives) {
        assert!(Instant::now() < deadline, "an NF did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(daemon.api_socket().exists(), "the killed daemon left its socket");
    let next = Daemon::start_in(folder, &config(&["a"]));
    next.until_running("a-nf");
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start(ENGINE);
    let mut second = Daemon::launch(Arc::clone(&daemon.folder), ENGINE);
    assert_eq!(second.wait().code(), Some(1));
    let expected = format!("another netvmd (process {}) uses", daemon.child.id());
    assert!(second.log().contains(&expected), "{}", second.log());
    let _: Status = daemon.get(path::STATUS);
}

#[test]
fn misbehaving_nfs_are_killed_and_restarted() {
    let programs = ["crash", "impostor", "turncoat"];
    let lanes: String = programs.iter().map(|name| lane(name, &program(name))).collect();
    let mut daemon = Daemon::start(&format!("{ENGINE}{lanes}"));
    for (role, word) in [
        ("crash-nf", "ended before it attached: exit status 3"),
        ("impostor-nf", "somebody-else"),
        ("turncoat-nf", "closed its attach socket without ending; killed"),
    ] {
        let failed_twice =
            |nf: &NfInfo| nf.restarts >= 2 && nf.last_exit.as_ref().is_some_and(|how| how.contains(word));
        daemon.until(&format!("{role}: {word}"), |daemon| failed_twice(&daemon.nf(role)));
    }
    daemon.await_log("| answer: netvmd refused this NF: netvmd started this NF as role `impostor-nf`");
    let problems = daemon.get::<Status>(path::STATUS).problems;
    assert!(problems.iter().any(|problem| problem.contains("chain crash drops its traffic")), "{problems:?}");
}

#[test]
fn a_silent_nf_is_killed() {
    let daemon = Daemon::start(&format!("{ENGINE}{}", lane("a", &program("silent"))));
    daemon.until("it is killed", |daemon| {
        daemon.nf("a-nf").last_exit.is_some_and(|how| how.contains("no Hello within 5 s"))
    });
}

#[test]
fn an_apply_adds_a_chain_without_loss_in_another() {
    let daemon = Daemon::start(&config(&["a"]));
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let plan: PlanReply = daemon.post(path::PLAN, &config(&["a", "b"]));
    assert!(plan.plan.changes.iter().all(|change| change.name.starts_with('b')), "{plan:?}");
    let dropped = |daemon: &Daemon| {
        let chains = daemon.stats().chains;
        let chain = chains.iter().find(|chain| chain.name == "a").unwrap();
        chain.dropped_at_entry + chain.dropped_inside
    };
    let before = dropped(&daemon);
    let pid = daemon.nf("a-nf").pid;
    let applied: ApplyReply = daemon.post(path::APPLY, &config(&["a", "b"]));
    assert_eq!(applied.plan, plan.plan);
    // An apply returns once its NFs run.
    assert_eq!(daemon.nf("b-nf").state, NfState::Running);
    daemon.until_flowing("b");
    daemon.until_flowing("a");
    let _: ApplyReply = daemon.post(path::APPLY, &config(&["a"]));
    daemon.until("b's process has gone", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
    assert_eq!((dropped(&daemon), daemon.nf("a-nf").pid), (before, pid));
}

#[test]
fn replicas_are_replaced_one_by_one_and_stay_if_the_new_fail() {
    let two = |program_name: &str, more: &str| {
        format!("{ENGINE}{}", lane("a", &(program(program_name) + "replicas = 2\n" + more)))
    };
    let daemon = Daemon::start(&two("forward", ""));
    let pids = |daemon: &Daemon| {
        let nfs: Vec<NfInfo> = daemon.get(path::NFS);
        nfs.iter().filter(|nf| nf.state == NfState::Running).filter_map(|nf| nf.pid).collect::<Vec<_>>()
    };
    daemon.until("both run", |daemon| pids(daemon).len() == 2);
    daemon.until_flowing("a");
    let down = |daemon: &Daemon| {
        let drops = daemon.stats().drops;
        drops.chains.get("a").and_then(|reasons| reasons.get("nf-down")).copied().unwrap_or_default()
    };
    let (before, dropped) = (pids(&daemon), down(&daemon));
    let _: ApplyReply = daemon.post(path::APPLY, &two("probe", ""));
    let after = pids(&daemon);
    assert!(after.len() == 2 && after.iter().all(|pid| !before.contains(pid)), "{before:?} {after:?}");
    assert_eq!(down(&daemon), dropped, "one replica was always active");

    let (status, error) = daemon.post_failing(path::APPLY, two("crash", ""));
    assert!(
        status == 500
            && error.message.contains(
                "nf a-nf did not start: ended before it attached: exit status 3: an error for people"
            ),
        "{error}"
    );
    assert_eq!(pids(&daemon), after, "both kept running");
    daemon.until("the new processes have ended", |daemon| processes_below(daemon.child.id()).len() == 2);
    assert_eq!(down(&daemon), dropped);
    daemon.until_flowing("a");
}

#[test]
fn a_new_version_of_an_nf_takes_over_without_loss() {
    let daemon = Daemon::start(&config(&["a"]));
    let old = daemon.until_running("a-nf").pid;
    daemon.until_flowing("a");
    let lost = |daemon: &Daemon| {
        let drops = daemon.stats().drops;
        drops.chains.get("a").map_or(0, |reasons| reasons.values().sum::<u64>())
    };
    let before = lost(&daemon);
    let text = format!("{ENGINE}{}", lane("a", &program("probe")));
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    let nf = daemon.nf("a-nf");
    assert!(nf.pid != old && nf.state == NfState::Running, "{nf:?}");
    daemon.until("the old one has gone", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
    assert_eq!(lost(&daemon), before);
}

#[test]
fn a_bad_configuration_changes_nothing() {
    let daemon = Daemon::start(&config(&["a"]));
    let before = daemon.until_running("a-nf");
    let running = daemon.request("GET", path::CONFIG, "").1;

    let (status, error) = daemon.post_failing(path::APPLY, config(&["a"]).replace("rate", "rat"));
    assert_eq!((status, error.diagnostics.len()), (422, 1), "{error:?}");
    assert!(error.diagnostics[0].line > 0 && error.diagnostics[0].rendered.contains("rat"), "{error:?}");

    let missing = config(&["a"]) + &lane("b", "command = [\"/nonexistent/nf\"]\n");
    let (status, error) = daemon.post_failing(path::APPLY, &missing);
    assert_eq!(status, 422);
    assert!(error.diagnostics[0].message.starts_with("no program `/nonexistent/nf`"), "{error:?}");

    let crashing = config(&["a"]) + &lane("b", &program("crash"));
    let (status, error) = daemon.post_failing(path::APPLY, &crashing);
    assert_eq!(status, 500);
    assert!(
        error
            .message
            .contains("nf b-nf did not start: ended before it attached: exit status 3: an error for people"),
        "{error}"
    );

    let port = config(&["a"]) + "\n[[port]]\nname = \"c\"\nkind = \"pci\"\naddress = \"ffff:1f:1f.7\"\n";
    let (status, error) = daemon.post_failing(path::APPLY, &port);
    assert!(
        status == 422 && error.diagnostics.iter().any(|found| found.message.contains("ffff:1f:1f.7")),
        "{status} {error}"
    );

    let (status, error) =
        daemon.post_failing(path::APPLY, config(&["a"]).replace("buffers = 2048", "buffers = 4096"));
    assert!(status == 409 && error.message.contains("buffers"), "{status} {error}");

    assert_eq!(daemon.request("GET", path::CONFIG, "").1, running);
    let after = daemon.nf("a-nf");
    assert_eq!((after.pid, after.restarts, after.state), (before.pid, 0, NfState::Running));
    daemon.until("b's process has ended", |daemon| processes_below(daemon.child.id()).len() == 1);
    daemon.until_flowing("a");
}

#[test]
fn sighup_reloads_the_file_and_the_api_restarts_nfs() {
    let mut daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    std::fs::write(daemon.folder.config(), "[engine]\nwrong = 1\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_log("wrong");
    std::fs::write(daemon.folder.config(), config(&["a", "b"])).unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_log("reloaded");
    daemon.until_running("b-nf");

    let done: Done = daemon.post("/v1/nfs/a-nf/restart", "");
    assert_eq!(done.message, "nf a-nf: restarted");
    daemon.until("a-nf is another process", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid && nf.restarts == 1
    });
    let (status, error) = daemon.post_failing("/v1/nfs/nobody/restart", "");
    assert!(status == 404 && error.message.contains("no role `nobody`"), "{status} {error}");
    assert_eq!(daemon.post_failing("/v1/nonsense", "").0, 404);
    assert_eq!(daemon.post_failing("/v1/nfs/%ff/restart", "").0, 404);
    assert_eq!(daemon.post_failing(path::STATUS, "").0, 404);
    let (status, error) = daemon.post_failing(path::PLAN, b"\xff");
    assert!(status == 400 && error.message.contains("UTF-8"), "{status} {error}");

    let _: Done = daemon.post(path::STOP, "");
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_program_beside_netvmd_is_found_by_its_name() {
    let netvmd = std::path::Path::new(env!("CARGO_BIN_EXE_netvmd"));
    if !netvmd.with_file_name("netvm-simple-forward").exists() {
        println!("SKIP: netvm-simple-forward is not built (cargo build -p netvm-nf-simple-forward)");
        return;
    }
    let text = format!("{ENGINE}{}", lane("a", "command = [\"netvm-simple-forward\"]\n"));
    let daemon = Daemon::start(&text);
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
}

#[test]
fn an_unprivileged_user_can_run_netvmd() {
    if !is_root() {
        println!("SKIP: not root, so every other test shows it");
        return;
    }
    let folder = Arc::new(Folder::new());
    let copy = |from: &std::path::Path, name: &str| {
        std::fs::copy(from, folder.0.join(name)).unwrap();
        folder.0.join(name)
    };
    let own = std::env::current_exe().unwrap();
    let (netvmd, nf) = (copy(env!("CARGO_BIN_EXE_netvmd").as_ref(), "netvmd"), copy(&own, "nf"));
    std::fs::create_dir(folder.run_dir()).unwrap();
    std::os::unix::fs::chown(folder.run_dir(), Some(65534), Some(65534)).unwrap();
    let text = config(&["a"]).replace(own.to_str().unwrap(), nf.to_str().unwrap());
    let mut command = std::process::Command::new(netvmd);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let mut daemon = Daemon::launch_as(command, folder, &text);
    daemon.await_log("serves its API on");
    let pid = daemon.until_running("a-nf").pid.unwrap();
    daemon.until_flowing("a");
    assert_eq!(status_field(pid, "Uid"), status_field(daemon.child.id(), "Uid"));
    assert_eq!((status_field(pid, "NoNewPrivs"), status_field(pid, "Seccomp")), ("1".into(), "2".into()));
    assert!(daemon.log().contains("netvmd is not root"), "{}", daemon.log());
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let folder = Folder::new();
    std::fs::write(folder.config(), config(&["a"])).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_netvmd"))
        .args(["--log", "trace", "--config"])
        .arg(folder.config())
        .arg("--run-dir")
        .arg(folder.run_dir())
        .stderr(writer)
        .spawn()
        .unwrap();
    let socket = folder.run_dir().join("api.sock");
    let start = Instant::now();
    let running = |body: &str| body.contains("\"running\"");
    while !(socket.exists() && running(&common::request(&socket, "GET", path::NFS, b"").1)) {
        assert!(start.elapsed() < Duration::from_secs(30), "netvmd waits for its log");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(common::request(&socket, "POST", path::STOP, b"").0, 200);
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(30), "netvmd waits for its log at the end");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(reader);
}
