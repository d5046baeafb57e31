// SPDX-License-Identifier: Apache-2.0
//! The files of a replay, and what is in the input: `-` is standard input or output, and a replay that fails leaves the
//! output as it was.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use netvm_capture::{CaptureReader, CaptureWriter, WriterOptions};
use tempfile::{Builder, NamedTempFile, TempPath};

use super::error::ReplayError;
use super::limits::{HEADROOM, MAX_BUFFER};

/// What a replay does with frames of which the capture has only the beginning (`tcpdump -s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CutFrames {
    /// Plays what there is
    #[default]
    Play,
    /// Appends zeros up to the length on the wire
    Pad,
    /// Leaves them out
    Skip,
}

/// A capture to read. A replay reads it twice, so standard input is copied to a file.
pub(super) struct Input {
    path: PathBuf,
    _stored: Option<TempPath>,
}

/// A capture to write.
pub(super) struct Output {
    wanted: PathBuf,
    /// A temporary file beside the output, renamed at the end; `None` for a device or pipe, which is written directly.
    beside: Option<NamedTempFile>,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Input {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let is_pipe = fs::metadata(path).is_ok_and(|at| !at.is_file());
        if !is_standard(path) && !is_pipe {
            return Ok(Self { path: path.to_owned(), _stored: None });
        }
        let mut stored = NamedTempFile::with_prefix("netvm-replay-")?;
        if is_standard(path) {
            io::copy(&mut io::stdin().lock(), &mut stored)?;
        } else {
            io::copy(&mut File::open(path)?, &mut stored)?;
        }
        let stored = stored.into_temp_path();
        Ok(Self { path: stored.to_path_buf(), _stored: Some(stored) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Output {
    pub(super) fn create(wanted: &Path) -> io::Result<Self> {
        let there = fs::metadata(wanted).ok().filter(|_| !is_standard(wanted));
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Self { wanted: wanted.to_owned(), beside: None });
        }
        // The format follows from the name.
        let suffix = wanted.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
        let mode = there.map_or(0o666, |there| there.permissions().mode() & 0o777);
        let mut builder = Builder::new();
        builder.prefix(".netvm-replay-").suffix(suffix.as_deref().unwrap_or(".pcap"));
        builder.permissions(Permissions::from_mode(mode));
        let folder = wanted.parent().filter(|folder| !folder.as_os_str().is_empty());
        let beside = match folder {
            _ if is_standard(wanted) => builder.tempfile()?,
            Some(folder) => builder.tempfile_in(folder)?,
            None => builder.tempfile_in(".")?,
        };
        Ok(Self { wanted: wanted.to_owned(), beside: Some(beside) })
    }

    /// The file to write.
    pub(super) fn path(&self) -> &Path {
        self.beside.as_ref().map_or(&self.wanted, NamedTempFile::path)
    }

    /// Renames the temporary file to the output.
    pub(super) fn finish(self) -> io::Result<()> {
        match self.beside {
            None => Ok(()),
            Some(beside) if is_standard(&self.wanted) => {
                // Another descriptor wrote the file, so it is opened again for reading.
                io::copy(&mut File::open(beside.path())?, &mut io::stdout().lock()).map(drop)
            }
            Some(beside) => beside.persist(&self.wanted).map(drop).map_err(|failed| failed.error),
        }
    }
}

/// The longest frame that a buffer holds.
const MAX_FRAME: usize = (MAX_BUFFER - HEADROOM as u32) as usize;

/// Frames of one kind: how many there are, and where the first one is.
#[derive(Debug, Default)]
struct Found {
    count: u64,
    first: String,
}

impl Found {
    fn add(&mut self, at: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = at();
        }
        self.count += 1;
    }
}

/// The result of the first reading of a capture.
#[derive(Debug)]
pub(super) struct Contents {
    /// The smallest buffer that holds its longest frame with headroom before and after.
    pub(super) buffer_size: u32,
    /// The frames to replay, if they are not those of the capture.
    copy: Option<TempPath>,
    /// Frames longer than any buffer.
    too_long: Found,
    /// Frames that cannot be read; the first is an error.
    bad: Found,
    /// Frames of which the capture has only the beginning.
    cut: Found,
    cut_frames: CutFrames,
    /// Why the rest of the capture is not read.
    end: Option<String>,
}

impl Contents {
    pub(super) fn of(path: &Path, cut_frames: CutFrames) -> Result<Self, ReplayError> {
        let mut reader = CaptureReader::open(path)?;
        let mut contents = Self {
            buffer_size: 0,
            copy: None,
            too_long: Found::default(),
            bad: Found::default(),
            cut: Found::default(),
            cut_frames,
            end: None,
        };
        let mut writer = contents.start_copy(&reader)?;
        let (mut longest, mut data) = (0, Vec::new());
        loop {
            let next = reader.next_frame().map(|frame| {
                frame.map(|frame| {
                    data.clear();
                    data.extend_from_slice(frame.data);
                    (frame.timestamp, frame.orig_len)
                })
            });
            let (time, original) = match next {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) if reader.is_done() => {
                    contents.end = Some(error.to_string());
                    break;
                }
                Err(error) => {
                    contents.bad.add(|| error.to_string());
                    continue;
                }
            };
            let place = || format!("frame {}, at byte {}", reader.frames(), reader.offset());
            let on_wire = original as usize;
            let length = if cut_frames == CutFrames::Pad { on_wire.max(data.len()) } else { data.len() };
            if length > MAX_FRAME {
                contents.too_long.add(|| format!("{}, with {length}", place()));
                continue;
            }
            if data.len() < on_wire {
                contents.cut.add(|| format!("{}: {} of {on_wire} bytes", place(), data.len()));
                if cut_frames == CutFrames::Skip {
                    continue;
                }
                data.resize(length, 0);
            }
            longest = longest.max(length);
            if let Some(writer) = &mut writer {
                writer
                    .write(time, original, &data)
                    .map_err(|error| ReplayError::Capture(error.to_string()))?;
            }
        }
        let finished = writer.map_or(Ok(()), CaptureWriter::finish);
        finished.map_err(|error| ReplayError::Capture(error.to_string()))?;
        let around = usize::from(HEADROOM) + 64;
        let size = (longest + around).next_multiple_of(64).max(2048);
        contents.buffer_size = u32::try_from(size).unwrap_or(MAX_BUFFER).min(MAX_BUFFER);
        Ok(contents)
    }

