// SPDX-License-Identifier: Apache-2.0
//! A record of each attachment, made before its addresses are: so that GC finds what a killed ADD has left.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Attachment, Config, Environment};
use crate::error::{CniError, Code};
use crate::ipam::Addresses;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::time::{Instant, sleep};

/// How long a command waits for another one about the same attachment.
const LOCK_LIMIT: Duration = Duration::from_secs(60);
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// What is known of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub namespace: String,
    /// What the IPAM plug-in has given; `None`: it may have given something.
    pub given: Option<Addresses>,
}

/// The folder of a network.
fn folder(config: &Config) -> PathBuf {
    config.data.join(&config.name)
}

fn path(config: &Config, environment: &Environment) -> PathBuf {
    folder(config).join(format!("{}@{}.json", environment.container, environment.interface))
}

fn failed(path: &Path, error: &io::Error) -> CniError {
    let message = format!("{}: {error} (`dataDir` names another folder)", path.display());
    CniError::new(Code::Io, message)
}

/// Held while a command changes an attachment. The IPAM plug-in holds it, too: if this program is killed, the next
/// command waits for what the plug-in still does.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Waits for the other commands about an attachment.
pub async fn lock(config: &Config, environment: &Environment) -> Result<Lock, CniError> {
    let path = path(config, environment).with_extension("lock");
    let fail = |error: io::Error| failed(&path, &error);
    fs::create_dir_all(folder(config)).map_err(fail)?;
    let limit = Instant::now() + LOCK_LIMIT;
    loop {
        let file = File::create(&path).map_err(fail)?;
        if file.try_lock().is_ok() {
            // The one before may have removed it meanwhile.
            let is_there = fs::metadata(&path)
                .is_ok_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino()));
            if is_there {
                fcntl_setfd(&file, FdFlags::empty()).map_err(|error| fail(error.into()))?;
                return Ok(Lock { _file: file });
            }
        }
        if Instant::now() > limit {
            let message = format!("another command about {} goes on: try again later", path.display());
            return Err(CniError::new(Code::TryAgainLater, message));
        }
        sleep(LOCK_INTERVAL).await;
    }
}

/// The record of an attachment, if there is a whole one.
pub fn read(config: &Config, environment: &Environment) -> Option<Record> {
    serde_json::from_slice(&fs::read(path(config, environment)).ok()?).ok()
}

/// Writes it, whole or not at all.
pub fn write(config: &Config, environment: &Environment, record: &Record) -> Result<(), CniError> {
    let path = path(config, environment);
    let write = || {
        fs::create_dir_all(folder(config))?;
        let beside = path.with_extension("new");
        fs::write(&beside, serde_json::to_vec(record)?)?;
        fs::rename(&beside, &path)
    };
    write().map_err(|error| failed(&path, &error))
}

/// The file of a record that is there, as netvmd finds it.
pub fn lease(config: &Config, environment: &Environment) -> Result<PathBuf, CniError> {
    let path = path(config, environment);
    fs::canonicalize(&path).map_err(|error| failed(&path, &error))
}

/// Removes it, if there is one.
pub fn remove(config: &Config, environment: &Environment) -> Result<(), CniError> {
    let path = path(config, environment);
    // `new` is of a write that was interrupted.
    remove_files(&[path.with_extension("new"), path])
}

/// Removes the lock, which the caller holds.
pub fn unlock(config: &Config, environment: &Environment) -> Result<(), CniError> {
    remove_files(&[path(config, environment).with_extension("lock")])
}

fn remove_files(paths: &[PathBuf]) -> Result<(), CniError> {
    for path in paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(path, &error)),
            _ => {}
        }
    }
    Ok(())
}

/// All attachments of the network, also those of which only the beginning was written.
pub fn all(config: &Config) -> Vec<Attachment> {
    let entries = fs::read_dir(folder(config)).into_iter().flatten().flatten();
    let attachment = |name: &str| {
        let name = [".json", ".new", ".lock"].iter().find_map(|end| name.strip_suffix(end))?;
        let (container, interface) = name.split_once('@')?;
        Some(Attachment { container: container.to_owned(), interface: interface.to_owned() })
    };
    let mut all: Vec<Attachment> = Vec::new();
    for one in entries.filter_map(|entry| attachment(entry.file_name().to_str()?)) {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}
