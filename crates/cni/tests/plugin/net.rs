// SPDX-License-Identifier: Apache-2.0
//! netvmd, network namespaces, and calls of the plug-in.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

pub use netvm_testing::within;

const HOST_LOCAL: &str = "/usr/lib/cni/host-local";
pub const PLUGIN: &str = env!("CARGO_BIN_EXE_netvm-cni");

/// netvmd, and a folder for everything; both go on drop.
pub struct Net {
    pub folder: TempDir,
    pub netvmd: Child,
}

pub fn run(command: &str) -> Output {
    let mut words = command.split(' ');
    Command::new(words.next().unwrap()).args(words).output().unwrap()
}

/// Whether a command succeeds.
pub fn succeeds(command: &str) -> bool {
    let mut words = command.split(' ');
    Command::new(words.next().unwrap()).args(words).output().is_ok_and(|output| output.status.success())
}

/// A network namespace; removed on drop.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(name: &str) -> Self {
        let name = format!("cni{}{name}", std::process::id());
        assert!(run(&format!("ip netns add {name}")).status.success());
        Self(name)
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    pub fn succeeds(&self, command: &str) -> bool {
        run(&format!("ip netns exec {} {command}", self.0)).status.success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(&format!("ip netns delete {}", self.0));
    }
}

/// One call of the plug-in.
#[derive(Clone)]
pub struct Call {
    pub command: &'static str,
    pub container: String,
    pub namespace: String,
    /// Where plug-ins are.
    pub folders: String,
    pub config: Value,
}

impl Call {
    pub fn start(&self) -> Child {
        let mut child = Command::new(PLUGIN)
            .env_clear()
            .env("CNI_COMMAND", self.command)
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_NETNS", &self.namespace)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.folders)
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // One that fails at once does not read it.
        let _ = child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes());
        child
    }

    pub fn outcome(&self) -> Result<Value, Value> {
        let output = self.start().wait_with_output().unwrap();
        let value = || serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() { Ok(value()) } else { Err(value()) }
    }

    pub fn good(&self) -> Value {
        self.outcome().unwrap_or_else(|error| panic!("{} {}: {error}", self.command, self.container))
    }

    /// The code and the message of its error.
    pub fn bad(&self) -> (u64, String) {
        let error = self.outcome().unwrap_err();
        (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
    }
}

impl Net {
    /// `None` where it is not possible; prints why.
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// The same with more of netvmd's configuration.
    pub fn start_with(more: &str) -> Option<Self> {
        let netvmd = Path::new(PLUGIN).with_file_name("netvmd");
        for (what, is_there) in [
            ("root", rustix::process::geteuid().is_root()),
            ("netvmd beside netvm-cni", netvmd.is_file()),
            ("host-local (Debian's containernetworking-plugins)", Path::new(HOST_LOCAL).is_file()),
            ("ip", Command::new("ip").arg("-V").output().is_ok()),
        ] {
            if !is_there {
                println!("SKIP: this test needs {what}");
                return None;
            }
        }
        let folder = TempDir::new().unwrap();
        let text = "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n[[group]]\nname = \"edge\"\nbuffers = 2048\n\
                    [[rule]]\nfrom = { label = \"app=db\" }\nto = { label = \"app=cache\" }\ndrop = true\n";
        std::fs::write(folder.path().join("host.toml"), text.to_owned() + more).unwrap();
        let netvmd = Self::launch(folder.path());
        let net = Self { folder, netvmd };
        net.until_served();
        Some(net)
    }

    fn launch(folder: &Path) -> Child {
        let mut command = Command::new(Path::new(PLUGIN).with_file_name("netvmd"));
        command.arg("--config").arg(folder.join("host.toml")).arg("--run-dir").arg(folder.join("run"));
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// What is recorded of each port that netvmd has added.
    pub fn ports(&self) -> Vec<String> {
        let text = std::fs::read(self.path("run/state/live.json")).unwrap_or_default();
        let live: Value = serde_json::from_slice(&text).unwrap_or_else(|_| json!({ "ports": [] }));
        live["ports"].as_array().unwrap().iter().map(ToString::to_string).collect()
    }

    pub fn until_served(&self) {
        let status = self.call("STATUS", "x", "");
        assert!(within(Duration::from_secs(30), || status.outcome().is_ok()), "{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Stops it, and has it remove the namespaces of its routers.
    pub fn purge(&mut self) {
        let netvm = Path::new(PLUGIN).with_file_name("netvm");
        if netvm.is_file() {
            let socket = self.path("run/api.sock");
            Command::new(netvm)
                .arg("--socket")
                .arg(socket)
                .args(["stop", "--yes", "--purge"])
                .output()
                .unwrap();
        }
    }

    /// Kills netvmd and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Kills netvmd.
    pub fn stop(&mut self) {
        self.netvmd.kill().unwrap();
        self.netvmd.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.launch_again();
        self.until_served();
    }

    /// Starts it, and does not wait until it serves requests.
    pub fn launch_again(&mut self) {
        self.netvmd = Self::launch(self.folder.path());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "netvm-cni",
            "socket": self.path("run/api.sock"), "dataDir": self.path("records"),
            "capabilities": { "portMappings": true, "bandwidth": true, "mac": true, "ips": true },
            "ipam": {
                "type": "host-local", "dataDir": self.path("ipam"), "routes": [{ "dst": "0.0.0.0/0" }],
                "ranges": [[{ "subnet": "10.77.0.0/24", "gateway": "10.77.0.1" }]]
            }
        })
    }

    pub fn call(&self, command: &'static str, container: &str, namespace: &str) -> Call {
        let (container, namespace) = (container.to_owned(), namespace.to_owned());
        Call { command, container, namespace, folders: "/usr/lib/cni".to_owned(), config: self.config() }
    }

    /// GC with these containers.
    pub fn keep_only(&self, containers: &[&str]) {
        let valid: Vec<Value> =
            containers.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" })).collect();
        let mut call = self.call("GC", "", "");
        call.config["cni.dev/valid-attachments"] = valid.into();
        call.good();
    }

    /// Records, addresses and ports of containers, which are equally many when nothing is going on.
    pub fn left(&self) -> [usize; 3] {
        let files = |name: &str, is_one: &dyn Fn(&str) -> bool| {
            let entries = std::fs::read_dir(self.path(name)).into_iter().flatten().flatten();
            entries.filter(|entry| is_one(&entry.file_name().to_string_lossy())).count()
        };
        let is_address = |name: &str| name.starts_with("10.");
        let is_record = |name: &str| name.ends_with(".json");
        [files("records/pods", &is_record), files("ipam/pods", &is_address), self.ports().len()]
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.netvmd.kill();
        let _ = self.netvmd.wait();
    }
}
