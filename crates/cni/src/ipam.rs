// SPDX-License-Identifier: Apache-2.0
//! The IPAM plug-in: a program that gives a container its addresses. In: its name, and the network's configuration.
//! Out: addresses, gateways and routes, or its error. One that hangs is killed.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::{Config, Environment};
use crate::error::{CniError, Code};

/// The version that older plug-ins, such as those of Debian 12, speak too. What they say is the same as in 1.1.
const VERSION: &str = "1.0.0";
/// The version that has STATUS and GC.
const LATEST: &str = "1.1.0";
/// Most bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;

/// What the plug-in gives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    pub ips: Vec<Ip>,
    pub routes: Vec<Route>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub dns: Map<String, Value>,
}

/// An address of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// With the length of its prefix.
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// A route of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub dst: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<String>,
}

impl Route {
    pub fn is_default(&self) -> bool {
        ["0.0.0.0/0", "::/0"].contains(&self.dst.as_str())
    }
}

/// Gives an attachment its addresses; none if the network has no IPAM plug-in.
pub async fn add(config: &Config, environment: &Environment) -> Result<Addresses, CniError> {
    match run(config, environment, "ADD").await? {
        None => Ok(Addresses::default()),
        Some(answer) => serde_json::from_slice(&answer)
            .map_err(|error| CniError::new(Code::Decode, format!("the IPAM plug-in's answer: {error}"))),
    }
}

/// Takes the addresses of an attachment back.
pub async fn delete(config: &Config, environment: &Environment) -> Result<(), CniError> {
    run(config, environment, "DEL").await.map(drop)
}

/// Whether the plug-in still knows the addresses of an attachment.
pub async fn check(config: &Config, environment: &Environment) -> Result<(), CniError> {
    run(config, environment, "CHECK").await.map(drop)
}

/// Whether the plug-in can give addresses, as far as it speaks the version that has this command.
pub async fn status(config: &Config, environment: &Environment) -> Result<(), CniError> {
    run_latest(config, environment, "STATUS").await
}

/// Has the plug-in take back the addresses of attachments that the runtime does not know, as far as it speaks the
/// version that has this command.
pub async fn collect_garbage(config: &Config, environment: &Environment) -> Result<(), CniError> {
    run_latest(config, environment, "GC").await
}

/// Runs a command of the last version, if the plug-in speaks that.
async fn run_latest(config: &Config, environment: &Environment, command: &str) -> Result<(), CniError> {
    let Some(answer) = run(config, environment, "VERSION").await? else { return Ok(()) };
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let versions = answer.get("supportedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    if versions.iter().any(|version| version == LATEST) {
        run(config, environment, command).await?;
    }
    Ok(())
}

/// The plug-in's program; `None` if the network has no plug-in.
pub fn find(config: &Config, environment: &Environment) -> Result<Option<PathBuf>, CniError> {
    let Some(kind) = &config.ipam else { return Ok(None) };
    let mut paths = environment.path.iter().map(|folder| folder.join(kind));
    if let Some(program) = paths.find(|path| path.is_file()) {
        return Ok(Some(program));
    }
    let folders: Vec<String> = environment.path.iter().map(|path| path.display().to_string()).collect();
    let message = format!("no IPAM plug-in {kind} in CNI_PATH ({}): install it there", folders.join(", "));
    Err(CniError::new(Code::InvalidConfig, message))
}

/// Runs the plug-in. Its answer; `None` if there is no plug-in.
async fn run(config: &Config, environment: &Environment, command: &str) -> Result<Option<Vec<u8>>, CniError> {
    let (Some(kind), Some(program)) = (&config.ipam, find(config, environment)?) else { return Ok(None) };
    let mut input = config.raw.clone();
    let is_latest = ["STATUS", "GC"].contains(&command);
    if config.version == LATEST && !is_latest {
        input.insert("cniVersion".to_owned(), VERSION.into());
    }
    if command != "CHECK" {
        input.remove("prevResult");
    }
    let input = Value::Object(input).to_string();
    let failed = |why: String| CniError::new(Code::Io, format!("the IPAM plug-in {kind}: {why}"));
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &environment.container)
        .env("CNI_IFNAME", &environment.interface)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("{}: {error}", program.display())))?;
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read says why in its answer.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let limit = Duration::from_secs(config.ipam_timeout);
    let Ok(output) = timeout(limit, talk).await else {
        let message = format!(
            "the IPAM plug-in {kind} has not answered {command} within {} s: see what keeps it, such as a lock on its \
             data folder; `ipamTimeout` is the limit in seconds",
            config.ipam_timeout
        );
        return Err(CniError::new(Code::TryAgainLater, message));
    };
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.stdout.len() > MAX_ANSWER {
        return Err(failed(format!("its answer has {} bytes", output.stdout.len())));
    }
    if output.status.success() {
        return Ok(Some(output.stdout));
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let word = |key: &str| said.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = said.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
    let message = match word("msg") {
        message if message.is_empty() => output.status.to_string(),
        message => message,
    };
    let error = failed(message);
    Err(CniError { code: code.unwrap_or(error.code), details: word("details"), ..error })
}
