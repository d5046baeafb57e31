// SPDX-License-Identifier: Apache-2.0
//! FRR and BIRD in network namespaces, with folders of their own.

mod advertisements;
mod daemons;
mod full_table;
mod ospf;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::common::hosts::{run, succeeds, within};

const FRR: &str = "/usr/lib/frr";

/// Whether FRR and BIRD are here; if not, prints that the test is skipped.
pub fn are_installed() -> bool {
    let is_here = Path::new(FRR).join("bgpd").exists() && succeeds("bird --version");
    if !is_here {
        println!("SKIP: FRR or BIRD is not installed: run ./dev setup");
    }
    is_here
}

/// Where daemons run.
pub struct Place {
    /// Names their folder.
    pub name: String,
    /// What runs a command there.
    pub command: Vec<String>,
    /// Zebra takes each network namespace that has a name there for a VRF.
    pub has_vrfs: bool,
}

impl Place {
    /// A network namespace.
    fn namespace(name: &str) -> Self {
        let command = ["ip", "netns", "exec", name].map(str::to_owned).to_vec();
        Self { name: name.to_owned(), command, has_vrfs: false }
    }
}

/// Running daemons of one namespace; they end when this is dropped.
pub struct Daemons {
    children: Vec<Child>,
    folder: PathBuf,
}

impl Daemons {
    fn new(namespace: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("{namespace}-{number}"));
        std::fs::create_dir_all(&folder).unwrap();
        Self { children: Vec::new(), folder }
    }

    /// Starts daemons of FRR, each with its configuration. Without a `zebra` at their head, one starts before them.
    pub fn frr(namespace: &str, configs: &[(&str, String)]) -> Self {
        Self::frr_in(&Place::namespace(namespace), configs)
    }

    /// The same in a place.
    pub fn frr_in(place: &Place, configs: &[(&str, String)]) -> Self {
        let mut all = Self::new(&place.name);
        let zebra = ("zebra", String::new());
        let has_zebra = configs.first().is_some_and(|(name, _)| *name == "zebra");
        let configs: Vec<_> = (!has_zebra).then_some(&zebra).into_iter().chain(configs).collect();
        for (name, text) in &configs {
            let text = format!("log file {}\n{text}", all.path("log"));
            std::fs::write(all.folder.join(format!("{name}.conf")), text).unwrap();
        }
        run(&format!("chown -R frr:frr {}", all.folder.display()));
        for (name, _) in configs {
            let path = |file: &str| all.path(file);
            let mut words = format!(
                "{FRR}/{name} -u frr -g frr -f {} -i {} -z {} --vty_socket {}",
                path(&format!("{name}.conf")),
                path(&format!("{name}.pid")),
                path("zserv.api"),
                all.folder.display()
            );
            match *name {
                "bfdd" => words += &format!(" --bfdctl {}", path("bfdd.sock")),
                "zebra" if place.has_vrfs => words += " -n",
                _ => {}
            }
            all.spawn(place, &words);
            let is_up = || all.folder.join(format!("{name}.vty")).exists();
            assert!(within(Duration::from_secs(60), is_up), "{name} did not start\n{}", all.log());
        }
        all
    }

    /// Starts BIRD.
    pub fn bird(namespace: &str, config: &str) -> Self {
        let mut all = Self::new(namespace);
        let (file, socket) = (all.path("bird.conf"), all.path("bird.ctl"));
        let mut out = std::fs::File::create(&file).unwrap();
        write!(out, "log \"{}\" all;\n{config}", all.path("log")).unwrap();
        all.spawn(&Place::namespace(namespace), &format!("bird -f -c {file} -s {socket}"));
        assert!(within(Duration::from_secs(60), || Path::new(&socket).exists()), "{}", all.log());
        all
    }

    fn spawn(&mut self, place: &Place, words: &str) {
        let output = std::fs::File::options().create(true).append(true).open(self.path("out")).unwrap();
        let mut command = Command::new(&place.command[0]);
        command.args(&place.command[1..]).args(words.split(' '));
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        self.children.push(command.spawn().unwrap());
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// What FRR prints for a command.
    pub fn vtysh(&self, command: &str) -> String {
        let mut vtysh = Command::new("vtysh");
        let folder = self.folder.display().to_string();
        let output = vtysh.args(["--vty_socket", &folder, "-c", command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// What they have logged.
    pub fn log(&self) -> String {
        let read = |file| std::fs::read_to_string(self.path(file)).unwrap_or_default();
        read("log") + &read("out")
    }

    /// Their processes, in the order of their start.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// Stops them where they are, or lets them go on.
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        for child in &self.children {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
