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
        let folder = self.folder.display();
        let script = format!(
            "mkdir -p /etc/cni /opt/cni && mount --bind {folder}/cni /etc/cni && mount --bind {folder}/cni /opt/cni && \
             exec timeout 60 ctr -a {folder}/containerd.sock {words}"
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
    let exec = |containerd: &Containerd, name: &str, command: &str| {
        containerd.ctr(&format!("task exec --exec-id x{} {name} {command}", std::process::id()))
    };
    let address = exec(&containerd, "web", "/bin/busybox ip -4 -o address show dev eth0");
    let address = String::from_utf8(address.stdout).unwrap();
    let web = address.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    let get = format!("/bin/busybox timeout 3 /bin/busybox wget -q -O - http://{web}:8080/");
    let is_served = |containerd: &Containerd| exec(containerd, "other", &get).stdout == b"hello";
    assert!(within(LIMIT, || is_served(&containerd)), "{}", routed.net.log());
    assert_eq!(routed.net.left(), [2, 2, 2]);
    containerd.restart();
    assert!(within(LIMIT, || is_served(&containerd)), "after a restart of containerd: {}", routed.net.log());
    routed.net.restart();
    assert!(within(LIMIT, || is_served(&containerd)), "after a kill of netvmd: {}", routed.net.log());
    for name in ["web", "other"] {
        containerd.good(&format!("task kill -s KILL {name}"));
        within(LIMIT, || containerd.ctr(&format!("task rm {name}")).status.success());
        containerd.good(&format!("container rm {name}"));
    }
    // `ctr run -d` leaves DEL to others.
    let left = routed.net.left();
    assert!(left == [0, 0, 0] || left == [2, 2, 2], "{left:?}");
    routed.net.keep_only(&[]);
    assert_eq!(routed.net.left(), [0, 0, 0]);
    // In the foreground it calls DEL itself, without a namespace.
    containerd.good(
        "run --rm --cni --snapshotter native localhost/busybox:1 short /bin/busybox ip address show dev eth0",
    );
    assert_eq!(routed.net.left(), [0, 0, 0], "{}", containerd.log());
    drop(containerd);
    routed.net.purge();
}
