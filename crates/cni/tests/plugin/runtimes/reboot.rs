// SPDX-License-Identifier: Apache-2.0
//! A reboot of a host with pods. The host is namespaces of processes, mounts and networks; its disk is a folder, its
//! /run a tmpfs. Pulling the plug ends every process at once.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::containerd::{configure, plugins};
use super::cri::Pods;
use super::{LIMIT, Routed, built, command_of, good, lacks};
use crate::net::{PLUGIN, within};

/// What a host does when it starts.
const INIT: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip link set lo up && ip netns add clients && \
                    exec sleep 100000";

/// A host that runs.
struct Host {
    folder: PathBuf,
    /// Whose child is the host's first process.
    unshare: Child,
    init: String,
    daemons: Vec<Child>,
}

impl Host {
    fn boot(folder: &Path) -> Self {
        let words = "unshare --mount --net --pid --fork --kill-child --mount-proc sh -c";
        let mut command = command_of(words);
        let unshare = command.arg(INIT).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let mut init = String::new();
        let has_started = || {
            init = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            !init.is_empty() && Path::new(&format!("/proc/{init}/root/run/netns/clients")).exists()
        };
        assert!(within(LIMIT, has_started), "no host");
        Self { folder: folder.to_owned(), unshare, init, daemons: Vec::new() }
    }

    /// What runs a command on the host.
    fn before(&self) -> String {
        format!("nsenter -t {} -m -n -p ", self.init)
    }

    fn command(&self, words: &str) -> Command {
        command_of(&(self.before() + words))
    }

    fn start(&mut self, words: &str, log: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join(log)).unwrap();
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn start_netvmd(&mut self) {
        let (program, folder) = (Path::new(PLUGIN).with_file_name("netvmd"), self.folder.display());
        let words = format!(
            "{} --config {folder}/host.toml --run-dir /run/netvm --state-dir {folder}/state",
            program.display()
        );
        self.start(&words, "netvmd.log");
        assert!(within(LIMIT, || self.succeeds(&self.netvm("status"))), "{}", self.logs());
    }

    fn start_containerd(&mut self) {
        self.start(&format!("containerd --config {}/config.toml", self.folder.display()), "containerd.log");
        let version = "ctr -a /run/cd/containerd.sock version";
        assert!(within(LIMIT * 3, || self.succeeds(version)), "{}", self.logs());
    }

    fn netvm(&self, words: &str) -> String {
        let program = Path::new(PLUGIN).with_file_name("netvm");
        format!("{} --socket /run/netvm/api.sock {words}", program.display())
    }

    fn succeeds(&self, words: &str) -> bool {
        self.command(words).output().unwrap().status.success()
    }

    fn pods(&self) -> Pods {
        Pods::new(&self.folder, Path::new("/run/cd"), &self.before())
    }

    /// The ports beside the file, and what each waits for.
    fn ports(&self) -> Vec<(String, String)> {
        let text = good(&mut self.command(&self.netvm("port live --json")));
        let ports: Vec<Value> = serde_json::from_str(&text).unwrap();
        let text = |port: &Value, key: &str| port[key].as_str().unwrap_or_default().to_owned();
        ports.iter().map(|port| (text(port, "port"), text(port, "problem"))).collect()
    }

    fn logs(&self) -> String {
        ["netvmd.log", "containerd.log"]
            .map(|log| std::fs::read_to_string(self.folder.join(log)).unwrap_or_default())
            .join("\n")
    }

    /// Ends all processes as a power cut does.
    fn pull_the_plug(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The first process takes all others along.
        let _ = command_of(&format!("kill -9 {}", self.init)).output();
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        self.daemons.iter_mut().for_each(|daemon| drop(daemon.wait()));
        let has_ended = || !Path::new(&format!("/proc/{}", self.init)).exists();
        assert!(within(LIMIT, has_ended), "its processes go on");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if Path::new(&format!("/proc/{}", self.init)).exists() {
            self.end();
        }
    }
}

/// Two pods: a server that is published, and another one. Whether all of their traffic passes.
fn start_pods(host: &Host, pods: &Pods) {
    pods.start("web", &["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"], true);
    let other = pods.start("other", &["/bin/busybox", "sleep", "600"], false).1;
    let published = "ip netns exec clients curl -s -f -m 2 http://203.0.113.2:8080/";
    assert!(within(LIMIT, || host.succeeds(published)), "{}", host.logs());
    let ping = format!("exec -s {other} /bin/busybox ping -c 1 -W 1 10.77.0.1");
    assert!(within(LIMIT, || pods.run(&ping).status.success()), "{}", host.logs());
    let open = host.ports();
    assert!(open.len() == 2 && open.iter().all(|(_, waits)| waits.is_empty()), "{open:?}");
}

#[test]
fn pods_come_back_after_a_reboot_whoever_starts_first() {
    let crictl = format!("{} --version", built("crictl").display());
    if lacks(&["containerd --version", "runc --version", "curl --version", "busybox true", &crictl]) {
        return;
    }
    if !Path::new(PLUGIN).with_file_name("netvm").is_file() {
        println!("SKIP: no program netvm beside netvm-cni");
        return;
    }
    let Some(routed) = Routed::start("rb", include_str!("../../../../../docs/how-to/pods.md"), "app") else {
        return;
    };
    let folder = routed.net.path("disk");
    std::fs::create_dir(&folder).unwrap();
    // Its configuration, in which its own name of the namespace of other machines stands again.
    let text = std::fs::read_to_string(routed.net.path("host.toml")).unwrap();
    std::fs::write(folder.join("host.toml"), text.replace(&routed.host.0, "clients")).unwrap();
    plugins(&routed.net, &folder.join("cni"));
    let list = folder.join("cni/net.d/10-pods.conflist");
    let own = routed.net.path("run/api.sock").display().to_string();
    let text = std::fs::read_to_string(&list).unwrap().replace(&own, "/run/netvm/api.sock");
    std::fs::write(&list, text).unwrap();
    configure(&folder, Path::new("/run/cd"));

    let mut host = Host::boot(&folder);
    host.start_netvmd();
    host.start_containerd();
    let image = routed.image(&["localhost/busybox:1", "localhost/pause:1"]);
    let import = format!(
        "ctr -a /run/cd/containerd.sock -n k8s.io image import --snapshotter native {}",
        image.display()
    );
    good(&mut host.command(&import));
    start_pods(&host, &host.pods());
    host.pull_the_plug();

    // The runtime first: the kubelet finds that its pods have ended, and cannot start them.
    let mut host = Host::boot(&folder);
    host.start_containerd();
    let pods = host.pods();
    pods.remove_all();
    let early = folder.join("web.json").display().to_string();
    let refused = pods.run(&format!("runp {early}"));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("no netvmd answers"), "{why}");
    host.start_netvmd();
    assert_eq!(host.ports(), [], "{}", host.logs());
    pods.remove_all();
    start_pods(&host, &pods);
    host.pull_the_plug();

    // netvmd first: its ports wait for pods that do not come back.
    let mut host = Host::boot(&folder);
    host.start_netvmd();
    let ports = host.ports();
    let waits = |port: &(String, String)| port.1.contains("start the container");
    assert!(ports.len() == 2 && ports.iter().all(waits), "{ports:?}");
    host.start_containerd();
    let pods = host.pods();
    pods.remove_all();
    assert_eq!(host.ports(), [], "{}", host.logs());
    start_pods(&host, &pods);
    pods.remove_all();
    assert_eq!((host.ports(), routed.net.left()), (Vec::new(), [0, 0, 0]), "{}", host.logs());
}
