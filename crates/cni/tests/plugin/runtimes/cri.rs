// SPDX-License-Identifier: Apache-2.0
//! Pods, as a kubelet makes them: crictl asks containerd's CRI ([how-to](../../../../../docs/how-to/pods.md)).

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::thread::LinkNameSpaceType;
use serde_json::{Value, json};

use super::containerd::{Containerd, plugins};
use super::{LIMIT, Routed, blocks, built, command_of, lacks};
use crate::net::within;

/// Pods at once.
const AT_ONCE: usize = 20;
/// Pods while netvmd is killed.
const MANY: usize = 50;

/// Pods of a containerd.
pub struct Pods {
    folder: PathBuf,
    /// crictl with its options.
    pub words: String,
}

impl Pods {
    /// Those of the containerd of this folder. `run`: the folder of its socket; `before`: what crictl is run by.
    pub fn new(folder: &Path, run: &Path, before: &str) -> Self {
        let file = folder.join("crictl.yaml");
        let socket = format!("unix://{}", run.join("containerd.sock").display());
        // One of its options can only be in its file.
        let text =
            format!("runtime-endpoint: {socket}\nimage-endpoint: {socket}\ndisable-pull-on-run: true\n");
        std::fs::write(&file, text).unwrap();
        let words = format!("{before}timeout 120 {} --config {}", built("crictl").display(), file.display());
        Self { folder: folder.to_owned(), words }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("containerd.log")).unwrap_or_default()
    }

    pub fn run(&self, words: &str) -> Output {
        command_of(&format!("{} {words}", self.words)).output().unwrap()
    }

    pub fn good(&self, words: &str) -> String {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert!(output.status.success(), "{words}: {} {}", text(&output.stderr), self.log());
        text(&output.stdout)
    }

    /// Writes what describes a pod with a label.
    fn describe(&self, name: &str, app: &str, is_published: bool) -> PathBuf {
        let mappings = json!([{ "protocol": 0, "container_port": 8080, "host_port": 8080 }]);
        let pod = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "attempt": 0 },
            "annotations": { "label.netvm.io/app": app }, "log_directory": self.folder, "linux": {},
            "port_mappings": if is_published { mappings } else { json!([]) },
        });
        let path = self.folder.join(format!("{name}.json"));
        std::fs::write(&path, pod.to_string()).unwrap();
        path
    }

    /// Starts a pod with one container. Its ID and the container's.
    pub fn start(&self, name: &str, command: &[&str], is_published: bool) -> (String, String) {
        let pod = self.describe(name, name, is_published);
        let id = self.good(&format!("runp {}", pod.display()));
        let container = json!({
            "metadata": { "name": name }, "image": { "image": "localhost/busybox:1" }, "command": command,
            "log_path": format!("{name}.log"), "linux": {},
        });
        let path = self.folder.join(format!("{name}-container.json"));
        std::fs::write(&path, container.to_string()).unwrap();
        let container = self.good(&format!("create {id} {} {}", path.display(), pod.display()));
        self.good(&format!("start {container}"));
        (id, container)
    }

    /// Ends a container of a pod, and makes it again. Its new ID.
    fn again(&self, pod: &str, container: &str, name: &str) -> String {
        self.good(&format!("stop -t 0 {container}"));
        self.good(&format!("rm {container}"));
        let file = |name: String| self.folder.join(name).display().to_string();
        let files = [format!("{name}-container.json"), format!("{name}.json")].map(file);
        let container = self.good(&format!("create {pod} {}", files.join(" ")));
        self.good(&format!("start {container}"));
        container
    }

    /// The address of a pod.
    fn address(&self, pod: &str) -> String {
        self.good(&format!("inspectp -o go-template --template {{{{.status.network.ip}}}} {pod}"))
    }

    /// The file of a pod's network namespace.
    fn namespace(&self, pod: &str) -> String {
        let described: Value = serde_json::from_str(&self.good(&format!("inspectp {pod}"))).unwrap();
        let namespaces = described["info"]["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
        let network = namespaces.iter().find(|namespace| namespace["type"] == "network").unwrap();
        network["path"].as_str().unwrap().to_owned()
    }

    pub fn remove_all(&self) {
        let all = self.good("pods -q");
        all.split_whitespace().for_each(|pod| self.remove(pod));
    }

    fn remove(&self, pod: &str) {
        self.good(&format!("stopp {pod}"));
        // containerd may still be cleaning up after it, and then refuses.
        let is_removed = || self.run(&format!("rmp -f {pod}")).status.success();
        assert!(within(LIMIT, is_removed), "{}", self.log());
    }
}

