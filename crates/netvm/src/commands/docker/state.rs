// SPDX-License-Identifier: Apache-2.0
//! What Docker has said, in files: Docker does not repeat it when this program or it itself starts again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::messages::Addresses;
use crate::error::DockerError;

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its driver's options.
    pub options: BTreeMap<String, String>,
    /// Without the lengths of their prefixes.
    pub gateways: Vec<String>,
}

/// An endpoint: the place of a container in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub network: String,
    pub addresses: Addresses,
    pub options: BTreeMap<String, String>,
    /// The ports that it publishes, as netvmd writes them.
    pub publish: Vec<String>,
    /// Its container's name and image, as labels.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// The container that has joined it: the file of its network namespace, and the interface there.
    pub joined: Option<Joined>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub namespace: String,
    pub interface: String,
}

/// The folder.
#[derive(Debug)]
pub struct State(PathBuf);

impl State {
    pub fn open(folder: &Path) -> Result<Self, DockerError> {
        fs::create_dir_all(folder)
            .map_err(|source| DockerError::State { path: folder.to_owned(), source })?;
        Ok(Self(folder.to_owned()))
    }

    pub fn network(&self, id: &str) -> Result<Network, DockerError> {
        self.read("network", id)
    }

    pub fn endpoint(&self, id: &str) -> Result<Endpoint, DockerError> {
        self.read("endpoint", id)
    }

    /// All endpoints that can be read.
    pub fn endpoints(&self) -> Vec<(String, Endpoint)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let id = |name: &str| Some(name.strip_prefix("endpoint-")?.strip_suffix(".json")?.to_owned());
        let ids = entries.filter_map(|entry| id(entry.file_name().to_str()?));
        ids.filter_map(|id| self.endpoint(&id).ok().map(|endpoint| (id, endpoint))).collect()
    }

    pub fn set_network(&self, id: &str, network: &Network) -> Result<(), DockerError> {
        self.write(&self.path("network", id)?, network)
    }

    pub fn set_endpoint(&self, id: &str, endpoint: &Endpoint) -> Result<(), DockerError> {
        self.write(&self.path("endpoint", id)?, endpoint)
    }

    pub fn remove_network(&self, id: &str) -> Result<(), DockerError> {
        remove(self.path("network", id)?)
    }

    pub fn remove_endpoint(&self, id: &str) -> Result<(), DockerError> {
        remove(self.path("endpoint", id)?)
    }

    /// A file that exists while a container has joined the endpoint: netvmd keeps the port as long.
    pub fn lease(&self, id: &str) -> Result<PathBuf, DockerError> {
        Ok(self.path("joined", id)?.with_extension("lease"))
    }

    pub fn set_lease(&self, id: &str) -> Result<PathBuf, DockerError> {
        let path = self.lease(id)?;
        fs::write(&path, "").map_err(|source| DockerError::State { path: path.clone(), source })?;
        fs::canonicalize(&path).map_err(|source| DockerError::State { path, source })
    }

    pub fn end_lease(&self, id: &str) -> Result<(), DockerError> {
        remove(self.lease(id)?)
    }

    /// IDs are Docker's, and part of the names of files.
    fn path(&self, kind: &str, id: &str) -> Result<PathBuf, DockerError> {
        let is_id = (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id {
            return Err(DockerError::Id(id.to_owned()));
        }
        Ok(self.0.join(format!("{kind}-{id}.json")))
    }

    fn read<T: DeserializeOwned>(&self, what: &'static str, id: &str) -> Result<T, DockerError> {
        let path = self.path(what, id)?;
        let unknown = || DockerError::Unknown { what, id: id.to_owned() };
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|_| unknown()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(source) => Err(DockerError::State { path, source }),
        }
    }

    /// Whole or not at all.
    fn write<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), DockerError> {
        let beside = path.with_extension("new");
        let write = || {
            fs::write(&beside, serde_json::to_vec(value)?)?;
            fs::rename(&beside, path)
        };
        write().map_err(|source| DockerError::State { path: path.to_owned(), source })
    }
}

fn remove(path: PathBuf) -> Result<(), DockerError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DockerError::State { path, source }),
        _ => Ok(()),
    }
}
