// SPDX-License-Identifier: Apache-2.0
//! Completion of names in shells. In: what a user has typed. Out: the names of the running netvmd that fit.
//!
//! `netvm completion SHELL` prints a script that asks netvm itself at each completion ([`VARIABLE`]); netvm asks
//! netvmd, and has no names if that does not answer soon.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompletionCandidate, Shell};
use netvm_api::explain::{DROPS, Explanation};
use netvm_api::{Client, ClientError, ServerArgs};

/// The variable that says for which shell netvm shall complete.
pub const VARIABLE: &str = "NETVM_COMPLETE";
/// Time limit for netvmd's answer: a shell waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The script for a shell.
///
/// # Errors
/// Never: it is written into memory.
pub fn script(shell: Shell) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(completer) = Shells::builtins().completer(&shell.to_string()) {
        completer.write_registration(VARIABLE, "netvm", "netvm", "netvm", &mut text)?;
    }
    if shell == Shell::Zsh {
        // As a file of `fpath`, it is loaded by the first completion, which it must answer, too.
        text.extend(b"[[ ${funcstack[1]} == _netvm ]] && _clap_dynamic_completer_netvm \"$@\"\n");
    }
    Ok(text)
}

/// A kind of name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    Ports,
    /// The ids of ports beside the configuration file.
    LivePorts,
    Chains,
    /// The hops of chains, as `CHAIN:ROLE`.
    Hops,
    Roles,
    Routers,
    Vms,
    Groups,
    Rules,
    DropReasons,
    /// What `netvm explain` knows.
    Explanations,
}

/// Completes names of these kinds.
pub fn names(kinds: &'static [Names]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let fits = |name: &String| name.starts_with(&*typed);
        kinds.iter().flat_map(|kind| kind.known()).filter(fits).map(CompletionCandidate::new).collect()
    })
}

impl Names {
    fn known(self) -> Vec<String> {
        match self {
            Self::DropReasons => DROPS.iter().map(|one| one.name.to_owned()).collect(),
            Self::Explanations => Explanation::all().map(|one| one.name().to_owned()).collect(),
            names => ask(names).unwrap_or_default(),
        }
    }

    async fn of(self, client: &Client) -> Result<Vec<String>, ClientError> {
        Ok(match self {
            Self::Ports => client.ports().await?.into_iter().map(|port| port.name).collect(),
            Self::LivePorts => client.live_ports().await?.into_iter().map(|port| port.id).collect(),
            Self::Chains => client.chains().await?.into_iter().map(|chain| chain.name).collect(),
            Self::Hops => {
                let chains = client.chains().await?;
                let hops =
                    chains.iter().flat_map(|chain| chain.hops.iter().map(move |hop| (&chain.name, hop)));
                hops.map(|(chain, hop)| format!("{chain}:{hop}")).collect()
            }
            Self::Roles => client.stats().await?.roles.into_iter().map(|role| role.role).collect(),
            Self::Routers => client.routers().await?.into_iter().map(|router| router.name).collect(),
            Self::Vms => client.vms().await?.into_iter().map(|vm| vm.name).collect(),
            Self::Groups => client.groups().await?.into_iter().map(|group| group.name).collect(),
            Self::Rules => {
                let rules = client.policy().await?.rules.into_iter();
                rules.map(|rule| if rule.name.is_empty() { rule.id.to_string() } else { rule.name }).collect()
            }
            Self::DropReasons | Self::Explanations => Vec::new(),
        })
    }
}

/// Asks the netvmd that the words so far name.
fn ask(names: Names) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let client = server().client().ok()?.with_timeouts(ANSWER_TIMEOUT, ANSWER_TIMEOUT);
    runtime.block_on(names.of(&client)).ok()
}

/// Which netvmd the words of the command line that is completed name.
fn server() -> ServerArgs {
    let words: Vec<String> = std::env::args().collect();
    let value = |option: &str| {
        let value = |(n, word): (usize, &String)| match word.strip_prefix(option) {
            Some("") => words.get(n + 1).cloned(),
            Some(value) => value.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        words.iter().enumerate().find_map(value)
    };
    let path = |option| value(option).map(PathBuf::from);
    ServerArgs {
        socket: path("--socket"),
        host: value("--host"),
        cert: path("--cert"),
        key: path("--key"),
        ca: path("--ca"),
    }
}
