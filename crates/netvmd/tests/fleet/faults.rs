// SPDX-License-Identifier: Apache-2.0
//! etcd is cut off, slow, away, compacted or wants a password: no data path loses anything.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use netvm_fleet::HostStatus;

use crate::common::hosts::within;
use crate::site::{Etcd, Host, Way, config, config_with, has_netvm, revision_of};

/// How long a partition lasts: longer than the lease of a status.
fn partition() -> Duration {
    let seconds = std::env::var("NETVM_TEST_SECONDS").map_or(12, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// The problem that a host lists about etcd.
fn problem(host: &Host) -> Option<String> {
    let status: netvm_api::Status = host.daemon.get(netvm_api::path::STATUS);
    status.problems.into_iter().find(|problem| problem.contains("etcd"))
}

#[test]
fn a_partition_a_compaction_and_a_restart_of_etcd_disturb_no_packets() {
    let Some(mut etcd) = Etcd::start() else { return };
    let names = ["a", "b", "c"];
    let hosts: Vec<(Host, Way)> = names
        .iter()
        .map(|name| {
            let (first, way) = (etcd.configure(name, &config(20)), Way::to(&etcd));
            let host = Host::start(name, &way.url());
            etcd.until_runs(name, first);
            host.daemon.until_flowing("a");
            (host, way)
        })
        .collect();
    let lost: Vec<u64> = hosts.iter().map(|(host, _)| host.lost()).collect();

    // Two of three are cut off. What happens meanwhile reaches the third alone, and is compacted.
    let begin = Instant::now();
    hosts[..2].iter().for_each(|(_, way)| way.cut());
    let revisions: Vec<i64> =
        names.iter().map(|name| etcd.configure(name, &config_with("later", 20))).collect();
    etcd.until_runs("c", revisions[2]);
    let last = etcd.configure("a", &config_with("last", 20));
    etcd.ctl(&["compact", &last.to_string()]);
    for (host, _) in &hosts[..2] {
        host.daemon.until("it says that etcd is away", |_| problem(host).is_some());
        assert_eq!(host.rules(), ["a"]);
    }
    ["a", "b"].iter().for_each(|host| etcd.until_gone(host));
    // The data path is looked at for as long as the partition lasts.
    while begin.elapsed() < partition() {
        hosts.iter().for_each(|(host, _)| host.daemon.until_flowing("a"));
        std::thread::sleep(Duration::from_millis(100));
    }
    hosts[..2].iter().for_each(|(_, way)| way.mend());
    etcd.until_runs("a", last);
    etcd.until_runs("b", revisions[1]);
    assert_eq!((hosts[0].0.rules(), hosts[1].0.rules()), (strings(["a", "last"]), strings(["a", "later"])));
    assert!(hosts.iter().all(|(host, _)| problem(host).is_none()));

    // etcd is killed, and comes back.
    etcd.kill();
    hosts.iter().for_each(|(host, _)| host.daemon.until("it says so", |_| problem(host).is_some()));
    etcd.start_again();
    let after = etcd.configure("a", &config_with("after", 20));
    etcd.until_runs("a", after);
    for name in &names[1..] {
        etcd.until(name, "it is back", |_: &HostStatus| true);
    }
    for ((host, _), before) in hosts.iter().zip(lost) {
        host.daemon.until_flowing("a");
        assert_eq!(host.lost(), before, "{}", host.name);
    }
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_slow_etcd_delays_only_its_news() {
    let Some(etcd) = Etcd::start() else { return };
    let (first, way) = (etcd.configure("a", &config(20)), Way::to(&etcd));
    let host = Host::start("a", &way.url());
    etcd.until_runs("a", first);
    host.daemon.until_flowing("a");
    let lost = host.lost();
    way.slow();
    let second = etcd.configure("a", &config_with("two", 20));
    let answer = || {
        let asked = Instant::now();
        let _: netvm_api::Status = host.daemon.get(netvm_api::path::STATUS);
        asked.elapsed()
    };
    // etcd takes longer for each of its answers; on a busy machine, so may one of netvmd.
    let fastest = (0..5).map(|_| answer()).min().unwrap();
    assert!(fastest < Duration::from_millis(500), "the API waits for etcd: {fastest:?}");
    etcd.until_runs("a", second);
    host.daemon.until_flowing("a");
    assert_eq!(host.lost(), lost);
}

#[test]
fn a_clock_that_differs_is_said_and_orders_nothing() {
    let Some(etcd) = Etcd::start() else { return };
    let (first, way) = (etcd.configure("a", &config(20)), Way::to(&etcd));
    way.shift_time();
    let host = Host::start("a", &way.url());
    let status = etcd.until_runs("a", first);
    let problem = status.clock_problem().unwrap();
    assert!((1790..=1810).contains(&status.clock_ahead_s.abs()) && problem.contains("chronyd"), "{problem}");
    let later = etcd.until_runs("a", etcd.configure("a", &config_with("two", 20)));
    assert!(later.clock_problem().is_some() && host.rules().contains(&"two".to_owned()));
}

/// What `netvm doctor` finds of etcd: levels and words.
fn diagnosed(url: &str) -> Vec<(String, String)> {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm"));
    command.args(["doctor", "--json", "--config", "/nonexistent.toml", "--etcd", url]);
    let output = command.env_remove("NETVM_HOST").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let of_etcd = report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == "etcd");
    let words =
        |check| format!("{} | {} | {}", text(check, "found"), text(check, "meaning"), text(check, "command"));
    of_etcd.map(|check| (text(check, "level"), words(check))).collect()
}

#[test]
fn doctor_says_what_is_wrong_with_each_member() {
    if !has_netvm() {
        return;
    }
    let Some(etcd) = Etcd::start() else { return };
    etcd.configure("a", &config(20));
    let way = Way::to(&etcd);
    way.shift_time();
    let all = diagnosed(&format!("{},{},http://127.0.0.1:1", etcd.url(), way.url()));
    let [good, shifted, away] = &all[..] else { panic!("{all:?}") };
    assert!(good.0 == "ok" && good.1.contains("etcd 3."), "{good:?}");
    assert!(shifted.0 == "warn" && shifted.1.contains("this machine's clock is 1"), "{shifted:?}");
    assert!(away.0 == "warn" && away.1.contains("cannot reach etcd at 127.0.0.1:1"), "{away:?}");
    assert!(away.1.contains("etcdctl --endpoints http://127.0.0.1:1 endpoint status"), "{away:?}");
    let wrong = diagnosed("127.0.0.1:1");
    assert!(wrong[0].1.contains("is no address of etcd"), "{wrong:?}");
}

#[test]
fn wrong_credentials_are_said_and_right_ones_work() {
    let Some(etcd) = Etcd::start() else { return };
    let first = etcd.configure("a", &config(20));
    let secret = |name: &str, password: &str| {
        let file = etcd.folder.0.join(name);
        std::fs::write(&file, format!("{password}\n")).unwrap();
        set_mode(&file, 0o600);
        file.display().to_string()
    };
    let (right, wrong) = (secret("right", "s3cret"), secret("wrong", "guess"));
    for words in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "hosts"],
        &["role", "grant-permission", "--prefix", "hosts", "readwrite", "/netvm/hosts/a/"],
        &["role", "grant-permission", "--prefix", "hosts", "read", "/netvm/fragments/"],
        &["user", "add", "a:s3cret"],
        &["user", "grant-role", "a", "hosts"],
        &["user", "add", "nobody:s3cret"],
        &["auth", "enable"],
    ] {
        etcd.ctl(words);
    }
    let url = etcd.url();
    let folder = || std::sync::Arc::new(crate::common::Folder::new());
    let options = |user, file| ["--etcd", &url, "--etcd-user", user, "--etcd-password-file", file];
    for (user, file, words) in [
        ("a", &wrong, "etcd refuses user `a`"),
        ("unknown", &right, "etcd refuses user `unknown`"),
        ("nobody", &right, "etcd does not permit `kv/txn` to user `nobody`"),
    ] {
        let mut daemon = crate::site::launch_host(&folder(), "a", &options(user, file));
        daemon.await_log(words);
    }
    let mut without = crate::site::launch_host(&folder(), "a", &["--etcd", &url]);
    without.await_log("clients without a user (--etcd-user)");
    drop(without);
    let open = secret("open", "s3cret");
    set_mode(Path::new(&open), 0o644);
    let mut daemon = crate::site::launch_host(&folder(), "a", &options("a", &open));
    assert!(!daemon.wait().success());
    assert!(daemon.log().contains("every user may read the password in"), "{}", daemon.log());

    let mut daemon = crate::site::launch_host(&folder(), "a", &options("a", &right));
    daemon.await_log("serves its API on");
    let as_root = |words: &[&str]| etcd.ctl(&[&["--user", "root:top"], words].concat());
    let running = |revision: i64| {
        let is_it = |text: &str| text.contains(&format!("\"running\":{revision}"));
        let status = || as_root(&["get", "/netvm/hosts/a/status", "--print-value-only"]);
        assert!(within(Duration::from_secs(60), || is_it(&status())), "{}", daemon.log());
    };
    running(first);
    // Tokens that etcd has forgotten are renewed: it forgets all when its users change.
    as_root(&["user", "passwd", "nobody", "--interactive=false"]);
    let put = ["put", "/netvm/hosts/a/config", &config_with("two", 20), "-w", "json"];
    running(revision_of(&as_root(&put)));
}

fn set_mode(file: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
}
