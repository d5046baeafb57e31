// SPDX-License-Identifier: Apache-2.0
//! The file and the thread that writes it, which may wait for the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Shared;

/// Batches that wait for the disk: some 4 MiB.
const MAX_QUEUED: usize = 64;

/// Time limit for the disk at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Some lines.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) lines: u64,
}

/// The queue to the file.
pub(super) struct LogFile {
    queue: SyncSender<Batch>,
    writer: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl LogFile {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, if there is no thread.
    pub(super) fn start(path: &Path, shared: &Arc<Shared>) -> io::Result<Self> {
        let (queue, batches) = sync_channel(MAX_QUEUED);
        let mut writer = Writer { path: path.to_owned(), file: None, shared: Arc::clone(shared) };
        let name = "netvm-conn-file".to_owned();
        let writer = thread::Builder::new().name(name).spawn(move || writer.run(&batches))?;
        Ok(Self { queue, writer, shared: Arc::clone(shared) })
    }

    /// Queues lines. If the disk is too slow, they are lost.
    pub(super) fn write(&self, batch: Batch) {
        let lines = batch.lines;
        if self.queue.try_send(batch).is_err() {
            self.shared.note_lost(lines, None);
        }
    }

    /// Writes what is queued, unless the disk hangs.
    pub(super) fn end(self) {
        drop(self.queue);
        let end = Instant::now() + LAST_WAIT;
        while !self.writer.is_finished() && Instant::now() < end {
            thread::sleep(LAST_WAIT / 200);
        }
    }
}

struct Writer {
    path: PathBuf,
    /// `None`: to be opened.
    file: Option<File>,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&mut self, batches: &Receiver<Batch>) {
        // So that a wrong path is found at once.
        self.take(&Batch::default());
        while let Ok(batch) = batches.recv() {
            self.take(&batch);
        }
    }

    fn take(&mut self, batch: &Batch) {
        if self.shared.reopens.swap(false, Ordering::Relaxed) {
            self.file = None;
        }
        match self.append(&batch.text) {
            Ok(()) => {
                self.shared.lines.fetch_add(batch.lines, Ordering::Relaxed);
            }
            Err(error) => {
                // It may have been replaced, or its file system mounted, when the next lines come.
                self.file = None;
                let fault = format!("{}: {error}", self.path.display());
                tracing::debug!("log of connections: {fault}");
                self.shared.note_lost(batch.lines, Some(fault));
            }
        }
    }

    /// Appends whole lines or nothing.
    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(OpenOptions::new().create(true).append(true).open(&self.path)?),
        };
        let before = file.metadata()?;
        let written = file.write_all(text);
        if written.is_err() && before.is_file() {
            // A part of them would damage the next line. If this fails, so does the next attempt.
            let _ = file.set_len(before.len());
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Batch {
        Batch { text: format!("{text}\n").into_bytes(), lines: 1 }
    }

    #[test]
    fn a_file_is_appended_to_and_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let shared = Arc::new(Shared::new());
        let mut writer = Writer { path: path.clone(), file: None, shared: Arc::clone(&shared) };
        writer.take(&line("a"));
        std::fs::rename(&path, &moved).unwrap();
        writer.take(&line("b"));
        shared.reopens.store(true, Ordering::Relaxed);
        writer.take(&line("c"));
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "a\nb\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "c\n");
        assert_eq!((shared.lines.load(Ordering::Relaxed), shared.lost.load(Ordering::Relaxed)), (3, 0));
    }

    #[test]
    fn lines_without_a_folder_are_counted_and_written_once_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/log");
        let shared = Arc::new(Shared::new());
        let mut writer = Writer { path: path.clone(), file: None, shared: Arc::clone(&shared) };
        writer.take(&line("a"));
        assert!(shared.fault.lock().unwrap().as_ref().unwrap().contains("later/log"));
        std::fs::create_dir(folder.path().join("later")).unwrap();
        writer.take(&line("b"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\n");
        assert_eq!((shared.lines.load(Ordering::Relaxed), shared.lost.load(Ordering::Relaxed)), (1, 1));
    }
}
