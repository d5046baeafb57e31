// SPDX-License-Identifier: Apache-2.0
//! Copies an NF's standard output and error to the log. Limits the lines' length and rate, so that an NF cannot fill
//! the disk.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::events::{Bucket, Rate};

/// Longest logged line in bytes.
const MAX_LINE_BYTES: usize = 1024;
/// Longest reported error line in characters.
const MAX_ERROR_CHARS: usize = 200;
/// Logged lines: so many at once, then ten a second.
const LINES: Rate = Rate { burst: 200, interval: Duration::from_millis(100) };

/// Passes each line to `log` until the stream ends. Returns the line that best explains the NF's end, if any.
pub(super) async fn follow(mut stream: impl AsyncRead + Unpin, mut log: impl FnMut(&str)) -> Option<String> {
    let mut lines = Lines::default();
    let mut error_line = ErrorLine::default();
    let mut bytes = [0; 4096];
    let mut log = |line: &str| {
        error_line.consider(line);
        log(line);
    };
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        lines.take(&bytes[..read], Instant::now(), &mut log);
    }
    lines.end(&mut log);
    error_line.0
}

/// The last line that says what is fatal (as DPDK's do before their last one, which says nothing), else the last one
/// that mentions an error, else the last line.
#[derive(Debug, Default)]
struct ErrorLine(Option<String>);

impl ErrorLine {
    fn consider(&mut self, line: &str) {
        let rank = |line: &str| {
            let line = line.to_ascii_lowercase();
            let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
            if says(&["fatal"]) { 2 } else { i32::from(says(&["error", "panicked"])) }
        };
        if self.0.as_deref().is_none_or(|known| rank(line) >= rank(known)) {
            self.0 = Some(line.chars().take(MAX_ERROR_CHARS).collect());
        }
    }
}

#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    bucket: Option<Bucket>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], now: Instant, log: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => self.finish(now, log),
                _ if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn finish(&mut self, now: Instant, log: &mut impl FnMut(&str)) {
        if self.line.trim_ascii().is_empty() {
            self.line.clear();
            return;
        }
        let bucket = self.bucket.get_or_insert_with(|| Bucket::new(LINES, now));
        if let Some(suppressed) = bucket.allows(now) {
            report_suppressed(suppressed, log);
            log(&printable(&self.line));
        }
        self.line.clear();
    }

    fn end(&mut self, log: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            log(&printable(&self.line));
        }
        report_suppressed(self.bucket.map_or(0, |bucket| bucket.suppressed()), log);
    }
}

fn report_suppressed(lines: u64, log: &mut impl FnMut(&str)) {
    if lines > 0 {
        log(&format!("({lines} more lines suppressed)"));
    }
}

/// Replaces what could affect the reader's terminal, or cannot be seen.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    netvm_text::lines(text.trim_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_cleaned_and_limited() {
        let mut seen = Vec::new();
        let mut log = |line: &str| seen.push(line.to_owned());
        let (mut lines, now) = (Lines::default(), Instant::now());
        lines.take(b"first\n \n\nsec", now, &mut log);
        lines.take(b"ond\r\n\x1b[2Jclear\n", now, &mut log);
        lines.take(&[b'x'; 5000], now, &mut log);
        lines.take(b"\n", now, &mut log);
        for _ in 0..1000 {
            lines.take(b"again\n", now, &mut log);
        }
        lines.take(b"later\nlost\nunfinished", now + LINES.interval, &mut log);
        lines.end(&mut log);
        assert_eq!(seen[..3], ["first", "second", "\u{fffd}[2Jclear"]);
        assert_eq!(seen[3].len(), MAX_LINE_BYTES);
        assert_eq!(seen[4..200], vec!["again"; 196]);
        assert_eq!(
            seen[200..],
            ["(804 more lines suppressed)", "later", "unfinished", "(1 more lines suppressed)"]
        );
    }

    #[test]
    fn the_error_line_is_found() {
        let found = |text: &str| {
            let mut error_line = ErrorLine::default();
            text.lines().for_each(|line| error_line.consider(line));
            error_line.0
        };
        assert_eq!(found(""), None);
        assert_eq!(found("started\nloading\n").as_deref(), Some("loading"));
        let clap = "loading\nerror: --rules is missing\nUsage: nf --rules <FILE>\n";
        assert_eq!(found(clap).as_deref(), Some("error: --rules is missing"));
        let dpdk =
            "EAL: FATAL: Cannot get hugepage information.\nEAL: Error - exiting with code: 1\n  Cause: no\n";
        assert_eq!(found(dpdk).as_deref(), Some("EAL: FATAL: Cannot get hugepage information."));
    }
}
