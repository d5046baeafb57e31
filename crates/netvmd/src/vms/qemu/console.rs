// SPDX-License-Identifier: Apache-2.0
//! The last lines of a guest's console, which help to find out why it does not boot. QEMU copies the console into a
//! pipe. netvmd keeps the lines in memory, so a guest cannot fill a disk.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Number of lines.
const LINES: usize = 4;
/// Longest line in characters.
const MAX_LINE_CHARS: usize = 120;

/// The last lines of a console.
#[derive(Clone, Debug, Default)]
pub(in crate::vms) struct Console(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    whole: VecDeque<String>,
    line: String,
    /// Inside a terminal escape sequence.
    is_escaped: bool,
}

impl Console {
    /// A console, and the write end of its pipe for QEMU.
    pub(in crate::vms) fn new() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        let mut reader = Receiver::from_owned_fd(reader.into())?;
        let console = Self::default();
        let lines = Arc::clone(&console.0);
        tokio::spawn(async move {
            let mut bytes = [0; 4096];
            // Reads to the end: QEMU would block on a full pipe.
            while let Ok(read @ 1..) = reader.read(&mut bytes).await {
                lines.lock().unwrap_or_else(PoisonError::into_inner).handle_event(&bytes[..read]);
            }
        });
        Ok((console, writer.into()))
    }

    /// A description of the last output.
    pub(in crate::vms) fn last_output(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Some(lines.line.trim_end()).filter(|line| !line.is_empty());
        let all: Vec<_> = lines.whole.iter().map(String::as_str).chain(last).collect();
        if all.is_empty() {
            return "its console shows nothing (Linux needs `console=ttyS0`)".to_owned();
        }
        format!("last console output: {}", all.join(" | "))
    }
}

impl Lines {
    fn handle_event(&mut self, bytes: &[u8]) {
        for c in bytes.iter().map(|byte| char::from(*byte)) {
            match c {
                '\u{1b}' => self.is_escaped = true,
                // ECMA-48, 5.4: a control sequence ends with one of these.
                '@'..='~' if self.is_escaped && c != '[' => self.is_escaped = false,
                _ if self.is_escaped => {}
                '\n' => self.finish(),
                ' '..='~' if self.line.len() < MAX_LINE_CHARS => self.line.push(c),
                _ => {}
            }
        }
    }

    fn finish(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.trim().is_empty() {
            return;
        }
        if self.whole.len() == LINES {
            self.whole.pop_front();
        }
        self.whole.push_back(line.trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_cut_and_cleaned() {
        let mut lines = Lines::default();
        lines.handle_event(b"one\r\ntwo\r\n\r\n\x1b[2J\x1b[31mthree\x1b[0m\xff\x07\r\nfour\r\nfive\r\n");
        lines.handle_event(&[b'x'; 5000]);
        assert_eq!(lines.whole, ["two", "three", "four", "five"]);
        assert_eq!(lines.line.len(), MAX_LINE_CHARS);
        let console = Console(Arc::new(Mutex::new(lines)));
        assert!(console.last_output().starts_with("last console output: two | three | four | five | xxx"));
        assert!(Console::default().last_output().contains("console=ttyS0"));
    }
}
