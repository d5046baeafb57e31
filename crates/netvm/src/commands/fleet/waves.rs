// SPDX-License-Identifier: Apache-2.0
//! `netvm fleet apply`: first all hosts that are to change are held back, then the fragments are written, then one wave
//! after another gets its configurations and goes on, and the next one waits until all of it are healthy.

use std::io::{self, IsTerminal};
use std::time::Duration;

use netvm_fleet::{
    Compare, Etcd, HostKey, HostName, HostState, HostStatus, KeyRange, Operation, Revision, fragment_key,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::contents::Contents;
use super::local::Local;
use super::plans::{Plans, named, text};
use super::show;
use crate::cli::FleetArgs;
use crate::commands::change::confirm;
use crate::error::{CliError, FleetError};
use crate::format::plural;
use crate::output::Output;

/// Between two looks at the hosts of a wave.
const INTERVAL: Duration = Duration::from_millis(300);
/// Operations in a transaction: etcd permits 128.
const MAX_OPERATIONS: usize = 100;

/// Files, what etcd has, and how these differ.
pub(super) struct Change {
    pub(super) local: Local,
    pub(super) contents: Contents,
    pub(super) plans: Plans,
}

/// The hosts that are to change.
struct Waves {
    /// Those that report, by wave.
    waves: Vec<Vec<HostName>>,
    /// Those that do not.
    absent: Vec<HostName>,
}

impl Waves {
    fn new(change: &Change, how: FleetArgs) -> Self {
        let reports =
            |host: &HostName| change.contents.hosts.get(host).is_some_and(|known| known.status.is_some());
        let (present, absent): (Vec<_>, Vec<_>) = named(&change.plans).partition(reports);
        let (first, rest) = present.split_at(usize::from(how.canary).min(present.len()));
        let waves = std::iter::once(first).chain(rest.chunks(how.wave.into()));
        Self { waves: waves.filter(|wave| !wave.is_empty()).map(<[_]>::to_vec).collect(), absent }
    }

    /// All hosts after so many waves.
    fn after(&self, waves: usize) -> Vec<HostName> {
        self.waves.iter().skip(waves).flatten().chain(&self.absent).cloned().collect()
    }
}

/// Shows the changes, and makes them.
pub(super) async fn apply(
    output: &Output,
    etcd: &Etcd,
    change: Change,
    how: FleetArgs,
) -> Result<(), CliError> {
    let waves = Waves::new(&change, how);
    say(output, &text(&change.plans))?;
    if change.plans.hosts.is_empty() && change.plans.fragments.is_empty() {
        return done(output, &waves);
    }
    if !how.yes && !output.json && io::stdin().is_terminal() && !confirm(output, "apply?")? {
        return Err(CliError::Declined);
    }
    hold(etcd, &waves).await?;
    write_fragments(etcd, &change, &waves).await?;
    for (number, wave) in waves.waves.iter().enumerate() {
        let names: Vec<String> = wave.iter().map(ToString::to_string).collect();
        say(output, &format!("wave {} of {}: {}\n", number + 1, waves.waves.len(), names.join(", ")))?;
        let left = waves.after(number + 1);
        let mut waiting = Vec::new();
        for (n, host) in wave.iter().enumerate() {
            let rest = || wave[n..].iter().chain(&left).cloned().collect();
            waiting.push((
                host.clone(),
                write_host(etcd, &change, host).await?.ok_or_else(|| changed(host, rest()))?,
            ));
        }
        wait(output, etcd, Wave { waiting, within: how.within, left }).await?;
    }
    for (n, host) in waves.absent.iter().enumerate() {
        let rest = || waves.absent[n..].to_vec();
        write_host(etcd, &change, host).await?.ok_or_else(|| changed(host, rest()))?;
        say(output, &format!("{host}: written; it does not report, and applies it when it does\n"))?;
    }
    done(output, &waves)
}

fn say(output: &Output, text: &str) -> Result<(), CliError> {
    if output.json { Ok(()) } else { output.text(text) }
}

fn done(output: &Output, waves: &Waves) -> Result<(), CliError> {
    let healthy = waves.waves.iter().map(Vec::len).sum();
    if output.json {
        let absent: Vec<String> = waves.absent.iter().map(ToString::to_string).collect();
        return output.value(&json!({ "healthy": healthy, "absent": absent }));
    }
    output.text(&format!("{} changed and healthy\n", plural(healthy, "host")))
}

fn changed(host: &HostName, left: Vec<HostName>) -> FleetError {
    FleetError::Changed { key: host.key(HostKey::Config), left }
}

/// Lets all hosts that are to change keep what they run.
async fn hold(etcd: &Etcd, waves: &Waves) -> Result<(), FleetError> {
    let count = waves.waves.len();
    let by_wave = waves.waves.iter().enumerate().flat_map(|(n, wave)| {
        wave.iter().map(move |host| (host, format!("wave {} of {count} of an apply has not come", n + 1)))
    });
    let absent = waves.absent.iter().map(|host| (host, "the waves of an apply are not over".to_owned()));
    let puts: Vec<Operation> =
        by_wave.chain(absent).map(|(host, why)| Operation::Put(host.key(HostKey::Hold), why, None)).collect();
    for puts in puts.chunks(MAX_OPERATIONS) {
        etcd.txn(&[], puts, &[]).await?;
    }
    Ok(())
}

async fn write_fragments(etcd: &Etcd, change: &Change, waves: &Waves) -> Result<(), FleetError> {
    for name in &change.plans.fragments {
        let Some(file) = change.local.fragments.get(name) else { continue };
        let (key, known) = (fragment_key(name), change.contents.fragments.get(name));
        let condition = Compare::Revision(key.clone(), known.map_or(0, |(_, revision)| *revision));
        let put = Operation::Put(key.clone(), file.text.clone(), None);
        if !etcd.txn(&[condition], &[put], &[]).await?.succeeded {
            return Err(FleetError::Changed { key, left: waves.after(0) });
        }
    }
    Ok(())
}

/// Writes a host's configuration and lets the host go on, at once. Returns the revision; `None`: the configuration in
/// etcd is not what the plan was made of.
async fn write_host(etcd: &Etcd, change: &Change, host: &HostName) -> Result<Option<Revision>, FleetError> {
    let known = change.contents.hosts.get(host).and_then(|known| known.config.as_ref());
    let text = match (change.local.hosts.get(host), known) {
        (Some(file), _) => file.text.clone(),
        (None, Some((text, _))) => text.clone(),
        (None, None) => return Ok(None),
    };
    let key = host.key(HostKey::Config);
    let condition = Compare::Revision(key.clone(), known.map_or(0, |(_, revision)| *revision));
    let operations = [Operation::Put(key, text, None), Operation::Delete(host.key(HostKey::Hold))];
    let made = etcd.txn(&[condition], &operations, &[]).await?;
    Ok(made.succeeded.then_some(made.revision))
}

/// A wave that has its configurations.
struct Wave {
    /// Its hosts, each with the revision that it is to run.
    waiting: Vec<(HostName, Revision)>,
    within: u64,
    /// Hosts of later waves.
    left: Vec<HostName>,
}

/// Waits until the hosts of a wave are healthy with their revisions.
async fn wait(output: &Output, etcd: &Etcd, wave: Wave) -> Result<(), CliError> {
    let Wave { mut waiting, within, left } = wave;
    let end = Instant::now() + Duration::from_secs(within);
    let stopped =
        |host: &HostName, why: String| FleetError::Stopped { host: host.clone(), why, left: left.clone() };
    loop {
        let keys: Vec<KeyRange> =
            waiting.iter().map(|(host, _)| KeyRange::one(&host.key(HostKey::Status))).collect();
        let mut statuses = Vec::new();
        for keys in keys.chunks(MAX_OPERATIONS) {
            let read = etcd.get(keys, None).await.map_err(FleetError::Etcd)?;
            statuses.extend(read.keys().map(|found| found.into_iter().next()));
        }
        let status_of = |text: &str| serde_json::from_str::<HostStatus>(text).ok();
        let statuses = statuses.into_iter().map(|status| status.and_then(|status| status_of(&status.value)));
        let mut next = Vec::new();
        for ((host, revision), status) in waiting.into_iter().zip(statuses) {
            let reached = status.as_ref().filter(|status| status.wanted >= revision);
            match reached {
                Some(status) if status.state == HostState::Running && status.running >= revision => {
                    say(output, &format!("  {host}: healthy with revision {}\n", status.running))?;
                }
                Some(status) if status.state.has_failed() => {
                    let why = status.error.as_ref().map(show::error).unwrap_or_default();
                    return Err(stopped(&host, format!("{}: {why}", status.state.word())).into());
                }
                _ if Instant::now() >= end => {
                    let why = format!("not healthy with revision {revision} within {within} s");
                    let state = status.map_or("it does not report", |status| status.state.word());
                    return Err(stopped(&host, format!("{why}: {state}")).into());
                }
                _ => next.push((host, revision)),
            }
        }
        if next.is_empty() {
            return Ok(());
        }
        waiting = next;
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fleet::contents::KnownHost;
    use crate::commands::fleet::plans::HostPlan;

    #[test]
    fn waves_have_the_hosts_that_report_canaries_first() {
        let mut change =
            Change { local: Local::default(), contents: Contents::default(), plans: Plans::default() };
        let status = r#"{"state":"running","wanted":1,"running":1,"version":"0","since":"",
            "machine":{"id":"1","hostname":"h"}}"#;
        for name in ["a", "b", "c", "d", "e"] {
            let plan = HostPlan { plan: netvm_config::Plan::default(), is_held: false };
            change.plans.hosts.insert(name.to_owned(), plan);
            let status = (name != "c").then(|| serde_json::from_str(status).unwrap());
            change.contents.hosts.insert(name.parse().unwrap(), KnownHost { status, ..KnownHost::default() });
        }
        let how = FleetArgs { canary: 1, wave: 2, within: 1, yes: true };
        let waves = Waves::new(&change, how);
        let names = |hosts: &[HostName]| hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let by_wave: Vec<Vec<String>> = waves.waves.iter().map(|wave| names(wave)).collect();
        assert_eq!(by_wave, [vec!["a"], vec!["b", "d"], vec!["e"]]);
        assert_eq!(
            (names(&waves.absent), names(&waves.after(2))),
            (vec!["c".to_owned()], vec!["e".to_owned(), "c".to_owned()])
        );
        let all = Waves::new(&change, FleetArgs { canary: 9, ..how });
        assert_eq!((all.waves.len(), all.waves[0].len()), (1, 4));
    }
}
