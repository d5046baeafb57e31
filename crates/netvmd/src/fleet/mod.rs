// SPDX-License-Identifier: Apache-2.0
//! Desired state in etcd: `netvmd --etcd URL,… --host NAME`.
//!
//! In: the host's configuration and the fragments that it names. Out: changes of what runs, as by the API's `apply`,
//! and a status with a lease.
//!
//! Two tasks. `session` talks to etcd: it claims the name, reads and watches what is wanted, keeps the lease.
//! `reconcile` talks to the daemon: it applies what is wanted, tests its health, and goes back. What they share are the
//! last wanted state and the last report, so that an etcd that is slow or away delays only news of it. The
//! configuration file of such a netvmd is the last good configuration (see [`crate::daemon::Options`]).

mod health;
mod ping;
mod problem;
mod read;
mod reconcile;
mod session;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netvm_config::{ConfigError, parse_document};
use netvm_fleet::{EtcdError, HostName, Machine};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::daemon::{Daemon, Options};
use read::{Claimed, Source, Wanted};
use reconcile::Reconciler;
use session::Session;

/// How long the first start of a host waits for etcd.
const FIRST_START: Duration = Duration::from_secs(20);
/// Between attempts of it.
const RETRY: Duration = Duration::from_secs(1);

/// A host cannot follow etcd.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// An address or a file is wrong.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// There is nothing to start with.
    #[error(
        "host {host} has no configuration to start with: {why}. Write one to etcd (netvm fleet apply), or a first one to \
         {file}"
    )]
    Nothing {
        /// The host.
        host: HostName,
        /// What etcd says.
        why: String,
        /// Where the last good configuration is kept.
        file: String,
    },
    /// Another machine has the name.
    #[error(
        "host name {host} belongs to machine {} ({}): give this one another --host. If that machine is gone: netvm fleet \
         release {host}", owner.id, owner.hostname
    )]
    Taken {
        /// The name.
        host: HostName,
        /// Who has it.
        owner: Machine,
    },
    /// Another machine has the number of this one, too.
    #[error(
        "host {host} is also machine {} now, whose /etc/machine-id is the same: one of them is a copy: give it a number of \
         its own (rm /etc/machine-id; systemd-machine-id-setup) and another --host", other.hostname
    )]
    Copy {
        /// The name.
        host: HostName,
        /// The other one.
        other: Machine,
    },
    /// The first configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The first configuration cannot be kept.
    #[error("cannot keep the configuration in {file}: {source}")]
    Keep {
        /// The file.
        file: String,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Gets the first configuration of a host from etcd, unless it has one.
///
/// # Errors
/// [`FleetError`].
pub(crate) async fn prepare(options: &Options) -> Result<(), FleetError> {
    let Some(fleet) = &options.fleet else { return Ok(()) };
    let etcd = fleet.etcd.client()?;
    if options.config.exists() {
        return Ok(());
    }
    let source = Source::new(etcd, fleet.host.clone(), &options.state_dir());
    let end = Instant::now() + FIRST_START;
    let nothing = |why: String| FleetError::Nothing {
        host: fleet.host.clone(),
        why,
        file: options.config.display().to_string(),
    };
    let document = loop {
        let why = match source.claim().await {
            Ok(Claimed::Other(owner)) => return Err(FleetError::Taken { host: fleet.host.clone(), owner }),
            Ok(Claimed::Copy(other)) => FleetError::Copy { host: fleet.host.clone(), other }.to_string(),
            Ok(Claimed::Own) => match source.read().await {
                Ok((Wanted::Config { document, .. }, _)) => break document,
                Ok((Wanted::Unreadable { error, .. }, _)) => return Err(nothing(error.message)),
                Ok(_) => "etcd has none".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() >= end {
            return Err(nothing(why));
        }
        tracing::warn!("{}", nothing(why));
        sleep(RETRY).await;
    };
    let loaded = parse_document(&document, |_| Vec::new())?;
    keep(&options.config, &document.single(&loaded.host))
        .map_err(|source| FleetError::Keep { file: options.config.display().to_string(), source })
}

/// Writes a file at once; only its owner may read it.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

/// Follows etcd until the future is dropped.
pub(crate) async fn follow(daemon: &Arc<Daemon>) {
    let options = daemon.configuration().options();
    let Some(fleet) = &options.fleet else { return };
    let etcd = match fleet.etcd.client() {
        Ok(etcd) => etcd,
        // It could at the start.
        Err(error) => return daemon.note_fleet_problem(Some(format!("etcd is not followed: {error}"))),
    };
    let source = Source::new(etcd, fleet.host.clone(), &options.state_dir());
    let (wanted_by_etcd, wanted) = watch::channel(Wanted::Unknown);
    let reconciler = Reconciler::new(daemon, wanted, &options.state_dir());
    let session = Session::new(daemon, source, wanted_by_etcd, reconciler.reports());
    tokio::join!(session.run(), reconciler.run());
}
