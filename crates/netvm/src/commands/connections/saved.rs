// SPDX-License-Identifier: Apache-2.0
//! `netvm conn save` and `netvm conn load`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use netvm_api::{Client, ConnectionQuery, RestoredConnections};
use netvm_conntrack::SaveReader;
use serde_json::json;

use crate::error::CliError;
use crate::format::count;
use crate::output::Output;

/// Saves connections in a file, which is replaced only when the new one is whole.
pub async fn save(
    client: &Client,
    output: &Output,
    path: &Path,
    query: &ConnectionQuery,
) -> Result<(), CliError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let failed = |source| CliError::Write { path: path.to_owned(), source };
    let outcome = receive(client, &partial, query).await;
    if outcome.is_ok() {
        std::fs::rename(&partial, path).map_err(failed)?;
    } else {
        // Nobody can use a part of a file.
        let _ = std::fs::remove_file(&partial);
    }
    let saved = outcome.map_err(|error| match error {
        SaveError::File(source) => failed(source),
        SaveError::Client(error) => error.into(),
    })?;
    if output.json {
        output.value(&json!({ "saved": saved }))
    } else {
        output.text(&format!("connections saved: {}\n", count(saved)))
    }
}

/// Why a file was not written.
enum SaveError {
    File(io::Error),
    Client(netvm_api::ClientError),
}

impl From<io::Error> for SaveError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl From<netvm_api::ClientError> for SaveError {
    fn from(error: netvm_api::ClientError) -> Self {
        Self::Client(error)
    }
}

/// Writes the connections to a file, and counts them.
async fn receive(client: &Client, path: &Path, query: &ConnectionQuery) -> Result<u64, SaveError> {
    let mut parts = client.saved_connections(query).await?;
    // Who talks to whom is nobody else's business.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    while let Some(part) = parts.next().await? {
        file.write_all(&part)?;
    }
    file.sync_all()?;
    Ok(counted(path)?)
}

/// The connections in a file that is whole.
fn counted(path: &Path) -> io::Result<u64> {
    let mut from = BufReader::new(File::open(path)?);
    from.skip_until(b'\n')?;
    let mut file = SaveReader::new(from).map_err(io::Error::other)?;
    let (mut saved, mut part) = (0, Vec::new());
    while file.read(&mut part).map_err(io::Error::other)? {
        saved += part.len() as u64;
    }
    Ok(saved)
}

/// Restores the connections of a file.
pub async fn load(client: &Client, output: &Output, path: &Path) -> Result<(), CliError> {
    let file = std::fs::read(path).map_err(|source| CliError::ReadSaved { path: path.to_owned(), source })?;
    let restored = client.load_connections(file).await?;
    if output.json { output.value(&restored) } else { output.text(&draw(&restored)) }?;
    restored.problem.map_or(Ok(()), |problem| Err(CliError::PartlyLoaded(problem)))
}

fn draw(restored: &RestoredConnections) -> String {
    let RestoredConnections { expired, of_unknown_ports, unknown_ports, no_room, over_quota, taken, .. } =
        restored;
    let mut text = format!("connections restored: {}\n", count(restored.restored));
    let unknown = format!("of ports that are not there ({})", unknown_ports.join(", "));
    let left_out = [
        (*expired, "expired since they were saved"),
        (*of_unknown_ports, &*unknown),
        (*no_room, "without room: raise `limit` of [engine.connections]"),
        (*over_quota, "beyond a quota of [engine.connections]"),
        (*taken, "whose addresses and ports have a connection"),
    ];
    for (number, why) in left_out {
        if number > 0 {
            text += &format!("not restored: {} {why}\n", count(number));
        }
    }
    // Names of ports come from the file.
    text.lines().map(|line| format!("{}\n", netvm_text::line(line))).collect()
}
