// SPDX-License-Identifier: Apache-2.0
//! The API for other machines, roles and the audit log, with curl and openssl as clients.

mod audit;
mod files;
mod login;
mod page;
mod refused;
mod roles;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use netvm_tls::{Authority, ClientFiles, Lifetime};
use serde_json::Value;

use super::common::hosts::succeeds;
use super::common::{Daemon, ENGINE, Folder, request};

const YEAR: Lifetime = Lifetime(365);

/// A daemon that other machines may use, and its certificates.
struct Site {
    daemon: Daemon,
    address: SocketAddr,
    tls: PathBuf,
}

/// Clients and their roles, as in the configuration.
const CLIENTS: [(&str, &str); 4] =
    [("vera", "view"), ("carl", "capture"), ("olga", "operate"), ("anna", "admin")];

impl Site {
    /// `None` if this machine has no curl.
    fn new() -> Option<Self> {
        if !succeeds("curl --version") {
            println!("SKIP: no curl");
            return None;
        }
        let folder = Arc::new(Folder::new());
        let tls = folder.0.join("tls");
        authority(&tls, &CLIENTS.map(|(name, _)| name));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let daemon = Daemon::start_in(Arc::clone(&folder), &config(&folder, address, &CLIENTS));
        let site = Self { daemon, address, tls };
        site.until_served();
        Some(site)
    }

    /// Waits until a client is served.
    fn until_served(&self) {
        self.daemon.until("the API is served", |_| self.status("anna", &["/v1/status"]) == 200);
    }

    /// Applies the configuration with other clients.
    fn admit(&self, clients: &[(&str, &str)]) {
        let text = config(&self.daemon.folder, self.address, clients);
        let _: netvm_api::ApplyReply = self.daemon.post(netvm_api::path::APPLY, &text);
    }

    fn files(&self, name: &str) -> ClientFiles {
        let [certificate, key] = ["crt", "key"].map(|end| self.tls.join(format!("{name}.{end}")));
        ClientFiles { certificate, key, ca: self.tls.join("ca.crt") }
    }

    /// curl with a client's certificate; a word that begins with `/` is a path of the API.
    fn curl(&self, name: &str, words: &[&str]) -> Output {
        let ClientFiles { certificate, key, .. } = self.files(name);
        let mut command = self.curl_of_nobody(words);
        command.arg("--cert").arg(certificate).arg("--key").arg(key).output().unwrap()
    }

    /// The same without a certificate.
    fn curl_of_nobody(&self, words: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "--cacert"]).arg(self.tls.join("ca.crt"));
        command.args(words.iter().map(|word| match word.strip_prefix('/') {
            Some(path) => format!("https://{}/{path}", self.address),
            None => (*word).to_owned(),
        }));
        command
    }

    /// The status of a request; 0 if there was none.
    fn status(&self, name: &str, words: &[&str]) -> u16 {
        let output = self.curl(name, &[&["-o", "/dev/null", "-w", "%{http_code}"], words].concat());
        String::from_utf8(output.stdout).unwrap().parse().unwrap()
    }

    /// The body of an answer.
    fn body(&self, name: &str, words: &[&str]) -> String {
        String::from_utf8(self.curl(name, words).stdout).unwrap()
    }

    fn audit_file(&self) -> PathBuf {
        self.daemon.folder.0.join("audit.jsonl")
    }

    /// The audit log.
    fn audit(&self) -> Vec<Value> {
        lines(&self.audit_file())
    }

    /// Waits until the audit log has an entry of which this holds.
    fn until_audited(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        self.daemon.until(what, |_| self.audit().iter().any(&is_it));
        self.audit().into_iter().find(is_it).unwrap()
    }

    /// Waits until the audit log and netvmd's log say why a client was refused.
    fn until_refused(&self, why: &str) {
        let says = |entry: &Value| entry["result"].as_str().is_some_and(|result| result.contains(why));
        self.until_audited(&format!("refused: {why}"), says);
        self.daemon.until("the log says it", |daemon| daemon.log().contains(why));
        assert_eq!(self.status("anna", &["/v1/status"]), 200, "others are served");
    }
}

/// The lines of an audit log; none if it is not there.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // netvmd may be writing the next one.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// An authority in a folder, with a server on this machine's addresses and clients.
fn authority(folder: &Path, clients: &[&str]) {
    Authority::create(folder, "test", YEAR).unwrap();
    let authority = Authority::open(folder).unwrap();
    authority.server(&["127.0.0.1".to_owned(), "localhost".to_owned()], YEAR).unwrap();
    clients.iter().for_each(|name| drop(authority.client(name, YEAR).unwrap()));
}

fn config(folder: &Folder, address: SocketAddr, clients: &[(&str, &str)]) -> String {
    let path = |name: &str| folder.0.join(name);
    let admitted = clients
        .iter()
        .map(|(name, role)| format!("[[api.remote.client]]\nname = \"{name}\"\nrole = \"{role}\"\n"));
    format!(
        "{ENGINE}[api]\naudit = {:?}\n[api.remote]\nlisten = \"{address}\"\ncertificate = {:?}\nkey = {:?}\n\
         client_ca = {:?}\n{}\
         [[port]]\nname = \"in\"\nkind = \"source\"\nrate = 10\n\
         [[rule]]\nname = \"none\"\nfrom = \"in\"\ndrop = true\n",
        path("audit.jsonl"),
        path("tls/server.crt"),
        path("tls/server.key"),
        path("tls/ca.crt"),
        admitted.collect::<String>()
    )
}
