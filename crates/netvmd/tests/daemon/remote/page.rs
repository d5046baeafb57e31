// SPDX-License-Identifier: Apache-2.0
//! docs/how-to/remote-api.md, with its commands.

use super::*;
use crate::common::page::blocks;

const PAGE: &str = include_str!("../../../../../docs/how-to/remote-api.md");

/// The commands of the page, on this machine.
struct Adapted {
    folder: PathBuf,
    port: u16,
}

impl Adapted {
    fn text(&self, text: &str) -> String {
        let folder = self.folder.display();
        text.replace("/etc/netvm", &format!("{folder}/etc"))
            .replace("/var/log/netvm", &format!("{folder}/log"))
            .replace("switch.example:9480", &format!("localhost:{}", self.port))
            .replace("switch.example", "localhost")
            .replace("0.0.0.0:9480", &format!("127.0.0.1:{}", self.port))
    }

    /// Runs commands as the page's user: status and output.
    fn run(&self, commands: &str) -> (bool, String) {
        let programs = Path::new(env!("CARGO_BIN_EXE_netvmd")).parent().unwrap().display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        let script = format!("exec 2>&1\nset -e\n{}", self.text(commands));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("PATH", path).env("HOME", self.folder.join("home"));
        command.env_remove("XDG_CONFIG_HOME").env_remove("NETVM_HOST").env_remove("NETVM_API");
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    /// Runs commands that must succeed.
    fn good(&self, commands: &str) -> String {
        let (is_good, output) = self.run(commands);
        assert!(is_good, "{commands}: {output}");
        output
    }
}

#[test]
fn the_page_works_as_it_says() {
    if !Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").exists() {
        println!("SKIP: no netvm beside netvmd");
        return;
    }
    if !succeeds("curl --version") {
        println!("SKIP: no curl");
        return;
    }
    let folder = Arc::new(Folder::new());
    std::fs::create_dir(folder.0.join("log")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let page = Adapted { folder: folder.0.clone(), port };
    let sh = blocks(PAGE, "sh");
    let [make, copy, ask, curl, set, log_in, tail] = &sh[..] else { panic!("{sh:#?}") };
    // Its printed lines admit the client, as in the configuration of the page.
    let made = page.good(make);
    let toml = blocks(PAGE, "toml");
    let [serve, with_users, again] = &toml[..] else { panic!("{toml:#?}") };
    let admission = made.split("\n\n").last().unwrap();
    assert!(serve.ends_with(admission) && admission.contains("alice"), "{made}");
    let shown = &blocks(PAGE, "text")[0];
    assert!(shown.ends_with(admission), "{shown}");
    let rule = "[[port]]\nname = \"in\"\nkind = \"source\"\nrate = 10\n\
                [[rule]]\nname = \"web\"\nfrom = \"in\"\ndrop = true\n";
    let config = |api: &str| format!("{ENGINE}{}{rule}", page.text(api));
    let daemon = Daemon::start_in(Arc::clone(&folder), &config(serve));
    daemon.until("it is served", |_| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    page.good(copy);
    let answer = page.good(ask);
    assert!(answer.contains("netvmd") && answer.contains("web"), "{answer}");
    let status: netvm_api::Status =
        serde_json::from_str(&page.good(&curl.replace("curl ", "curl -sS "))).unwrap();
    assert_eq!(status.pid, daemon.child.id());
    // Refused, in the page's words.
    let console = blocks(PAGE, "console");
    let (command, words) = console[0].split_once('\n').unwrap();
    let (is_good, refusal) = page.run(command.strip_prefix("$ ").unwrap());
    assert_eq!((is_good, refusal.as_str()), (false, words));
    // What a role permits, by the socket's subcommands.
    let host = format!("netvm --host https://localhost:{port} ");
    for words in ["port", "stats", "events", "config show", "top --once", "flow list", "plan etc.toml"] {
        std::fs::write(folder.0.join("etc.toml"), config(serve)).unwrap();
        let words = words.replace("etc.toml", &folder.0.join("etc.toml").display().to_string());
        page.good(&format!("{host}{words}"));
    }
    let (is_good, console) = page.run(&format!("{host}vm console web1"));
    assert!(!is_good && console.contains("works only on the machine where netvmd runs"), "{console}");
    let (is_good, capture) = page.run(&format!("{host}capture"));
    assert!(!is_good && capture.contains("give --write FILE"), "{capture}");
    let file = folder.0.join("in.pcapng");
    page.good(&format!("{host}capture --at in --count 5 --write {}", file.display()));
    assert!(std::fs::metadata(&file).unwrap().len() > 300);
    page.good(&format!("{host}policy del web"));
    daemon.until("it is in the log", |_| page.good(tail).contains("policy/rules/web"));
    let (documented, logged): (Value, Value) = (
        serde_json::from_str(&blocks(PAGE, "json")[0]).unwrap(),
        serde_json::from_str(&page.good(tail)).unwrap(),
    );
    for key in ["role", "method", "path", "status", "result"] {
        assert_eq!(logged[key], documented[key], "{key}");
    }
    assert_eq!(logged["client"]["certificate"], "alice");
    // A user with a password.
    let passwords = folder.0.join("etc/passwords");
    let words = format!("echo correct horse battery | {} --file {}", set.trim(), passwords.display());
    let told = page.good(&words);
    assert!(told.ends_with("[[api.remote.user]]\nname = \"carol\"\nrole = \"capture\"\n"), "{told}");
    let api = with_users.replace("[api.remote]", "[api]\n[api.remote]");
    let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &config(&api));
    let quiet = log_in.replace("curl ", "curl -sS ");
    daemon.until("she logs in", |_| page.run(&quiet).1.contains("\"version\""));
    // The lost key of alice: the fingerprint of the page is another one's.
    let api = again.replace("[api.remote]", "[api]\n[api.remote]");
    let _: netvm_api::ApplyReply = daemon.post(netvm_api::path::APPLY, &config(&api));
    daemon.until("her certificate does not count", |_| {
        page.run(&format!("{host}status")).1.contains("has no role")
    });
}
