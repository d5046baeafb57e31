// SPDX-License-Identifier: Apache-2.0
//! `netvm port` and `netvm docker`: ports that come and go.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::complete::{Names, names};

/// Who adds ports by this program, unless it is said.
const OWNER: &str = "netvm";

/// `netvm port`.
#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// List the ports beside the configuration file, with their owners
    Live,
    /// Add a port beside the configuration file; it stays until it is deleted, also when netvmd restarts
    ///
    /// Give the port as the lines of a `[[port]]` table of the configuration, such as
    /// `netvm port add 'name = "web"' 'kind = "container"' 'namespace = "web"' 'forward = { normal = true }'`, or a
    /// `[[port]]` table and `[[rule]]` tables. Applying a file leaves it as it is. The same again changes nothing.
    Add {
        /// Lines of the port
        #[arg(required = true, value_name = "LINE")]
        lines: Vec<String>,
        /// Whose port it is
        #[arg(long, value_name = "NAME", default_value = OWNER)]
        owner: String,
        /// What the owner knows it by; another port of the same replaces it [default: the port's name]
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Delete a port that was added beside the configuration file
    Del {
        /// What its owner knows it by
        #[arg(value_name = "ID", add = names(&[Names::LivePorts]))]
        id: String,
        /// Whose port it is
        #[arg(long, value_name = "NAME", default_value = OWNER)]
        owner: String,
    },
}

/// `netvm docker`.
#[derive(Debug, Args)]
pub struct DockerArgs {
    /// Folder in which Docker looks for plug-ins
    #[arg(long, value_name = "FOLDER", default_value = "/run/docker/plugins")]
    pub socket_folder: PathBuf,
    /// Name of the driver
    #[arg(long, default_value = "netvm")]
    pub name: String,
    /// Socket of Docker's API, which has the names of containers and images
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/docker.sock")]
    pub docker: PathBuf,
    /// Folder in which the driver keeps its networks and endpoints
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/netvm-docker")]
    pub state: PathBuf,
}
