// SPDX-License-Identifier: Apache-2.0
//! cnitool, the CNI project's own client: every verb, twice, with kills at any point between, and many attachments.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::containerd::plugins;
use super::{built, good, lacks};
use crate::net::{Namespace, Net};
use crate::{attachments, rounds};

/// What a runtime may ask for, each of it twice.
const VERBS: [&str; 10] = ["add", "add", "check", "check", "status", "status", "del", "del", "gc", "gc"];

/// cnitool with folders of its own.
struct Cnitool(PathBuf);

impl Cnitool {
    /// `None` if it is not wanted, or not there; prints why.
    fn prepare(net: &Net) -> Option<Self> {
        if lacks(&["unshare --version"]) {
            return None;
        }
        if !built("cnitool").is_file() {
            println!("SKIP: no cnitool, which `./dev check-release` builds");
            return None;
        }
        let folder = net.path("cnitool");
        std::fs::create_dir_all(folder.join("cache")).unwrap();
        plugins(net, &folder);
        let list = folder.join("net.d/10-pods.conflist");
        let mut text: Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
        text["cniVersion"] = "1.1.0".into();
        std::fs::write(list, text.to_string()).unwrap();
        Some(Self(folder))
    }

    /// Runs it in a place where its cache, which no option names, is that of this test.
    fn command(&self, verb: &str, namespace: &Namespace) -> Command {
        let (folder, program) = (self.0.display(), built("cnitool"));
        let script = format!(
            "mkdir -p /var/lib/cni && mount --bind {folder}/cache /var/lib/cni && exec {} {verb} pods {}",
            program.display(),
            namespace.path()
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).process_group(0);
        command.env("CNI_PATH", self.0.join("bin")).env("NETCONFPATH", self.0.join("net.d"));
        let mappings = json!({ "portMappings": [], "bandwidth": { "ingressRate": 0, "egressRate": 0 } });
        command.env("CAP_ARGS", mappings.to_string());
        command.stdin(Stdio::null());
        command
    }
}

#[test]
fn cnitool_does_every_verb_twice_whatever_is_killed_between() {
    let Some(mut net) = Net::start() else { return };
    let Some(cnitool) = Cnitool::prepare(&net) else { return };
    let namespace = Namespace::new("cto");
    let mut random = crate::random();
    for round in 0..rounds() {
        let killed = random(VERBS.len() as u64) as usize;
        for (step, verb) in VERBS.iter().enumerate() {
            if step == killed {
                let mut child = cnitool.command(verb, &namespace).stdout(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(random(80_000)));
                match random(4) {
                    0 => net.restart(),
                    // Its plug-in goes on, and the next one must wait for it.
                    1 => child.kill().unwrap(),
                    _ => {
                        let group = rustix::process::Pid::from_child(&child);
                        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                    }
                }
                let _ = child.wait();
            }
            let printed = good(&mut cnitool.command(verb, &namespace));
            assert!(*verb != "add" || printed.contains("10.77.0."), "round {round}: {printed}");
        }
        assert_eq!(net.left(), [0, 0, 0], "round {round}: {}", net.log());
        assert!(!namespace.succeeds("ip link show dev eth0"), "round {round}");
    }
}

#[test]
fn cnitool_attaches_many() {
    let Some(net) = Net::start() else { return };
    let Some(cnitool) = Cnitool::prepare(&net) else { return };
    let count = attachments();
    let namespaces: Vec<Namespace> = (0..count).map(|number| Namespace::new(&format!("t{number}"))).collect();
    let started = Instant::now();
    for namespace in &namespaces {
        good(&mut cnitool.command("add", namespace));
    }
    println!("{count} attachments by cnitool: {} ms", started.elapsed().as_millis());
    assert_eq!(net.left(), [count; 3]);
    for namespace in &namespaces {
        good(&mut cnitool.command("check", namespace));
    }
    let (first, others) = namespaces.split_first().unwrap();
    for namespace in &others[others.len() / 2..] {
        good(&mut cnitool.command("del", namespace));
    }
    assert_eq!(net.left(), [1 + others.len() / 2; 3]);
    // It names none that is valid.
    good(&mut cnitool.command("gc", first));
    assert_eq!(net.left(), [0, 0, 0]);
}
