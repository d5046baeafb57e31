// SPDX-License-Identifier: Apache-2.0
//! How etcd is reached: options of netvmd and of `netvm fleet`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use netvm_tls::TrustFiles;

use crate::etcd::{Credentials, Etcd, EtcdError};

/// Permissions of others, who must not read passwords.
const OTHERS: u32 = 0o007;
/// Longest password.
const MAX_PASSWORD: u64 = 4096;
/// Environment variable with the addresses of etcd.
const VARIABLE: &str = "NETVM_ETCD";

/// How etcd is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct EtcdArgs {
    /// The members of etcd: http://NAME:PORT or https://NAME:PORT, separated by commas [default: $NETVM_ETCD]
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// User of etcd, with --etcd-password-file
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// The certificate of the authority of etcd's certificates, for https
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate for an etcd that wants one of its clients
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub etcd_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// The addresses: those given, else those of the environment.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        if !self.etcd.is_empty() {
            return self.etcd.clone();
        }
        let named = std::env::var(VARIABLE).unwrap_or_default();
        named.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect()
    }

    /// A client of that etcd. Reads the files; connects to nothing yet.
    ///
    /// # Errors
    /// [`EtcdError`] names the address or the file that is wrong.
    pub fn client(&self) -> Result<Etcd, EtcdError> {
        let tls = self.etcd_ca.as_ref().map(|ca| {
            let own = self.etcd_cert.clone().zip(self.etcd_key.clone());
            TrustFiles { ca: ca.clone(), own }.load()
        });
        let credentials = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(name), Some(file)) => Some(Credentials { name: name.clone(), password: password(file)? }),
            _ => None,
        };
        Etcd::new(&self.urls(), tls.transpose()?.as_ref(), credentials)
    }
}

/// The first line of a file that not everybody may read.
fn password(path: &Path) -> Result<String, EtcdError> {
    let failed = |source| EtcdError::Password { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.permissions().mode() & OTHERS != 0 {
        return Err(EtcdError::OpenPassword(path.to_owned()));
    }
    let mut text = String::new();
    file.take(MAX_PASSWORD).read_to_string(&mut text).map_err(failed)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
