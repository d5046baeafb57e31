// SPDX-License-Identifier: Apache-2.0
//! containerd, and `ctr run --cni`, which runs the plug-in itself, and for DEL without a namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;

use super::{LIMIT, Routed, end, good, lacks};
use crate::net::{Net, PLUGIN, within};

/// Its own daemon, with its own folders, and with CRI.
pub struct Containerd {
    pub folder: PathBuf,
    daemon: Child,
}

/// Plug-ins, and the network that runtimes read.
pub fn plugins(net: &Net, folder: &Path) {
    for inside in ["bin", "net.d"] {
        std::fs::create_dir_all(folder.join(inside)).unwrap();
    }
    for (name, program) in [
        ("netvm-cni", PLUGIN),
        ("host-local", "/usr/lib/cni/host-local"),
        ("loopback", "/usr/lib/cni/loopback"),
    ] {
        std::os::unix::fs::symlink(program, folder.join("bin").join(name)).unwrap();
    }
    let mut plugin = net.config();
    plugin["capabilities"]["io.kubernetes.cri.pod-annotations"] = true.into();
    plugin["port"] = json!({ "track": true });
    let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [plugin] });
    std::fs::write(folder.join("net.d/10-pods.conflist"), list.to_string()).unwrap();
}

/// Writes containerd's settings. `folder`: what stays; `run`: what goes with a reboot.
pub fn configure(folder: &Path, run: &Path) {
    let text = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"localhost/pause:1\"\n\
         restrict_oom_score_adj = true\ndisable_apparmor = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {:?}\nconf_dir = {:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n",
        folder.join("root"),
        run.join("state"),
        run.join("containerd.sock"),
        folder.join("cni/bin"),
        folder.join("cni/net.d"),
    );
    std::fs::write(folder.join("config.toml"), text).unwrap();
}

impl Containerd {
    pub fn start(folder: PathBuf) -> Self {
        configure(&folder, &folder);
        let daemon = Self::launch(&folder);
        let containerd = Self { folder, daemon };
        containerd.until_served();
        containerd
    }

