// SPDX-License-Identifier: Apache-2.0
//! `netvm capture`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_api::{CaptureFile, CaptureRequest, Client};
use netvm_capture_client::{
    CaptureError, Files, Limits, Output as CaptureOutput, Session, Summary, Target, compile, run,
    write_held_packets,
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::CaptureArgs;
use crate::error::CliError;
use crate::format::count;
use crate::output::Output;

/// Captures until a limit or a signal.
pub async fn capture(client: &Client, output: &Output, arguments: CaptureArgs) -> Result<(), CliError> {
    if client.socket().is_none() {
        return download(client, arguments).await;
    }
    let filter = compile(&arguments.filter.join(" "))?;
    let request = CaptureRequest {
        at: arguments.at,
        dropped: arguments.dropped,
        reasons: arguments.reason,
        filter,
        snaplen: arguments.snaplen,
        buffer: arguments.buffer.unwrap_or_default() << 20,
    };
    let target = match arguments.device {
        Some(name) => Target::Interface(name),
        None => target(arguments.write, arguments.ring),
    };
    // Before the capture starts, which costs the workers time.
    let mut to = CaptureOutput::open(target.clone()).map_err(CliError::CaptureTarget)?;
    let session = Session::start(client, &request).await?;
    if target != Target::Lines {
        let programs = match &target {
            Target::Interface(name) => format!(" for programs that listen at {name}"),
            _ => String::new(),
        };
        eprintln!("capturing at {}{programs}; Ctrl-C ends it", points_of(&session));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let seen = Arc::clone(&stop);
    let work = tokio::task::spawn_blocking(move || {
        let limits = Limits { packets: arguments.count, stop: Some(&stop) };
        let outcome = run(session, &mut to, limits);
        (outcome, to.name())
    });
    let over = async {
        match arguments.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(work, over);
    let mut is_over = false;
    let (outcome, name) = loop {
        tokio::select! {
            done = &mut work => break done.map_err(|error| CliError::Output(std::io::Error::other(error)))?,
            () = &mut over, if !is_over => {
                is_over = true;
                seen.store(true, Ordering::Relaxed);
            }
            _ = interrupt.recv() => seen.store(true, Ordering::Relaxed),
            _ = terminate.recv() => seen.store(true, Ordering::Relaxed),
        }
    };
    match outcome {
        Ok(summary) => tell(output, &target, &name, summary),
        // The reader, such as `head`, has closed the pipe.
        Err(error) if error.is_closed_pipe() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has a netvmd on another machine write the file, and receives it.
async fn download(client: &Client, arguments: CaptureArgs) -> Result<(), CliError> {
    let is_file = arguments.device.is_none() && arguments.ring.is_none() && arguments.buffer.is_none();
    let Some(path) = arguments.write.filter(|_| is_file) else { return Err(CliError::RemoteCapture) };
    let request = CaptureFile {
        at: arguments.at,
        dropped: arguments.dropped,
        reasons: arguments.reason,
        filter: arguments.filter.join(" "),
        snaplen: arguments.snaplen,
        packets: arguments.count.unwrap_or(CaptureFile::MAX_PACKETS),
        seconds: arguments.seconds.unwrap_or(CaptureFile::MAX_SECONDS),
    };
    let mut stream = client.capture_file(&request).await?;
    let mut to: Box<dyn Write> = if path == Path::new("-") {
        Box::new(std::io::stdout().lock())
    } else {
        Box::new(File::create(&path).map_err(CliError::CaptureTarget)?)
    };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    loop {
        let chunk = tokio::select! {
            chunk = stream.next() => chunk?,
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
        };
        let Some(chunk) = chunk else { return to.flush().map_err(CliError::CaptureTarget) };
        to.write_all(&chunk).and_then(|()| to.flush()).map_err(CliError::CaptureTarget)?;
    }
}

/// Shows the packets that an NF held when it ended.
pub async fn held_packets(
    client: &Client,
    output: &Output,
    role: &str,
    write: Option<PathBuf>,
) -> Result<(), CliError> {
    let last = client.held_packets(role).await?;
    if output.json {
        return output.value(&last);
    }
    let target = target(write, None);
    let mut to = CaptureOutput::open(target.clone()).map_err(CliError::CaptureTarget)?;
    let (count, instance) = (last.packets.len(), last.instance);
    eprintln!(
        "{count} packets that instance {instance} of NF {role} held when it ended, in the order in which it took them"
    );
    match write_held_packets(&last, &mut to) {
        Err(error) if !error.is_closed_pipe() => Err(error.into()),
        _ => Ok(()),
    }
}

fn target(write: Option<PathBuf>, files: Option<Files>) -> Target {
    match write {
        None => Target::Lines,
        Some(path) if path == Path::new("-") => Target::Stdout,
        Some(path) => Target::File(path, files),
    }
}

/// The capture points, in words.
fn points_of(session: &Session) -> String {
    match session.info().interfaces.as_slice() {
        [only] => only.description.clone(),
        [first, second] => format!("{} and {}", first.description, second.description),
        all => format!("{} capture points", all.len()),
    }
}

/// The result, on standard error: standard output may have the packets.
fn tell(output: &Output, target: &Target, name: &str, summary: Summary) -> Result<(), CliError> {
    let Summary { packets, bytes, seen, lost, missed, .. } = summary;
    if output.json {
        let text =
            json!({ "packets": packets, "bytes": bytes, "seen": seen, "lost": lost, "missed": missed });
        eprintln!("{text:#}");
        return Ok(());
    }
    let to = if *target == Target::Lines { String::new() } else { format!(" to {name}") };
    let (packets, seen) = (count(packets), count(seen));
    eprintln!("{packets} packets captured{to}, of {seen} that passed");
    if lost > 0 {
        eprintln!(
            "{} packets were not captured because they were not read in time: try a filter, --snaplen or --buffer",
            count(lost)
        );
    }
    if missed > 0 {
        eprintln!(
            "{} packets were not filtered because filters may take a quarter of a worker's time: try a shorter filter, or none",
            count(missed)
        );
    }
    Ok(())
}

impl From<CaptureError> for CliError {
    fn from(error: CaptureError) -> Self {
        Self::Capture(Box::new(error))
    }
}
