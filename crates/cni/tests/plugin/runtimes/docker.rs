// SPDX-License-Identifier: Apache-2.0
//! Docker, whose network driver is `netvm docker` ([how-to](../../../../../docs/how-to/docker.md)).

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use super::{LIMIT, Routed, command_of, end, good, lacks};
use crate::docker::Driver;
use crate::net::within;

/// Where Docker looks for plug-ins; no option of it names another folder.
const PLUGINS: &str = "/run/docker/plugins";

/// Debian's client: a newer one may refuse its daemon.
const DOCKER: &str = "/usr/bin/docker";

/// Its own daemon, with its own folders.
struct Docker {
    folder: PathBuf,
    daemon: Child,
}

impl Docker {
    fn start(folder: PathBuf) -> Self {
        let daemon = Self::launch(&folder);
        let docker = Self { folder, daemon };
        docker.until_served();
        docker
    }

    fn launch(folder: &std::path::Path) -> Child {
        let log =
            std::fs::File::options().create(true).append(true).open(folder.join("dockerd.log")).unwrap();
        let mut command = Command::new("dockerd");
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]);
        command.args(["--default-ulimit", "nofile=1024:1024", "--default-ulimit", "nproc=4096:4096"]);
        command.arg("--data-root").arg(folder.join("data")).arg("--exec-root").arg(folder.join("exec"));
        command.arg("--pidfile").arg(folder.join("docker.pid"));
        command.arg("--host").arg(format!("unix://{}", folder.join("docker.sock").display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn until_served(&self) {
        let log = || std::fs::read_to_string(self.folder.join("dockerd.log")).unwrap_or_default();
        assert!(within(LIMIT * 3, || self.run("version").status.success()), "{}", log());
    }

    /// Stops the daemon, with all containers, and starts it again.
    fn restart(&mut self) {
        end(&mut self.daemon);
        self.daemon = Self::launch(&self.folder);
        self.until_served();
    }

    /// The program with its options.
    fn command(&self) -> String {
        format!("timeout 60 {DOCKER} -H unix://{}", self.folder.join("docker.sock").display())
    }

    fn run(&self, words: &str) -> Output {
        command_of(&format!("{} {words}", self.command())).output().unwrap()
    }

    fn good(&self, words: &str) -> String {
        good(&mut command_of(&format!("{} {words}", self.command())))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        end(&mut self.daemon);
    }
}

#[test]
fn containers_of_docker_come_and_go_with_ports_and_rules() {
    if lacks(&[
        "dockerd --version",
        &format!("{DOCKER} --version"),
        "runc --version",
        "curl --version",
        "busybox true",
    ]) {
        return;
    }
    let page = include_str!("../../../../../docs/how-to/docker.md");
    let Some(mut routed) = Routed::start("dk", page, "app") else { return };
    let name = format!("netvm{}", std::process::id());
    let Some(mut driver) = Driver::start(&routed.net, PLUGINS.as_ref(), &name) else { return };
    let folder = routed.net.path("docker");
    std::fs::create_dir(&folder).unwrap();
    let mut docker = Docker::start(folder);
    let image = routed.image(&["localhost/busybox:1", "busybox:latest"]);
    docker.good(&format!("load -i {}", image.display()));
    // Its driver has another name, as Docker finds plug-ins in one folder.
    let create =
        format!("case $1$2 in networkcreate) shift 4; set -- network create -d {name} \"$@\";; esac; exec");
    routed.shim("docker", &docker.command());
    let shim = routed.net.path("shims/docker");
    std::fs::write(&shim, std::fs::read_to_string(&shim).unwrap().replace("exec", &create)).unwrap();
    routed.follow_page();
    docker.good("rm -f web db other");
    assert!(routed.net.ports().is_empty(), "{:?}", routed.net.ports());
    docker.good("run -d --name web --network shop -p 8080:8080 localhost/busybox:1 /bin/busybox httpd -f -p 8080 -h /www");
    // A label of the endpoint, and a label of the container.
    for (name, options) in
        [("other", "name=shop,driver-opt=netvm.label.app=other"), ("app", "shop --label app=app")]
    {
        docker.good(&format!(
            "run -d --name {name} --network {options} localhost/busybox:1 /bin/busybox sleep 600"
        ));
    }
    // It comes from Docker's API, once the container runs.
    let until_labelled = |routed: &Routed| {
        let has_label = || routed.net.ports().iter().any(|port| port.contains(r#"app = \"app\""#));
        assert!(within(LIMIT, has_label), "{:?}", routed.net.ports());
    };
    until_labelled(&routed);
    let address = "inspect -f {{.NetworkSettings.Networks.shop.IPAddress}} web";
    let web = docker.good(address);
    routed.until_published("at first");
    routed.check_traffic(&web, |name, command| docker.run(&format!("exec {name} {command}")));
    docker.good("restart -t 0 web");
    routed.until_published("after a restart of the container");
    routed.net.restart();
    routed.until_published("after a kill of netvmd");
    driver.restart(&routed.net);
    docker.good("restart -t 0 app");
    until_labelled(&routed);
    let web = docker.good(address);
    routed.check_traffic(&web, |name, command| docker.run(&format!("exec {name} {command}")));
    assert_eq!(routed.net.ports().len(), 3);
    docker.restart();
    assert!(routed.net.ports().is_empty(), "containers ended with Docker: {:?}", routed.net.ports());
    for name in ["web", "app", "other"] {
        docker.good(&format!("start {name}"));
    }
    routed.until_published("after a restart of Docker");
    // netvmd does not run while a container ends.
    routed.net.stop();
    docker.good("rm -f app");
    routed.net.start_again();
    routed.until_published("after a restart of netvmd");
    assert_eq!(routed.net.ports().len(), 2);
    docker.good("rm -f web other");
    docker.good("network rm shop");
    assert!(routed.net.ports().is_empty(), "{:?}", routed.net.ports());
    drop(docker);
    drop(driver);
    routed.net.purge();
}
