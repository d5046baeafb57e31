// SPDX-License-Identifier: Apache-2.0
//! Processes of NFs and VMs that netvmd starts: their sandboxes, limits, cores and output, and why they ended.

pub(crate) mod backoff;
mod cgroup;
pub(crate) mod cores;
mod output;
pub(crate) mod program;
pub(crate) mod sandbox;
pub(crate) mod spawn;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) use sandbox::Rights;
pub use sandbox::{Confinement, FilterError};
pub use spawn::ProcessSpecError;

/// A process that netvmd started; killed on drop if its command has `kill_on_drop`.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    /// The task that reads the standard error to its end and returns the error line.
    error_line: Option<JoinHandle<Option<String>>>,
}

impl Process {
    /// `label` begins its lines in the log.
    pub(crate) fn new(mut child: Child, label: &str) -> Self {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let log = |label: String| move |line: &str| tracing::info!("{label}: | {line}");
        if let Some(out) = out {
            tokio::spawn(output::follow(out, log(label.to_owned())));
        }
        let error_line = err.map(|err| tokio::spawn(output::follow(err, log(label.to_owned()))));
        Self { child, error_line }
    }

    /// Kills it and waits for its end.
    pub(crate) async fn kill(&mut self) {
        if let Err(error) = self.child.kill().await {
            tracing::warn!("cannot kill process {}: {error}", self.child.id().unwrap_or_default());
        }
    }

    /// The exit reason: status or signal, and its error line.
    pub(crate) async fn exit_reason(&mut self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            // The error line cannot explain SIGKILL.
            (None, Some(libc::SIGKILL)) => return "killed by signal 9".to_owned(),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        };
        let error_line = match &mut self.error_line {
            // The pipe already has all output, unless another process also writes to it.
            Some(error_line) => {
                timeout(Duration::from_millis(100), error_line).await.ok().and_then(Result::ok).flatten()
            }
            None => None,
        };
        error_line.map_or_else(|| how.clone(), |error_line| format!("{how}: {error_line}"))
    }
}