    fn launch(folder: &Path) -> Child {
        let log =
            std::fs::File::options().create(true).append(true).open(folder.join("containerd.log")).unwrap();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(folder.join("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn until_served(&self) {
        assert!(within(LIMIT * 3, || self.ctr("version").status.success()), "{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("containerd.log")).unwrap_or_default()
    }

    /// Stops the daemon and starts it again; containers go on.
    pub fn restart(&mut self) {
        end(&mut self.daemon);
        self.daemon = Self::launch(&self.folder);
        self.until_served();
    }

    /// Runs a command in a place where the folders of `ctr`, which no option names, are those of this test.
    fn command(&self, words: &str) -> Command {
        self.command_within("timeout 60", words)
    }

    /// The same, run by another program, or none.
    fn command_within(&self, before: &str, words: &str) -> Command {
        let folder = self.folder.display();
        let script = format!(
            "mkdir -p /etc/cni /opt/cni && mount --bind {folder}/cni /etc/cni && mount --bind {folder}/cni /opt/cni && \
             exec {before} ctr -a {folder}/containerd.sock {words}"
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]);
        command
    }

    pub fn ctr(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    pub fn good(&self, words: &str) -> String {
        good(&mut self.command(words))
    }

    fn exec(&self, name: &str, command: &str) -> Output {
        self.ctr(&format!("task exec --exec-id x{} {name} {command}", std::process::id()))
    }

    /// The address that a container has.
    fn address(&self, name: &str) -> String {
        let output = self.exec(name, "/bin/busybox ip -4 -o address show dev eth0");
        let text = String::from_utf8(output.stdout).unwrap();
        let address = text.split_whitespace().nth(3).and_then(|address| address.split('/').next());
        address.unwrap_or_else(|| panic!("{name} has none: {text} {}", self.log())).to_owned()
    }

    /// Ends a container and forgets it.
    fn kill(&self, name: &str) {
        self.good(&format!("task kill -s KILL {name}"));
        assert!(within(LIMIT, || self.ctr(&format!("task rm {name}")).status.success()), "{}", self.log());
        self.good(&format!("container rm {name}"));
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for namespace in ["default", "k8s.io"] {
            let all = String::from_utf8(self.ctr(&format!("-n {namespace} task ls -q")).stdout).unwrap();
            for task in all.split_whitespace() {
                self.ctr(&format!("-n {namespace} task rm -f {task}"));
            }
        }
        end(&mut self.daemon);
    }
}

#[test]
fn containers_of_ctr_come_and_go_with_ports_and_rules() {
    if lacks(&["containerd --version", "ctr --version", "runc --version", "curl --version", "busybox true"]) {
        return;
    }
    let page = include_str!("../../../../../docs/how-to/pods.md");
    let Some(mut routed) = Routed::start("ct", page, "app") else { return };
    let folder = routed.net.path("containerd");
    std::fs::create_dir(&folder).unwrap();
    plugins(&routed.net, &folder.join("cni"));
    let mut containerd = Containerd::start(folder);
    let image = routed.image(&["localhost/busybox:1"]);
    containerd.good(&format!("image import --snapshotter native {}", image.display()));
    let start = |containerd: &Containerd, name: &str, command: &str| {
        containerd.good(&format!(
            "run -d --cni --snapshotter native localhost/busybox:1 {name} /bin/busybox {command}"
        ));
    };
    start(&containerd, "web", "httpd -f -p 8080 -h /www");
    start(&containerd, "other", "sleep 600");
    let check = |containerd: &Containerd, routed: &Routed, when: &str| {
        let get = format!(
            "/bin/busybox timeout 3 /bin/busybox wget -q -O - http://{}:8080/",
            containerd.address("web")
        );
        let is_served = || containerd.exec("other", &get).stdout == b"hello";
        assert!(within(LIMIT, is_served), "{when}: {}", routed.net.log());
        assert_eq!(routed.net.left(), [2, 2, 2], "{when}");
    };
    check(&containerd, &routed, "at first");
    containerd.restart();
    check(&containerd, &routed, "after a restart of containerd");
    routed.net.restart();
    check(&containerd, &routed, "after a kill of netvmd");
    // One container at a time, the server and its client. `ctr run -d` has called no DEL: the ADD takes its port over.
    for (name, command) in [("web", "httpd -f -p 8080 -h /www"), ("other", "sleep 600")] {
        containerd.kill(name);
        start(&containerd, name, command);
        check(&containerd, &routed, &format!("after a restart of {name}"));
    }
    ["web", "other"].iter().for_each(|name| containerd.kill(name));
    // `ctr run -d` leaves DEL to others.
    let left = routed.net.left();
    assert!(left == [0, 0, 0] || left == [2, 2, 2], "{left:?}");
    routed.net.keep_only(&[]);
    assert_eq!(routed.net.left(), [0, 0, 0]);
    // In the foreground it calls DEL itself, without a namespace, each time.
    start(&containerd, "other", "sleep 600");
    for round in 0..2 {
        let words = "run --rm --null-io --cni --snapshotter native localhost/busybox:1 web /bin/busybox httpd -f -p 8080 -h /www";
        let mut web = containerd.command_within("", words).spawn().unwrap();
        let runs = || containerd.exec("web", "/bin/busybox true").status.success();
        assert!(within(LIMIT, runs), "{}", containerd.log());
        check(&containerd, &routed, &format!("in the foreground, {round}"));
        containerd.good("task kill -s KILL web");
        assert!(within(LIMIT, || web.try_wait().unwrap().is_some()), "{}", containerd.log());
        assert_eq!(routed.net.left(), [1, 1, 1], "{}", containerd.log());
    }
    containerd.kill("other");
    routed.net.keep_only(&[]);
    containerd.good(
        "run --rm --cni --snapshotter native localhost/busybox:1 short /bin/busybox ip address show dev eth0",
    );
    assert_eq!(routed.net.left(), [0, 0, 0], "{}", containerd.log());
    drop(containerd);
    routed.net.purge();
}