    /// A writer of the copy, unless the capture is replayed as it is.
    fn start_copy(&mut self, reader: &CaptureReader) -> Result<Option<CaptureWriter>, ReplayError> {
        if self.cut_frames == CutFrames::Play {
            return Ok(None);
        }
        let input = |source| ReplayError::Input { path: reader.path().to_owned(), source };
        let path = NamedTempFile::with_prefix("netvm-replay-").map_err(input)?.into_temp_path();
        let writer = CaptureWriter::create(&path, WriterOptions::for_output(&path, reader));
        let writer = writer.map_err(|error| ReplayError::Capture(error.to_string()))?;
        self.copy = Some(path);
        Ok(Some(writer))
    }

    /// The frames to replay, which may be a copy of those of `input`.
    pub(super) fn path<'a>(&'a self, input: &'a Path) -> &'a Path {
        self.copy.as_deref().unwrap_or(input)
    }

    /// Whether these frames are without those that cannot be replayed.
    pub(super) const fn is_copied(&self) -> bool {
        self.copy.is_some()
    }

    /// Frames that are not replayed, as far as they can be counted.
    pub(super) fn skipped(&self) -> u64 {
        let cut = if self.cut_frames == CutFrames::Skip { self.cut.count } else { 0 };
        self.too_long.count + self.bad.count + cut + u64::from(self.end.is_some())
    }

    pub(super) fn warnings(&self, path: &Path) -> Vec<String> {
        let file = path.display();
        let mut warnings = Vec::new();
        let Self { too_long, bad, cut, end, .. } = self;
        if too_long.count > 0 {
            warnings.push(format!(
                "{file}: skipped {} of more than {MAX_FRAME} bytes, the most that a buffer holds (the first is {})",
                frames(too_long.count),
                too_long.first
            ));
        }
        if bad.count > 0 {
            warnings.push(format!(
                "skipped {} that cannot be read; the first: {}",
                frames(bad.count),
                bad.first
            ));
        }
        if cut.count > 0 {
            let these = frames(cut.count);
            let first = &cut.first;
            warnings.push(match self.cut_frames {
                CutFrames::Play => format!(
                    "{file}: {these} cut at capture (the first is {first}): NFs see a packet whose lengths exceed it, as \
                     malformed; capture whole frames, as `tcpdump -s 0` does, or give `--cut-frames pad` or `skip`"
                ),
                CutFrames::Pad => format!(
                    "{file}: {these} cut at capture (the first is {first}): padded with zeros, so that checksums over them \
                     are wrong"
                ),
                CutFrames::Skip => format!("{file}: skipped {these} cut at capture (the first is {first})"),
            });
        }
        warnings.extend(end.iter().map(|end| format!("{end}: replayed what comes before")));
        warnings
    }
}

fn frames(count: u64) -> String {
    if count == 1 { "1 frame".to_owned() } else { format!("{count} frames") }
}
