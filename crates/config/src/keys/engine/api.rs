// SPDX-License-Identifier: Apache-2.0
//! `[api]`, `[api.remote]`, `[[api.remote.client]]` and `[[api.remote.user]]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use netvm_model::{ApiConfig, RemoteApi, RemoteClient, RemoteUser, Role};

use crate::syntax::field::{self, FieldError};
use crate::syntax::finding::Kind;
use crate::syntax::form::{Flag, Items, Nested, OneOrMore, Optional, Text, UnlessDefault, Word};
use crate::syntax::table::{Keys, Numbered, Reader, Table};

/// Longest common name of a certificate in bytes (X.520, ub-common-name).
const MAX_COMMON_NAME: usize = 64;
/// Longest name of a user in bytes.
const MAX_USER_NAME: usize = 64;
const ROLE_HELP: &str = "give it one, such as `role = \"view\"`; the others are capture, operate and admin";

impl Keys for ApiConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        let group = || Optional(Text(field::user, Clone::clone));
        table.key("web", &mut self.web, Optional(Text(field::loopback, ToString::to_string)));
        table.key("view_group", &mut self.view_group, group());
        table.key("capture_group", &mut self.capture_group, group());
        table.key("operate_group", &mut self.operate_group, group());
        table.key("web_capture", &mut self.web_capture, Flag);
        table.key("audit", &mut self.audit, Optional(Text(field::log_path, field::path_text)));
        table.key("remote", &mut self.remote, Optional(Nested("[api.remote]")));
    }
}

impl Keys for RemoteApi {
    fn keys(&mut self, table: &mut Table<'_>) {
        let help = "give an address and a port, such as `listen = \"0.0.0.0:9480\"`";
        table.required("listen", help, &mut self.listen, Text(listen, ToString::to_string));
        let pem = || Text(pem_file, field::path_text);
        let help = "name the server's certificate (`netvm cert server` makes one)";
        table.required("certificate", help, &mut self.certificate, pem());
        let help = "name the private key of the certificate";
        table.required("key", help, &mut self.key, pem());
        let help = "name the certificate of the authority of clients (`netvm cert ca` makes one)";
        table.required("client_ca", help, &mut self.client_ca, pem());
        table.key("client", &mut self.clients, UnlessDefault(Items("[[api.remote.client]]")));
        let passwords = Text(field::absolute_path, field::path_text);
        table.key("passwords", &mut self.passwords, Optional(passwords));
        table.key("user", &mut self.users, UnlessDefault(Items("[[api.remote.user]]")));
        let Some(reader) = table.reader() else { return };
        let names: Vec<&str> = self.clients.iter().map(|client| client.name.as_str()).collect();
        let help = "keep one; `fingerprints` takes a list, for a client with several certificates";
        refuse_twice(reader, "client", &names, help);
        let names: Vec<&str> = self.users.iter().map(|user| user.name.as_str()).collect();
        refuse_twice(reader, "user", &names, "keep one");
        if let (Some(user), None) = (reader.place.items("user").first(), &self.passwords) {
            reader
                .note(Kind::MissingKey, "users need a file with their passwords")
                .at(user.of("name"), "a user")
                .help("name it, such as `passwords = \"/etc/netvm/passwords\"`; `netvm passwd` makes it")
                .keep();
        }
    }
}

/// Refuses items of `[api.remote]` that have one name.
fn refuse_twice(reader: &Reader<'_>, what: &str, names: &[&str], help: &str) {
    let mut seen = BTreeMap::new();
    for (name, place) in names.iter().zip(reader.place.items(what)) {
        let place = place.of("name");
        let first = seen.entry(*name).or_insert_with(|| place.clone());
        if *first != place && !name.is_empty() {
            reader
                .note(Kind::Duplicate, format!("two {what}s are called `{name}`"))
                .at(place, "again")
                .at(first.clone(), "first here")
                .help(help)
                .keep();
        }
    }
}

impl Numbered for RemoteClient {
    fn numbered(_: usize) -> Self {
        Self { name: String::new(), role: Role::View, fingerprints: Vec::new() }
    }
}

impl Keys for RemoteClient {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "alice", &mut self.name, Text(common_name, Clone::clone));
        table.required("role", ROLE_HELP, &mut self.role, Word);
        let fingerprint = Text(str::parse, ToString::to_string);
        table.key("fingerprints", &mut self.fingerprints, OneOrMore(fingerprint));
    }
}

impl Numbered for RemoteUser {
    fn numbered(_: usize) -> Self {
        Self { name: String::new(), role: Role::View }
    }
}

impl Keys for RemoteUser {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "alice", &mut self.name, Text(user_name, Clone::clone));
        table.required("role", ROLE_HELP, &mut self.role, Word);
    }
}

fn listen(text: &str) -> Result<SocketAddr, FieldError> {
    let address: Option<SocketAddr> = text.parse().ok();
    let syntax = "an address and a port, such as \"0.0.0.0:9480\", \"[::]:9480\" or \"192.0.2.1:9480\"";
    address.filter(|address| address.port() != 0).ok_or(FieldError::Syntax(syntax))
}

fn pem_file(text: &str) -> Result<PathBuf, FieldError> {
    let syntax = "the absolute path of a PEM file, such as \"/etc/netvm/tls/server.crt\"";
    field::absolute_path(text).map_err(|_| FieldError::Syntax(syntax))
}

/// The common name of a certificate.
fn common_name(text: &str) -> Result<String, FieldError> {
    let fits = (1..=MAX_COMMON_NAME).contains(&text.len()) && text.chars().all(netvm_text::is_visible);
    let syntax = "the common name (CN) of a certificate: 1 to 64 bytes that can be seen";
    if fits { Ok(text.to_owned()) } else { Err(FieldError::Syntax(syntax)) }
}

/// The name of a user with a password.
fn user_name(text: &str) -> Result<String, FieldError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    let fits = (1..=MAX_USER_NAME).contains(&text.len()) && text.chars().all(allowed);
    let syntax = "the name of a user: 1 to 64 of the characters A-Z a-z 0-9 _ - . @";
    if fits { Ok(text.to_owned()) } else { Err(FieldError::Syntax(syntax)) }
}
