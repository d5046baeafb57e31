// SPDX-License-Identifier: Apache-2.0
//! The file of the audit log, and the thread that writes it, which may wait for the disk. It opens the file again when
//! its path has another one, as after logrotate(8).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netvm_api::EventKind;

use super::{Entry, shown};
use crate::events::Events;
use crate::runtime::lock;

/// Entries that wait for the disk.
const MAX_QUEUED: usize = 1024;
/// Time limit for the disk at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What the thread and others know of the file.
#[derive(Debug, Default)]
struct Losses {
    /// Entries that were not written since the last one that was.
    lost: AtomicU64,
    /// Why.
    fault: Mutex<Option<String>>,
}

/// A file that entries are appended to.
#[derive(Debug)]
pub(crate) struct AuditFile {
    path: PathBuf,
    queue: Mutex<Option<SyncSender<Vec<u8>>>>,
    writer: JoinHandle<()>,
    losses: Arc<Losses>,
}

impl AuditFile {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, if there is no thread.
    pub(super) fn start(path: &Path, events: Events) -> io::Result<Self> {
        let (queue, lines) = sync_channel(MAX_QUEUED);
        let losses = Arc::new(Losses::default());
        let mut writer = Writer {
            path: path.to_owned(),
            file: None,
            losses: Arc::clone(&losses),
            events,
            is_failing: false,
        };
        let writer = thread::Builder::new().name("netvm-audit".into()).spawn(move || writer.run(&lines))?;
        Ok(Self { path: path.to_owned(), queue: Mutex::new(Some(queue)), writer, losses })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Queues an entry. If the disk is too slow, it is lost, and counted.
    pub(super) fn write(&self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        let queue = lock(&self.queue);
        if queue.as_ref().is_none_or(|queue| queue.try_send(line).is_err()) {
            self.losses.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Why entries are missing, since the last one that was written.
    pub(super) fn problem(&self) -> Option<String> {
        let fault = lock(&self.losses.fault).clone()?;
        let lost = self.losses.lost.load(Ordering::Relaxed);
        Some(format!("audit log: {fault}: {lost} entries are lost; netvmd tries again with each entry"))
    }

    /// Writes what is queued, unless the disk hangs.
    pub(super) fn end(&self) {
        drop(lock(&self.queue).take());
        let end = Instant::now() + END_TIMEOUT;
        while !self.writer.is_finished() && Instant::now() < end {
            thread::sleep(END_TIMEOUT / 200);
        }
    }
}

struct Writer {
    path: PathBuf,
    /// `None`: to be opened.
    file: Option<File>,
    losses: Arc<Losses>,
    events: Events,
    /// Whether the last entry was lost.
    is_failing: bool,
}

impl Writer {
    fn run(&mut self, lines: &Receiver<Vec<u8>>) {
        // So that a wrong path is found at once.
        self.take(&[]);
        while let Ok(line) = lines.recv() {
            self.take(&line);
        }
    }

    fn take(&mut self, line: &[u8]) {
        let missing = self.losses.lost.load(Ordering::Relaxed);
        let note = match missing {
            0 => Vec::new(),
            n => format!("{{\"time\":\"{}\",\"lost\":{n}}}\n", jiff::Timestamp::now()).into_bytes(),
        };
        match self.append(&[&note, line].concat()) {
            Ok(()) => {
                self.losses.lost.fetch_sub(missing, Ordering::Relaxed);
                self.is_failing = false;
                *lock(&self.losses.fault) = None;
            }
            Err(error) => {
                self.file = None;
                self.losses.lost.fetch_add(u64::from(!line.is_empty()), Ordering::Relaxed);
                let fault = format!("cannot write {}: {error}", shown(&self.path));
                if !self.is_failing {
                    let message =
                        format!("audit log: {fault}: make room, or name another file by `audit` in [api]");
                    self.events.push(EventKind::AuditLost, "", message);
                }
                self.is_failing = true;
                *lock(&self.losses.fault) = Some(fault);
            }
        }
    }

    /// Appends whole lines or nothing.
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) if is_at(&file, &self.path)? => file,
            _ => OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?,
        };
        let file = self.file.insert(file);
        let before = file.metadata()?;
        let written = file.write_all(text);
        if written.is_err() && before.is_file() {
            // A part of them would damage the next line. If this fails, so does the next attempt.
            let _ = file.set_len(before.len());
        }
        written
    }
}

/// Whether an open file is the one at this path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    Ok(path.metadata().is_ok_and(|there| (there.dev(), there.ino()) == (open.dev(), open.ino())))
}

#[cfg(test)]
mod tests {
    use super::super::LoggedClient;
    use super::*;

    fn writer(path: &Path) -> Writer {
        let (losses, events) = (Arc::default(), Events::default());
        Writer { path: path.to_owned(), file: None, losses, events, is_failing: false }
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_file_that_is_moved_or_truncated_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let mut writer = writer(&path);
        writer.take(b"a\n");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::rename(&path, &moved).unwrap();
        writer.take(b"b\n");
        assert_eq!((read(&moved), read(&path)), ("a\n".to_owned(), "b\n".to_owned()));
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        writer.take(b"c\n");
        assert_eq!(read(&path), "c\n");
    }

    #[test]
    fn entries_without_a_place_are_counted_and_the_log_says_so_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/audit");
        let mut writer = writer(&path);
        for line in [&b""[..], b"a\n", b"b\n"] {
            writer.take(line);
        }
        let fault = lock(&writer.losses.fault).clone().unwrap();
        assert!(fault.contains("later/audit"), "{fault}");
        let events = writer.events.after(0);
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::AuditLost]);
        std::fs::create_dir(folder.path().join("later")).unwrap();
        writer.take(b"c\n");
        let text = read(&path);
        assert!(text.ends_with(",\"lost\":2}\nc\n"), "{text}");
        assert!(lock(&writer.losses.fault).is_none());
    }

    #[test]
    fn a_full_disk_costs_entries_and_nothing_else() {
        // Each write to it fails with ENOSPC.
        let file = AuditFile::start(Path::new("/dev/full"), Events::default()).unwrap();
        let client = LoggedClient { uid: Some(0), ..LoggedClient::default() };
        for _ in 0..3 * MAX_QUEUED {
            file.write(&Entry::of(client.clone(), "socket"));
        }
        file.end();
        assert!(file.writer.is_finished());
        let problem = file.problem().unwrap();
        assert!(problem.contains("No space left on device") && problem.contains("3072 entries"), "{problem}");
    }
}
