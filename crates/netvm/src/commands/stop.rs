// SPDX-License-Identifier: Apache-2.0
//! `netvm stop`.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use netvm_api::{Client, Done, StopDaemon};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::change::confirm;
use crate::error::CliError;
use crate::output::Output;

/// Time limit in seconds for netvmd to end. It gives NFs 6 s, NFs in VMs more.
const LIMIT_S: u64 = 60;

/// Stops netvmd, and waits until it has ended.
pub async fn stop(client: &Client, output: &Output, yes: bool, purge: bool) -> Result<(), CliError> {
    if !yes && !output.json && io::stdin().is_terminal() {
        let status = client.status().await?;
        let file = status.config.map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
        let question = format!(
            "netvmd (process {}, {file}) and its NFs stop, and with them all traffic; ordinary guests keep running. stop?",
            status.pid
        );
        if !confirm(output, &question)? {
            return Err(CliError::NotStopped);
        }
    }
    // Before the request, as another process could get the number afterwards.
    let pid = client.process().await?;
    let process = pid.and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
    client.stop(StopDaemon { purge }).await?;
    match process {
        Some(Ok(process)) => until_ended(&process)?,
        Some(Err(Errno::SRCH)) => {}
        // It runs in another PID namespace, or the kernel is older than 5.3.
        Some(Err(_)) | None => {
            return output.done(&Done {
                message: "netvmd is stopping; this program cannot detect when it has ended".to_owned(),
            });
        }
    }
    output.done(&Done { message: "netvmd has ended".to_owned() })
}

/// Waits until a process has ended. Blocks the thread, which has nothing else to do.
fn until_ended(process: &OwnedFd) -> Result<(), CliError> {
    let limit = Timespec { tv_sec: LIMIT_S.cast_signed(), tv_nsec: 0 };
    match retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit))) {
        Ok(0) => Err(CliError::StillThere(LIMIT_S)),
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
