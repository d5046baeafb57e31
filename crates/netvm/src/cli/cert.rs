// SPDX-License-Identifier: Apache-2.0
//! `netvm cert`, `netvm passwd` and `netvm doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use netvm_api::Role;
use netvm_fleet::EtcdArgs;
use netvm_model::words::Words;

/// `netvm cert`.
#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// Make a certificate authority: ca.crt and ca.key
    ///
    /// Who has ca.key can make certificates of any name: keep it on one machine, apart from those that netvmd runs on.
    Ca {
        /// Its name, which its certificates show
        #[arg(long, default_value = "netvm")]
        name: String,
        #[command(flatten)]
        place: Place,
        /// Days until its certificate expires
        #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
    },
    /// Make a server's certificate: server.crt and server.key
    Server {
        /// DNS names and IP addresses by which clients reach it
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        place: Place,
        /// Days until it expires
        #[arg(long, default_value_t = 730, value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
    },
    /// Make a client's certificate, NAME.crt and NAME.key, and print how to admit the client
    Client {
        /// Its name
        name: String,
        /// What it may do, in the printed lines: the configuration decides, not the certificate
        #[arg(long, value_parser = role, default_value = "view")]
        role: Role,
        #[command(flatten)]
        place: Place,
        /// Days until it expires
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..))]
        days: u16,
    },
}

/// `netvm doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The configuration of netvmd, whose [api.remote] is checked if there is one
    #[arg(long, value_name = "FILE", default_value = "/etc/netvm/host.toml")]
    pub config: PathBuf,
    /// The etcd of a fleet, to check its members
    #[command(flatten)]
    pub etcd: EtcdArgs,
}

/// `netvm passwd`.
#[derive(Debug, Args)]
pub struct PasswdArgs {
    /// The user's name
    pub name: String,
    /// The file of passwords, which `passwords` of `[api.remote]` names; it is made if need be
    #[arg(long, value_name = "FILE", default_value = "/etc/netvm/passwords")]
    pub file: PathBuf,
    /// What the user may do, in the printed lines: the configuration decides, not the file
    #[arg(long, value_parser = role, default_value = "view")]
    pub role: Role,
    /// Remove the user from the file
    #[arg(long)]
    pub delete: bool,
}

/// Where the files are.
#[derive(Debug, Args)]
pub struct Place {
    /// Folder of the authority and of new files; existing ones are never overwritten
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
}

fn role(text: &str) -> Result<Role, String> {
    let known = Role::WORDS.iter().find(|(word, _)| *word == text);
    known.map(|(_, role)| *role).ok_or_else(|| "the roles are view, capture, operate and admin".to_owned())
}
