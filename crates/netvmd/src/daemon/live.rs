// SPDX-License-Identifier: Apache-2.0
//! Adds and removes single ports beside the configuration file. In: a port with its owner. Out: a configuration as a
//! whole, which is checked and applied as that of a file; only what differs is opened or closed.

use std::sync::Arc;
use std::time::SystemTime;

use netvm_api::{AddPort, AddedPort, Diagnostic, EventKind, LivePortInfo, RemovePort};
use netvm_config::{ConfigError, Finding, Fragment, Kind, Loaded};
use netvm_model::{Action, Ends, Host, PortConfig, PortId, Rule, Selection};
use tokio::time::Instant;

use super::Daemon;
use super::configuration::{ApplyError, Beside, LivePort, LiveSet};
use crate::engine_thread::EngineGone;
use crate::names::labels_of;
use crate::runtime::blocking;

/// Longest owner and longest id in bytes.
const NAME_BYTES: usize = 256;
/// The name of what runs in errors.
const RUNNING: &str = "the running configuration";

/// A port was not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum LivePortError {
    /// The port is wrong, or contradicts what runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An owner or an id is no name.
    #[error(
        "`{0}` must have 1 to {NAME_BYTES} visible ASCII characters: such as the name of the program, and the ID of the \
         container"
    )]
    Name(&'static str),
    /// Another port on the switch has its address, which would lose packets.
    #[error("{message}: {remedy}")]
    Shared {
        /// Which port and which address.
        message: String,
        /// What would help.
        remedy: String,
    },
    /// There is no such port.
    #[error("no port `{id}` of `{owner}`: `netvm port live` lists the ports beside the configuration file")]
    Unknown {
        /// Whose.
        owner: String,
        /// Which.
        id: String,
    },
    /// The record cannot be written.
    #[error("cannot save the ports in the state directory: {0} (choose another with --state-dir)")]
    State(std::io::Error),
    /// netvmd cannot apply it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

impl Daemon {
    /// Adds ports in one transaction, all or none; one replaces that of the same owner and id. Other changes wait
    /// meanwhile.
    ///
    /// # Errors
    /// [`LivePortError`]; nothing has changed.
    pub(crate) async fn add_ports(&self, requests: Vec<AddPort>) -> Result<Vec<AddedPort>, LivePortError> {
        let started = Instant::now();
        let requests = requests.into_iter().map(checked).collect::<Result<Vec<_>, _>>()?;
        // A lease that netvmd does not see, such as of another mount namespace, would end with its next start.
        let requests = blocking(move || {
            let seen =
                |request: AddPort| AddPort { lease: request.lease.filter(|it| it.exists()), ..request };
            requests.into_iter().map(seen).collect::<Vec<_>>()
        });
        let requests = requests.await;
        let _changing = self.changing.lock().await;
        let running = self.running().await?;
        let before = self.configuration.live().all();
        let mut after = before.clone();
        // In the order of the requests; of each, whether it is new.
        let mut wanted = Vec::new();
        for request in requests {
            wanted.push(after.put(request)?);
        }
        let titles: Vec<String> =
            wanted.iter().filter(|(_, is_new)| *is_new).map(|(port, _)| port.title()).collect();
        let (host, warnings) = if titles.is_empty() {
            (None, Vec::new())
        } else {
            let text = before.file_text(&running);
            let (host, warnings) = self.apply_live(&running, text, after, &titles).await?;
            (Some(host), warnings)
        };
        let host = host.as_ref().unwrap_or(&running);
        let mut added = Vec::new();
        for (live, is_new) in wanted {
            let port = self.live_port(host, &live).await?;
            let LivePort { owner, port: name, .. } = &live;
            let message = if is_new {
                let message = format!("port {name} of {owner} added");
                self.engine.events().push(EventKind::PortAdded, name, message.clone());
                port.problem.iter().fold(message, |message, why| format!("{message}; it waits: {why}"))
            } else {
                format!("port {name} of {owner} is there already")
            };
            // What runs is written with every key, and has been warned of before.
            let own = warnings.iter().filter(|warning| is_new && warning.file == live.title());
            let warnings = own.cloned().collect();
            added.push(AddedPort { message, port, warnings, took_ms: milliseconds(started) });
        }
        Ok(added)
    }

    /// Removes a port and its rules. Rules that clients have added for this port by its name go, too.
    ///
    /// # Errors
    /// [`LivePortError`]; nothing has changed.
    pub(crate) async fn remove_port(&self, which: RemovePort) -> Result<String, LivePortError> {
        let RemovePort { owner, id } = which;
        let _changing = self.changing.lock().await;
        let running = self.running().await?;
        let before = self.configuration.live().all();
        let Some(place) = before.ports.iter().position(|port| port.is(&owner, &id)) else {
            return Err(LivePortError::Unknown { owner, id });
        };
        let mut after = before.clone();
        let removed = after.ports.remove(place);
        let mut rest = before.without(&running);
        if let Some(port) = running.port_named(&removed.port).filter(|_| removed.problem.is_none()) {
            rest.rules.retain_mut(|rule| keeps_without(rule, port.id));
        }
        let text = netvm_config::to_toml_of(&running, rest);
        self.apply_live(&running, text, after, &[]).await?;
        let message = format!("port {} of {owner} removed", removed.port);
        self.engine.events().push(EventKind::PortRemoved, &removed.port, message.clone());
        Ok(message)
    }

    /// Removes the ports whose owner has removed their lease.
    ///
    /// # Errors
    /// The first port that was not removed; the others are.
    pub(crate) async fn end_leases(&self) -> Result<(), LivePortError> {
        let ports = self.configuration.live().all().ports;
        let ended = blocking(move || ports.into_iter().filter(LivePort::has_ended).collect::<Vec<_>>()).await;
        let mut outcome = Ok(());
        for LivePort { owner, id, .. } in ended {
            match self.remove_port(RemovePort { owner, id }).await {
                Ok(message) => tracing::info!("{message}: its owner has ended it while netvmd did not run"),
                // Its owner was faster.
                Err(LivePortError::Unknown { .. }) => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// All ports beside the configuration file.
    ///
    /// # Errors
    /// The engine has ended.
    pub(crate) async fn live_ports(&self) -> Result<Vec<LivePortInfo>, EngineGone> {
        let running = self.running().await?;
        let mut infos = Vec::new();
        for port in &self.configuration.live().all().ports {
            infos.push(self.live_port(&running, port).await?);
        }
        Ok(infos)
    }

    /// Puts a configuration with these live ports in force, and records them. `added`: what errors call the ports that
    /// are new.
    async fn apply_live(
        &self,
        running: &Arc<Host>,
        text: String,
        live: LiveSet,
        added: &[String],
    ) -> Result<(Host, Vec<Diagnostic>), LivePortError> {
        let beside = Beside { running, live, keeps: true, is_file: false };
        let (Loaded { mut host, warnings }, live) = self.configuration.parse(RUNNING, &text, beside).await?;
        let is_shared = |warning: &&Finding| {
            warning.kind() == Kind::SharedAddress && added.iter().any(|title| title == warning.file())
        };
        if let Some(shared) = warnings.iter().find(is_shared) {
            let remedy = shared.remedy().unwrap_or_default().to_owned();
            return Err(LivePortError::Shared { message: shared.message().to_owned(), remedy });
        }
        netvm_model::assign_ids(&mut host, Some(running));
        // The disk may be slow, so the record is written meanwhile.
        let configuration = Arc::clone(&self.configuration);
        let record = blocking(move || configuration.live().prepare(live));
        let (changed, record) = tokio::join!(self.change_ports(running, &host), record);
        changed?;
        if let Err(error) = record.and_then(|record| self.configuration.live().save(record)) {
            self.change_ports(&host, running).await?;
            return Err(LivePortError::State(error));
        }
        Ok((host, warnings.iter().map(Diagnostic::from).collect()))
    }

    async fn live_port(&self, host: &Host, live: &LivePort) -> Result<LivePortInfo, EngineGone> {
        let config = host.port_named(&live.port).filter(|_| live.problem.is_none());
        let problem = match (&live.problem, config) {
            (Some(problem), _) => Some(problem.clone()),
            (None, Some(config)) => {
                let id = config.id;
                self.engine.call(move |engine| engine.why_closed(id)).await?
            }
            (None, None) => None,
        };
        Ok(LivePortInfo {
            owner: live.owner.clone(),
            id: live.id.clone(),
            port: live.port.clone(),
            labels: config.map(labels_of).unwrap_or_default(),
            rules: live.rules.clone(),
            created_at: live.created_at,
            mac: config.and_then(PortConfig::own_mac).map(|mac| mac.to_string()),
            problem,
            toml: live.toml.clone(),
        })
    }
}

/// A request with its id, if owner and id are names.
fn checked(request: AddPort) -> Result<AddPort, LivePortError> {
    let AddPort { owner, mut id, toml, lease } = request;
    if id.is_empty() {
        id = netvm_config::fragment("the port", &toml, "live")?.port;
    }
    for (name, text) in [("owner", &owner), ("id", &id)] {
        if text.is_empty() || text.len() > NAME_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(LivePortError::Name(name));
        }
    }
    Ok(AddPort { owner, id, toml, lease })
}

impl LiveSet {
    /// Puts a port into the set, in place of that of the same owner and id. Returns it, and whether it is new.
    fn put(&mut self, request: AddPort) -> Result<(LivePort, bool), LivePortError> {
        let AddPort { owner, id, toml, lease } = request;
        let known = self.ports.iter_mut().find(|port| port.is(&owner, &id));
        let number = known.as_ref().map_or(self.next, |known| known.number);
        let Fragment { port, rules, toml } =
            netvm_config::fragment("the port", &toml, &format!("live.{number}"))?;
        if let Some(known) =
            known.as_ref().filter(|it| it.toml == toml && it.lease == lease && it.problem.is_none())
        {
            return Ok((LivePort::clone(known), false));
        }
        let created_at =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let added = LivePort { owner, id, number, created_at, port, rules, toml, lease, problem: None };
        match known {
            Some(known) => *known = added.clone(),
            None => self.ports.push(added.clone()),
        }
        self.next = self.next.max(number + 1);
        Ok((added, true))
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Takes a port that goes out of a rule; `false`: the rule is about no other.
fn keeps_without(rule: &mut Rule, port: PortId) -> bool {
    let without =
        |ports: &[PortId]| -> Vec<PortId> { ports.iter().copied().filter(|other| *other != port).collect() };
    if rule.actions.terminal == Some(Action::Port(port)) || rule.actions.mirror == Some(port) {
        return false;
    }
    if let Some(selection) = rule.selection().cloned() {
        let names = |ends: &Ends| ends.ports.contains(&port);
        if !names(&selection.from) && !names(&selection.to) {
            return true;
        }
        let of = |ends: Ends| Ends { ports: without(&ends.ports), labels: ends.labels };
        let is_empty = |ends: &Ends| ends.ports.is_empty() && ends.labels.is_empty();
        let was_empty = [&selection.from, &selection.to].map(is_empty);
        let left = Selection { from: of(selection.from), to: of(selection.to) };
        let keeps = [&left.from, &left.to].map(is_empty) == was_empty;
        rule.set_selection(left);
        return keeps;
    }
    for (is_there, is_from) in
        [(rule.matches.from.contains(&port), true), (rule.matches.to.contains(&port), false)]
    {
        if is_there {
            let ports = if is_from { &mut rule.matches.from } else { &mut rule.matches.to };
            *ports = without(ports);
            if ports.is_empty() {
                return false;
            }
        }
    }
    true
}
