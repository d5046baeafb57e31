// SPDX-License-Identifier: Apache-2.0
//! Containers of the runtimes that people use: their traffic, published ports and rules by label, across restarts of
//! the runtime and kills of netvmd. Each test first runs the commands of its how-to. They run for `./dev
//! check-release`, which sets `NETVM_TEST_RUNTIMES`.

mod cnitool;
mod containerd;
mod cri;
mod docker;
mod podman;
mod reboot;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::json;

use crate::net::{Namespace, Net, within};

/// How long a change may take until packets pass as it says.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether these tests are not wanted, or something that they need does not work here; prints what.
fn lacks(tools: &[&str]) -> bool {
    if std::env::var_os("NETVM_TEST_RUNTIMES").is_none() {
        println!("SKIP: NETVM_TEST_RUNTIMES=1 runs the tests of container runtimes");
        return true;
    }
    let tool = tools.iter().find(|tool| !crate::net::succeeds(tool));
    tool.inspect(|tool| println!("SKIP: `{tool}` does not work here")).is_some()
}

/// A program that `./dev check-release` builds, as Debian does not have it.
fn built(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
    target.join("guest").join(name).join("bin").join(name)
}

/// netvmd with the configuration of a how-to, and folders of which nothing stays.
struct Routed {
    net: Net,
    host: Namespace,
    page: &'static str,
}

impl Routed {
    /// With a rule about the label `KEY=app`: such containers may not use port 8080 of others. `None` where it is not
    /// possible.
    fn start(name: &str, page: &'static str, key: &str) -> Option<Self> {
        let host = Namespace::new(name);
        let rule = format!(
            "[[rule]]\nname = \"not-for-app\"\nfrom = {{ label = \"{key}=app\" }}\ndrop = true\n\
             match = {{ protocol = \"tcp\", destination = \"10.77.0.0/24\", destination_ports = 8080 }}\n"
        );
        let text = block(page, "toml").replace("edge", &format!("{name}{}", std::process::id()));
        let text = text.replace("\"clients\"", &format!("\"{}\"", host.0)) + &rule;
        Some(Self { net: Net::start_with(&text)?, host, page })
    }

    /// A program that the how-to's commands find by its name: this command, with their arguments behind it.
    fn shim(&self, name: &str, command: &str) {
        let folder = self.net.path("shims");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\nexec {command} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Runs the commands of the how-to, and compares what they print with what it says: each of its lines is the
    /// beginning of one.
    fn follow_page(&self) {
        let netvm = Path::new(crate::net::PLUGIN).with_file_name("netvm");
        self.shim(
            "netvm",
            &format!("{} --socket {}", netvm.display(), self.net.path("run/api.sock").display()),
        );
        let path = format!("{}:{}", self.net.path("shims").display(), std::env::var("PATH").unwrap());
        let commands = block(self.page, "console").replace(" clients ", &format!(" {} ", self.host.0));
        for one in commands.split("# ").filter(|one| !one.trim().is_empty()) {
            let (command, expected) = one.split_once('\n').unwrap_or((one, ""));
            let run = || {
                let mut sh = Command::new("sh");
                sh.args(["-c", command]).env("PATH", &path).current_dir(self.net.folder.path());
                let output = sh.output().unwrap();
                let printed =
                    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
                (output.status.success() || !expected.is_empty(), printed)
            };
            let is_as_said = |printed: &str| {
                expected.lines().all(|line| printed.lines().any(|printed| printed.starts_with(line)))
            };
            let (mut is_good, mut printed) = run();
            // What only reads may come early.
            within(if expected.is_empty() { Duration::ZERO } else { LIMIT }, || {
                if !is_as_said(&printed) {
                    (is_good, printed) = run();
                }
                is_as_said(&printed)
            });
            assert!(is_good && is_as_said(&printed), "{command}: {printed} {}", self.net.log());
        }
    }

    /// Waits until port 8080 of the router leads to the server of a container.
    fn until_published(&self, when: &str) {
        let get = format!("ip netns exec {} curl -s -f -m 2 http://203.0.113.2:8080/", self.host.0);
        assert!(within(LIMIT, || crate::net::run(&get).stdout == b"hello"), "{when}: {}", self.net.log());
    }

    /// Checks the traffic between a server `web`, a container `app` that the rule is for, and `other`.
    fn check_traffic(&self, web: &str, exec: impl Fn(&str, &str) -> Output) {
        let get = format!("/bin/busybox timeout 3 /bin/busybox wget -q -O - http://{web}:8080/");
        // crictl adds line ends.
        let is_served = || exec("other", &get).stdout.trim_ascii() == b"hello";
        assert!(within(LIMIT, is_served), "{:?} {}", exec("other", &get), self.net.log());
        let ping = exec("app", &format!("/bin/busybox ping -c 1 -W 3 {web}"));
        assert!(ping.status.success(), "{ping:?}");
        assert!(!exec("app", &get).status.success(), "its label keeps it out");
    }

    /// An image with busybox and a page for its server, as `docker save` writes it, by each of these names.
    fn image(&self, names: &[&str]) -> PathBuf {
        let folder = self.net.path("image");
        for inside in ["layer/bin", "layer/www"] {
            std::fs::create_dir_all(folder.join(inside)).unwrap();
        }
        std::fs::copy("/bin/busybox", folder.join("layer/bin/busybox")).unwrap();
        for applet in ["httpd", "wget", "sleep", "ip"] {
            let _ = std::os::unix::fs::symlink("busybox", folder.join("layer/bin").join(applet));
        }
        std::fs::write(folder.join("layer/www/index.html"), "hello").unwrap();
        tar(&folder.join("layer"), &folder.join("layer.tar"), &["."]);
        let sum = good(Command::new("sha256sum").arg(folder.join("layer.tar")));
        let sum = sum.split(' ').next().unwrap();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Cmd": ["/bin/sleep", "100000"], "Env": ["PATH=/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] }, "history": [{}],
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let manifest = json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
        std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
        let image = self.net.path("image.tar");
        tar(&folder, &image, &["manifest.json", "config.json", "layer.tar"]);
        image
    }
}

/// The first block of a page in a language.
fn block(page: &str, language: &str) -> String {
    blocks(page, language).into_iter().next().unwrap()
}

/// All of them.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

fn tar(folder: &Path, into: &Path, files: &[&str]) {
    good(Command::new("tar").arg("cf").arg(into).arg("-C").arg(folder).args(files));
}

/// The command of a line whose words have no spaces.
fn command_of(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// What a command says, which must succeed.
fn good(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Ends a program, kindly, and waits for it.
fn end(child: &mut std::process::Child) {
    let pid = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let has_ended = within(LIMIT, || child.try_wait().is_ok_and(|ended| ended.is_some()));
    if !has_ended {
        let _ = child.kill();
        let _ = child.wait();
    }
}
