// SPDX-License-Identifier: Apache-2.0
//! Podman, which runs the plug-in itself ([how-to](../../../../../docs/how-to/podman.md)).

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Output;

use super::{Routed, command_of, good, lacks};
use crate::net::PLUGIN;

/// Its own folders, of which nothing stays.
struct Podman(PathBuf);

impl Podman {
    /// The program with its options.
    fn command(&self) -> String {
        let folder = self.0.display();
        format!(
            "env CONTAINERS_CONF={folder}/containers.conf timeout 60 /usr/bin/podman --runtime runc --cgroup-manager=cgroupfs \
             --storage-driver vfs --root {folder}/root --runroot {folder}/runroot --tmpdir {folder}/tmpdir"
        )
    }

    fn run(&self, words: &str) -> Output {
        command_of(&format!("{} {words}", self.command())).output().unwrap()
    }

    fn good(&self, words: &str) -> String {
        good(&mut command_of(&format!("{} {words}", self.command())))
    }

    /// The settings, the network of this test, and an image.
    fn prepare(&self, routed: &Routed) {
        let folder = &self.0;
        let inside = |name: &str| folder.join(name).display().to_string();
        for name in ["plugins", "networks"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        symlink(PLUGIN, folder.join("plugins/netvm-cni")).unwrap();
        symlink("/usr/lib/cni/host-local", folder.join("plugins/host-local")).unwrap();
        let list =
            serde_json::json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [routed.net.config()] });
        std::fs::write(folder.join("networks/10-pods.conflist"), list.to_string()).unwrap();
        let text = format!(
            "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [{:?}]\nnetwork_config_dir = {:?}\n\
             default_network = \"pods\"\n[engine]\nevents_logger = \"file\"\n[containers]\n\
             default_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n",
            inside("plugins"),
            inside("networks")
        );
        std::fs::write(folder.join("containers.conf"), text).unwrap();
        let image = routed.image(&["localhost/busybox:1", "docker.io/library/busybox:latest"]);
        self.good(&format!("load -i {}", image.display()));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.run("rm -f -t 0 -a");
    }
}

/// A server, published.
const WEB: &str =
    "run -d --name web --network pods -p 8080:8080 localhost/busybox:1 /bin/busybox httpd -f -p 8080 -h /www";

#[test]
fn containers_of_podman_come_and_go_with_ports_and_rules() {
    if lacks(&["podman --version", "runc --version", "curl --version", "busybox true"]) {
        return;
    }
    let page = include_str!("../../../../../docs/how-to/podman.md");
    let Some(mut routed) = Routed::start("pm", page, "pod") else { return };
    {
        let podman = Podman(routed.net.folder.path().to_owned());
        podman.prepare(&routed);
        routed.shim("podman", &podman.command());
        routed.follow_page();
        podman.good("rm -f -t 0 -a");
        assert_eq!(routed.net.left(), [0, 0, 0], "{}", routed.net.log());
        podman.good(WEB);
        for name in ["app", "other"] {
            podman.good(&format!(
                "run -d --name {name} --network pods localhost/busybox:1 /bin/busybox sleep 600"
            ));
        }
        let web = podman.good("exec web /bin/busybox hostname -i");
        routed.until_published("at first");
        routed.check_traffic(&web, |name, command| podman.run(&format!("exec {name} {command}")));
        podman.good("restart -t 0 web");
        routed.until_published("after a restart of the container");
        assert_eq!(routed.net.left(), [3, 3, 3]);
        routed.net.restart();
        routed.until_published("after a kill of netvmd");
        assert_eq!(routed.net.left(), [3, 3, 3]);
    }
    assert_eq!(routed.net.left(), [0, 0, 0], "{}", routed.net.log());
    {
        let podman = Podman(routed.net.folder.path().to_owned());
        podman.good(WEB);
        // Podman forgets a container that ends while netvmd does not run, and never asks again.
        routed.net.stop();
        podman.good("rm -f -t 0 web");
        routed.net.start_again();
    }
    assert_eq!(routed.net.left(), [0, 0, 0]);
    routed.net.purge();
}
