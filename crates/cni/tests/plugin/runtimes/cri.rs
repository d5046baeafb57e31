//! Pods, as a kubelet makes them: crictl asks containerd's CRI ([how-to](../../../../../docs/how-to/pods.md)).

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::json;

use super::containerd::{Containerd, plugins};
use super::{LIMIT, Routed, blocks, lacks};
use crate::net::{succeeds, within};

/// Pods at once.
const AT_ONCE: usize = 20;
/// Pods while netvmd is killed.
const MANY: usize = 50;

/// crictl, which `./dev check-release` builds.
fn crictl() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
    target.join("guest/crictl/bin/crictl")
}

struct Pods<'a> {
    containerd: &'a Containerd,
}

impl Pods<'_> {
    /// The program with its options, among them one that only its file has.
    fn words(&self) -> String {
        let file = self.containerd.folder.join("crictl.yaml");
        let socket = format!("unix://{}", self.containerd.folder.join("containerd.sock").display());
        let text =
            format!("runtime-endpoint: {socket}\nimage-endpoint: {socket}\ndisable-pull-on-run: true\n");
        std::fs::write(&file, text).unwrap();
        format!("timeout 120 {} --config {}", crictl().display(), file.display())
    }

    fn command(&self) -> Command {
        let words = self.words();
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command().args(words.split(' ')).output().unwrap()
    }

    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert!(output.status.success(), "{words}: {} {}", text(&output.stderr), self.containerd.log());
        text(&output.stdout)
    }

    /// Writes what describes a pod with a label.
    fn describe(&self, name: &str, app: &str, is_published: bool) -> PathBuf {
        let mappings = json!([{ "protocol": 0, "container_port": 8080, "host_port": 8080 }]);
        let pod = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "attempt": 0 },
            "annotations": { "label.netvm.io/app": app }, "log_directory": self.containerd.folder, "linux": {},
            "port_mappings": if is_published { mappings } else { json!([]) },
        });
        let path = self.containerd.folder.join(format!("{name}.json"));
        std::fs::write(&path, pod.to_string()).unwrap();
        path
    }

    /// Starts a pod with one container. Its ID and the container's.
    fn start(&self, name: &str, command: &[&str], is_published: bool) -> (String, String) {
        let pod = self.describe(name, name, is_published);
        let id = self.good(&format!("runp {}", pod.display()));
        let container = json!({
            "metadata": { "name": name }, "image": { "image": "localhost/busybox:1" }, "command": command,
            "log_path": format!("{name}.log"), "linux": {},
        });
        let path = self.containerd.folder.join(format!("{name}-container.json"));
        std::fs::write(&path, container.to_string()).unwrap();
        let container = self.good(&format!("create {id} {} {}", path.display(), pod.display()));
        self.good(&format!("start {container}"));
        (id, container)
    }

    fn remove_all(&self) {
        let all = self.good("pods -q");
        for pod in all.split_whitespace() {
            self.good(&format!("stopp {pod}"));
            self.good(&format!("rmp -f {pod}"));
        }
    }
}

#[test]
fn pods_come_and_go_with_ports_and_rules() {
    let crictl = format!("{} --version", crictl().display());
    if lacks(&["containerd --version", "runc --version", "curl --version", "busybox true", &crictl]) {
        return;
    }
    let page = include_str!("../../../../../docs/how-to/pods.md");
    let Some(mut routed) = Routed::start("cr", page, "app") else { return };
    let folder = routed.net.path("containerd");
    std::fs::create_dir(&folder).unwrap();
    plugins(&routed.net, &folder.join("cni"));
    let mut containerd = Containerd::start(folder);
    let names = ["localhost/busybox:1", "localhost/pause:1", "docker.io/library/busybox:latest"];
    let image = routed.image(&names);
    containerd.good(&format!("-n k8s.io image import --snapshotter native {}", image.display()));
    let pods = Pods { containerd: &containerd };
    for (name, yaml) in ["pod", "server", "policy"].iter().zip(blocks(page, "yaml")) {
        std::fs::write(routed.net.path(&format!("{name}.yaml")), yaml).unwrap();
    }
    routed.shim("crictl", &pods.words());
    let before = std::fs::read(routed.net.path("host.toml")).unwrap();
    routed.follow_page();
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
    std::fs::write(routed.net.path("host.toml"), before).unwrap();
    routed.net.restart();
    let web = pods.start("web", &["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"], true).0;
    let others = ["app", "other"].map(|name| pods.start(name, &["/bin/busybox", "sleep", "600"], false).1);
    let address = pods.good(&format!("inspectp -o go-template --template {{{{.status.network.ip}}}} {web}"));
    routed.until_published("at first");
    let exec = |pods: &Pods<'_>, name: &str, command: &str| {
        pods.run(&format!("exec -s {} {command}", others[usize::from(name == "other")]))
    };
    routed.check_traffic(&address, |name, command| exec(&pods, name, command));
    assert_eq!(routed.net.left(), [3, 3, 3]);
    containerd.restart();
    routed.until_published("after a restart of containerd");
    routed.net.restart();
    routed.until_published("after a kill of netvmd");
    let pods = Pods { containerd: &containerd };
    routed.check_traffic(&address, |name, command| exec(&pods, name, command));
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
    at_once(&pods, &routed);
    under_kills(&pods, &mut routed);
    drop(containerd);
    routed.net.purge();
}

/// As many pods as a kubelet starts at once.
fn at_once(pods: &Pods<'_>, routed: &Routed) {
    let started = Instant::now();
    let describe = |number| pods.describe(&format!("p{number}"), "many", false);
    let running: Vec<_> = (0..AT_ONCE)
        .map(|number| pods.command().arg("runp").arg(describe(number)).spawn().unwrap())
        .collect();
    for mut child in running {
        assert!(child.wait().unwrap().success(), "{} {}", pods.containerd.log(), routed.net.log());
    }
    println!("{AT_ONCE} pods at once: {} ms", started.elapsed().as_millis());
    assert_eq!(routed.net.left(), [AT_ONCE; 3]);
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
}

/// All pods have traffic again soon after netvmd was killed, and GC leaves nothing.
fn under_kills(pods: &Pods<'_>, routed: &mut Routed) {
    for number in 0..MANY {
        pods.good(&format!("runp {}", pods.describe(&format!("k{number}"), "many", false).display()));
    }
    let namespaces = pods.good("pods -q");
    let template =
        "inspectp -o go-template --template {{range.info.runtimeSpec.linux.namespaces}}{{.path}}{{end}}";
    let namespaces: Vec<String> =
        namespaces.split_whitespace().map(|pod| pods.good(&format!("{template} {pod}"))).collect();
    for _ in 0..3 {
        routed.net.stop();
        let started = Instant::now();
        routed.net.launch_again();
        let ping = |namespace: &String| {
            succeeds(&format!("nsenter --net={namespace} busybox ping -c 1 -W 1 10.77.0.1"))
        };
        let mut first = Duration::ZERO;
        for namespace in &namespaces {
            assert!(within(LIMIT, || ping(namespace)), "{namespace} {}", routed.net.log());
            if first.is_zero() {
                first = started.elapsed();
            }
        }
        println!(
            "{MANY} pods after kill -9 of netvmd: the first has traffic after {} ms, all of them after {} ms",
            first.as_millis(),
            started.elapsed().as_millis()
        );
    }
    routed.net.until_served();
    // A runtime that is gone, too.
    routed.net.keep_only(&[]);
    assert_eq!(routed.net.left(), [0, 0, 0]);
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
}
