//! A process that netvmd has started: what it says goes to the log, and how it ended is put in words.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::output;

/// A process that netvmd has started. Killed when dropped, if its command said so.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Follows its standard error to the end.
    words: Option<JoinHandle<Option<String>>>,
}

impl Process {
    /// `label` is what its lines in the log begin with.
    pub(crate) fn new(mut child: Child, label: &str) -> Self {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let log = |label: String| move |line: &str| tracing::info!("{label}: | {line}");
        if let Some(out) = out {
            tokio::spawn(output::follow(out, log(label.to_owned())));
        }
        let words = err.map(|err| tokio::spawn(output::follow(err, log(label.to_owned()))));
        Self { child, words }
    }

    /// Ends it at once and waits until it has gone.
    pub(crate) async fn kill(&mut self) {
        if let Err(error) = self.child.kill().await {
            tracing::warn!("process {} cannot be killed: {error}", self.child.id().unwrap_or_default());
        }
    }

    /// How it ended, and what it said of that.
    pub(crate) async fn obituary(&mut self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            // Nothing that it said foresaw that.
            (None, Some(libc::SIGKILL)) => return "killed by signal 9".to_owned(),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        };
        let words = match &mut self.words {
            // What it wrote is in the pipe already, unless somebody else has that, too.
            Some(words) => {
                timeout(Duration::from_millis(100), words).await.ok().and_then(Result::ok).flatten()
            }
            None => None,
        };
        words.map_or_else(|| how.clone(), |words| format!("{how}: {words}"))
    }
}
