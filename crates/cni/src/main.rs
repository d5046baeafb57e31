// SPDX-License-Identifier: Apache-2.0
//! `netvm-cni`, a CNI plug-in (version 1.1 of the specification, and older ones back to 0.3): a runtime such as Podman
//! or containerd runs it for each container that starts or ends, and it adds or removes the container's port of netvmd.
//!
//! In: the command in the environment, the network's configuration on standard input. Out: the result, or an error, as
//! JSON on standard output. The addresses come from an IPAM plug-in that the configuration names.
#![forbid(unsafe_code)]

mod commands;
mod config;
mod error;
mod ipam;
mod port;
mod record;
mod result;

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use netvm_api::Client;
use serde_json::{Value, json};

use commands::Command;
use config::{Config, Environment, MAX_CONFIG, VERSIONS};
use error::{CniError, Code};

/// Time limits for netvmd: reading, and changes, which wait for others.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

fn main() -> ExitCode {
    let environment = Environment::read();
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_CONFIG).read_to_end(&mut input);
    let named = serde_json::from_slice::<Value>(&input).unwrap_or_default();
    let version = named.get("cniVersion").and_then(Value::as_str).unwrap_or(VERSIONS[0]).to_owned();
    let outcome = match read {
        Ok(_) => run(environment, &input, &version),
        Err(error) => Err(CniError::new(Code::Io, format!("cannot read the configuration: {error}"))),
    };
    match outcome {
        Ok(Some(value)) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", error.to_json(&version));
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. Its result, if it has one.
fn run(environment: Environment, input: &[u8], version: &str) -> Result<Option<Value>, CniError> {
    if environment.command == "VERSION" {
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let config = Config::parse(input)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CniError::new(Code::Io, format!("cannot start the runtime: {error}")))?;
    let client = Client::new(config.socket.as_deref()).with_timeouts(TIMEOUTS[0], TIMEOUTS[1]);
    let command = Command { client, config, environment };
    runtime.block_on(async {
        match command.environment.command.as_str() {
            "ADD" => return command.add().await.map(Some),
            "DEL" => command.delete().await?,
            "CHECK" => command.check().await?,
            "STATUS" => command.status().await?,
            "GC" => command.collect_garbage().await?,
            "" => {
                let message = "CNI_COMMAND is not set: a container runtime runs this program; see the how-to \
                               docs/how-to/cni.md of netvm";
                return Err(CniError::new(Code::InvalidEnvironment, message));
            }
            other => {
                let message =
                    format!("CNI_COMMAND {other}: the commands are ADD, DEL, CHECK, STATUS, GC and VERSION");
                return Err(CniError::new(Code::InvalidEnvironment, message));
            }
        }
        Ok(None)
    })
}
