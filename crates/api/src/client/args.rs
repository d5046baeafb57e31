// SPDX-License-Identifier: Apache-2.0
//! Options of programs: which netvmd they ask.

use std::path::PathBuf;

use clap::Args;
use netvm_tls::ClientFiles;

use super::{Client, ClientError};

/// Environment variable with the address of a netvmd on another machine.
const HOST_VARIABLE: &str = "NETVM_HOST";
/// Names of this client's files in its folder.
const CERTIFICATE: &str = "client.crt";
const KEY: &str = "client.key";
const AUTHORITY: &str = "ca.crt";

/// Which netvmd, and as which client.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerArgs {
    /// netvmd's API socket [default: $NETVM_API, else /run/netvm/api.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A netvmd on another machine: https://NAME:PORT [default: $NETVM_HOST]
    #[arg(long, global = true, value_name = "URL")]
    pub host: Option<String>,
    /// This client's certificate for --host [default: client.crt in ~/.config/netvm]
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key [default: client.key in ~/.config/netvm]
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The certificate of the authority of --host [default: ca.crt in ~/.config/netvm]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl ServerArgs {
    /// A client of that netvmd.
    ///
    /// # Errors
    /// The address or a file is wrong.
    pub fn client(&self) -> Result<Client, ClientError> {
        let named = || std::env::var(HOST_VARIABLE).ok().filter(|host| !host.is_empty());
        let host = self.host.clone().or_else(|| named().filter(|_| self.socket.is_none()));
        let Some(host) = host else { return Ok(Client::new(self.socket.as_deref()).by_group()) };
        let folder = folder();
        let file = |given: &Option<PathBuf>, name| given.clone().unwrap_or_else(|| folder.join(name));
        let files = ClientFiles {
            certificate: file(&self.cert, CERTIFICATE),
            key: file(&self.key, KEY),
            ca: file(&self.ca, AUTHORITY),
        };
        Client::remote(&host, &files)
    }
}

/// The folder of a user's own files (XDG Base Directory Specification).
fn folder() -> PathBuf {
    let given = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || given("HOME").unwrap_or_default().join(".config");
    given("XDG_CONFIG_HOME").unwrap_or_else(home).join("netvm")
}
