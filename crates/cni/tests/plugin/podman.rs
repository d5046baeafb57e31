//! Containers of Podman: their traffic, published ports and rules by label, across kills of netvmd.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use crate::net::{Namespace, Net, PLUGIN, within};

/// A gateway for the containers, and another network behind the router, where `HOST` is.
const ROUTED: &str = r#"
[[port]]
name = "gateway"
kind = "bridge"
forward = { router = "ROUTER" }

[[port]]
name = "host"
kind = "container"
namespace = "HOST"
addresses = ["203.0.113.1/24"]
forward = { router = "ROUTER" }

[[router]]
name = "ROUTER"

[[router.interface]]
name = "lan"
port = "gateway"
addresses = ["10.77.0.1/24"]

[[router.interface]]
name = "wan"
port = "host"
addresses = ["203.0.113.2/24"]
snat = "masquerade"

[[rule]]
name = "not-for-app"
from = { label = "pod=app" }
match = { protocol = "tcp", destination = "10.77.0.0/24", destination_ports = 8080 }
drop = true
"#;

/// Its own folders, of which nothing stays.
struct Podman(PathBuf);

impl Podman {
    fn run(&self, words: &str) -> Output {
        let folder = &self.0;
        let mut command = Command::new("timeout");
        command.args([
            "60",
            "podman",
            "--runtime",
            "runc",
            "--cgroup-manager=cgroupfs",
            "--storage-driver",
            "vfs",
        ]);
        for option in ["root", "runroot", "tmpdir"] {
            command.arg(format!("--{option}")).arg(folder.join(option));
        }
        command
            .env("CONTAINERS_CONF", folder.join("containers.conf"))
            .args(words.split(' '))
            .output()
            .unwrap()
    }

    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The settings, the network of this test, and an image with busybox.
    fn prepare(&self, net: &Net) {
        let folder = &self.0;
        let inside = |name: &str| folder.join(name).display().to_string();
        for name in ["plugins", "networks", "image/bin", "image/www"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        symlink(PLUGIN, folder.join("plugins/netvm-cni")).unwrap();
        symlink("/usr/lib/cni/host-local", folder.join("plugins/host-local")).unwrap();
        let mut plugin = net.config();
        let list = serde_json::json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [plugin.take()] });
        std::fs::write(folder.join("networks/10-pods.conflist"), list.to_string()).unwrap();
        let text = format!(
            "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [{:?}]\nnetwork_config_dir = {:?}\n\
             default_network = \"pods\"\n[engine]\nevents_logger = \"file\"\n[containers]\n\
             default_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n",
            inside("plugins"),
            inside("networks")
        );
        std::fs::write(folder.join("containers.conf"), text).unwrap();
        std::fs::copy("/bin/busybox", folder.join("image/bin/busybox")).unwrap();
        std::fs::write(folder.join("image/www/index.html"), "hello").unwrap();
        let packed =
            Command::new("tar").args(["cf", &inside("image.tar"), "-C", &inside("image"), "."]).status();
        assert!(packed.unwrap().success());
        self.good(&format!("import {} localhost/busybox:1", inside("image.tar")));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.run("rm -f -t 0 -a");
    }
}

#[test]
fn containers_of_podman_come_and_go_with_ports_and_rules() {
    let tools = ["podman --version", "runc --version", "curl --version", "busybox true"];
    let works = |tool: &&str| crate::net::succeeds(tool);
    if let Some(tool) = tools.iter().find(|tool| !works(tool)) {
        println!("SKIP: `{tool}` does not work here");
        return;
    }
    let (host, router) = (Namespace::new("ph"), format!("cp{}", std::process::id()));
    let Some(mut net) = Net::start_with(&ROUTED.replace("ROUTER", &router).replace("HOST", &host.0)) else {
        return;
    };
    let get = format!("ip netns exec {} curl -s -f -m 2 http://203.0.113.2:8080/", host.0);
    let is_published = || crate::net::succeeds(&get);
    {
        let podman = Podman(net.folder.path().to_owned());
        podman.prepare(&net);
        podman.good("run -d --name web --network pods -p 8080:8080 localhost/busybox:1 /bin/busybox httpd -f -p 8080 -h /www");
        for name in ["app", "other"] {
            podman.good(&format!(
                "run -d --name {name} --network pods localhost/busybox:1 /bin/busybox sleep 600"
            ));
        }
        let web = podman.good("exec web /bin/busybox hostname -i");
        assert!(within(Duration::from_secs(10), is_published), "{}", net.log());
        let fetch = |from: &str| {
            podman.run(&format!(
                "exec {from} /bin/busybox timeout 3 /bin/busybox wget -q -O - http://{web}:8080/"
            ))
        };
        assert_eq!(fetch("other").stdout, b"hello", "{}", net.log());
        assert!(podman.run(&format!("exec app /bin/busybox ping -c 1 -W 3 {web}")).status.success());
        assert!(!fetch("app").status.success(), "its label keeps it out");
        podman.good("restart -t 0 web");
        assert!(within(Duration::from_secs(10), is_published), "{}", net.log());
        assert_eq!(net.left(), [3, 3, 3]);
        net.restart();
        assert!(within(Duration::from_secs(10), is_published), "after a kill of netvmd: {}", net.log());
        assert_eq!(net.left(), [3, 3, 3]);
    }
    assert_eq!(net.left(), [0, 0, 0], "{}", net.log());
    {
        let podman = Podman(net.folder.path().to_owned());
        podman.good("run -d --name web --network pods -p 8080:8080 localhost/busybox:1 /bin/busybox httpd -f -p 8080 -h /www");
    }
    assert_eq!(net.left(), [0, 0, 0]);
    net.purge();
}
