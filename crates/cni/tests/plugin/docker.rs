// SPDX-License-Identifier: Apache-2.0
//! `netvm docker`, asked as Docker asks, with netvmd and network namespaces.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::net::{Namespace, Net, PLUGIN, run, within};

fn netvm() -> PathBuf {
    Path::new(PLUGIN).with_file_name("netvm")
}

/// The driver; ends on drop.
pub struct Driver {
    child: Child,
    name: String,
    folder: PathBuf,
}

impl Driver {
    /// `None` if there is no program netvm; prints it.
    pub fn start(net: &Net, folder: &Path, name: &str) -> Option<Self> {
        if !netvm().is_file() {
            println!("SKIP: no program netvm beside netvm-cni");
            return None;
        }
        let child = Self::launch(net, folder, name);
        let driver = Self { child, name: name.to_owned(), folder: folder.to_owned() };
        driver.until_served();
        Some(driver)
    }

    fn launch(net: &Net, folder: &Path, name: &str) -> Child {
        let mut command = Command::new(netvm());
        command.arg("--socket").arg(net.path("run/api.sock")).args(["docker", "--name", name]);
        command.arg("--socket-folder").arg(folder).arg("--state").arg(net.path("docker-driver"));
        command.arg("--docker").arg(net.path("docker/docker.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn until_served(&self) {
        let is_served =
            || self.ask("Plugin.Activate", &json!({})) == json!({ "Implements": ["NetworkDriver"] });
        assert!(within(Duration::from_secs(20), is_served));
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self, net: &Net) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = Self::launch(net, &self.folder, &self.name);
        self.until_served();
    }

    fn ask(&self, request: &str, body: &Value) -> Value {
        let mut command = Command::new("curl");
        command
            .args(["-s", "-m", "30", "--unix-socket"])
            .arg(self.folder.join(format!("{}.sock", self.name)));
        let url = format!("http://plugin/{request}");
        let output = command.args(["-d", &body.to_string(), &url]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn endpoint(&self, request: &str, endpoint: &str, more: &Value) -> Value {
        let mut body = json!({ "NetworkID": "n1", "EndpointID": endpoint });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.ask(&format!("NetworkDriver.{request}"), &body)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.folder.join(format!("{}.sock", self.name)));
    }
}

#[test]
fn docker_creates_joins_and_leaves_across_kills() {
    let Some(mut net) = Net::start() else { return };
    let folder = net.path("plugins");
    let Some(mut driver) = Driver::start(&net, &folder, "nv") else { return };
    let done = json!({});
    let options = json!({ "netvm.label.network": "shop", "netvm.port": "mtu = 1400" });
    let network = json!({
        "NetworkID": "n1", "Options": { "com.docker.network.generic": options },
        "IPv4Data": [{ "Pool": "10.77.0.0/24", "Gateway": "10.77.0.1/24" }], "IPv6Data": [],
    });
    assert_eq!(driver.ask("NetworkDriver.CreateNetwork", &network), done);
    let a = Namespace::new("da");
    let late = format!("cni{}db", std::process::id());
    let interface = |address: &str| json!({ "Interface": { "Address": address }, "Options": { "netvm.label.app": "web" } });
    for (endpoint, address, sandbox) in
        [("e1", "10.77.0.2/24", a.path()), ("e2", "10.77.0.3/24", format!("/run/netns/{late}"))]
    {
        let created = driver.endpoint("CreateEndpoint", endpoint, &interface(address));
        assert_eq!(created, json!({ "Interface": {} }));
        let joined = driver.endpoint("Join", endpoint, &json!({ "SandboxKey": sandbox }));
        assert_eq!(joined, json!({ "DisableGatewayService": true }), "{}", net.log());
    }
    assert_eq!(net.ports().len(), 2);
    assert!(net.ports()[0].contains("mtu = 1400") && net.ports()[0].contains("app = "), "{:?}", net.ports());
    // Docker makes the namespace of a container after it has joined.
    let b = Namespace::new("db");
    let pings = || b.succeeds("busybox ping -c 1 -W 1 10.77.0.2");
    assert!(within(Duration::from_secs(20), pings), "{}", net.log());
    assert!(
        String::from_utf8(run(&format!("ip netns exec {} ip route", b.0)).stdout)
            .unwrap()
            .contains("10.77.0.1")
    );
    driver.restart(&net);
    net.restart();
    assert!(within(Duration::from_secs(20), pings), "{}", net.log());
    // While netvmd does not run, containers end; Docker asks only once.
    net.stop();
    assert_eq!(driver.endpoint("Leave", "e2", &json!({})), done);
    assert_eq!(driver.endpoint("DeleteEndpoint", "e2", &json!({})), done);
    let error = driver.endpoint("Join", "e1", &json!({ "SandboxKey": a.path() }));
    assert!(error["Err"].as_str().is_some_and(|why| why.contains("no netvmd answers")), "{error}");
    driver.endpoint("CreateEndpoint", "e3", &interface("10.77.0.4/24"));
    net.start_again();
    assert_eq!(net.call("STATUS", "", "").good(), Value::Null);
    let joined = driver.endpoint("Join", "e3", &json!({ "SandboxKey": b.path() }));
    assert_eq!(joined, json!({ "DisableGatewayService": true }), "{}", net.log());
    assert!(net.ports().len() == 1 && net.ports()[0].contains("e3"), "{:?}", net.ports());
    // What is wrong.
    for (request, endpoint, more, words) in [
        ("Join", "e9", json!({ "SandboxKey": "/x" }), "does not know endpoint e9"),
        ("CreateEndpoint", "../x", json!({}), "no ID"),
        ("Fly", "e1", json!({}), "does not know NetworkDriver.Fly"),
    ] {
        let error = driver.endpoint(request, endpoint, &more);
        assert!(error["Err"].as_str().is_some_and(|why| why.contains(words)), "{error}");
    }
    let mut wrong = interface("10.77.0.5/24");
    wrong["Options"]["netvm.port"] = "forwards = 1".into();
    driver.endpoint("CreateEndpoint", "e4", &wrong);
    let error = driver.endpoint("Join", "e4", &json!({ "SandboxKey": a.path() }));
    assert!(error["Err"].as_str().is_some_and(|why| why.contains("unknown key `forwards`")), "{error}");
    assert_eq!(driver.ask("NetworkDriver.DeleteNetwork", &json!({ "NetworkID": "n1" })), done);
    assert!(net.ports().is_empty());
}