#[test]
fn pods_come_and_go_with_ports_and_rules() {
    let crictl = format!("{} --version", built("crictl").display());
    if lacks(&["containerd --version", "runc --version", "curl --version", "busybox true", &crictl]) {
        return;
    }
    let page = include_str!("../../../../../docs/how-to/pods.md");
    let Some(mut routed) = Routed::start("cr", page, "app") else { return };
    let folder = routed.net.path("containerd");
    std::fs::create_dir(&folder).unwrap();
    plugins(&routed.net, &folder.join("cni"));
    let pods = Pods::new(&folder, &folder, "");
    let mut containerd = Containerd::start(folder);
    let names = ["localhost/busybox:1", "localhost/pause:1", "docker.io/library/busybox:latest"];
    let image = routed.image(&names);
    containerd.good(&format!("-n k8s.io image import --snapshotter native {}", image.display()));
    for (name, yaml) in ["pod", "server", "policy"].iter().zip(blocks(page, "yaml")) {
        std::fs::write(routed.net.path(&format!("{name}.yaml")), yaml).unwrap();
    }
    routed.shim("crictl", &pods.words);
    let before = std::fs::read(routed.net.path("host.toml")).unwrap();
    routed.follow_page();
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
    std::fs::write(routed.net.path("host.toml"), before).unwrap();
    routed.net.restart();
    let server = ["/bin/busybox", "httpd", "-f", "-p", "8080", "-h", "/www"];
    let client = ["/bin/busybox", "sleep", "600"];
    let mut web = pods.start("web", &server, true);
    let mut others = ["app", "other"].map(|name| pods.start(name, &client, false));
    let check = |web: &(String, String), others: &[(String, String); 2], when: &str, net: &Routed| {
        net.until_published(when);
        net.check_traffic(&pods.address(&web.0), |name, command| {
            pods.run(&format!("exec -s {} {command}", others[usize::from(name == "other")].1))
        });
        assert_eq!(net.net.left(), [3, 3, 3], "{when}");
    };
    check(&web, &others, "at first", &routed);
    containerd.restart();
    check(&web, &others, "after a restart of containerd", &routed);
    routed.net.restart();
    check(&web, &others, "after a kill of netvmd", &routed);
    // A container of a pod: the pod keeps its network.
    let address = pods.address(&web.0);
    web.1 = pods.again(&web.0, &web.1, "web");
    check(&web, &others, "after a restart of the server's container", &routed);
    assert_eq!(pods.address(&web.0), address);
    // A pod, of the server and of a client that a rule is for.
    pods.remove(&web.0);
    assert_eq!(routed.net.left(), [2, 2, 2]);
    web = pods.start("web", &server, true);
    check(&web, &others, "after a restart of the server's pod", &routed);
    pods.remove(&others[0].0);
    others[0] = pods.start("app", &client, false);
    check(&web, &others, "after a restart of a client's pod", &routed);
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
    at_once(&pods, &routed);
    under_kills(&pods, &mut routed);
    drop(containerd);
    routed.net.purge();
}

/// As many pods as a kubelet starts at once.
fn at_once(pods: &Pods, routed: &Routed) {
    let started = Instant::now();
    let describe = |number| pods.describe(&format!("p{number}"), "many", false);
    let running: Vec<_> = (0..AT_ONCE)
        .map(|number| {
            command_of(&format!("{} runp {}", pods.words, describe(number).display())).spawn().unwrap()
        })
        .collect();
    for mut child in running {
        assert!(child.wait().unwrap().success(), "{} {}", pods.log(), routed.net.log());
    }
    println!("{AT_ONCE} pods at once: {} ms", started.elapsed().as_millis());
    assert_eq!(routed.net.left(), [AT_ONCE; 3]);
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
}

/// All pods have traffic again soon after netvmd was killed, and GC leaves nothing.
fn under_kills(pods: &Pods, routed: &mut Routed) {
    for number in 0..MANY {
        pods.good(&format!("runp {}", pods.describe(&format!("k{number}"), "many", false).display()));
    }
    let namespaces: Vec<String> =
        pods.good("pods -q").split_whitespace().map(|pod| pods.namespace(pod)).collect();
    let all_have_traffic = |since| -> Vec<Option<u128>> {
        std::thread::scope(|scope| {
            let until = |namespace| scope.spawn(move || until_traffic(namespace, since));
            let all: Vec<_> = namespaces.iter().map(String::as_str).map(until).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        })
    };
    // As pods that work have it: a pod whose first ARP request is lost asks again after a second.
    all_have_traffic(Instant::now());
    for _ in 0..5 {
        let killed = Instant::now();
        routed.net.stop();
        let ended = killed.elapsed().as_millis();
        routed.net.launch_again();
        let times = all_have_traffic(killed);
        let cut_off = namespaces.iter().zip(&times).filter(|(_, time)| time.is_none());
        let cut_off: Vec<_> = cut_off.map(|(namespace, _)| namespace).collect();
        assert!(cut_off.is_empty(), "{cut_off:?} {}", routed.net.log());
        let times = || times.iter().flatten();
        routed.net.until_served();
        println!(
            "{MANY} pods and a kill -9 of netvmd: it has ended after {ended} ms, and starts again at once; the first pod has \
             traffic after {} ms, all of them after {} ms; its API answers after {} ms",
            times().min().unwrap(),
            times().max().unwrap(),
            killed.elapsed().as_millis()
        );
    }
    // A runtime that is gone, too.
    routed.net.keep_only(&[]);
    assert_eq!(routed.net.left(), [0, 0, 0]);
    pods.remove_all();
    assert_eq!(routed.net.left(), [0, 0, 0]);
}

/// After how many milliseconds a pod reaches its gateway, which refuses connections to this port.
fn until_traffic(namespace: &str, since: Instant) -> Option<u128> {
    let file = std::fs::File::open(namespace).unwrap();
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let is_refused = || {
        let outcome = TcpStream::connect_timeout(&"10.77.0.1:9".parse().unwrap(), Duration::from_millis(50));
        outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    within(LIMIT, is_refused).then(|| since.elapsed().as_millis())
}
